"""Parts of rows: slices are pulled down to the loads, concats are pushed up to the stores, so that nothing moves between lanes.

``(a + b)[..., 0:4]`` becomes ``a[..., 0:4] + b[..., 0:4]``, and a slice of a buffer is a load of a part of its rows. A store of
``concat(x, y) * s`` becomes a store of ``x * s`` and one of ``y * s``, each to its part of the row.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.builder import Builder
from ...ir.core import Value, topological
from ...ir.sweep import Region
from ..cpu.elementwise import ELEMENTWISE
from ..cpu.program import Program, Sink
from .ops import const_of

DEPTH = 100
"""Operations that a slice or a concat is moved through at most; a longer chain stays as it is and takes the general path."""


def split_rows(p: Program) -> None:
    """Rewrites the program in place; what it computes stays the same."""
    mover = _Mover(p.builder)
    _pull_slices(p, mover)
    _push_concats(p, mover)


def _pull_slices(p: Program, mover: _Mover) -> None:
    b = p.builder
    roots = [v for c in p.components for v in (c.step, c.combined)]
    roots += [c.sink.value for c in p.carries] + [s.value for _r, s in p.stores]
    new: dict[Value, Value] = {}
    for v in topological(roots):
        operands = [new[o] for o in v.operands]
        with b.at(v.loc):
            out = v if all(x is o for x, o in zip(operands, v.operands, strict=True)) else b.op(v.op, *operands, **dict(v.attrs))
            new[v] = mover.pulled(out) if out.op == "slice" else out
    for c in p.components:
        c.step, c.combined = new[c.step], new[c.combined]
    for s in [c.sink for c in p.carries] + [s for _r, s in p.stores]:
        s.value = new[s.value]


def _push_concats(p: Program, mover: _Mover) -> None:
    stores: list[tuple[Region, Sink]] = []
    todo = list(reversed(p.stores))
    while todo:
        region, s = todo.pop()
        cut = mover.cut_of(s.value)
        # Fewer than two parts that hold anything: a cut would give the same store again, for ever.
        if cut is None or sum(1 for size in cut[1] if size) < 2:
            stores.append((region, s))
            continue
        axis, sizes = cut
        at, start, parts = len(s.value.type.dims) + axis, 0, []
        for size in sizes:
            with p.builder.at(s.value.loc):
                part = mover.pulled(p.builder.op("slice", s.value, axis=axis, start=start, stop=start + size))
            if size:
                parts.append((region, Sink(part, replace(s.target, offset=s.target.offset + start * s.target.strides[at]))))
            start += size
        todo += reversed(parts)
    p.stores[:] = stores


class _Mover:
    """Moves slices through operations, each once."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.done: dict[Value, Value] = {}
        self.cuts: dict[Value, tuple[int, list[int]] | None] = {}

    def pulled(self, v: Value, depth: int = 0) -> Value:
        """A slice as an operation on slices of the operands, as far down as possible."""
        if v not in self.done:
            self.done[v] = v if depth > DEPTH else self._pull(v, depth + 1)
        return self.done[v]

    def _slice(self, x: Value, axis: int, start: int, stop: int, depth: int) -> Value:
        """Elements start:stop of ``x`` along an axis of a value of its rank or more; ``x`` itself where it broadcasts there."""
        if -axis > len(x.type.dims) or x.type.dims[axis] == 1 or (start, stop) == (0, x.type.dims[axis]):
            return x
        return self.pulled(self.b.op("slice", x, axis=axis, start=start, stop=stop), depth)

    def _pull(self, v: Value, depth: int) -> Value:
        b, (x,) = self.b, v.operands
        axis, start, stop = v.attr("axis"), v.attr("start"), v.attr("stop")
        if x.type.dims[axis] == stop - start:
            return x
        c = const_of(x)
        if c is not None:
            return b.broadcast(c, v.type.dims)
        if x.op in ELEMENTWISE:
            return b.op(x.op, *(self._slice(o, axis, start, stop, depth) for o in x.operands), **dict(x.attrs))
        if x.op == "slice" and x.attr("axis") == axis:
            first = x.attr("start")
            return self.pulled(b.op("slice", x.operands[0], axis=axis, start=first + start, stop=first + stop), depth)
        if x.op == "broadcast":
            return b.broadcast(self._slice(x.operands[0], axis, start, stop, depth), v.type.dims)
        if x.op != "concat":
            return v
        if x.attr("axis") != axis:
            return b.op("concat", *(self._slice(o, axis, start, stop, depth) for o in x.operands), axis=x.attr("axis"))
        parts, at = [], 0
        for o in x.operands:
            low, high = max(start - at, 0), min(stop - at, o.type.dims[axis])
            if low < high:
                parts.append(b.cast(self._slice(o, axis, low, high, depth), x.type.dtype))
            at += o.type.dims[axis]
        return v if not parts else parts[0] if len(parts) == 1 else b.op("concat", *parts, axis=axis)

    def cut_of(self, v: Value, depth: int = 0) -> tuple[int, list[int]] | None:
        """(axis, sizes) of the concat that ``v`` is, perhaps below elementwise operations that keep its axis whole."""
        if v not in self.cuts:
            self.cuts[v] = None if depth > DEPTH else self._cut(v, depth + 1)
        return self.cuts[v]

    def _cut(self, v: Value, depth: int) -> tuple[int, list[int]] | None:
        if v.op == "concat":
            axis = v.attr("axis")
            return axis, [o.type.dims[axis] for o in v.operands]
        for o in v.operands if v.op in ELEMENTWISE else ():
            found = self.cut_of(o, depth)
            if found is not None and o.type.dims[found[0]] == v.type.dims[found[0]] > 1:
                return found
        return None
