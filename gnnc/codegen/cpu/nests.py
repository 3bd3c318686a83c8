"""One loop nest as instructions: collapse, tile, vectorise, fold.

A nest's axes are collapsed where every operand agrees, so a scalar weight times ``[H, C]`` runs over one axis of H*C elements. A
*tile* of trailing elements is unrolled into registers of static lanes (a register may straddle rows: a broadcast operand is then a
small load and a shuffle); what is larger than a tile runs in loops. Reductions gather labelled lanes (`fold_lanes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from ...ir.core import Value
from ...ir.types import DType
from .elementwise import convert, emit_elementwise, extremum, register_type
from .emit_text import FunctionText
from .fold_lanes import Labelled, fold_lanes
from .lanes import Lanes, Reg
from .memory import Registers, load_lanes, store_lanes
from .plan_nests import Nest, RegionPlanner
from .program import Base, Sink, View
from .views import axes_of, strides_over

UNROLL = 16
"""Registers of a fully unrolled nest; a loop's tile is half of that."""

READ_ONLY = ("row", "other", "edge", "param", "iota")


@dataclass(eq=False)
class _Expr:
    """A value resolved for one nest: a constant, a load with strides over the axes, or an operation."""

    value: Value
    view: View | None = None
    strides: tuple[int, ...] = ()
    args: tuple[_Expr, ...] = ()
    is_const: bool = False


@dataclass(eq=False)
class _Job:
    """A sink resolved for one nest."""

    sink: Sink
    expr: _Expr
    strides: tuple[int, ...]
    sources: list[_Accumulator] | None = None


@dataclass(eq=False)
class _Accumulator:
    """A register kept in memory across a loop (LLVM makes it one again) with its lanes' labels."""

    memory: str
    labels: tuple[int, ...]


def pointer_arguments(nests: Sequence[Nest], planner: RegionPlanner) -> list[Base]:
    """Everything in memory that the nests touch, in order of first use."""
    out: dict[Base, None] = {}
    for nest in nests:
        for base in planner.reads(nest):
            out[base] = None
        for s in nest.sinks:
            out[s.target.base] = None
    return list(out)


class NestEmitter:
    """Emits nests into ``fn``. ``pointer(base)`` names the address of a `Base`; ``registers`` are those of the function."""

    def __init__(
        self, fn: FunctionText, planner: RegionPlanner, pointer: Callable[[Base], str], registers: Registers, vector_bits: int
    ) -> None:
        self.fn, self.planner, self.pointer, self.registers, self.vector_bits = fn, planner, pointer, registers, vector_bits

    def emit(self, nest: Nest) -> None:
        self._comment(nest)
        if nest.matmul:
            from .matmul import emit_matmul

            emit_matmul(self.fn, self.planner, self.pointer, self.vector_bits, nest.sinks[0])
        elif nest.sinks[0].value.type.size == 0:
            for s in nest.sinks:
                if s.fold and not s.accumulate and s.produces is not None:
                    self._empty_sum(s)
        else:
            _OneNest(self, nest).emit()

    def _empty_sum(self, s: Sink) -> None:
        assert s.produces is not None
        fill(self.fn, self.pointer(s.target.base), s.target.dtype, s.target.offset, s.produces.type.size, 0, self.vector_bits)

    def _comment(self, nest: Nest) -> None:
        seen: dict[str, None] = {}
        for s in nest.sinks:
            stack = [s.value]
            known: set[Value] = set()
            while stack:
                v = stack.pop()
                if v in known or v in self.planner.program.leaves:
                    continue
                known.add(v)
                if v.loc is not None:
                    seen[f"{v.loc}  {v.loc.text.strip()}"] = None
                if v not in self.planner.temps or v is s.value:
                    stack += v.operands
        for line in sorted(seen):
            self.fn.comment(line)


def fill(fn: FunctionText, pointer: str, d: DType, offset: int, count: int, value: float | int, vector_bits: int) -> None:
    """Stores a constant to ``count`` consecutive elements."""
    lanes = max(1, vector_bits // max(d.bits, 32))

    def run(dynamic: str | None, total: int) -> None:
        for start, width in chunks(total, lanes):
            k = Lanes(fn, width)
            store_lanes(fn, pointer, d, dynamic, tuple(offset + start + i for i in range(width)), k.const(value, register_type(d)))

    if count <= 2 * UNROLL * lanes:
        run(None, count)
        return
    tile = lanes * UNROLL // 2
    with fn.loop("fill", "0", str(count // tile * tile), tile) as i:
        run(i, tile)
    offset += count // tile * tile
    run(None, count % tile)


def chunks(total: int, lanes: int, cut: int = 0) -> list[tuple[int, int]]:
    """(start, width) of registers that cover ``total`` elements: full ones, then powers of two; none crosses a multiple of ``cut``."""
    if cut and cut < total:
        return [(at + start, width) for at in range(0, total, cut) for start, width in chunks(min(cut, total - at), lanes)]
    out, at, width = [], 0, lanes
    while at < total:
        while width > total - at:
            width //= 2
        out.append((at, width))
        at += width
    return out


class _OneNest:
    def __init__(self, owner: NestEmitter, nest: Nest) -> None:
        self.fn, self.planner, self.pointer, self.registers = owner.fn, owner.planner, owner.pointer, owner.registers
        self.nest, self.axes = nest, nest.axes
        self.exprs: dict[object, _Expr] = {}
        self.jobs = [self._job(s) for s in nest.sinks]
        self._collapse()
        wide = any(e.value.type.dtype.name == "f64" for e in self.exprs.values())
        self.lanes = owner.vector_bits // (64 if wide else 32)
        self.vector_bits = owner.vector_bits
        self.offsets: dict[tuple[int, ...], str | None] = {}
        self.loops: dict[int, tuple[str | None, int]] = {}
        self._pending: dict[_Job, list[Labelled]] = {}  # gathered by the tile at work
        self._remainder: dict[_Job, list[Labelled]] = {}  # gathered after a loop, beside its accumulators
        self._cursor: dict[_Job, int] = {}  # how many of a job's accumulators the tile has met

    # ---- resolving

    def _job(self, s: Sink) -> _Job:
        parts = axes_of(s.value.type.dims, self.axes)
        own, value = s.produces is s.value, s.value
        half = s.target.dtype.is_float and s.target.dtype.bits < 32
        if half and not own and value.op == "cast" and value.type.dtype is s.target.dtype and self.planner.access(value) is None:
            value = value.operands[0]  # the store rounds
        expr = self._aligned(value, own=own)
        return _Job(s, expr, strides_over(self.axes, parts, s.value.type.dims, s.target.strides))

    def _aligned(self, v: Value, own: bool = False) -> _Expr:
        view = None if own else self.planner.access(v)
        temp = None if view is None else self.planner.temp_of(view)
        if temp is not None and temp in self.nest.inlined:
            v, own = temp, True  # still in registers: its scratch is only written by this nest
        key: object = v
        if key in self.exprs:
            return self.exprs[key]
        const = self.planner.const_of(v)
        if const is not None:
            out = _Expr(const, is_const=True)
        else:
            view = self.planner.access(v, fresh=own)
            if view is not None:
                out = self._load(v, view, v)
            else:
                out = _Expr(v, args=tuple(self._operand(v, o) for o in v.operands))
        self.exprs[key] = out
        return out

    def _operand(self, v: Value, o: Value) -> _Expr:
        if o.type.size == v.type.size:
            return self._aligned(o)
        const = self.planner.const_of(o)
        if const is not None:
            return self.exprs.setdefault(const, _Expr(const, is_const=True))
        return self._load(o, self.planner.in_memory(o), v)

    def _load(self, o: Value, view: View, frame: Value) -> _Expr:
        strides = strides_over(self.axes, axes_of(frame.type.dims, self.axes), o.type.dims, view.strides)
        key = (view.base, view.offset, view.dtype, strides, o.type.dtype)
        return self.exprs.setdefault(key, _Expr(o, view, strides))

    def _collapse(self) -> None:
        """Merges neighbouring axes that every operand walks as one."""
        walked = [e for e in dict.fromkeys(self.exprs.values()) if e.view is not None]
        n = len(self.axes)
        groups = [[0]] if n else []
        for a in range(1, n):
            together = all(s[a - 1] == s[a] * self.axes[a] for s in [*(e.strides for e in walked), *(j.strides for j in self.jobs)])
            if together:
                groups[-1].append(a)
            else:
                groups.append([a])
        for e in walked:
            e.strides = tuple(e.strides[g[-1]] for g in groups)
        for j in self.jobs:
            j.strides = tuple(j.strides[g[-1]] for g in groups)
        self.axes = [prod(self.axes[a] for a in g) for g in groups]

    # ---- loops and tiles

    def emit(self) -> None:
        axes, limit = self.axes, UNROLL * self.lanes
        inner, block = len(axes), 1
        while inner > 0 and block * axes[inner - 1] <= limit:
            inner -= 1
            block *= axes[inner]
        if inner == 0:
            self._tile(block, block)
            self._finish_folds(None)
            return
        axis = inner - 1
        rows = max(1, limit // 2 // block)
        full = axes[axis] // rows * rows
        for job in self.jobs:
            self._prepare(job, axis)
        with ExitStack() as stack:
            for outer in range(axis):
                counter = stack.enter_context(self.fn.loop(f"i{outer}", "0", str(axes[outer])))
                self.loops[outer] = (counter, 0)
            self._open_accumulators(axis, rows * block, block)
            with self.fn.loop(f"i{axis}", "0", str(full), rows) as counter:
                self.loops[axis] = (counter, 0)
                self.offsets = {}
                self._tile(rows * block, block)
                self._finish_folds(axis)
            self.loops[axis] = (None, full)
            self.offsets = {}
            if axes[axis] > full:
                self._tile((axes[axis] - full) * block, block)
                self._finish_folds(axis)
            self._close_accumulators()

    def _prepare(self, job: _Job, axis: int) -> None:
        """A reduction over an outer loop accumulates in memory, which must hold the identity first."""
        s = job.sink
        if not s.fold or s.accumulate or not any(job.strides[a] == 0 for a in range(axis)):
            return
        assert s.produces is not None
        fill(
            self.fn,
            self.pointer(s.target.base),
            s.target.dtype,
            s.target.offset,
            s.produces.type.size,
            identity(s.fold, s.target.dtype),
            self.vector_bits,
        )

    def _in_memory(self, job: _Job, axis: int | None) -> bool:
        """Whether the target already holds a partial result."""
        if job.sink.accumulate:
            return True
        return axis is not None and any(job.strides[a] == 0 for a in range(axis))

    def _offset(self, strides: tuple[int, ...], extra: int) -> tuple[str | None, int]:
        """Element offset of the current tile in an operand: (SSA of the loops' part, static part)."""
        static = extra + sum(base * strides[a] for a, (_c, base) in self.loops.items())
        moving = tuple((a, strides[a]) for a, (c, _b) in self.loops.items() if c is not None and strides[a] != 0)
        if not moving:
            return None, static
        key = tuple(x for pair in moving for x in pair)
        if key not in self.offsets:
            total: str | None = None
            for a, step in moving:
                counter = self.loops[a][0]
                term = counter if step == 1 else self.fn.let("off", f"mul nsw i64 {counter}, {step}")
                total = term if total is None else self.fn.let("off", f"add nsw i64 {total}, {term}")
            self.offsets[key] = total
        return self.offsets[key], static

    def _lane_offsets(self, strides: tuple[int, ...], start: int, width: int, block: int) -> tuple[int, ...]:
        """Offsets of the lanes start .. start+width of the tile, relative to the tile."""
        inner = len(self.axes)
        size = 1
        while size < block:
            inner -= 1
            size *= self.axes[inner]
        out = []
        for at in range(start, start + width):
            row, rest = divmod(at, block)
            total = row * strides[inner - 1] if inner > 0 and row else 0
            for a in range(len(self.axes) - 1, inner - 1, -1):
                rest, i = divmod(rest, self.axes[a])
                total += i * strides[a]
            out.append(total)
        return tuple(out)

    def _cut(self, total: int) -> int:
        """Registers must not straddle runs of lanes that are reduced together, nor runs that repeat, unless runs fill registers."""
        cuts = set()
        for job in self.jobs:
            if job.sink.fold:
                for reduced in (True, False):
                    run = 1
                    for size, stride in zip(reversed(self.axes), reversed(job.strides), strict=True):
                        if (stride == 0) != reduced:
                            break
                        run *= size
                    if run > 1 and (run & (run - 1)) and run < total:
                        cuts.add(run)
        return min(cuts, default=0)

    def _tile(self, total: int, block: int) -> None:
        for start, width in chunks(total, self.lanes, self._cut(total)):
            k = Lanes(self.fn, width)
            known: dict[_Expr, Reg] = {}
            ready = []
            for job in self.jobs:
                x = self._evaluate(k, job.expr, start, block, known)
                ready.append((job, x))
            for job, x in ready:
                s = job.sink
                lanes = self._lane_offsets(job.strides, start, width, block)
                d = s.target.dtype
                if not s.fold:
                    value = self._as(k, x, job.expr.value.type.dtype, d)
                    dynamic, static = self._offset(job.strides, s.target.offset)
                    self._store(s.target.base, d, dynamic, tuple(o + static for o in lanes), value)
                elif s.accumulate and len(set(lanes)) == width:
                    self._accumulate(k, job, lanes, self._as(k, x, job.expr.value.type.dtype, d))
                else:
                    self._gather(k, job, lanes, self._as(k, x, job.expr.value.type.dtype, d))

    def _as(self, k: Lanes, x: Reg, d: DType, to: DType) -> Reg:
        return convert(k, x, d, to.acc if to.is_float else to)  # halves are rounded by the store itself

    def _evaluate(self, k: Lanes, e: _Expr, start: int, block: int, known: dict[_Expr, Reg]) -> Reg:
        stack = [e]
        while stack:
            x = stack[-1]
            if x in known:
                stack.pop()
                continue
            missing = [a for a in x.args if a not in known]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            known[x] = self._one(k, x, start, block, known)
        return known[e]

    def _one(self, k: Lanes, e: _Expr, start: int, block: int, known: dict[_Expr, Reg]) -> Reg:
        v = e.value
        if e.is_const:
            return k.const(v.attr("value"), register_type(v.type.dtype))
        if e.view is not None:
            dynamic, static = self._offset(e.strides, e.view.offset)
            lanes = self._lane_offsets(e.strides, start, k.width, block)
            base = e.view.base
            offsets = tuple(o + static for o in lanes)
            if dynamic is None:
                held = self.registers.read(self.fn, base, offsets, hint_of(base))
                if held is not None:
                    return held
            return load_lanes(self.fn, self.pointer(base), e.view.dtype, dynamic, offsets, base[0] in READ_ONLY, hint_of(base))
        if v.op in ("reshape", "broadcast", "slice"):
            return known[e.args[0]]
        return emit_elementwise(k, v, [known[a] for a in e.args])

    # ---- folds

    def _accumulate(self, k: Lanes, job: _Job, lanes: tuple[int, ...], x: Reg) -> None:
        s = job.sink
        dynamic, static = self._offset(job.strides, s.target.offset)
        offsets = tuple(o + static for o in lanes)
        pointer = self.pointer(s.target.base)
        old = load_lanes(self.fn, pointer, s.target.dtype, dynamic, offsets, False, "partial")
        store_lanes(self.fn, pointer, s.target.dtype, dynamic, offsets, combine(k, s.fold, old, x, s.target.dtype))

    def _gather(self, k: Lanes, job: _Job, lanes: tuple[int, ...], x: Reg) -> None:
        """Notes a register for the reduction at the end of the tile, or adds it to the loop's accumulator."""
        if job.sources is not None:
            n = self._cursor.get(job, 0)
            self._cursor[job] = n + 1
            acc = job.sources[n] if n < len(job.sources) and job.sources[n].labels == lanes else None
            if acc is not None:
                t = k.vt(x.scalar)
                old = Reg(self.fn.let("partial", f"load {t}, ptr {acc.memory}, align 4"), x.scalar)
                new = combine(k, job.sink.fold, old, x, job.sink.target.dtype)
                self.fn.emit(f"store {t} {new.text}, ptr {acc.memory}, align 4")
                return
            self._remainder.setdefault(job, []).append(Labelled(x.text, lanes))
            return
        self._pending.setdefault(job, []).append(Labelled(x.text, lanes))

    def _finish_folds(self, axis: int | None) -> None:
        """Reduces what the tile gathered and stores it."""
        for job, items in list(self._pending.items()):
            self._write(job, items, self._in_memory(job, axis))
        self._pending.clear()
        self._cursor = {}

    def _open_accumulators(self, axis: int, total: int, block: int) -> None:
        self._cursor, self._remainder = {}, {}
        for job in self.jobs:
            s = job.sink
            if not s.fold or job.strides[axis] != 0:
                continue
            scalar = register_type(s.target.dtype)
            job.sources = []
            for start, width in chunks(total, self.lanes, self._cut(total)):
                k = Lanes(self.fn, width)
                labels = self._lane_offsets(job.strides, start, width, block)
                if s.accumulate and len(set(labels)) == width:
                    continue
                memory = self.fn.alloca("acc", 1, scalar, width)
                start_value = k.const(identity(s.fold, s.target.dtype), scalar)
                self.fn.emit(f"store {k.vt(scalar)} {start_value.text}, ptr {memory}, align 4")
                job.sources.append(_Accumulator(memory, labels))

    def _close_accumulators(self) -> None:
        for job in self.jobs:
            if not job.sources:
                continue
            scalar = register_type(job.sink.target.dtype)
            items = []
            for acc in job.sources:
                t = Lanes(self.fn, len(acc.labels)).vt(scalar)
                items.append(Labelled(self.fn.let("acc", f"load {t}, ptr {acc.memory}, align 4"), acc.labels))
            outer = len(self.loops) > 1 and any(job.strides[a] == 0 for a in list(self.loops)[:-1])
            self._write(job, items + self._remainder.get(job, []), job.sink.accumulate or outer)

    def _write(self, job: _Job, items: list[Labelled], partial: bool) -> None:
        s = job.sink
        d = s.target.dtype
        scalar = register_type(d)
        done = fold_lanes(self.fn, scalar, items, lambda k, a, b: combine(k, s.fold, a, b, d))
        dynamic, static = self._offset(job.strides, s.target.offset)
        pointer = self.pointer(s.target.base)
        for item in done:
            k = Lanes(self.fn, item.width)
            offsets = tuple(o + static for o in item.labels)
            x = Reg(item.text, scalar)
            if partial:
                x = combine(k, s.fold, load_lanes(self.fn, pointer, d, dynamic, offsets, False, "partial"), x, d)
            self._store(s.target.base, d, dynamic, offsets, x)

    def _store(self, base: Base, d: DType, dynamic: str | None, offsets: tuple[int, ...], x: Reg) -> None:
        if base[0] == "temp" and not self.loops:
            self.registers.note(base, offsets, x)
        store_lanes(self.fn, self.pointer(base), d, dynamic, offsets, x)


def identity(fold: str, d: DType) -> float | int:
    if fold == "sum":
        return 0
    if d.is_float:
        return float("-inf")
    return 0 if d.kind in ("uint", "bool") else -(1 << (d.bits - 1))


def combine(k: Lanes, fold: str, a: Reg, b: Reg, d: DType) -> Reg:
    """``a op b`` of a sum or max of dtype ``d``."""
    if d.kind == "bool":
        return k.bits("or", a, b)
    return k.add(a, b) if fold == "sum" else extremum(k, "maximum", a, b, d)


def hint_of(base: Base) -> str:
    return {"other": "x", "row": "row", "edge": "e", "param": "p", "temp": "t", "state": "s", "image": "o"}.get(base[0], base[0])
