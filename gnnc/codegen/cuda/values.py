"""A program's values as the fragment path sees them: shapes, how each is computed, what crosses from rows to edges, registers.

From these follow the layout and the edges in flight (`FragmentValues.choose`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.core import Value, topological
from ...ir.sweep import Region, SweepSpec
from ...ir.types import F32, F64, DType
from ..cpu.program import Base, Program, Sink
from .ops import const_of, register_dtype, unique_identifiers
from .parts import split_rows
from .rescale import find_rescales
from .schedule import REGISTER_BUDGET, CudaSchedule, Layout, choose_layout, choose_unroll
from .shapes import DoesNotFit, Fit, Flags, fit_shapes, head_stride, roots_of

KINDS: dict[Flags, str] = {(True, True): "Wide", (True, False): "Head", (False, True): "Chan", (False, False): "Unit"}
"""Name of a fragment's type by its shape."""


class FragmentValues:
    """A sweep's program with what the fragment path must know of each value. Raises DoesNotFit."""

    def __init__(self, spec: SweepSpec, program: Program, index_dtype: DType, name: str, wish: CudaSchedule) -> None:
        self.spec, self.p, self.index, self.name, self.wish = spec, program, index_dtype, name, wish
        split_rows(program)
        self.fit: Fit = fit_shapes(program)
        self.leaves: dict[Value, Base] = {**program.leaves, **{v: view.base for v, view in self.fit.views.items()}}
        roots = roots_of(program)
        self.region = program.regions([*roots, *program.leaves])
        self.uses: dict[Value, int] = {}
        for v in topological(roots):
            for o in v.operands:
                self.uses[o] = self.uses.get(o, 0) + 1
        for r in roots:
            self.uses[r] = self.uses.get(r, 0) + 1
        self.known_flags: dict[Value, Flags] = {}
        self.names = unique_identifiers(program.args)
        self.members = unique_identifiers(tuple(f"{c.name.split('.')[-1]}_{n}" for n, c in enumerate(program.components)))
        self.rescales = find_rescales(program)
        self.edge_sinks = [s for r, s in program.stores if r is Region.EDGE]
        self.post_sinks = [s for r, s in program.stores if r is Region.POST]
        self.last_sinks = [s for r, s in program.stores if r is Region.CARRY]
        self.edge_roots = [*(c.step for c in program.components), *(s.value for s in self.edge_sinks)]
        self.edge_roots += [c.sink.value for c in program.carries if c.region is Region.EDGE]
        edge_values = [v for v in self.order(self.edge_roots, {}) if self.region[v] is Region.EDGE]
        self.edge_values = edge_values
        self.crossing = self._crossing()
        self.edge_leaves = [v for v in edge_values if self.leaves.get(v, ("", 0))[0] in ("other", "edge")]
        self.is_map = spec.grouped_by is None
        self.has_carry = bool(program.carries) or bool(self.last_sinks)

    # ---- values

    def form(self, v: Value) -> tuple[str, tuple[Value, ...]]:
        """How a value is computed: fma of three, dot of two, or plainly from its operands."""
        if v.op == "add" and v.type.dtype.is_float:
            for x, y in (v.operands, v.operands[::-1]):
                if self._folds_into(x, v):
                    return "fma", (*x.operands, y)
        if v.op == "reduce_sum" and v.type.dtype.is_float and v.operands[0].type.size != v.type.size:
            x = v.operands[0]
            if self._folds_into(x, v):
                return "dot", x.operands
        return "plain", v.operands

    def _folds_into(self, x: Value, user: Value) -> bool:
        same = register_dtype(x.type.dtype) is register_dtype(user.type.dtype)
        return x.op == "mul" and same and self.uses[x] == 1 and self.region[x] is self.region[user]

    def order(self, roots: Iterable[Value], known: dict[Value, str]) -> list[Value]:
        """What must be emitted for the roots, operands first."""
        out: list[Value] = []
        seen: set[Value] = set(known)
        for root in roots:
            stack: list[tuple[Value, bool]] = [(root, False)]
            while stack:
                v, ready = stack.pop()
                if ready:
                    out.append(v)
                    continue
                if v in seen or const_of(v) is not None:
                    continue
                seen.add(v)
                stack.append((v, True))
                if v not in self.leaves:
                    stack += [(o, False) for o in reversed(self.form(v)[1])]
        return out

    def axis(self, v: Value) -> str:
        """The axis that a feature reduction takes away."""
        before, after = self.fit.of(v.operands[0]), self.fit.of(v)
        return "h" if before[0] and not after[0] else "c"

    def cflags(self, v: Value) -> Flags:
        """The shape of the C++ value: that of the IR, without dims it was only broadcast to."""
        for x in topological([v]) if v not in self.known_flags else ():
            if x in self.known_flags:
                continue
            if x in self.leaves or x.op == "iota":
                out = self.fit.flags.get(x, (False, False))  # what lies under a view has no shape here
            elif const_of(x) is not None or not x.operands:
                out = (False, False)
            else:
                parts = [self.known_flags[o] for o in x.operands]
                out = (any(h for h, _ in parts), any(c for _, c in parts))
                if x.op in ("reduce_sum", "reduce_max"):
                    gone = self.axis(x)
                    if x.operands[0].type.size != x.type.size:
                        out = (out[0] and gone != "h", out[1] and gone != "c")
            self.known_flags[x] = out
        return self.known_flags[v]

    def _crossing(self) -> list[Value]:
        """Row values that edges read: the members of Row."""
        out: dict[Value, None] = {}
        for v in self.order(self.edge_roots, {}):
            if self.region[v] is Region.EDGE and v not in self.leaves:
                for o in self.form(v)[1]:
                    if self.region[o] < Region.EDGE and const_of(o) is None:
                        out[o] = None
        for r in self.edge_roots:
            if self.region[r] < Region.EDGE and const_of(r) is None:
                out[r] = None
        return list(out)

    def frag_type(self, v: Value, flags: Flags | None = None) -> str:
        d = self._reg(v)
        return f"{KINDS[flags or self.cflags(v)]}<L, {d}>"

    def _reg(self, v: Value) -> str:
        base = self.leaves.get(v)
        if base is not None and base[0] in ("row", "param", "other", "edge"):
            return f"Reg<{self.names[base[1]]}_t>"
        return str(register_dtype(v.type.dtype))

    # ---- schedule

    def words(self, flags: Flags, d: DType, layout: Layout) -> int:
        return layout.elements(flags) * (2 if register_dtype(d).bits == 64 else 1)

    def _held(self, layout: Layout, wide_only: bool = False) -> int:
        """Registers of what lives along a row."""
        values = [(self.cflags(v), v.type.dtype) for v in self.crossing]
        values += [(self.fit.of(c.old), c.type.dtype) for c in self.p.components]
        values += [(self.fit.of(c.leaf), c.type.dtype) for c in self.p.carries]
        return sum(self.words(flags, d, layout) for flags, d in values if flags[1] or not wide_only)

    def _raw(self, layout: Layout) -> int:
        wide = [v for v in self.edge_leaves if self.cflags(v)[1]] or self.edge_leaves
        return sum(-(-layout.elements(self.cflags(v)) * v.type.dtype.bytes // 4) for v in wide)

    def _item(self) -> int:
        """Bytes of the narrowest element of the tables with channels that edges gather; of any table, where they gather none."""
        p = self.p
        wide = [v.type.dtype.bytes for v in self.edge_leaves if self.fit.of(v)[1]]
        if not wide:
            wide = [
                v.type.dtype.bytes
                for v in self.leaves
                if self.leaves[v][0] in ("row", "param") and v in self.fit.flags and self.fit.of(v)[1]
            ]
        if not wide:
            wide = [s.target.dtype.bytes for _r, s in p.stores]
        return min(wide, default=4)

    def choose(self) -> tuple[Layout, int]:
        """Layout and edges in flight. Raises DoesNotFit where no slicing makes the values fit in registers."""
        fit, wish, item = self.fit, self.wish, self._item()
        need = 0
        for slices in [wish.slices] if wish.slices else [s for s in range(1, 65) if self._may_slice(s)]:
            if not self._may_slice(slices):
                raise DoesNotFit(f"{slices} slices of {fit.heads} x {fit.chans}")
            heads, chans = (1, fit.chans // slices) if fit.flat else (fit.heads // slices, fit.chans)
            layout = choose_layout(heads, chans, item, wish, slices, self._steps())
            wide = 2 * self.words((True, True), self._acc(), layout)
            need = self._held(layout) + self._raw(layout) + wide
            if need <= REGISTER_BUDGET or wish.path == "fragment":
                reductions = sum(v.op in ("reduce_sum", "reduce_max") for v in self.edge_values)
                return layout, wish.unroll or choose_unroll(self._raw(layout), self._held(layout, wide_only=True), reductions)
        raise DoesNotFit(f"a lane would hold {need} registers of {fit.heads} x {fit.chans} values")

    def _acc(self) -> DType:
        return F64 if any(v.type.dtype.name == "f64" for v in self.fit.flags) else F32

    def _may_slice(self, slices: int) -> bool:
        if slices == 1:
            return True
        if self.fit.flat:
            return self.fit.chans % slices == 0
        across = any(v.op.startswith("reduce_") and self.axis(v) == "h" and v.operands[0].type.size != v.type.size for v in self.fit.flags)
        return self.fit.heads % slices == 0 and not across

    def _steps(self) -> list[int]:
        """Distances in rows of which views are a part: vectors must divide them."""
        out = []
        parts = [(v, view) for v, view in self.fit.views.items()]
        parts += [(s.value, s.target) for _r, s in self.p.stores if self.is_part(s)]
        for v, view in parts:
            if self.fit.of(v)[1]:
                out += [view.offset, self.p.arg_types[view.base[1]].size, head_stride(self.fit, self.fit.of(v), v, view)]
        return out

    def is_part(self, s: Sink) -> bool:
        """A store to a part of a row."""
        return s.value.type.dims != self.p.arg_types[s.target.base[1]].dims
