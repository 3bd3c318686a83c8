"""The general path: one warp a chunk, every value in scratch memory, the loop nests of `plan_nests` one after another.

Slow, but right for every program: concat, slices, any reshape and rank, products on edges, gradients of edge-side weights, any size.
Scratch lies in shared memory, or in a workspace in global memory where it is too large. Each warp keeps its own carry image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.core import Value
from ...ir.sweep import Region, SweepSpec
from ...ir.types import DType
from ..cpu.plan_nests import Nest, RegionPlanner, Temps
from ..cpu.program import Base, Program, Sink, View, contiguous
from .fragment import entry_params
from .nests import emit_nest
from .ops import literal, unique_identifiers
from .schedule import SHARED_LIMIT, CudaSchedule
from .shapes import roots_of
from .text import CudaText, Entry, Writer, assemble

WARPS = 8
"""Warps of a block, where their scratch fits in shared memory."""

WORKSPACE_WARPS = 4


def emit_general(spec: SweepSpec, program: Program, index_dtype: DType, name: str, wish: CudaSchedule, reason: str) -> CudaText:
    """The text of a sweep by scratch memory. ``reason``: why it does not take the fragment path."""
    p, w = program, Writer()
    grouped = f"grouped by {spec.grouped_by}" if spec.grouped_by else f"map over {spec.rows} rows"
    w.comment(f"{name}: {grouped}" + (f", {spec.family}" if spec.family else "") + ", by scratch memory")
    has_carry = bool(p.carries) or any(r is Region.CARRY for r, _ in p.stores)
    posts = any(r is Region.POST for r, _ in p.stores) or any(c.region is not Region.EDGE for c in p.carries)
    names = unique_identifiers(p.args)
    kernels: list[_Kernel] = [_Run(spec, p, index_dtype, names)]
    if spec.grouped_by and (p.components or posts):
        kernels.append(_Merge(spec, p, index_dtype, names))
    if has_carry:
        kernels.append(_Carry(spec, p, index_dtype, names))
    entries: dict[str, Entry] = {}
    workspace = 0
    with w.block(f"namespace sweep {{ namespace {name}_ns", "}}"):
        for n, t in zip(names, p.arg_types, strict=True):
            w.line(f"using {n}_t = {t.dtype};")
        for k in kernels:
            entry = k.emit(w, name, has_carry)
            entries[k.suffix] = entry
            workspace = max(workspace, k.workspace_words)
    dtypes = {t.dtype.name for t in p.arg_types} | cast_dtypes(p)
    text, lines = assemble(("scratch.cuh",), dtypes, w)
    scratch = kernels[0].scratch_bytes
    layout = f"{scratch} bytes of scratch a warp, in {'a workspace' if kernels[0].workspace_words else 'shared memory'}"
    return CudaText(
        text, "\n".join(w.out) + "\n", p.args, p.arg_types, p.num_read, index_dtype, p.state_bytes // 4, p.carry_bytes // 4, workspace,
        entries[""], entries.get("_merge"), entries.get("_carry"), "general", reason, layout, lines,
    )  # fmt: skip


def cast_dtypes(p: Program) -> set[str]:
    """Names of the dtypes that values take."""
    return {v.type.dtype.name for v in p.regions(roots_of(p))}


@dataclass
class _RegionPlan:
    planner: RegionPlanner
    nests: list[Nest]


class _Kernel:
    """What the entries share: regions, scratch, pointers, rows."""

    suffix = ""
    kind = ""

    def __init__(self, spec: SweepSpec, program: Program, index_dtype: DType, names: list[str]) -> None:
        self.spec, self.p, self.index, self.names = spec, program, index_dtype, names
        self.temps = Temps()
        self.row_temps: set[Value] = set()
        sinks = [s for _r, s in program.stores] + [c.sink for c in program.carries]
        roots = [s.value for s in sinks] + [v for c in program.components for v in (c.step, c.combined)]
        self.region = program.regions([*roots, *program.leaves])
        self.hoist = spec.rows != "param"
        self.shadows: set[int] = set()
        self.scratch_bytes = self.workspace_words = 0

    # ---- planning

    def _region_of(self, v: Value) -> Region:
        if v not in self.region:  # made by a planner over known values
            self.region[v] = max([Region.PARAM, *(self._region_of(o) for o in v.operands)])
        return self.region[v]

    def plan(self, region: Region, sinks: Sequence[Sink]) -> _RegionPlan:
        def external(v: Value) -> bool:
            r = self._region_of(v)
            if r is Region.PARAM:
                return self.hoist and region is not Region.PARAM
            if r is Region.ROW and region is not Region.ROW:
                return region is Region.EDGE or v in self.row_temps
            return False

        planner = RegionPlanner(self.p, self.temps, external)
        return _RegionPlan(planner, planner.plan(sinks))

    def outside(self, plans: Sequence[_RegionPlan], region: Region) -> list[Value]:
        """Values of an earlier region that the plans want in scratch, in order."""
        return list(dict.fromkeys(v for p in plans for v in p.planner.outside if self._region_of(v) is region))

    def plan_temps(self, region: Region, values: Sequence[Value]) -> _RegionPlan:
        """A region whose only purpose is to fill scratch for later ones."""
        planner = RegionPlanner(self.p, self.temps, lambda v: region is Region.ROW and self.hoist and self._region_of(v) is Region.PARAM)
        for v in values:
            planner.temps[v] = None
        return _RegionPlan(planner, planner.plan([]))

    def stores(self, region: Region) -> list[Sink]:
        return [s for r, s in self.p.stores if r is region] + [c.sink for c in self.p.carries if c.region is region]

    def step_plan(self, values: Sequence[Value], extra: Sequence[Sink] = ()) -> list[_RegionPlan]:
        """Every component replaced by its new value. A new component goes to a shadow first where something still reads the old one."""
        held: set[int] = set()
        while True:
            sinks = list(extra)
            for n, (c, v) in enumerate(zip(self.p.components, values, strict=True)):
                sinks.append(Sink(v, View(("shadow" if n in held else "state", n), c.type.dtype, 0, contiguous(c.type.dims))))
            plan = self.plan(Region.EDGE, sinks)
            late = self._clobbered(plan)
            if not late:
                break
            held |= late
        self.shadows |= held
        if not held:
            return [plan]
        copies = []
        for n in sorted(held):
            c = self.p.components[n]
            shadow = self.p.leaf(f"%shadow{n}", c.old.type, ("shadow", n), Region.EDGE)
            copies.append(Sink(shadow, View(("state", n), c.type.dtype, 0, contiguous(c.type.dims))))
        return [plan, self.plan(Region.EDGE, copies)]

    def _clobbered(self, plan: _RegionPlan) -> set[int]:
        out = set()
        for at, nest in enumerate(plan.nests):
            for s in nest.sinks:
                kind, n = s.target.base
                if kind != "state":
                    continue
                here = plan.planner.reads(nest).get(("state", n), True)
                later = any(("state", n) in plan.planner.reads(other) for other in plan.nests[at + 1 :])
                if not here or later:
                    out.add(n)
        return out

    # ---- text

    def emit(self, w: Writer, name: str, has_carry: bool) -> Entry:
        plans = self.plans()
        pieces = self._layout()
        warps = 1 if self.suffix == "_carry" else WARPS
        while warps > 1 and warps * self.scratch_bytes > SHARED_LIMIT:
            warps //= 2
        shared = self.scratch_bytes * warps
        if shared > SHARED_LIMIT:
            warps = 1 if self.suffix == "_carry" else WORKSPACE_WARPS
            shared = 0
            self.workspace_words = self.scratch_bytes // 4 * warps
        block = 1024 if self.suffix == "_carry" else 32 * warps
        buffers = [f"{'const ' if i < self.p.num_read else ''}{n}_t* {n}" for i, n in enumerate(self.names)]
        w.line()
        w.line(f'extern "C" __global__ void __launch_bounds__({block})')
        with w.block(f"{name}{self.suffix}({', '.join([*entry_params(self.index), *buffers])})"):
            w.line("const int lane = threadIdx.x & 31;")
            w.line("const i64 warp = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), warps = (i64)gridDim.x * (blockDim.x >> 5);")
            if self.scratch_bytes:
                place, mine = ("workspace", "warp") if self.workspace_words else ("shared", "(threadIdx.x >> 5)")
                if place == "shared":
                    w.line("SWEEP_SHARED(shared);")
                offset = "0" if self.suffix == "_carry" else f"{mine} * {self.scratch_bytes}"
                w.line(f"char* const scratch = (char*){place} + {offset};")
            for text in pieces:
                w.line(text)
            self.body(w, plans)
        images = warps if has_carry and self.suffix != "_carry" else 0
        persistent = bool(images) and self.suffix == ""
        return Entry(f"{name}{self.suffix}", block, shared, warps, 1, persistent, images, self.suffix == "_carry")

    def plans(self) -> dict[str, list[_RegionPlan]]:
        raise AssertionError

    def body(self, w: Writer, plans: dict[str, list[_RegionPlan]]) -> None:
        raise AssertionError

    def _layout(self) -> list[str]:
        """Declarations of what lies in scratch; sets its size."""
        out: list[str] = []
        at = 0

        def place(name: str, d: DType, size: int) -> None:
            nonlocal at
            out.append(f"{d}* const {name} = ({d}*)(scratch + {at});")
            at += (size * d.bytes + 15) // 16 * 16

        for n, c in enumerate(self.p.components):
            if self.suffix != "_carry":
                out.append(f"{c.type.dtype}* const state_{n} = ({c.type.dtype}*)(scratch + {c.offset});  // {c.name}")
        at = self.p.state_bytes if self.suffix != "_carry" else 0
        for n in sorted(self.shadows):
            c = self.p.components[n]
            place(f"shadow_{n}", c.type.dtype, c.type.size)
        for n, v in enumerate(self.temps.values):
            view = self.temps.view(v)
            place(f"temp_{n}", view.dtype, v.type.size)
        self.scratch_bytes = (at + 15) // 16 * 16
        return out if self.scratch_bytes else []

    def pointer(self, base: Base) -> str:
        kind, n = base
        if kind in ("param", "out_param"):
            return self.names[n]
        if kind in ("row", "out_row", "other", "edge", "out_edge"):
            return f"{self.names[n]}_{kind.removeprefix('out_')}"
        if kind in ("degree", "degree64"):
            return f"{'f32' if kind == 'degree' else 'f64'}(degree)"
        return {"edge_id": f"{self.index}(id)"}.get(kind, f"{kind}_{n}")

    def nests(self, w: Writer, plans: Sequence[_RegionPlan]) -> None:
        for plan in plans:
            for nest in plan.nests:
                emit_nest(w, plan.planner, nest, self.pointer)

    def _bases(self, plans: Sequence[_RegionPlan]) -> list[Base]:
        """Everything that the plans touch in memory."""
        out: set[Base] = set()
        for plan in plans:
            for nest in plan.nests:
                out |= set(plan.planner.reads(nest)) | {s.target.base for s in nest.sinks}
        return sorted(out)

    def addresses(self, w: Writer, plans: Sequence[_RegionPlan], kinds: dict[str, str]) -> None:
        """Pointers to one row of the buffers of these kinds: kind -> the row's name."""
        for kind, n in self._bases(plans):
            if kind in kinds:
                const = "" if kind.startswith("out_") else "const "
                t, name = self.p.arg_types[n], self.names[n]
                row = kinds[kind]
                w.line(f"{const}{name}_t* const {self.pointer((kind, n))} = {name} + (i64){row} * {t.size};")

    def degree(self, w: Writer, plans: Sequence[_RegionPlan]) -> None:
        if any(kind.startswith("degree") for kind, _ in self._bases(plans)):
            w.line("const i64 degree = indptr[r + 1] - indptr[r];")

    def images(self, w: Writer, kind: str, start: str) -> None:
        for n, c in enumerate(self.p.components):
            w.line(f"const {c.type.dtype}* const {kind}_{n} = (const {c.type.dtype}*)({start} + {c.offset});")

    def carries(self, w: Writer, image: str, clear: bool) -> None:
        if not self.p.carries:
            return
        words = self.p.carry_bytes // 4
        w.line(f"char* const image = (char*)(carries + {image} * {words});")
        for n, c in enumerate(self.p.carries):
            w.line(f"{c.type.dtype}* const carry_{n} = ({c.type.dtype}*)(image + {c.offset});")
        if clear:
            w.line(f"for (int i = lane; i < {words}; i += 32) ((u32*)image)[i] = 0;")
            w.line("__syncwarp();")


class _Run(_Kernel):
    """Chunks of rows, or the rows of a map."""

    def plans(self) -> dict[str, list[_RegionPlan]]:
        edge = self.step_plan([c.step for c in self.p.components], self.stores(Region.EDGE)) if self.spec.grouped_by else []
        self.row_temps = set(self.outside(edge, Region.ROW))
        post = [self.plan(Region.POST, self.stores(Region.POST))]
        row = [self.plan_temps(Region.ROW, self.outside(edge, Region.ROW))]
        param = [self.plan_temps(Region.PARAM, self.outside([*edge, *post, *row], Region.PARAM))]
        return {"param": param, "row": row, "edge": edge, "post": post}

    def body(self, w: Writer, plans: dict[str, list[_RegionPlan]]) -> None:
        p = self.p
        self.carries(w, "(carry_base + warp)", True)
        self.nests(w, plans["param"])
        with w.block("for (i64 item = warp; item < count; item += warps)"):
            per_row = [*plans["row"], *plans["edge"], *plans["post"]]
            if self.spec.grouped_by:
                w.line(f"const {self.index}* const chunk = list + 4 * item;")
                w.line(f"const {self.index} r = chunk[0], begin = chunk[1], end = chunk[2], partial = chunk[3];")
                self.degree(w, per_row)
            else:
                w.line("const i64 r = item;")
            row = "r" if self.spec.rows != "param" else "0"
            self.addresses(w, per_row, {"row": row, "out_row": row})
            self.nests(w, plans["row"])
            for n, c in enumerate(p.components):
                value = literal(c.init if c.type.dtype.is_float else int(c.init), c.type.dtype)
                w.line(f"for (int i = lane; i < {c.type.size}; i += 32) put(state_{n}, i, {value});")
            if p.components:
                w.line("__syncwarp();")
            if any(plan.nests for plan in plans["edge"]):
                with w.block(f"for ({self.index} slot = begin; slot < end; slot++)"):
                    self._edge(w, plans["edge"])
                    self.nests(w, plans["edge"])
            if self.spec.grouped_by:
                with w.block("if (partial >= 0)"):
                    if p.components:
                        words = p.state_bytes // 4
                        w.line(f"u32* const kept = partials + (i64)partial * {words};")
                        w.line(f"for (int i = lane; i < {words}; i += 32) kept[i] = ((const u32*)scratch)[i];")
                        w.line("__syncwarp();")
                with w.block("else"):
                    self.nests(w, plans["post"])
            else:
                self.nests(w, plans["post"])

    def _edge(self, w: Writer, plans: Sequence[_RegionPlan]) -> None:
        kinds = {kind for kind, _ in self._bases(plans)}
        if "other" in kinds:
            w.line(f"const {self.index} other = neighbours[slot];")
        if kinds & {"edge", "out_edge", "edge_id"}:
            w.line(f"const {self.index} id = edge_ids ? edge_ids[slot] : slot;")
        self.addresses(w, plans, {"other": "other", "edge": "id", "out_edge": "id"})


class _Merge(_Kernel):
    """Hub rows from their partial images, in order."""

    suffix = "_merge"

    def plans(self) -> dict[str, list[_RegionPlan]]:
        merge = self.step_plan([c.combined for c in self.p.components])
        post = [self.plan(Region.POST, self.stores(Region.POST))]
        param = [self.plan_temps(Region.PARAM, self.outside([*merge, *post], Region.PARAM))]
        return {"param": param, "merge": merge, "post": post}

    def body(self, w: Writer, plans: dict[str, list[_RegionPlan]]) -> None:
        self.carries(w, "(carry_base + warp)", True)
        self.nests(w, plans["param"])
        with w.block("for (i64 item = warp; item < count; item += warps)"):
            w.line("const i64 r = list[3 * item], first = list[3 * item + 1], end = list[3 * item + 2];")
            self.degree(w, plans["post"])
            self.addresses(w, plans["post"], {"row": "r", "out_row": "r"})
            if self.p.components:
                words = self.p.state_bytes // 4
                w.line(f"for (int i = lane; i < {words}; i += 32) ((u32*)scratch)[i] = partials[first * {words} + i];")
                w.line("__syncwarp();")
                with w.block("for (i64 part = first + 1; part < end; part++)"):
                    self.images(w, "image", f"(const char*)(partials + part * {words})")
                    self.nests(w, plans["merge"])
            self.nests(w, plans["post"])


class _Carry(_Kernel):
    """Sums over all rows: every image added to the first, then stored. One block; there is at least one image."""

    suffix = "_carry"

    def plans(self) -> dict[str, list[_RegionPlan]]:
        carry = [self.plan(Region.CARRY, self.stores(Region.CARRY))]
        param = [self.plan_temps(Region.PARAM, self.outside(carry, Region.PARAM))]
        return {"param": param, "carry": carry}

    def body(self, w: Writer, plans: dict[str, list[_RegionPlan]]) -> None:
        self.carries(w, "0", False)
        words = self.p.carry_bytes // 4
        for n, c in enumerate(self.p.carries):
            with w.block(f"for (i64 i = threadIdx.x; i < {c.type.size}; i += blockDim.x)"):
                w.line(f"{c.type.dtype} total = carry_{n}[i];")
                step = f"(const {c.type.dtype}*)((const char*)carry_{n} + k * {4 * words})"
                w.line(f"for (i64 k = 1; k < count; k++) total = add(total, ({step})[i]);")
                w.line(f"carry_{n}[i] = total;")
        w.line("__syncthreads();")
        with w.block("if (threadIdx.x < 32)"):
            self.nests(w, plans["param"])
            self.nests(w, plans["carry"])
