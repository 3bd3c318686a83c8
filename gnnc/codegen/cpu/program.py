"""SweepSpec -> what a kernel has to compute: sinks (stores, new states, carries) over one neutral value graph.

The function is rebuilt in a builder whose values are all ``edge`` or ``param``: row values become "edge" values too, a gather
at the grouped end disappears, folds are inlined as the step of their monoid on state *leaves* and as the asked part of the
final state. Where a leaf lies in memory is its `Base`; when a value is known (its region) follows from its leaves. Folds with the
same monoid and messages share one state, and so do folds whose states step alike (sum and mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from ...ir.builder import Builder
from ...ir.core import Loc, Value
from ...ir.monoid import Monoid, find_monoid
from ...ir.sweep import Region, SweepSpec
from ...ir.types import BOOL, F32, I32, DType, Type

Base = tuple[str, int]
"""Where something lies: ("row" | "other" | "edge" | "param", buffer), ("state" | "image" | "part" | "shadow", component),
("carry", carry), ("degree", 0), ("degree64", 0), ("edge_id", 0), ("temp", number), ("iota", size), ("out_row" | "out_edge" |
"out_param", buffer)."""


def contiguous(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    out: list[int] = []
    step = 1
    for d in reversed(dims):
        out.append(step)
        step *= d
    return tuple(reversed(out))


@dataclass(frozen=True)
class View:
    """A value in memory: element (i, j, ...) lies at ``base[offset + i*strides[0] + j*strides[1] + ...]``, stored as ``dtype``."""

    base: Base
    dtype: DType
    offset: int
    strides: tuple[int, ...]


@dataclass(eq=False)
class Sink:
    """Something to be computed: for every element of ``value``, ``target = value`` (or ``target op= value`` where ``fold`` is set;
    a target stride of 0 reduces that dim). ``accumulate``: the target already holds a partial result. ``produces``: the value that
    the target then holds. ``matmul``: ``value`` is a matmul, done by its own loops."""

    value: Value
    target: View
    fold: str = ""
    accumulate: bool = False
    produces: Value | None = None
    matmul: bool = False


@dataclass
class StateGroup:
    """One fold's state: its monoid, messages and the components that are kept (index in the monoid -> number in the program)."""

    monoid: Monoid
    messages: tuple[Value, ...]
    kept: dict[int, int]


@dataclass
class Component:
    """A kept state component: dtype, dims, initial value, the values its step and combine give, its place in the image."""

    name: str
    type: Type
    init: float | int
    offset: int
    old: Value
    step: Value
    combined: Value
    loc: Loc | None


@dataclass
class Carry:
    """A sum over all rows: each edge's or row's contribution is ``sink``; ``region`` says where it is made."""

    type: Type
    offset: int
    leaf: Value
    sink: Sink
    region: Region


@dataclass
class Program:
    """A sweep ready for code: sinks of each region and where every leaf lies."""

    builder: Builder
    leaves: dict[Value, Base] = field(default_factory=dict)
    leaf_region: dict[Value, Region] = field(default_factory=dict)
    components: list[Component] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)
    stores: list[tuple[Region, Sink]] = field(default_factory=list)
    args: tuple[str, ...] = ()
    arg_types: tuple[Type, ...] = ()
    num_read: int = 0
    state_bytes: int = 0
    carry_bytes: int = 0

    def leaf(self, name: str, type: Type, base: Base, region: Region) -> Value:
        v = self.builder.input(name, type)
        self.leaves[v], self.leaf_region[v] = base, region
        return v

    def regions(self, roots: Sequence[Value]) -> dict[Value, Region]:
        """When each value that the roots reach is known."""
        from ...ir.core import topological

        out: dict[Value, Region] = {}
        for v in topological(roots):
            if v in self.leaf_region:
                out[v] = self.leaf_region[v]
            else:
                out[v] = max([Region.PARAM, *(out[o] for o in v.operands)])
        return out


def _round_up(n: int, to: int) -> int:
    return (n + to - 1) // to * to


def stored(d: DType) -> DType:
    """The dtype of scratch memory for values of dtype ``d``: halves stay unpacked."""
    return d.acc if d.is_float else d


def lower_sweep(spec: SweepSpec, index_dtype: DType) -> Program:
    """The program of a sweep. The spec is trusted to have passed the verifier."""
    return _Lowering(spec, index_dtype).run()


class _Lowering:
    def __init__(self, spec: SweepSpec, index_dtype: DType) -> None:
        self.spec, self.index_dtype = spec, index_dtype
        self.b = Builder(spec.func.square, index_dtype, spec.func.monoids)
        self.p = Program(self.b)
        self.env: dict[Value, Value] = {}
        self.numbers: dict[Value, int] = {v: i for i, v in enumerate(spec.func.params)}
        self.groups: dict[tuple[object, ...], StateGroup] = {}
        self.alike: dict[tuple[object, ...], list[int]] = {}

    def run(self) -> Program:
        func, p = self.spec.func, self.p
        p.args = tuple(v.name for v in func.params) + func.result_names
        p.arg_types = tuple(v.type for v in func.params) + tuple(r.type for r in func.results)
        p.num_read = len(func.params)
        for v in func.values():
            with self.b.at(v.loc):
                self.env[v] = self._translate(v)
        for i, r in enumerate(func.results):
            self._store(r, len(func.params) + i)
        p.state_bytes = _round_up(p.state_bytes, 64)
        p.carry_bytes = _round_up(p.carry_bytes, 64)
        if not p.carry_bytes and any(region is Region.CARRY for region, _ in p.stores):
            p.carry_bytes = 64  # a param result without a carry: `finish` must still be called
        return p

    # ---- values

    def _translate(self, v: Value) -> Value:
        b = self.b
        args = [self.env[o] for o in v.operands]
        if v.op == "input":
            return self._input(v, "edge" if v.type.space == "edge" else "param" if v.type.space == "param" else "row")
        if v.op == "gather":
            if v.attr("end") == self.spec.grouped_by:
                return args[0]
            return self._input(v.operands[0], "other")
        if v.op == "degree":
            acc = degree_dtype(v.type.dtype)
            return b.cast(self._degree(acc), v.type.dtype)
        if v.op == "edge_id":
            return self._edge_id()
        if v.op == "spread":
            return args[0]
        if v.op == "fold":
            return self._fold(v, args)
        if v.op in ("reduce_rows", "contract_rows"):
            return self._carry(v, args)
        if v.op == "argmax":
            return self._argmax(args[0], v.attr("axis"))
        if v.op == "pad":
            return self._pad(args[0], v)
        return b.op(v.op, *args, **dict(v.attrs))

    def _input(self, v: Value, where: str) -> Value:
        region = {"row": Region.ROW, "edge": Region.EDGE, "other": Region.EDGE, "param": Region.PARAM}[where]
        space = "param" if where == "param" else "edge"
        return self.p.leaf(f"{v.name}@{where}", v.type.with_space(space), (where, self.numbers[v]), region)

    def _degree(self, dtype: DType) -> Value:
        wide = dtype.name == "f64"
        return self.p.leaf("%degree64" if wide else "%degree", Type("edge", dtype), ("degree64" if wide else "degree", 0), Region.ROW)

    def _edge_id(self) -> Value:
        return self.p.leaf("%edge_id", Type("edge", self.index_dtype), ("edge_id", 0), Region.EDGE)

    def _argmax(self, x: Value, axis: int) -> Value:
        """The first position that holds the maximum (or a NaN), from reductions: -max(-position where it is a hit)."""
        b = self.b
        size = x.type.dims[axis]
        top = b.op("reduce_max", x, axis=axis, keepdim=True)
        hit = b.op("eq", x, top)
        if x.type.dtype.is_float:
            hit = b.op("or", hit, b.op("ne", x, x))
        position = b.op("iota", size=size, rank=-axis)
        score = b.where(hit, b.neg(position), b.const(-size, I32))
        return b.neg(b.op("reduce_max", score, axis=axis, keepdim=True))

    def _pad(self, x: Value, v: Value) -> Value:
        b, axis = self.b, v.attr("axis")
        at = len(x.type.dims) + axis
        zero = b.const(False if x.type.dtype is BOOL else 0, x.type.dtype)

        def zeros(n: int) -> Value:
            return b.broadcast(zero, (*x.type.dims[:at], n, *x.type.dims[at + 1 :]))

        return b.op("concat", zeros(v.attr("before")), x, zeros(v.attr("after")), axis=axis)

    # ---- folds

    def _fold(self, v: Value, args: list[Value]) -> Value:
        monoid = find_monoid(v.attr("monoid"), self.spec.func.monoids)
        key = (monoid.name, *args)
        if key not in self.groups:
            parts = [
                u.attr("part")
                for u in self.spec.func.values()
                if u.op == "fold" and u.attr("monoid") == monoid.name and u.operands == v.operands
            ]
            self.groups[key] = self._group(v, monoid, tuple(args), monoid.needed(parts))
        group = self.groups[key]
        types = monoid.state_types([m.type for m in args], self.b.context)
        finals = [
            self._state_leaf("final", group.kept[i], t, Region.POST) if i in group.kept else self.b.input(f"%unused{i}.{t}", t)
            for i, t in enumerate(types)
        ]
        acc = next((t.dtype for c, t in zip(monoid.components, types, strict=True) if c.kind != "index"), F32)
        return self.b.inline(monoid.part(v.attr("part")), [*finals, self._degree(acc)])[0]

    def _state_leaf(self, role: str, number: int, t: Type, region: Region) -> Value:
        base = "image" if role == "image" else "state"
        return self.p.leaf(f"%{role}{number}", Type("edge", t.dtype, t.dims), (base, number), region)

    def _group(self, v: Value, monoid: Monoid, messages: tuple[Value, ...], needed: list[int]) -> StateGroup:
        b = self.b
        types = monoid.state_types([m.type for m in messages], b.context)
        extra = [self._edge_id()] if monoid.uses_edge_id else []
        # Steps on probe leaves tell whether another fold's state does the same.
        probes = [b.input(f"%probe{i}.{t}", t) for i, t in enumerate(types)]
        others = [b.input(f"%other{i}.{t}", t) for i, t in enumerate(types)]
        with b.at(v.loc):
            step = b.inline(monoid.step, [*probes, *messages, *extra])
            merge = b.inline(monoid.combine, [*probes, *others])
        shape = tuple((i, types[i], monoid.components[i].init, step[i], merge[i]) for i in needed)
        if shape in self.alike:
            return StateGroup(monoid, messages, dict(zip(needed, self.alike[shape], strict=True)))
        first = len(self.p.components)
        kept = {c: first + n for n, c in enumerate(needed)}
        self.alike[shape] = list(kept.values())
        unused = [b.input(f"%unused{i}.{t}", t) for i, t in enumerate(types)]
        old = [self._state_leaf("old", kept[i], t, Region.EDGE) if i in kept else unused[i] for i, t in enumerate(types)]
        image = [self._state_leaf("image", kept[i], t, Region.EDGE) if i in kept else unused[i] for i, t in enumerate(types)]
        with b.at(v.loc):
            step = b.inline(monoid.step, [*old, *messages, *extra])
            merge = b.inline(monoid.combine, [*old, *image])
        for i, n in kept.items():
            t, comp = types[i], monoid.components[i]
            self.p.state_bytes = _round_up(self.p.state_bytes, max(t.dtype.bytes, 1))
            new, merged = (self._fit(x, t) for x in (step[i], merge[i]))
            self.p.components.append(Component(f"{monoid.name}.{comp.name}", t, comp.init, self.p.state_bytes, old[i], new, merged, v.loc))
            assert len(self.p.components) == n + 1
            self.p.state_bytes += t.row_bytes
        return StateGroup(monoid, messages, kept)

    def _fit(self, x: Value, t: Type) -> Value:
        """``x`` with the dims and dtype of ``t``."""
        return self.b.broadcast(self.b.cast(x, t.dtype), t.dims)

    # ---- carries and stores

    def _carry(self, v: Value, args: list[Value]) -> Value:
        b, space = self.b, next((o.type.space for o in v.operands if o.type.space != "param"), "param")
        dtype, dims = v.type.dtype, v.type.dims
        strides: tuple[int, ...]
        if v.op == "reduce_rows":
            value, strides = b.cast(args[0], dtype), contiguous(dims)
        else:
            x, y = (b.cast(a, dtype) if not a.type.dtype.is_float else a for a in args)
            lead, k, f = prod(x.type.dims[:-1]), x.type.dims[-1], y.type.dims[-1]
            value = b.cast(b.mul(b.reshape(x, (lead, k, 1)), b.reshape(y, (lead, 1, f))), dtype)
            strides = (0, f, 1)
        if space == "param":  # one row: the sum is the value
            if v.op == "reduce_rows":
                return value
            return b.sum(value, -3)
        number = len(self.p.carries)
        self.p.carry_bytes = _round_up(self.p.carry_bytes, 64)
        leaf = self.p.leaf(f"%carry{number}", Type("param", dtype, dims), ("carry", number), Region.CARRY)
        sink = Sink(value, View(("carry", number), dtype, 0, strides), fold="sum", accumulate=True)
        region = Region.EDGE if space == "edge" else Region.POST
        self.p.carries.append(Carry(Type("param", dtype, dims), self.p.carry_bytes, leaf, sink, region))
        self.p.carry_bytes += Type("param", dtype, dims).row_bytes
        return leaf

    def _store(self, r: Value, number: int) -> None:
        where = "edge" if r.type.space == "edge" else "param" if r.type.space == "param" else "row"
        region = {"edge": Region.EDGE, "row": Region.POST, "param": Region.CARRY}[where]
        if where == "param" and self.spec.rows == "param":
            region = Region.POST
        value = self.env[r]
        view = View((f"out_{where}", number), r.type.dtype, 0, contiguous(r.type.dims))
        assert value.type.dims == r.type.dims, (value.type, r.type)
        self.p.stores.append((region, Sink(value, view)))


def degree_dtype(d: DType) -> DType:
    """Degrees are made in f32, in f64 where asked."""
    return d.acc if d.is_float else F32
