"""The oracle: evaluates any function or plan of the IR with numpy, floats in float64, one operation at a time.

It is slow and plain on purpose. The built-in folds have direct implementations here (`direct_folds.py`), independent of their
monoids, so that the monoids themselves are checked; a user's monoid runs through `run_monoid`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .core import Func, Value
from .direct_folds import DIRECT
from .monoid import Monoid, find_monoid
from .ops import OPS, Array, EvalContext, GraphArrays, RuleContext, align
from .structure import rule_context
from .sweep import PlanSpec
from .types import DType, Type
from .verifier import graph_buffer

_NOWHERE = EvalContext(GraphArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0), RuleContext())  # for functions of folds

NUMPY = {"bool": np.bool_, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "i32": np.int32, "i64": np.int64}


def numpy_dtype(d: DType) -> type[np.generic]:
    """The dtype of the interpreter's arrays: float64 for every float, the exact one otherwise."""
    return np.float64 if d.is_float else NUMPY[d.name]


def interpret(func: Func, graph: GraphArrays, args: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
    """The results of `func` on `graph`.

    `args`: arrays by parameter name, or in parameter order; ``[rows, *dims]``, a ``param`` ``[*dims]``. Results have the same form.
    Floats are float64 whatever their dtype. Raises ValueError when an argument is missing or has another shape.
    """
    if func.square and graph.num_src != graph.num_dst:
        raise ValueError(f"{func.name} needs a square graph, not {graph.num_src} sources and {graph.num_dst} destinations")
    ctx = EvalContext(graph, rule_context(func))
    env = _bind(func, graph, args)
    with np.errstate(all="ignore"):
        for v in func.body:
            out = np.asarray(OPS[v.op].evaluate([env[o] for o in v.operands], v, ctx))
            env[v] = _in_form(out, v.type, graph)
    return [_to_caller(env[r], r.type) for r in func.results]


def interpret_plan(plan: PlanSpec, graph: GraphArrays, args: Mapping[str, Any] | Sequence[Any]) -> dict[str, Array]:
    """The plan's results by name, its steps run in order over named buffers. `args` as for `interpret`."""
    if not isinstance(args, Mapping):
        args = dict(zip((n for n, _ in plan.params), args, strict=True))
    buffers: dict[str, Any] = dict(args)
    for step in plan.steps:
        for p in step.func.params:
            if p.name not in buffers and (graph_buffer(p.name, plan.square)) is not None:
                buffers[p.name] = graph.degree("dst" if p.name.startswith("$in_degree") else "src")
        results = interpret(step.func, graph, {p.name: buffers[p.name] for p in step.func.params if p.name in buffers})
        buffers |= dict(zip(step.func.result_names, results, strict=True))
    return {n: np.asarray(buffers[n]) for n, _ in plan.results}


def _bind(func: Func, graph: GraphArrays, args: Mapping[str, Any] | Sequence[Any]) -> dict[Value, Array]:
    if not isinstance(args, Mapping):
        if len(args) != len(func.params):
            raise ValueError(f"{func.name} takes {len(func.params)} arguments, not {len(args)}")
        args = {p.name: a for p, a in zip(func.params, args, strict=True)}
    env = {}
    for p in func.params:
        if p.name not in args:
            raise ValueError(f"{func.name} needs the argument {p.name!r}")
        a = np.asarray(args[p.name]).astype(numpy_dtype(p.type.dtype))
        want = p.type.dims if p.type.space == "param" else (graph.rows(p.type.space), *p.type.dims)
        if a.shape != want:
            raise ValueError(f"argument {p.name!r} of {func.name} has shape {list(a.shape)}, expected {list(want)}")
        env[p] = a[None] if p.type.space == "param" else a
    return env


def _in_form(a: Array, t: Type, graph: GraphArrays) -> Array:
    """`a` as every value is held: all rows, all dims, the interpreter's dtype. An operation on params alone may leave one row."""
    return np.broadcast_to(a, (graph.rows(t.space), *t.dims)).astype(numpy_dtype(t.dtype))


def _to_caller(a: Array, t: Type) -> Array:
    return a[0] if t.space == "param" else a


# ---- folds


def evaluate_fold(args: list[Array], v: Value, ctx: EvalContext) -> Array:
    """A ``fold``: rows of the grouped side, empty ones included. A function's own monoid goes before a built-in of its name."""
    index, rows = ctx.graph.index(v.attr("to")), ctx.graph.count(v.attr("to"))
    rows_of = [np.broadcast_to(a, (ctx.graph.num_edges, *a.shape[1:])) for a in args]
    messages = [a.astype(np.float64) for a in rows_of]
    name, part = v.attr("monoid"), v.attr("part")
    with np.errstate(all="ignore"):
        if name in DIRECT and all(m.name != name for m in ctx.rule.monoids):
            return DIRECT[name](part, align(messages), index, rows).reshape((rows, *v.type.dims))
        return run_monoid(find_monoid(name, ctx.rule.monoids), part, messages, index, rows)


def run_scalar(func: Func, args: Sequence[Array]) -> list[Array]:
    """A monoid's function on arrays ``[rows, *dims]``; dims broadcast as everywhere."""
    env = dict(zip(func.params, args, strict=True))
    with np.errstate(all="ignore"):
        for v in func.body:
            env[v] = np.asarray(OPS[v.op].evaluate([env[o] for o in v.operands], v, _NOWHERE))
    return [env[r] for r in func.results]


def run_monoid(
    monoid: Monoid,
    part: str,
    messages: Sequence[Array],
    index: npt.NDArray[np.int64],
    rows: int,
    *,
    splits: int = 1,
    strided: bool = False,
    from_right: bool = False,
) -> Array:
    """One part of a fold by the monoid's own functions: ``step`` along each row's edges in order, then the part.

    `messages`: ``[E, *dims]`` each; `index`: the row of every edge. With `splits` > 1 each row's edges are cut into that many
    groups (runs of edges, or every splits-th edge where `strided`), stepped apart and merged with ``combine``, from the left or
    from the right. Groups may be empty. Vectorised over rows: one Python step an edge of the longest row.
    """
    groups = _fold_groups(monoid, messages, index, rows, splits, strided)
    if from_right:
        state = groups.pop()
        while groups:
            state = _combine(monoid, groups.pop(), state)
    else:
        state = groups.pop(0)
        while groups:
            state = _combine(monoid, state, groups.pop(0))
    degree = np.bincount(index, minlength=rows).astype(np.float64)
    out = run_scalar(monoid.part(part), [*state, degree])[0]
    return np.array(np.broadcast_to(out, (rows, *out.shape[1:])))


def _ranked(a: Array, ndim: int) -> Array:
    """`a` with 1s behind its row axis, up to `ndim` axes."""
    return a.reshape(a.shape[:1] + (1,) * (ndim - a.ndim) + a.shape[1:])


def _combine(monoid: Monoid, a: list[Array], b: list[Array]) -> list[Array]:
    merged = run_scalar(monoid.combine, [*a, *b])
    return [np.broadcast_to(_ranked(x, s.ndim), s.shape).astype(s.dtype) for x, s in zip(merged, a, strict=True)]


def _fold_groups(
    monoid: Monoid, messages: Sequence[Array], index: npt.NDArray[np.int64], rows: int, splits: int, strided: bool
) -> list[list[Array]]:
    """The state of every group of every row: [group][component]."""
    order = np.argsort(index, kind="stable")
    degree = np.bincount(index, minlength=rows)
    start = np.cumsum(degree) - degree
    rank = np.empty(len(index), np.int64)
    rank[order] = np.arange(len(index)) - np.repeat(start, degree)
    group = rank % splits if strided else rank * splits // np.maximum(degree[index], 1)
    out = []
    for g in range(splits):
        state = [
            np.full(
                (rows, *np.broadcast_shapes(*(messages[i].shape[1:] for i in c.like))),
                c.init,
                np.int64 if c.kind == "index" else np.float64,
            )
            for c in monoid.components
        ]
        for r in range(int(degree.max(initial=0))):
            edges = np.nonzero((rank == r) & (group == g))[0]
            if not len(edges):
                continue
            at = index[edges]
            ids = [edges] if monoid.uses_edge_id else []
            new = run_scalar(monoid.step, [*(s[at] for s in state), *(m[edges] for m in messages), *ids])
            for s, x in zip(state, new, strict=True):
                s[at] = _ranked(x, s.ndim)
        out.append(state)
    return out
