"""Fuses a lowered function into sweeps, by levels.

1. **Levels.** A fold read by a later edge operation ends a level. All folds of one level and side share one sweep: every gathered
   row is loaded once for all of them. Dense products of nodes are steps of their own, done by torch.
2. **Slots.** Steps are laid out in order: per level the dense products, the sweep by destination, the sweep by source. Every node
   value is *born* in the slot that completes it: in the epilogue of a sweep, or in a map (a sweep without edges) behind it
   where it hangs on a dense product or on a sum over all rows.
3. **Demand.** From the last slot to the first, each program is built from what later slots need. A node value becomes a buffer only
   when it is gathered at the far end, fed to a dense product, returned, or born earlier than it is read; what hangs on inputs
   alone and is read once a row is computed where it is read. Edge values never become buffers unless returned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value, topological
from gnnc.ir.sweep import DenseSpec, PlanSpec, StepSpec, SweepSpec
from gnnc.ir.types import DType

from .online_softmax import merge_online_softmax, narrow_extrema
from .storage import layer_storage, stored_dtype

SIDES = ("dst", "src")
CARRIES = ("reduce_rows", "contract_rows")


def _is_dense(v: Value) -> bool:
    if v.op == "matmul":
        return v.type.space != "edge"
    return v.op == "contract_rows" and v.operands[0].type.space == v.operands[1].type.space != "edge"


def _is_carry(v: Value) -> bool:
    return v.op in CARRIES and not _is_dense(v)


def _is_work(v: Value) -> bool:
    """What takes a pass over rows: it ends a level."""
    return v.op == "fold" or v.op in CARRIES or _is_dense(v)


def _over_edges(v: Value) -> bool:
    return any(o.type.space == "edge" for o in v.operands)


@dataclass
class Slot:
    """One step to be. ``kind``: dense, dst or src (sweeps), map. ``rows``: a map's row space. ``roots``: what it must produce, by
    buffer name."""

    kind: str
    level: int
    rows: str = ""
    dense: Value | None = None
    roots: dict[str, Value] = field(default_factory=dict)


def degree_name(end: str, dtype: DType) -> str:
    """Name of the graph-owned buffer of degrees at one end: ``$in_degree`` (f32), ``$in_degree:f64`` and so on."""
    base = "$in_degree" if end == "dst" else "$out_degree"
    return base if dtype.name == "f32" else f"{base}:{dtype.name}"


def fuse(func: Func) -> PlanSpec:
    """The plan of a ``lowered`` function. Deterministic: names and order depend on the function alone."""
    func = narrow_extrema(merge_online_softmax(func))
    homes: dict[Value, int] = {}
    while True:
        fuser = _Fuser(func, homes)
        plan = fuser.plan()
        if not fuser.moved:
            return plan
        homes = fuser.homes  # a reader was found before the step that was to make its value: again, with that value made earlier


def assign_levels(order: list[Value]) -> dict[Value, int]:
    """Level after which a value exists: 0 for what hangs on inputs alone, one more behind every fold, sum over rows and dense product.

    As early as possible, but a fold moves later where that saves a pass or loads: together with all folds of its level and side, into the
    next sweep of that side; alone, into one that gathers everything it reads anyway.
    """
    level: dict[Value, int] = {}
    for v in order:
        at = max((level[o] for o in v.operands), default=0)
        level[v] = at + 1 if _is_work(v) else at
    groups: dict[tuple[int, str], list[Value]] = {}
    for v in order:
        if v.op == "fold":
            groups.setdefault((level[v], v.attr("to")), []).append(v)
    for at, side in sorted(groups, reverse=True):
        limit = _latest(order, level)
        mine = groups[at, side]
        for t in sorted(t for t, s in groups if s == side and t > at):
            able = [f for f in mine if limit[f] >= t]
            if len(able) < len(mine):
                there = _gathers(groups[t, side])
                able = [f for f in able if _gathers([f]) <= there]
            if able:
                groups[t, side] += able
                groups[at, side] = [f for f in mine if f not in able]
                moved = dict.fromkeys(groups[t, side], t)
                for v in order:
                    low = max((level[o] for o in v.operands), default=0)
                    level[v] = max(low + 1, moved.get(v, level[v])) if _is_work(v) else low
                break
    return level


def _gathers(folds: list[Value]) -> set[Value]:
    """Every gather that the folds' messages hang on, down to earlier folds."""
    found: set[Value] = set()
    stack = [o for f in folds for o in f.operands]
    while stack:
        v = stack.pop()
        if v.op == "gather":
            found.add(v)
        elif v.type.space == "edge":
            stack.extend(v.operands)
    return found


def _latest(order: list[Value], level: dict[Value, int]) -> dict[Value, int]:
    """The last level at which a value may come to exist with every reader staying where it is."""
    limit = dict.fromkeys(order, max(level.values(), default=0))
    for v in reversed(order):
        for o in v.operands:
            limit[o] = min(limit[o], level[v] - 1 if _is_work(v) else limit[v])
    return limit


class _Fuser:
    """One run of `fuse`. Time is counted in half steps: work in slot i is born at 2i when the slot's own epilogue may read it
    (folds), at 2i + 1 when only a later step may (sums over all rows, dense products); what hangs on inputs alone at -1."""

    def __init__(self, func: Func, homes: dict[Value, int]) -> None:
        self.func = func
        self.order = topological(func.results)
        self.storage = layer_storage(func)
        self.levels = assign_levels(self.order)
        self.slots: list[Slot] = []
        self.work_slot: dict[Value, int] = {}
        self.births: dict[Value, int] = {}
        self.names: dict[Value, str] = {}
        self.homes: dict[Value, int] = {}  # where a buffer of what hangs on inputs alone is made: a slot, -1 for a map before all
        self.planned = homes  # homes that an earlier run found to be early enough
        self.moved = False
        self.maps: dict[int, dict[str, Slot]] = {}  # maps by birth of what they produce, then by row space
        self._lay_out()

    # ---- 2. slots

    def _lay_out(self) -> None:
        work: dict[int, list[Value]] = {}
        for v in self.order:
            if _is_work(v):
                work.setdefault(self.levels[v], []).append(v)
        edge_results = [(n, r) for n, r in self._results() if r.type.space == "edge"]
        for _, r in edge_results:
            work.setdefault(self.levels[r] + 1, [])
        for level in sorted(work):
            todo = work[level]
            for v in todo:
                if _is_dense(v):
                    self._place(v, self._add(Slot("dense", level, dense=v)))
            sides = {v.attr("to") for v in todo if v.op == "fold"}
            loose = [v for v in todo if _is_carry(v) and _over_edges(v)]
            here = [(n, r) for n, r in edge_results if self.levels[r] + 1 == level]
            if (loose or here) and not sides:
                sides = {"dst"}
            by_side = {side: self._add(Slot(side, level)) for side in SIDES if side in sides}
            for v in todo:
                if v.op == "fold":
                    self._place(v, by_side[v.attr("to")])
            for v in loose:
                self._place(v, next(iter(by_side.values())))
            for name, r in here:
                self.slots[next(iter(by_side.values()))].roots[name] = r
            for v in todo:
                if _is_carry(v) and not _over_edges(v):
                    self._place(v, self._row_sum_slot(v, level))
        for v in self.order:
            self._birth(v)

    def _results(self) -> list[tuple[str, Value]]:
        return list(zip(self.func.result_names, self.func.results, strict=True))

    def _add(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def _place(self, v: Value, slot: int) -> None:
        self.work_slot[v] = slot
        self.births[v] = 2 * slot if v.op == "fold" else 2 * slot + 1

    def _birth(self, v: Value) -> int:
        for u in topological([v]):
            if u not in self.births:
                self.births[u] = max((self.births[o] for o in u.operands), default=-1)
        return self.births[v]

    def _rows(self, slot: Slot) -> str:
        """Row space of a slot."""
        if slot.kind in SIDES:
            return "node" if self.func.square else slot.kind
        return slot.rows

    def _row_sum_slot(self, v: Value, level: int) -> int:
        """Where a sum over node rows goes: the sweep whose epilogue completes its operand, else a sweep or map of this level over
        the same rows."""
        rows = next((o.type.space for o in v.operands if o.type.space != "param"), "param")
        born = max(self._birth(o) for o in v.operands)
        if born >= 0 and born % 2 == 0 and self._rows(self.slots[born // 2]) == rows:
            return born // 2
        for i, s in enumerate(self.slots):
            if s.level == level and s.kind != "dense" and self._rows(s) == rows and 2 * i > born:
                return i
        return self._add(Slot("map", level, rows=rows))

    # ---- 3. demand

    def plan(self) -> PlanSpec:
        for name, r in self._results():
            if r.type.space != "edge":
                self._emit(name, r)
        steps: list[StepSpec] = []
        for i in range(len(self.slots) - 1, -1, -1):
            steps[:0] = self._build_maps(2 * i + 1)
            if self.slots[i].roots:
                steps.insert(0, self._build(self.slots[i], 2 * i))
        steps[:0] = self._build_maps(-1)
        steps = [replace(s, name=f"{self.func.name}_{n}") for n, s in enumerate(steps)]
        return PlanSpec(
            self.func.name,
            tuple((p.name, p.type) for p in self.func.params),
            tuple((n, r.type) for n, r in self._results()),
            tuple(steps),
            self.func.square,
        )

    def _build_maps(self, at: int) -> list[StepSpec]:
        return [self._build(slot, at) for _, slot in sorted(self.maps.pop(at, {}).items())]

    def _emit(self, name: str, v: Value) -> None:
        """Makes the step in which `v` is born produce it as buffer `name`."""
        core = v.operands[0] if v.op == "cast" and v.operands[0] in self.work_slot else v
        if core in self.work_slot:
            slot = self.slots[self.work_slot[core]]
            if slot.kind != "dense" or not slot.roots:
                slot.roots[name] = v
                return
        born = self._birth(v)
        if born >= 0 and born % 2 == 0:
            self.slots[born // 2].roots[name] = v
        else:
            maps = self.maps.setdefault(born, {})
            maps.setdefault(v.type.space, Slot("map", 0, rows=v.type.space)).roots[name] = v

    def _buffer(self, v: Value, at: int) -> tuple[str, DType]:
        """Name and dtype of the buffer that holds `v` for a reader at time `at`, demanded if there is none yet."""
        if v.op == "input":
            return v.name, v.type.dtype
        stored = stored_dtype(v, self.storage)
        for name, r in self._results():
            if r is v or (r.op == "cast" and r.operands[0] is v and r.type.dtype is stored):
                return name, r.type.dtype
        if v not in self.names:
            taken = {*self.func.result_names, *(p.name for p in self.func.params), *self.names.values()}
            self.names[v] = next(n for n in (f"t{i}" for i in range(len(taken) + 1)) if n not in taken)
        rounded = Value("cast", (v,), (("dtype", stored.name),), v.type.with_dtype(stored), v.loc)
        root = v if stored is v.type.dtype else rounded
        if self._birth(v) < 0:
            self._house(v, root, at)
        elif v not in self.homes:
            self.homes[v] = 0
            self._emit(self.names[v], root)
        return self.names[v], stored

    def _house(self, v: Value, root: Value, at: int) -> None:
        """Makes what hangs on inputs alone in a sweep over the same rows before `at`, where its operands may be at hand; in a map
        before everything where there is none."""
        if v in self.homes and 2 * self.homes[v] < at:
            return
        limit = min(at, 2 * self.planned.get(v, len(self.slots)) + 1)
        fits = [i for i, s in enumerate(self.slots) if 2 * i < limit and s.kind in SIDES and self._rows(s) == v.type.space]
        self.moved |= v in self.homes
        self.homes[v] = fits[-1] if fits else -1
        if fits:
            self.slots[fits[-1]].roots[self.names[v]] = root
        else:
            self._emit(self.names[v], root)

    def _build(self, slot: Slot, at: int) -> StepSpec:
        """The step's program: a fresh function over buffers, from its roots down to what exists at time `at`."""
        program = _Program(self, slot, at)
        results = {name: program.value(v) for name, v in list(slot.roots.items())}
        stage = "lowered" if slot.kind == "dense" else "sweep"
        params = program.ordered_params()
        func = Func(self.func.name, params, tuple(results.values()), self.func.square, stage, tuple(results), self.func.monoids)
        if slot.kind == "dense":
            return DenseSpec("", func)
        return SweepSpec("", func, slot.kind if slot.kind in SIDES else None, self._rows(slot))


class _Program:
    """Copies values into one step's function, loading what is a buffer. A node value read at the far end and the same value read
    once a row are different loads, so each has its own table."""

    def __init__(self, fuser: _Fuser, slot: Slot, at: int) -> None:
        self.fuser, self.slot, self.at = fuser, slot, at
        self.b = Builder.like(fuser.func)
        self.params: dict[str, Value] = {}
        self.near: dict[Value, Value] = {}
        self.far: dict[Value, Value] = {}

    def ordered_params(self) -> tuple[Value, ...]:
        """The function's own parameters first, in its order, then temporaries, then degrees."""
        own = [p.name for p in self.fuser.func.params if p.name in self.params]
        rest = sorted((n for n in self.params if n not in own), key=lambda n: (n.startswith("$"), len(n), n))
        return tuple(self.params[n] for n in [*own, *rest])

    def value(self, root: Value) -> Value:
        """`root` computed here."""
        stack: list[tuple[Value, bool]] = [(root, False)]
        while stack:
            v, is_far = stack[-1]
            table = self.far if is_far else self.near
            if v in table:
                stack.pop()
                continue
            if v.op == "degree":
                table[v] = self._degree(v, is_far)
            elif self._is_buffer(v, is_far):
                table[v] = self._load(v) if is_far else self.b.cast(self._load(v), v.type.dtype)
            else:
                crosses = v.op == "gather" and v.attr("end") != self.slot.kind
                operands = self.far if crosses else self.near
                missing = [(o, crosses) for o in v.operands if o not in operands]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                moved = self.b.copy(v, tuple(operands[o] for o in v.operands))
                table[v] = self.b.cast(moved, v.type.dtype)  # a table stored narrower is widened at the edge
            stack.pop()
        return self.near[root]

    def _is_buffer(self, v: Value, is_far: bool) -> bool:
        if v.op == "input" or is_far:
            return True
        if v.op in ("const", "iota", "edge_id") or v.type.space == "edge":
            return False
        f = self.fuser
        if self.slot.kind == "dense":
            product = self.slot.dense
            assert product is not None
            flipped = v.op == "transpose" and product.op == "matmul" and v is product.operands[1]
            return not flipped and v is not product and v not in self.slot.roots.values()
        if _is_work(v):
            return f.work_slot[v] * 2 != self.at
        if f._birth(v) < 0:
            return self._is_cheaper_loaded(v)
        return f._birth(v) < self.at

    def _is_cheaper_loaded(self, v: Value) -> bool:
        """Whether `v`, which hangs on inputs alone, is in a buffer by now and smaller than what it is made of."""
        home = self.fuser.homes.get(v)
        if home is None or v.type.space == "param" or self.at < 0 or 2 * home >= self.at:
            return False
        return v.type.row_bytes < sum(p.type.row_bytes for p in topological([v]) if p.op == "input" and p.type.space != "param")

    def _load(self, v: Value) -> Value:
        name, dtype = self.fuser._buffer(v, self.at)
        self.params[name] = self.b.input(name, v.type.with_dtype(dtype))
        return self.params[name]

    def _degree(self, v: Value, is_far: bool) -> Value:
        if not is_far and self.slot.kind == v.attr("end"):
            return self.b.copy(v, ())
        name = degree_name(v.attr("end"), v.type.dtype)
        self.params[name] = self.b.input(name, v.type)
        return self.params[name]
