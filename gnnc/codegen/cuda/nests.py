"""One loop nest of the general path as lane-strided loops: lanes take elements, reductions run in a fixed order.

Elements of a plain sink are spread over the lanes. A reduction with many outputs gives each output to one lane, which walks the reduced
axes; one with few outputs is walked by the whole warp, and its lanes are added up by shuffles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from ...ir.core import Value
from ...ir.types import DType
from ..cpu.plan_nests import Nest, RegionPlanner
from ..cpu.program import Base, Sink, View
from ..cpu.views import axes_of, strides_over
from .ops import as_dtype, const_of, expression, literal, register_dtype
from .text import Writer

FEW = 16
"""Outputs of a reduction below which the whole warp works on each."""

Pointer = Callable[[Base], str]


def emit_nest(w: Writer, planner: RegionPlanner, nest: Nest, pointer: Pointer) -> None:
    """The nest's loops, with a warp barrier behind each."""
    if nest.matmul:
        _matmul(w, planner, nest.sinks[0], pointer)
        return
    if nest.sinks[0].value.type.size == 0:
        for s in nest.sinks:
            if s.fold and not s.accumulate and s.produces is not None:
                _fill(w, s, s.produces.type.size, pointer)
        return
    plain = [s for s in nest.sinks if not s.fold]
    if plain:
        _Loop(w, planner, nest, plain, nest.inlined, pointer).plain()
    for s in nest.sinks:
        if s.fold:
            _Loop(w, planner, nest, [s], set(), pointer).fold()


def _fill(w: Writer, s: Sink, count: int, pointer: Pointer) -> None:
    zero = literal(0, register_dtype(s.target.dtype))
    w.line(f"for (int i = lane; i < {count}; i += 32) put({pointer(s.target.base)}, {s.target.offset} + i, {zero});")
    w.line("__syncwarp();")


def offset_text(offset: int, strides: Sequence[int], names: Sequence[str]) -> str:
    """``offset + i0 * s0 + ...`` without what is 0."""
    parts = [n if s == 1 else f"{n} * {s}" for n, s in zip(names, strides, strict=True) if s]
    if offset or not parts:
        parts.append(str(offset))
    return " + ".join(parts)


@dataclass(eq=False)
class _Walked:
    """Something in memory that a loop touches: a view and its strides over the loop's axes."""

    view: View
    strides: tuple[int, ...]


@dataclass
class _Loop:
    """Sinks of one nest that run in one loop. ``inlined``: temps that this loop makes, read from registers."""

    w: Writer
    planner: RegionPlanner
    nest: Nest
    sinks: list[Sink]
    inlined: set[Value]
    pointer: Pointer
    loads: dict[tuple[Value, Value], _Walked] = field(default_factory=dict)
    names: dict[object, str] = field(default_factory=dict)
    index: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roots = [self._root(s) for s in self.sinks]
        self.targets = [
            strides_over(self.nest.axes, axes_of(s.value.type.dims, self.nest.axes), s.value.type.dims, s.target.strides)
            for s in self.sinks
        ]
        self._steps: dict[Value, tuple[Value, View | None]] = {}
        for s, root in zip(self.sinks, self.roots, strict=True):
            self._collect(root, s.produces is s.value)
        self._collapse()

    def _root(self, s: Sink) -> Value:
        v = s.value
        half = s.target.dtype.is_float and s.target.dtype.bits < 32
        if half and s.produces is not v and v.op == "cast" and v.type.dtype is s.target.dtype and self.planner.access(v) is None:
            inner = v.operands[0]
            if register_dtype(inner.type.dtype) is register_dtype(v.type.dtype):
                return inner  # the store rounds
        return v

    # ---- what is read and how

    def _resolve(self, v: Value, own: bool) -> tuple[Value, View | None]:
        """(the value to evaluate in place of ``v``, where it lies in memory or None)."""
        root = v
        while root.op in ("reshape", "broadcast", "slice") and root.operands[0].type.size == v.type.size:
            root = root.operands[0]
        if root in self.inlined and not own:
            v = root
        if const_of(v) is not None:
            return v, None
        return v, self.planner.access(v, fresh=own or v in self.inlined)

    def _collect(self, v: Value, own: bool = False) -> None:
        stack = [(v, own)]
        while stack:
            v, own = stack.pop()
            if v in self._steps:
                continue
            real, view = self._resolve(v, own)
            self._steps[v] = (real, view)
            if const_of(real) is not None:
                continue
            if view is not None:
                self._load(real, real, view)
                continue
            if real is not v:
                stack.append((real, own))
                continue
            for o in real.operands:
                if o.type.size == real.type.size:
                    stack.append((o, False))
                elif const_of(o) is None:
                    self._load(o, real, self.planner.in_memory(o))

    def _load(self, o: Value, frame: Value, view: View) -> None:
        strides = strides_over(self.nest.axes, axes_of(frame.type.dims, self.nest.axes), o.type.dims, view.strides)
        self.loads[(o, frame)] = _Walked(view, strides)

    def _collapse(self) -> None:
        """Merges neighbouring axes that everything walks as one."""
        axes = self.nest.axes
        groups = [[0]] if axes else []
        every = [x.strides for x in self.loads.values()] + self.targets
        for a in range(1, len(axes)):
            if all(s[a - 1] == s[a] * axes[a] for s in every):
                groups[-1].append(a)
            else:
                groups.append([a])
        for x in self.loads.values():
            x.strides = tuple(x.strides[g[-1]] for g in groups)
        self.targets = [tuple(s[g[-1]] for g in groups) for s in self.targets]
        self.axes = [prod(axes[a] for a in g) for g in groups]

    # ---- text

    def _indices(self, flat: str, axes: Sequence[int]) -> None:
        """Declares i<axis> for these axes, from the position ``flat`` among their elements."""
        step = prod(self.axes[a] for a in axes)
        for n, a in enumerate(axes):
            step //= self.axes[a]
            text = flat if step == 1 else f"{flat} / {step}"
            if n and len(axes) > 1:
                text = f"({text}) % {self.axes[a]}" if step != 1 else f"{text} % {self.axes[a]}"
            self.w.line(f"const int i{a} = {text};")

    def _offset(self, offset: int, strides: Sequence[int]) -> str:
        return offset_text(offset, strides, [f"i{a}" for a in range(len(strides))])

    def _element(self, o: Value, frame: Value) -> str:
        x = self.loads[(o, frame)]
        kind = x.view.base[0]
        at = self._offset(x.view.offset, x.strides)
        if kind == "iota":
            return f"i32({at})"
        if kind in ("degree", "degree64", "edge_id"):
            return self.pointer(x.view.base)
        text = f"get({self.pointer(x.view.base)}, {at})"
        have, want = register_dtype(x.view.dtype), register_dtype(o.type.dtype)
        return text if have is want else f"convert<{want}>({text})"

    def _name(self, key: object, text: str, v: Value) -> str:
        if key not in self.names:
            name = f"v{len(self.names)}"
            self.w.line(f"const auto {name} = {text};", v.loc)
            self.names[key] = name
        return self.names[key]

    def _text_of(self, v: Value) -> str:
        """The name of an evaluated value of the loop's size."""
        real, _view = self._steps[v]
        c = const_of(real)
        return literal(c.attr("value"), register_dtype(c.type.dtype)) if c is not None else self.names[real]

    def _operand(self, frame: Value) -> Callable[[Value], str]:
        def text(o: Value) -> str:
            c = const_of(o)
            if c is not None:
                return literal(c.attr("value"), register_dtype(c.type.dtype))
            if o.type.size == frame.type.size:
                return self._text_of(o)
            return self._name((o, frame), self._element(o, frame), o)

        return text

    def _evaluate(self, v: Value, own: bool) -> None:
        """Emits what ``v`` needs, operands first, and ``v`` itself."""
        stack = [(v, own)]
        while stack:
            v, own = stack[-1]
            real, view = self._steps[v]
            if const_of(real) is not None or real in self.names:
                stack.pop()
            elif view is not None:
                stack.pop()
                self._name(real, self._element(real, real), real)
            elif real is not v:
                stack.append((real, own))
            else:
                missing = [o for o in real.operands if o.type.size == real.type.size and not self._ready(o)]
                if missing:
                    stack += [(o, False) for o in reversed(missing)]
                    continue
                stack.pop()
                operand = self._operand(real)
                if real.op in ("reshape", "broadcast", "slice"):
                    (o,) = real.operands
                    self.names[real] = operand(o)
                else:
                    self._name(real, expression(real, operand), real)

    def _ready(self, o: Value) -> bool:
        real, _ = self._steps[o]
        return const_of(real) is not None or real in self.names

    def _converted(self, s: Sink, root: Value) -> str:
        have, want = register_dtype(root.type.dtype), register_dtype(s.target.dtype)
        text = self._text_of(root)
        return text if have is want else f"convert<{want}>({text})"

    def plain(self) -> None:
        w = self.w
        with w.block(f"for (int i = lane; i < {prod(self.axes)}; i += 32)"):
            self._indices("i", range(len(self.axes)))
            for s, root in zip(self.sinks, self.roots, strict=True):
                self._evaluate(root, s.produces is s.value)
            for s, root, strides in zip(self.sinks, self.roots, self.targets, strict=True):
                w.line(
                    f"put({self.pointer(s.target.base)}, {self._offset(s.target.offset, strides)}, {self._converted(s, root)});",
                    s.value.loc,
                )
        w.line("__syncwarp();")

    def fold(self) -> None:
        w, s, root, strides = self.w, self.sinks[0], self.roots[0], self.targets[0]
        d = register_dtype(s.target.dtype)
        inner = [a for a, (n, st) in enumerate(zip(self.axes, strides, strict=True)) if st == 0 and n > 1]
        outer = [a for a in range(len(self.axes)) if a not in inner]
        many, few = prod(self.axes[a] for a in inner), prod(self.axes[a] for a in outer)
        target, at = self.pointer(s.target.base), self._offset(s.target.offset, strides)
        start = literal(0, d) if s.fold == "sum" else f"lowest<{d}>()"
        alone = few >= FEW or many == 1
        with w.block(f"for (int o = lane; o < {few}; o += 32)" if alone else f"for (int o = 0; o < {few}; o++)"):
            self._indices("o", outer)
            w.line(f"{d} total = {start};")
            with w.block(f"for (int k = 0; k < {many}; k++)" if alone else f"for (int k = lane; k < {many}; k += 32)"):
                self._indices("k", inner)
                self._accumulate(s, root, d)
            if not alone:
                w.line(f"total = warp_{s.fold}(total);")
            value = f"{'add' if s.fold == 'sum' else 'maximum'}(get({target}, {at}), total)" if s.accumulate else "total"
            w.line(f"{'' if alone else 'if (lane == 0) '}put({target}, {at}, {value});", s.value.loc)
        w.line("__syncwarp();")

    def _accumulate(self, s: Sink, root: Value, d: DType) -> None:
        real, view = self._steps[root]
        plain_mul = (
            real is root and view is None and root.op == "mul" and s.fold == "sum" and register_dtype(root.type.dtype) is d and d.is_float
        )
        if plain_mul and root not in self.names:
            for o in root.operands:
                if o.type.size == root.type.size:
                    self._evaluate(o, False)
            operand = self._operand(root)
            x, y = (as_dtype(o, d, operand) for o in root.operands)
            self.w.line(f"total = fma({x}, {y}, total);", root.loc)
            return
        self._evaluate(root, s.produces is s.value)
        value = self._converted(s, root)
        self.w.line(f"total = {'add' if s.fold == 'sum' else 'maximum'}(total, {value});", root.loc)


def _matmul(w: Writer, planner: RegionPlanner, sink: Sink, pointer: Pointer) -> None:
    """A row's [..., K] block times a parameter [K, F]: a lane an output, one loop over K."""
    v = sink.value
    x, m = v.operands
    xv, mv, d = planner.in_memory(x), planner.in_memory(m), register_dtype(v.type.dtype)
    depth, columns = m.type.dims
    lead = x.type.dims[:-1]
    total = prod(lead) * columns
    if total == 0:
        return
    with w.block(f"for (int o = lane; o < {total}; o += 32)"):
        w.line(f"const int column = o % {columns};")
        step = prod(lead)
        for n, size in enumerate(lead):
            step //= size
            w.line(f"const int i{n} = o / {columns * step} % {size};")
        names = [f"i{n}" for n in range(len(lead))]
        w.line(f"{d} total = {literal(0, d)};")
        with w.block(f"for (int k = 0; k < {depth}; k++)"):
            a = f"get({pointer(xv.base)}, {offset_text(xv.offset, xv.strides, [*names, 'k'])})"
            b = f"get({pointer(mv.base)}, {offset_text(mv.offset, mv.strides, ['k', 'column'])})"
            a, b = (t if register_dtype(view.dtype) is d else f"convert<{d}>({t})" for t, view in ((a, xv), (b, mv)))
            w.line(f"total = fma({a}, {b}, total);", v.loc)
        at = offset_text(sink.target.offset, sink.target.strides, [*names, "column"])
        w.line(f"put({pointer(sink.target.base)}, {at}, total);", v.loc)
    w.line("__syncwarp();")
