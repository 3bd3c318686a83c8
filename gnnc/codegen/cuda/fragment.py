"""The fragment path: a sweep as a Program struct over sweep.cuh.

Values are fragments of shape [H, C], [H], [C] or scalar. The struct's text depends on the program alone; sizes, lanes and edges in
flight enter through its schedule, storage dtypes through aliases over it. Additions of a product that nobody else reads become fma;
nothing else is contracted (NVRTC runs with fmad off), so that a value is one number wherever it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...ir.core import Value, topological
from ...ir.monoid import find_monoid
from ...ir.sweep import Region, SweepSpec
from ...ir.types import F32, F64, DType
from ..cpu.program import Base, Component, Program, Sink, View
from .ops import as_dtype, const_of, expression, literal, reduced_dtype, register_dtype, unique_identifiers
from .parts import split_rows
from .rescale import Rescale, find_rescales
from .schedule import REGISTER_BUDGET, CudaSchedule, Layout, block_for, choose_layout, choose_unroll
from .shapes import DoesNotFit, Fit, Flags, fit_shapes, head_stride, roots_of
from .text import CudaText, Entry, Writer, assemble

KINDS: dict[Flags, str] = {(True, True): "Wide", (True, False): "Head", (False, True): "Chan", (False, False): "Unit"}
ALIASES = ("reshape", "broadcast")


def emit_fragment(spec: SweepSpec, program: Program, index_dtype: DType, name: str, wish: CudaSchedule) -> CudaText:
    """The text of a sweep by fragments. Raises DoesNotFit."""
    return _Fragment(spec, program, index_dtype, name, wish).emit()


class _Scope:
    """Values that have a name at some place of the text."""

    def __init__(self, owner: _Fragment, w: Writer, leaf: Callable[[Base, Value], str], outer: _Scope | None = None) -> None:
        self.owner, self.w, self.leaf = owner, w, leaf
        self.names: dict[Value, str] = dict(outer.names) if outer else {}
        self.count: list[int] = outer.count if outer else [0]

    def text(self, v: Value) -> str:
        c = const_of(v)
        if v not in self.names and c is not None:
            return literal(c.attr("value"), register_dtype(c.type.dtype))
        return self.names[v]

    def fragment(self, v: Value) -> str:
        """The value as a fragment, also where it is a constant."""
        return f"unit<L>({self.text(v)})" if v not in self.names else self.names[v]

    def demand(self, roots: Iterable[Value]) -> None:
        """Emits what the roots need, one line a value, operands first."""
        for v in self.owner.order(roots, self.names):
            self._emit(v)

    def _emit(self, v: Value) -> None:
        leaves = self.owner.leaves
        if v in leaves:
            leaf = self.leaf(leaves[v], v)
            if leaf.isidentifier() or "(" not in leaf:
                self.names[v] = leaf
                return
            self._line(v, leaf)
            return
        if v.op in ALIASES or (v.op == "cast" and self._same(v)) or (v.op.startswith("reduce") and self._squeezes(v)):
            (o,) = v.operands
            mine, theirs = register_dtype(v.type.dtype), register_dtype(o.type.dtype)
            self.names[v] = self.text(o) if mine is theirs else f"convert<{mine}>({self.fragment(o)})"
            return
        self._line(v, self._expression(v))

    def _same(self, v: Value) -> bool:
        """A cast that leaves the register as it is."""
        o = v.operands[0].type.dtype
        return o is v.type.dtype or (
            o.is_float and o.bits == 16 and register_dtype(v.type.dtype) is register_dtype(o) and v.type.dtype.bits == 32
        )

    def _squeezes(self, v: Value) -> bool:
        return v.operands[0].type.size == v.type.size

    def _line(self, v: Value, text: str) -> None:
        name = f"v{self.count[0]}"
        self.count[0] += 1
        shape = {"Wide": "[H, C]", "Head": "[H]", "Chan": "[C]", "Unit": "[]"}[KINDS[self.owner.cflags(v)]]
        self.w.line(f"const auto {name} = {text};".ljust(66) + f" // {v.op} {shape}", v.loc)
        self.names[v] = name

    def _expression(self, v: Value) -> str:
        kind, args = self.owner.form(v)
        d = register_dtype(v.type.dtype)
        if kind == "fma":
            a, b, c = (as_dtype(o, d, self.text) for o in args)
            if all(const_of(o) is not None for o in args):
                return f"unit<L>(fma({a}, {b}, {c}))"
            return f"fma({a}, {b}, {c})"
        if kind == "dot":
            a, b = (self._typed(o, d) for o in args)
            return f"dot_{self._axis(v)}(lane, {a}, {b})"
        if v.op in ("reduce_sum", "reduce_max"):
            return f"{v.op.removeprefix('reduce_')}_{self._axis(v)}(lane, {self._typed(v.operands[0], reduced_dtype(v))})"
        if v.op == "iota":
            flags = self.owner.fit.of(v)
            return {(True, True): "iota_flat(lane)", (True, False): "iota_h(lane)", (False, True): "iota_c(lane)"}.get(
                flags, "unit<L>(i32(0))"
            )
        text = expression(v, self.text)
        return f"unit<L>({text})" if all(o not in self.names for o in v.operands) else text

    def _typed(self, o: Value, d: DType) -> str:
        return self.fragment(o) if register_dtype(o.type.dtype) is d else f"convert<{d}>({self.fragment(o)})"

    def _axis(self, v: Value) -> str:
        return self.owner.axis(v)


class _Fragment:
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

    def _words(self, flags: Flags, d: DType, layout: Layout) -> int:
        return layout.elements(flags) * (2 if register_dtype(d).bits == 64 else 1)

    def _held(self, layout: Layout, wide_only: bool = False) -> int:
        """Registers of what lives along a row."""
        values = [(self.cflags(v), v.type.dtype) for v in self.crossing]
        values += [(self.fit.of(c.old), c.type.dtype) for c in self.p.components]
        values += [(self.fit.of(c.leaf), c.type.dtype) for c in self.p.carries]
        return sum(self._words(flags, d, layout) for flags, d in values if flags[1] or not wide_only)

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
            wide = 2 * self._words((True, True), self._acc(), layout)
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

    # ---- text

    def emit(self) -> CudaText:
        p, w = self.p, Writer()
        layout, unroll = self.choose()
        grouped = f"grouped by {self.spec.grouped_by}" if self.spec.grouped_by else f"map over {self.spec.rows} rows"
        w.comment(f"{self.name}: {grouped}" + (f", {self.spec.family}" if self.spec.family else ""))
        with w.block(f"namespace sweep {{ namespace {self.name}_ns", "}}"):
            for n, t in zip(self.names, p.arg_types, strict=True):
                w.line(f"using {n}_t = {t.dtype};")
            w.line()
            with w.block("template <class S> struct Program", "};"):
                self._struct(w)
            w.line()
            group_rows = self.is_map or bool(self.wish.group_rows)
            flags = ", ".join(("false", "true")[x] for x in (group_rows, self.wish.prefetch, self.wish.fence))
            w.line(f"using P = Program<Schedule<{layout.text}, {self.index}, {unroll}, {flags}>>;")
            entries = self._entries(w, layout, group_rows)
        text, lines = assemble(("fragment.cuh", "sweep.cuh"), {t.dtype.name for t in p.arg_types} | self._cast_dtypes(), w)
        words = [sum(self._words(self.fit.of(v), v.type.dtype, layout) for v in vs) * layout.lanes * layout.slices for vs in self._images()]
        how = f"{layout.heads} x {layout.chans}, vectors of {layout.vec}, {layout.lanes} lanes, {unroll} edges in flight" + (
            f", {layout.slices} slices" if layout.slices > 1 else ""
        )
        reason = "values of one size, no feature reduction" if self.fit.flat else "every value is [H, C], [H], [C] or scalar"
        return CudaText(
            text, "\n".join(w.out) + "\n", p.args, p.arg_types, p.num_read, self.index, words[0], words[1], 0,
            *entries, "fragment", reason, how, lines,
        )  # fmt: skip

    def _cast_dtypes(self) -> set[str]:
        return {v.type.dtype.name for v in self.fit.flags}

    def _images(self) -> tuple[list[Value], list[Value]]:
        return [c.old for c in self.p.components], [c.leaf for c in self.p.carries]

    def _struct(self, w: Writer) -> None:
        p = self.p
        yes = ("false", "true")
        monoids = self.spec.func.monoids
        own = [v for v in self.spec.func.values() if v.op == "fold" and find_monoid(v.attr("monoid"), monoids) in monoids]
        uses_degree = any(base[0].startswith("degree") for v, base in self.leaves.items() if v in self.fit.flags)
        w.line("using L = typename S::L; using Index = typename S::Index;")
        w.line("static constexpr int U = S::U;")
        w.line("static constexpr bool kGroupRows = S::kGroupRows, kPrefetch = S::kPrefetch, kFence = S::kFence;")
        kinds = {self.leaves[v][0] for v in self.edge_values if v in self.leaves}
        for name, on in (
            ("kMap", self.is_map),
            ("kOther", "other" in kinds),
            ("kId", bool(kinds & {"edge", "edge_id"}) or bool(self.edge_sinks)),
            ("kDegree", uses_degree),
            ("kCarry", self.has_carry),
            ("kOrdered", bool(own)),
        ):
            w.line(f"static constexpr bool {name} = {yes[on]};")
        for i, n in enumerate(self.names):
            w.line(f"{'const ' if i < p.num_read else ''}{n}_t* {n};")
        w.line()
        self._state(w)
        self._carry(w)
        if not self.is_map:
            self._row(w)
            self._edge(w)
            self._step(w)
        self._store(w)
        self._store_carry(w)

    def _state(self, w: Writer) -> None:
        p = self.p
        if not p.components:
            w.line("using State = None;")
            return

        def leaf(base: Base, _v: Value) -> str:
            return f"o.{self.members[base[1]]}" if base[0] == "image" else self.members[base[1]]

        with w.block("struct State", "};"):
            types = [self.frag_type(c.old, self.fit.of(c.old)) for c in p.components]
            for c, m, t in zip(p.components, self.members, types, strict=True):
                w.line(f"{t} {m};", c.loc)
            w.line(f"static constexpr int kWords = {' + '.join(f'{t}::kWords' for t in types)};")
            with w.block("SWEEP_FN void init()"):
                for c, m in zip(p.components, self.members, strict=True):
                    w.line(f"fill({m}, {literal(c.init if c.type.dtype.is_float else int(c.init), c.type.dtype)});")
            with w.block("SWEEP_FN void combine(const State& o)"):
                scope = _Scope(self, w, leaf)
                for part in self._independent([c.combined for c in p.components]):
                    scope.demand(p.components[n].combined for n in part)
                    for n in part:
                        w.line(f"set({self.members[n]}, {scope.text(p.components[n].combined)});")
            w.line("template <class F> SWEEP_FN void each(F f) { " + " ".join(f"{m}.each(f);" for m in self.members) + " }")

    def _independent(self, news: Sequence[Value]) -> list[list[int]]:
        """Components in parts that do not read each other's state: each part is computed, then assigned."""
        olds = {c.old: n for n, c in enumerate(self.p.components)}
        part = list(range(len(news)))
        for n, v in enumerate(news):
            for o in topological([v]):
                if o in olds and part[olds[o]] != part[n]:
                    a, b = part[olds[o]], part[n]
                    part = [min(a, b) if x in (a, b) else x for x in part]
        return [[n for n in range(len(news)) if part[n] == k] for k in sorted(set(part))]

    def _carry(self, w: Writer) -> None:
        if not self.p.carries:
            w.line("using Carry = None;")
            return
        with w.block("struct Carry", "};"):
            types = [self.frag_type(c.leaf, self.fit.of(c.leaf)) for c in self.p.carries]
            for n, t in enumerate(types):
                w.line(f"{t} sum_{n};")
            w.line(f"static constexpr int kWords = {' + '.join(f'{t}::kWords' for t in types)};")
            w.line(
                "SWEEP_FN void init() { "
                + " ".join(f"fill(sum_{n}, {literal(0, c.type.dtype)});" for n, c in enumerate(self.p.carries))
                + " }"
            )
            w.line(
                "SWEEP_FN void combine(const Carry& o) { "
                + " ".join(f"set(sum_{n}, add(sum_{n}, o.sum_{n}));" for n in range(len(types)))
                + " }"
            )
            w.line("template <class F> SWEEP_FN void each(F f) { " + " ".join(f"sum_{n}.each(f);" for n in range(len(types))) + " }")

    # ---- leaves

    def _row_leaf(self, base: Base, v: Value) -> str:
        kind, n = base
        if kind in ("row", "param"):
            h, c = (("false", "true")[x] for x in self.fit.of(v))
            return f"load<{h}, {c}>({self._table(v)}, {'r' if kind == 'row' else '0'}, lane)"
        if kind in ("degree", "degree64"):
            return f"unit<L>({register_dtype(v.type.dtype)}(degree))"
        if kind == "state":
            return f"s.{self.members[n]}"
        assert kind == "carry", base
        return f"c.sum_{n}"

    def _edge_leaf(self, base: Base, v: Value) -> str:
        kind, n = base
        if kind in ("other", "edge"):
            return f"widen(b.edge[u].{self._edge_member(v)})"
        if kind == "edge_id":
            return f"unit<L>({self.index}(b.id(u)))"
        assert kind == "state", base
        return f"s.{self.members[n]}"

    def _edge_member(self, v: Value) -> str:
        same = [x for x in self.edge_leaves if self.leaves[x][1] == self.leaves[v][1]]
        return self.names[self.leaves[v][1]] + (f"_{same.index(v)}" if len(same) > 1 else "")

    def _table(self, v: Value) -> str:
        """The table of a load: the buffer, or a view of a part of its rows."""
        n = self.leaves[v][1]
        return self._view(v, self.fit.views[v]) if v in self.fit.views else self.names[n]

    def _view(self, v: Value, view: View) -> str:
        n, flags = view.base[1], self.fit.of(v)
        heads = "L::C" if self.fit.flat else head_stride(self.fit, flags, v, view)
        row = 0 if view.base[0] == "param" else self.p.arg_types[n].size
        return f"view<{row}, {heads}>({self.names[n]}{f' + {view.offset}' if view.offset else ''})"

    def _steps(self) -> list[int]:
        """Distances in rows of which views are a part: vectors must divide them."""
        out = []
        parts = [(v, view) for v, view in self.fit.views.items()]
        parts += [(s.value, s.target) for _r, s in self.p.stores if self._is_part(s)]
        for v, view in parts:
            if self.fit.of(v)[1]:
                out += [view.offset, self.p.arg_types[view.base[1]].size, head_stride(self.fit, self.fit.of(v), v, view)]
        return out

    def _is_part(self, s: Sink) -> bool:
        """A store to a part of a row."""
        return s.value.type.dims != self.p.arg_types[s.target.base[1]].dims

    def _row_member(self, v: Value) -> str:
        k = self.crossing.index(v)
        base = self.leaves.get(v)
        return f"{self.names[base[1]]}_{k}" if base is not None and base[0] in ("row", "param") else f"v_{k}"

    # ---- methods

    def _row(self, w: Writer) -> None:
        with w.block("struct Row", "};"):
            for v in self.crossing:
                w.line(f"{self.frag_type(v)} {self._row_member(v)};")
        with w.block("SWEEP_FN Row row(const Lane<L>& lane, i64 r, i64 degree) const"):
            scope = _Scope(self, w, self._row_leaf)
            scope.demand(self.crossing)
            w.line(f"return {{{', '.join(scope.text(v) for v in self.crossing)}}};")

    def _edge(self, w: Writer) -> None:
        raw = {v: f"Raw{KINDS[self.fit.of(v)]}<L, {self.names[self.leaves[v][1]]}_t> {self._edge_member(v)};" for v in self.edge_leaves}
        with w.block("struct Edge", "};"):
            for text in raw.values():
                w.line(text)
        with w.block("template <bool kTail> SWEEP_FN Edge edge(const Lane<L>& lane, Index other, Index id, Live<kTail> live) const"):
            loads = []
            for v in self.edge_leaves:
                kind = self.leaves[v][0]
                h, c = (("false", "true")[x] for x in self.fit.of(v))
                loads.append(f"fetch<{h}, {c}>({self._table(v)}, {'other' if kind == 'other' else 'id'}, lane, live)")
            w.line(f"return {{{', '.join(loads)}}};")

    def _edge_scope(self, w: Writer) -> _Scope:
        scope = _Scope(self, w, self._edge_leaf)
        scope.names = {v: f"row.{self._row_member(v)}" for v in self.crossing}
        return scope

    def _shuffled(self, roots: Iterable[Value], known: dict[Value, str]) -> list[Value]:
        """The feature reductions among what the roots need: all lanes must take part in them, those of absent edges too."""
        return [v for v in self.order(roots, known) if v.op in ("reduce_sum", "reduce_max") and v.operands[0].type.size != v.type.size]

    def _step(self, w: Writer) -> None:
        p = self.p
        head = "template <class B> SWEEP_FN void step(const Lane<L>& lane, const Row& row, const B& b, State& s, Carry& c) const"
        with w.block(head):
            batched = {n for r in self.rescales for n in r.numbers}
            single = [n for n in range(len(p.components)) if n not in batched]
            arrays = self._first_pass(w, single) if self.rescales else {}
            for k, r in enumerate(self.rescales):
                self._rescale(w, k, r, arrays)
            with w.block("EACH_EDGE(u)"):
                scope = self._edge_scope(w)
                scope.names |= {v: f"{name}[u]" for v, name in arrays.items()}
                roots = self._second_roots(single)
                scope.demand(self._shuffled(roots, scope.names))
                with w.block("if (b.live(u))"):
                    inner = _Scope(self, w, self._edge_leaf, scope)
                    self._weighted(w, inner)
                    self._updates(w, inner, single)

    def _second_roots(self, single: Sequence[int]) -> list[Value]:
        p = self.p
        roots = [t.value for r in self.rescales for t in r.terms if t.value is not None]
        roots += [p.components[n].step for n in single] + [s.value for s in self.edge_sinks]
        return roots + [c.sink.value for c in p.carries if c.region is Region.EDGE]

    def _first_pass(self, w: Writer, single: Sequence[int]) -> dict[Value, str]:
        """Scores of a whole batch, and the feature reductions on the way that are read again: one array each."""
        scores = [r.score for r in self.rescales]
        first = set(self.order(scores, {}))
        again = set(self.order(self._second_roots(single), dict.fromkeys(scores, "")))
        kept = [v for v in self._shuffled(scores, {}) if v in first and v in again and v not in scores]
        arrays = {v: f"score_{k}" for k, v in enumerate(dict.fromkeys(scores))}
        arrays |= {v: f"kept_{k}" for k, v in enumerate(kept)}
        for v, name in arrays.items():
            w.line(f"{KINDS[self.cflags(v)]}<L, {register_dtype(v.type.dtype)}> {name}[U];")
        with w.block("EACH_EDGE(u)"):
            scope = self._edge_scope(w)
            scope.demand(arrays)
            for v, name in arrays.items():
                w.line(f"set({name}[u], {scope.text(v)});", v.loc)
        return arrays

    def _rescale(self, w: Writer, k: int, r: Rescale, arrays: dict[Value, str]) -> None:
        top, d = self.members[r.top], self.p.components[r.top].type.dtype
        score = as_dtype(r.score, register_dtype(d), lambda v: f"{arrays[v]}[u]")
        w.comment("the batch's maximum, and one rescale of what was summed under the old one")
        w.line(f"auto top_{k} = s.{top};")
        w.line(f"EACH_EDGE(u) if (b.live(u)) set(top_{k}, maximum(top_{k}, {score}));")
        shift = f"where(eq(top_{k}, -inf<{d}>()), {d}(0), top_{k})" if r.guarded else f"top_{k}"
        w.line(f"const auto shift_{k} = {shift};")
        w.line(f"const auto decay_{k} = exp(s.{top} - shift_{k});")
        w.line(f"s.{top} = top_{k};")
        for t in r.terms:
            m = self.members[t.number]
            w.line(f"set(s.{m}, s.{m} * decay_{k});")

    def _weighted(self, w: Writer, scope: _Scope) -> None:
        for k, r in enumerate(self.rescales):
            loc = self.p.components[r.top].loc
            score = as_dtype(r.score, register_dtype(self.p.components[r.top].type.dtype), scope.text)
            w.line(f"const auto weight_{k} = exp({score} - shift_{k});", loc)
            for t in r.terms:
                m, d = self.members[t.number], register_dtype(self.p.components[t.number].type.dtype)
                if t.value is None:
                    w.line(f"set(s.{m}, s.{m} + weight_{k});", loc)
                    continue
                scope.demand([t.value])
                w.line(f"set(s.{m}, fma(weight_{k}, {as_dtype(t.value, d, scope.text)}, s.{m}));", loc)

    def _updates(self, w: Writer, scope: _Scope, single: Sequence[int]) -> None:
        p = self.p
        for part in self._independent([c.step for c in p.components]):
            mine = [n for n in part if n in single and p.components[n].step is not p.components[n].old]
            if len(mine) == 1 and (added := self._added(p.components[mine[0]])) is not None:
                self._accumulate(w, scope, f"s.{self.members[mine[0]]}", added, p.components[mine[0]].type.dtype)
                continue
            scope.demand(p.components[n].step for n in mine)
            for n in mine:
                c = p.components[n]
                w.line(f"set(s.{self.members[n]}, {scope.text(c.step)});", c.loc)
        for n, carry in enumerate(p.carries):
            if carry.region is Region.EDGE:
                self._accumulate(w, scope, f"c.sum_{n}", carry.sink.value, carry.type.dtype)
        for s in self.edge_sinks:
            self._store_sink(w, scope, s, "true", "b.id(u)")

    def _added(self, c: Component) -> Value | None:
        """What the step adds to the component, if it is a plain sum."""
        if c.step.op != "add" or not c.type.dtype.is_float or self.uses[c.step] != 1:
            return None
        x, y = c.step.operands
        return y if x is c.old and y is not c.old else x if y is c.old and x is not c.old else None

    def _accumulate(self, w: Writer, scope: _Scope, target: str, v: Value, dtype: DType, guard: str = "") -> None:
        """``target += v``: a sum of a sum goes in term by term, so that each product becomes one fma."""
        d = register_dtype(dtype)
        for t in self._summands(v, scope):
            if t.op == "mul" and self._only_here(t, scope) and register_dtype(t.type.dtype) is d:
                scope.demand(t.operands)
                a, b = (as_dtype(o, d, scope.text) for o in t.operands)
                w.line(f"{guard}set({target}, fma({a}, {b}, {target}));", t.loc)
            else:
                scope.demand([t])
                w.line(f"{guard}set({target}, add({target}, {as_dtype(t, d, scope.text)}));", t.loc)

    def _only_here(self, v: Value, scope: _Scope) -> bool:
        """Whether a floating value is read once and has no name yet."""
        return v.type.dtype.is_float and self.uses[v] == 1 and v not in scope.names and const_of(v) is None

    def _summands(self, v: Value, scope: _Scope) -> list[Value]:
        if v.op == "add" and self._only_here(v, scope) and self.region[v] >= Region.EDGE:
            return [t for o in v.operands for t in (self._summands(o, scope) if o.type.dtype is v.type.dtype else [o])]
        return [v]

    def _store_sink(self, w: Writer, scope: _Scope, s: Sink, on: str, row: str) -> None:
        v, flags = s.value, self.fit.of(s.value)
        half = v.op == "cast" and v.type.dtype is s.target.dtype and v.type.dtype.bits == 16 and v.type.dtype.is_float
        if half and v not in scope.names and register_dtype(v.operands[0].type.dtype) is register_dtype(v.type.dtype):
            v = v.operands[0]  # the store rounds
        scope.demand([v])
        h, c = (("false", "true")[x] for x in flags)
        table = self._view(s.value, s.target) if self._is_part(s) else self.names[s.target.base[1]]
        w.line(f"store_if<{h}, {c}>({on}, {table}, {row}, lane, {scope.text(v)});", s.value.loc)

    def _store(self, w: Writer) -> None:
        with w.block("SWEEP_FN void store(const Lane<L>& lane, i64 r, i64 degree, State& s, Carry& c) const"):
            scope = _Scope(self, w, self._row_leaf)
            for s in self.post_sinks:
                self._store_sink(w, scope, s, "lane.lead", "r")
            for n, carry in enumerate(self.p.carries):
                if carry.region is not Region.EDGE:
                    self._accumulate(w, scope, f"c.sum_{n}", carry.sink.value, carry.type.dtype, "if (lane.lead) ")

    def _store_carry(self, w: Writer) -> None:
        with w.block("SWEEP_FN void store_carry(const Lane<L>& lane, Carry& c) const"):
            scope = _Scope(self, w, self._row_leaf)
            for s in self.last_sinks:
                self._store_sink(w, scope, s, "lane.lead", "0")

    # ---- entries

    def _entries(self, w: Writer, layout: Layout, group_rows: bool) -> tuple[Entry, Entry | None, Entry | None]:
        state, carry = (4 * layout.lanes * sum(self._words(self.fit.of(v), v.type.dtype, layout) for v in vs) for vs in self._images())
        block = block_for(self.wish.block, carry) if self.has_carry else self.wish.block
        shared = carry * (block // 32) if self.has_carry else 0
        per = block // 32 * (layout.groups if group_rows else 1)
        run = Entry(self.name, block, shared, per, layout.slices, self.has_carry, int(self.has_carry))
        self._entry(w, run, "run", self.wish.min_blocks)
        merge = last = None
        posts = self.post_sinks or any(c.region is not Region.EDGE for c in self.p.carries)
        if not self.is_map and (self.p.components or posts):
            size = block_for(256, state)
            merge = Entry(f"{self.name}_merge", size, state * (size // 32), 1, layout.slices, False, int(self.has_carry))
            self._entry(w, merge, "merge", 1)
        if self.has_carry:
            size = block_for(1024 if carry <= 2048 else 256, carry)  # 1024 threads have 64 registers each
            last = Entry(f"{self.name}_carry", size, carry * (size // 32), 1, layout.slices, False, 0, True)
            self._entry(w, last, "merge_carry", 1)
        return run, merge, last

    def _entry(self, w: Writer, e: Entry, call: str, min_blocks: int) -> None:
        w.line()
        buffers = [f"{'const ' if i < self.p.num_read else ''}{n}_t* {n}" for i, n in enumerate(self.names)]
        bounds = f"{e.block}, {min_blocks}" if min_blocks > 1 else str(e.block)
        w.line(f'extern "C" __global__ void __launch_bounds__({bounds})')
        w.line(f"{e.name}({', '.join([*entry_params(self.index), *buffers])}) {{")
        work = "{list, count, indptr, neighbours, edge_ids, partials, carries, carry_base}"
        w.line(f"  {call}(P{{{', '.join(self.names)}}}, Work<{self.index}>{work});")
        w.line("}")


def entry_params(index: DType) -> list[str]:
    """The parameters before the buffers."""
    return [
        f"const {index}* list",
        "i64 count",
        "const i64* indptr",
        f"const {index}* neighbours",
        f"const {index}* edge_ids",
        "u32* partials",
        "u32* carries",
        "i64 carry_base",
        "u32* workspace",
    ]
