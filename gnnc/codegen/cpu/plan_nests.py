"""Which loop nests a region needs: what is fused into one nest, what waits in scratch memory, in which order.

Values of one element count share a nest as long as they are read element by element. A reduction, concat or matmul ends a nest,
as does a value that a wider one broadcasts: it becomes a *temp*, a store to scratch memory (registers, once LLVM has run) that
later nests read. Reshapes, slices, transposes and broadcasts of anything in memory are views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ...ir.core import Value
from ...ir.types import Dims
from .elementwise import ELEMENTWISE
from .program import Base, Program, Sink, View, contiguous, stored
from .views import SHAPE_OPS, refine, view_of


@dataclass(eq=False)
class Nest:
    """Sinks that run over the same elements. ``axes``: sizes of the iteration, refined so that every value's dims are made of
    them. ``inlined``: temps that this very nest produces, read from registers."""

    sinks: list[Sink]
    axes: list[int]
    inlined: set[Value]
    matmul: bool = False


@dataclass
class Temps:
    """Scratch of one kernel function: every materialised value and its number."""

    numbers: dict[Value, int] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)

    def view(self, v: Value) -> View:
        if v not in self.numbers:
            self.numbers[v] = len(self.values)
            self.values.append(v)
        n = self.numbers[v]
        return View(("temp", n), stored(v.type.dtype), 0, contiguous(v.type.dims))


@dataclass
class _Walk:
    """What one sink reads and evaluates."""

    size: int
    shapes: set[Dims] = field(default_factory=set)
    depends: dict[Value, bool] = field(default_factory=dict)  # temp -> read element by element everywhere
    evaluated: dict[Value, None] = field(default_factory=dict)
    reads: dict[Base, bool] = field(default_factory=dict)
    seen: set[Value] = field(default_factory=set)


def squeezed(dims: Dims) -> Dims:
    return tuple(d for d in dims if d != 1)


class RegionPlanner:
    """Plans one region. ``external(v)``: a value of an earlier region, to be found in scratch; those asked for are listed in
    ``outside``, in order."""

    def __init__(self, program: Program, temps: Temps, external: Callable[[Value], bool]) -> None:
        self.program, self.scratch, self.external = program, temps, external
        self.outside: dict[Value, None] = {}
        self.temps: dict[Value, None] = {}
        self.strict = False

    # ---- how a value is read

    def const_of(self, v: Value) -> Value | None:
        """The constant that every element of ``v`` is."""
        while v.op in SHAPE_OPS:
            v = v.operands[0]
        return v if v.op == "const" else None

    def access(self, v: Value, fresh: bool = False) -> View | None:
        """Where ``v`` lies in memory; None: it is evaluated in place. ``fresh``: not from its own temp."""
        if v in self.program.leaves:
            return View(self.program.leaves[v], v.type.dtype, 0, contiguous(v.type.dims))
        if v.op == "iota":
            return View(("iota", v.attr("size")), v.type.dtype, 0, contiguous(v.type.dims))
        if v in self.temps and not fresh:
            return self.scratch.view(v)
        if v.op in SHAPE_OPS:
            o = v.operands[0]
            inner = self.access(o)
            # A view that picks or repeats elements needs them in memory.
            if inner is None and (v.op == "transpose" or v.type.size != o.type.size):
                self.temps[o] = None
                inner = self.access(o)
            if inner is None and self.strict and squeezed(o.type.dims) != squeezed(v.type.dims):
                self.temps[o] = None
                inner = self.access(o)
            if inner is not None:
                out = view_of(v, inner)
                if out is None and (self.strict or (fresh is False and v.type.size != o.type.size)):
                    self.temps[o] = None
                    out = view_of(v, self.scratch.view(o))
                return out
            return None
        if self.external(v):
            self.outside[v] = None
            return self.scratch.view(v)
        if v.op not in ELEMENTWISE and not fresh:
            self.temps[v] = None
            return self.scratch.view(v)
        return None

    def temp_of(self, view: View) -> Value | None:
        """The temp of this region that ``view`` reads."""
        v = self.scratch.values[view.base[1]] if view.base[0] == "temp" else None
        return v if v in self.temps else None

    # ---- sinks

    def temp_sinks(self, v: Value) -> list[Sink]:
        """What fills the scratch of a temp."""
        target = self.scratch.view(v)
        if v.op in ("reduce_sum", "reduce_max") and not self.external(v):
            o = v.operands[0]
            at = len(o.type.dims) + v.attr("axis")
            strides = target.strides if v.attr("keepdim") else (*target.strides[:at], 0, *target.strides[at:])
            strides = (*strides[:at], 0, *strides[at + 1 :])
            value = o if o.type.dtype.acc is v.type.dtype else self.program.builder.cast(o, v.type.dtype)
            return [Sink(value, replace(target, strides=strides), fold=v.op.removeprefix("reduce_"), produces=v)]
        if v.op == "concat":
            at, start, out = len(v.type.dims) + v.attr("axis"), 0, []
            for o in v.operands:
                out.append(Sink(o, replace(target, offset=start * target.strides[at]), produces=v))
                start += o.type.dims[at]
            return out
        if v.op == "matmul":
            x, w = v.operands
            rows, columns = self.in_memory(w).strides
            if rows == 1 and columns != 1:  # a transposed parameter: dot products along its rows
                b = self.program.builder
                value = b.mul(b.reshape(x, (*x.type.dims[:-1], 1, x.type.dims[-1])), b.op("transpose", w))
                return [Sink(value, replace(target, strides=(*target.strides, 0)), fold="sum", produces=v)]
            return [Sink(v, target, produces=v, matmul=True)]
        return [Sink(v, target, produces=v)]

    def _walk(self, sink: Sink) -> _Walk:
        walk = _Walk(sink.value.type.size)
        if sink.matmul:
            walk.shapes.add(sink.value.type.dims)
            for o in sink.value.operands:
                self._read(walk, o, self.in_memory(o), False)
            return walk
        self._visit(walk, sink.value, own=sink.produces is sink.value)
        return walk

    def in_memory(self, v: Value) -> View:
        """A view of ``v``, made a temp if need be."""
        view = self.access(v)
        if view is None:
            self.temps[v] = None
            view = self.scratch.view(v)
        return view

    def _read(self, walk: _Walk, v: Value, view: View, aligned: bool) -> None:
        exact = aligned and view.offset == 0 and view.strides == contiguous(v.type.dims)
        walk.reads[view.base] = walk.reads.get(view.base, True) and exact
        temp = self.temp_of(view)
        if temp is not None:
            walk.depends[temp] = walk.depends.get(temp, True) and exact and temp.type.size == walk.size

    def _visit(self, walk: _Walk, v: Value, own: bool = False) -> None:
        """``v`` has as many elements as the nest and is wanted element by element."""
        if v in walk.seen:
            return
        walk.seen.add(v)
        walk.shapes.add(v.type.dims)
        if self.const_of(v) is not None:
            return
        view = self.access(v, fresh=own)
        if view is not None:
            self._read(walk, v, view, True)
            return
        walk.evaluated[v] = None
        for o in v.operands:
            if self.const_of(o) is not None:
                continue
            if o.type.size == walk.size:
                self._visit(walk, o)
            else:
                self._read(walk, o, self.in_memory(o), False)

    # ---- nests

    def plan(self, sinks: Sequence[Sink]) -> list[Nest]:
        """The nests that compute ``sinks``, in order. Temps and outside values are known afterwards."""
        while True:
            before = len(self.temps)
            every: list[Sink] = list(sinks)
            walks: dict[Sink, _Walk] = {}
            done: set[Value] = set()
            for s in every:
                walks[s] = self._walk(s)
            while more := [t for t in self.temps if t not in done]:
                for t in more:
                    done.add(t)
                    for s in self.temp_sinks(t):
                        every.append(s)
                        walks[s] = self._walk(s)
            if len(self.temps) != before:
                continue
            nests = self._group(every, walks)
            if nests is None:
                self.strict = True
                continue
            again = self._evaluated_twice(nests, walks)
            if not again:
                return nests
            for v in again:
                self.temps[v] = None

    def _group(self, sinks: list[Sink], walks: dict[Sink, _Walk]) -> list[Nest] | None:
        makers: dict[Value, list[Sink]] = {}
        for s in sinks:
            if s.produces is not None:
                makers.setdefault(s.produces, []).append(s)
        levels: dict[Sink, int] = {}

        def level(s: Sink) -> int:
            if s not in levels:
                out = 0
                for temp, exact in walks[s].depends.items():
                    for p in makers[temp]:
                        together = exact and not s.matmul and p.value is temp and not p.matmul and self._same_shape(p, s)
                        out = max(out, level(p) + (0 if together else 1))
                levels[s] = out
            return levels[s]

        groups: dict[tuple[object, ...], list[Sink]] = {}
        for s in sinks:
            key: tuple[object, ...] = (level(s), walks[s].size)
            if s.matmul:
                key = (*key, "matmul", s.target.base)
            elif self.strict:
                key = (*key, squeezed(s.value.type.dims))
            groups.setdefault(key, []).append(s)
        nests = []
        for key in sorted(groups, key=lambda k: levels[groups[k][0]]):
            members = groups[key]
            shapes = sorted({d for s in members for d in walks[s].shapes})
            axes = refine(shapes) if walks[members[0]].size else []
            if axes is None:
                assert not self.strict, shapes
                return None
            own = {s.produces for s in members if s.produces is s.value and s.produces is not None}
            nests.append(Nest(members, axes, own, members[0].matmul))
        return nests

    def _same_shape(self, a: Sink, b: Sink) -> bool:
        return not self.strict or squeezed(a.value.type.dims) == squeezed(b.value.type.dims)

    def _evaluated_twice(self, nests: list[Nest], walks: dict[Sink, _Walk]) -> list[Value]:
        count: dict[Value, int] = {}
        for nest in nests:
            mine = {v: None for s in nest.sinks for v in walks[s].evaluated if v.op in ELEMENTWISE}
            for v in mine:
                if v not in self.temps:
                    count[v] = count.get(v, 0) + 1
        return [v for v, n in count.items() if n > 1]

    def reads(self, nest: Nest) -> dict[Base, bool]:
        """Memory that a nest reads -> whether only element by element."""
        out: dict[Base, bool] = {}
        for s in nest.sinks:
            for base, exact in self._walk(s).reads.items():
                out[base] = out.get(base, True) and exact
        return out
