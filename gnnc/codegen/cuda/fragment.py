"""The fragment path: a sweep as a Program struct over sweep.cuh.

Values are fragments of shape [H, C], [H], [C] or scalar. The struct's text depends on the program alone; sizes, lanes and edges in
flight enter through its schedule, storage dtypes through aliases over it. Additions of a product that nobody else reads become fma;
nothing else is contracted (NVRTC runs with fmad off), so that a value is one number wherever it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.core import Value, topological
from ...ir.monoid import find_monoid
from ...ir.sweep import Region, SweepSpec
from ...ir.types import DType
from ..cpu.program import Base, Component, Program, Sink, View
from .ops import as_dtype, const_of, literal, register_dtype
from .rescale import Rescale
from .schedule import CudaSchedule, Layout, block_for
from .scope import Scope
from .shapes import head_stride
from .text import CudaText, Entry, Writer, assemble
from .values import KINDS, FragmentValues


def emit_fragment(spec: SweepSpec, program: Program, index_dtype: DType, name: str, wish: CudaSchedule) -> CudaText:
    """The text of a sweep by fragments. Raises DoesNotFit."""
    return _Fragment(spec, program, index_dtype, name, wish).emit()


class _Fragment(FragmentValues):
    """Writes the struct and the entries."""

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
        words = [sum(self.words(self.fit.of(v), v.type.dtype, layout) for v in vs) * layout.lanes * layout.slices for vs in self._images()]
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
                scope = Scope(self, w, leaf)
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
            scope = Scope(self, w, self._row_leaf)
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

    def _edge_scope(self, w: Writer) -> Scope:
        scope = Scope(self, w, self._edge_leaf)
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
                    inner = Scope(self, w, self._edge_leaf, scope)
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

    def _weighted(self, w: Writer, scope: Scope) -> None:
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

    def _updates(self, w: Writer, scope: Scope, single: Sequence[int]) -> None:
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

    def _accumulate(self, w: Writer, scope: Scope, target: str, v: Value, dtype: DType, guard: str = "") -> None:
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

    def _only_here(self, v: Value, scope: Scope) -> bool:
        """Whether a floating value is read once and has no name yet."""
        return v.type.dtype.is_float and self.uses[v] == 1 and v not in scope.names and const_of(v) is None

    def _summands(self, v: Value, scope: Scope) -> list[Value]:
        if v.op == "add" and self._only_here(v, scope) and self.region[v] >= Region.EDGE:
            return [t for o in v.operands for t in (self._summands(o, scope) if o.type.dtype is v.type.dtype else [o])]
        return [v]

    def _store_sink(self, w: Writer, scope: Scope, s: Sink, on: str, row: str) -> None:
        v, flags = s.value, self.fit.of(s.value)
        half = v.op == "cast" and v.type.dtype is s.target.dtype and v.type.dtype.bits == 16 and v.type.dtype.is_float
        if half and v not in scope.names and register_dtype(v.operands[0].type.dtype) is register_dtype(v.type.dtype):
            v = v.operands[0]  # the store rounds
        scope.demand([v])
        h, c = (("false", "true")[x] for x in flags)
        table = self._view(s.value, s.target) if self.is_part(s) else self.names[s.target.base[1]]
        w.line(f"store_if<{h}, {c}>({on}, {table}, {row}, lane, {scope.text(v)});", s.value.loc)

    def _store(self, w: Writer) -> None:
        with w.block("SWEEP_FN void store(const Lane<L>& lane, i64 r, i64 degree, State& s, Carry& c) const"):
            scope = Scope(self, w, self._row_leaf)
            for s in self.post_sinks:
                self._store_sink(w, scope, s, "lane.lead", "r")
            for n, carry in enumerate(self.p.carries):
                if carry.region is not Region.EDGE:
                    self._accumulate(w, scope, f"c.sum_{n}", carry.sink.value, carry.type.dtype, "if (lane.lead) ")

    def _store_carry(self, w: Writer) -> None:
        with w.block("SWEEP_FN void store_carry(const Lane<L>& lane, Carry& c) const"):
            scope = Scope(self, w, self._row_leaf)
            for s in self.last_sinks:
                self._store_sink(w, scope, s, "lane.lead", "0")

    # ---- entries

    def _entries(self, w: Writer, layout: Layout, group_rows: bool) -> tuple[Entry, Entry | None, Entry | None]:
        state, carry = (4 * layout.lanes * sum(self.words(self.fit.of(v), v.type.dtype, layout) for v in vs) for vs in self._images())
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
