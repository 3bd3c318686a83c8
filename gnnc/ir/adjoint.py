"""Reverse-mode differentiation of values of one builder: `pullback`.

Every operation's own rule stands in the op table; here the cotangents are summed, brought down to each operand's dims and space,
and handed on. The result is ordinary IR made of the same operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Builder
from .core import Value, topological
from .ops import get_op
from .types import TypeRuleError


def fit(b: Builder, g: Value, like: Value) -> Value:
    """Cotangent `g` of a broadcast use of `like`, summed down to the dims and space of `like` (and cast to a float's ``acc``)."""
    want = like.type
    while len(g.type.dims) > len(want.dims):
        g = b.sum(g, axis=-len(g.type.dims))
    for axis in range(-len(want.dims), 0):
        if g.type.dims[axis] != want.dims[axis]:
            assert want.dims[axis] == 1, (g.type, want)
            g = b.sum(g, axis=axis, keepdim=True)
    if len(g.type.dims) < len(want.dims) or g.type.dims != want.dims:
        g = b.broadcast(g, want.dims)
    if g.type.space != want.space:
        g = b.op("reduce_rows", g) if want.space == "param" else b.op("spread", g, space=want.space)
    return g if g.type.dtype is want.dtype.acc else b.cast(g, want.dtype.acc)


def pullback(b: Builder, seeds: Sequence[tuple[Value, Value]], wrt: Sequence[Value]) -> list[Value | None]:
    """Cotangents of `wrt` given (value, cotangent) seeds: sum over seeds of J^T g. None where nothing reaches.

    Only the part of the graph between `wrt` and the seeds is visited, so a gradient nobody asks for costs nothing. Raises
    TypeRuleError ``no-gradient`` when an operation on the way has none.
    """
    order = topological([v for v, _ in seeds])
    active: set[Value] = set(wrt)
    for v in order:
        if v.type.dtype.is_float and any(o in active for o in v.operands):
            active.add(v)
    cotangent: dict[Value, Value] = {}

    def accumulate(v: Value, g: Value) -> None:
        if v in active:
            g = fit(b, g, v)
            cotangent[v] = b.add(cotangent[v], g) if v in cotangent else g

    for v, g in seeds:
        accumulate(v, g)
    for v in reversed(order):
        if v not in cotangent or not v.operands or not any(o in active for o in v.operands):
            continue
        rule = get_op(v.op).adjoint
        if rule is None:
            raise TypeRuleError("no-gradient", f"{v.op} has no gradient")
        with b.at(v.loc):
            try:
                found = rule(b, v, cotangent[v])
            except TypeRuleError as e:
                e.loc = e.loc or v.loc
                raise
            for o, go in zip(v.operands, found, strict=True):
                if go is not None:
                    accumulate(o, go)
    return [cotangent.get(v) for v in wrt]
