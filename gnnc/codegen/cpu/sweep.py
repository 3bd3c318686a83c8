"""SweepSpec -> the LLVM IR of its kernel: `run` walks tasks of rows, `finish` merges split rows and sums the carries.

The two functions, for a kernel ``K`` (`gnnc_runtime.cpu` calls them)::

    void K_run   (ptr ptrs, ptr tasks, i64 first, i64 last, ptr states, ptr carries)
    void K_finish(ptr ptrs, ptr hubs, i64 num_hubs, ptr states, ptr carries, i64 num_tasks)

``ptrs``: indptr (i64), indices, edge_ids (i32 or i64; null for a map), then the buffers in the order of `KernelText.args`.
``tasks``: ``i64[T][5]`` of (row_begin, row_end, slot_begin, slot_end, partial). With ``partial == -1`` the rows are done whole; else
the slots of row ``row_begin`` are folded and the state's image is written at ``states + partial * state_bytes``. The carry image of
task t lies at ``carries + t * carry_bytes`` and is initialised by ``run``. ``hubs``: ``i64[][3]`` of (row, first_partial,
end_partial), merged in order; carries made there go to image ``num_tasks``. ``finish`` must be called once, after every task, also
when there are no hubs. Results do not depend on how tasks are spread over calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.core import Value
from ...ir.sweep import Region, SweepSpec
from ...ir.types import DType
from .elementwise import memory_type
from .emit_text import INVARIANT, FunctionText, ModuleText
from .memory import Registers
from .nests import NestEmitter, fill, pointer_arguments
from .plan_nests import Nest, RegionPlanner, Temps
from .program import Base, Program, Sink, View, contiguous, lower_sweep

LINES_IN_FLIGHT = 64
"""Cache lines prefetched ahead of the edge at work (one GATv2 edge of 8x8 f32 reads 4): edges ahead follow from it."""

MAX_LINES, MAX_DISTANCE = 16, 16
"""Lines prefetched of one row (the hardware follows a longer one), and edges ahead at most."""


@dataclass(frozen=True)
class KernelText:
    """A kernel as LLVM IR. ``args``: buffer names in pointer order, the first ``num_read`` are read, the others written.
    ``state_bytes`` and ``carry_bytes`` are the sizes of one image (multiples of 64; 0: none)."""

    text: str
    num_read: int
    args: tuple[str, ...]
    state_bytes: int
    carry_bytes: int


def emit_llvm(spec: SweepSpec, index_dtype: DType, kernel_name: str) -> KernelText:
    """The module of one sweep, for any target of the schedule's ``vector_bits`` or more. ``index_dtype``: i32 or i64, of indices and
    edge ids. The spec is trusted to have passed the verifier."""
    program = lower_sweep(spec, index_dtype)
    module = ModuleText()
    for kind in (_Run, _Finish):
        module.functions.append(kind(spec, program, index_dtype, module, kernel_name).emit())
    grouped = f"grouped by {spec.grouped_by}" if spec.grouped_by else f"map over {spec.rows} rows"
    header = f"; {kernel_name}: sweep {spec.name}, {grouped}" + (f", {spec.family}" if spec.family else "")
    return KernelText(module.text(header), program.num_read, program.args, program.state_bytes, program.carry_bytes)


@dataclass
class _RegionPlan:
    planner: RegionPlanner
    nests: list[Nest]


class _Kernel:
    """What both functions share: pointers, regions, rows."""

    def __init__(self, spec: SweepSpec, program: Program, index_dtype: DType, module: ModuleText, name: str) -> None:
        self.spec, self.p, self.index, self.module, self.name = spec, program, index_dtype, module, name
        self.bits = spec.schedule.vector_bits
        self.temps = Temps()
        self.registers = Registers()
        self.pointers: dict[Base, str] = {}
        self.row_temps: set[Value] = set()
        sinks = [s for _r, s in program.stores] + [c.sink for c in program.carries]
        roots = [s.value for s in sinks] + [v for c in program.components for v in (c.step, c.combined)]
        self.region = program.regions([*roots, *program.leaves])
        self.hoist = spec.rows != "param"
        self.buffers: dict[int, str] = {}

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
        out: dict[Value, None] = {}
        for p in plans:
            for v in p.planner.outside:
                if self._region_of(v) is region:
                    out[v] = None
        return list(out)

    def plan_temps(self, region: Region, values: Sequence[Value]) -> _RegionPlan:
        """A region whose only purpose is to fill scratch for later ones."""
        plan = _RegionPlan(
            RegionPlanner(self.p, self.temps, lambda v: region is Region.ROW and self.hoist and self._region_of(v) is Region.PARAM), []
        )
        for v in values:
            plan.planner.temps[v] = None
        plan.nests = plan.planner.plan([])
        return plan

    def stores(self, region: Region) -> list[Sink]:
        return [s for r, s in self.p.stores if r is region] + [c.sink for c in self.p.carries if c.region is region]

    # ---- code

    def open(self, head: str, arguments: Sequence[str]) -> FunctionText:
        fn = FunctionText(self.module, head)
        for a in arguments:
            fn.fresh(a)
        return fn

    def buffer(self, number: int) -> str:
        return self.buffers[number]

    def load_buffers(self, fn: FunctionText) -> None:
        for i, name in enumerate(("indptr", "indices", "edge_ids")):
            if self.spec.grouped_by:
                self.buffers[-3 + i] = fn.load_pointer(name, "%ptrs", i)
        for i, name in enumerate(self.p.args):
            self.buffers[i] = fn.load_pointer(name, "%ptrs", 3 + i)
        for i, t in enumerate(self.p.arg_types):
            if t.space == "param":
                self.pointers[("param" if i < self.p.num_read else "out_param", i)] = self.buffers[i]

    def scratch(self, fn: FunctionText, plans: Sequence[_RegionPlan]) -> None:
        """Stack memory for temps and leaves; constants for iotas."""
        for plan in plans:
            for base in pointer_arguments(plan.nests, plan.planner):
                if base in self.pointers:
                    continue
                kind, n = base
                if kind == "temp":
                    v = self.temps.values[n]
                    view = self.temps.view(v)
                    self.pointers[base] = fn.alloca(f"t{n}.{v.op}", v.type.size, memory_type(view.dtype))
                elif kind in ("state", "shadow"):
                    c = self.p.components[n]
                    self.pointers[base] = fn.alloca(f"{kind}.{c.name}", c.type.size, memory_type(c.type.dtype))
                elif kind in ("degree", "degree64"):
                    self.pointers[base] = fn.alloca(kind, 1, "float" if kind == "degree" else "double")
                elif kind == "edge_id":
                    self.pointers[base] = fn.alloca("edge_id", 1, self.index.name)
                elif kind == "iota":
                    items = ", ".join(f"i32 {i}" for i in range(n))
                    self.module.constants[f"iota.{n}"] = f"@iota.{n} = private constant [{n} x i32] [{items}], align 64"
                    self.pointers[base] = f"@iota.{n}"

    def run_nests(self, fn: FunctionText, plan: _RegionPlan) -> None:
        emitter = NestEmitter(fn, plan.planner, lambda b: self.pointers[b], self.registers, self.bits)
        for nest in plan.nests:
            emitter.emit(nest)

    def step_plan(self, values: Sequence[Value], extra: Sequence[Sink] = ()) -> tuple[_RegionPlan, _RegionPlan | None]:
        """A plan that replaces every state component by its new value, and the copies that must follow it: a new component may only be
        stored at once if nothing reads the old one afterwards."""
        direct: dict[int, bool] = dict.fromkeys(range(len(values)), True)
        while True:
            sinks = list(extra)
            for n, (c, v) in enumerate(zip(self.p.components, values, strict=True)):
                base = ("state" if direct[n] else "shadow", n)
                sinks.append(Sink(v, View(base, c.type.dtype, 0, contiguous(c.type.dims))))
            plan = self.plan(Region.EDGE, sinks)
            late = self._clobbered(plan, direct)
            if not late:
                break
            for n in late:
                direct[n] = False
        held = [n for n in direct if not direct[n]]
        if not held:
            return plan, None
        copies = []
        for n in held:
            c = self.p.components[n]
            shadow = self.p.leaf(f"%shadow{n}", c.old.type, ("shadow", n), Region.EDGE)
            copies.append(Sink(shadow, View(("state", n), c.type.dtype, 0, contiguous(c.type.dims))))
        return plan, self.plan(Region.EDGE, copies)

    def _clobbered(self, plan: _RegionPlan, direct: dict[int, bool]) -> list[int]:
        out = []
        for at, nest in enumerate(plan.nests):
            for s in nest.sinks:
                kind, n = s.target.base
                if kind != "state" or not direct[n]:
                    continue
                here = plan.planner.reads(nest).get(("state", n), True)
                later = any(("state", n) in plan.planner.reads(other) for other in plan.nests[at + 1 :])
                if not here or later:
                    out.append(n)
        return out

    def init_states(self, fn: FunctionText) -> None:
        for n, c in enumerate(self.p.components):
            if ("state", n) in self.pointers:
                fill(fn, self.pointers[("state", n)], c.type.dtype, 0, c.type.size, c.init, self.bits)

    def copy_states(self, to_image: bool) -> _RegionPlan:
        """Nests that copy the states to the image at ("part", n), or the image at ("image", n) to the states."""
        sinks = []
        for n, c in enumerate(self.p.components):
            strides = contiguous(c.type.dims)
            leaf = c.old if to_image else self.p.leaf(f"%image{n}", c.old.type, ("image", n), Region.EDGE)
            sinks.append(Sink(leaf, View(("part" if to_image else "state", n), c.type.dtype, 0, strides)))
        return self.plan(Region.EDGE, sinks)

    def image_pointers(self, fn: FunctionText, kind: str, start: str) -> None:
        for n, c in enumerate(self.p.components):
            self.pointers[(kind, n)] = fn.let(f"{kind}{n}", f"getelementptr inbounds i8, ptr {start}, i64 {c.offset}")

    def carry_pointers(self, fn: FunctionText, image: str) -> None:
        for n, c in enumerate(self.p.carries):
            self.pointers[("carry", n)] = fn.let(f"carry{n}", f"getelementptr inbounds i8, ptr {image}, i64 {c.offset}")

    def clear_carries(self, fn: FunctionText) -> None:
        for n, c in enumerate(self.p.carries):
            fill(fn, self.pointers[("carry", n)], c.type.dtype, 0, c.type.size, 0, self.bits)

    def enter_row(self, fn: FunctionText, row: str, plans: Sequence[_RegionPlan]) -> None:
        """Addresses of the row's buffers, and its degree."""
        wanted = {b for p in plans for b in pointer_arguments(p.nests, p.planner)}
        for base in sorted(wanted):
            if base[0] in ("row", "out_row"):
                self.pointers[base] = self._row_address(fn, base[1], row)
        for base in sorted(wanted):
            if base[0] in ("degree", "degree64"):
                begin, end = self.row_slots(fn, row)
                count = fn.let("count", f"sub nsw i64 {end}, {begin}")
                scalar = "float" if base[0] == "degree" else "double"
                value = fn.let(base[0], f"sitofp i64 {count} to {scalar}")
                fn.emit(f"store {scalar} {value}, ptr {self.pointers[base]}, align 8")

    def _row_address(self, fn: FunctionText, number: int, row: str) -> str:
        t = self.p.arg_types[number]
        name = self.p.args[number]
        if self.spec.rows == "param":
            return self.buffers[number]
        at = fn.let(f"{name}.off", f"mul nsw i64 {row}, {t.row_bytes}")
        return fn.let(f"{name}.row", f"getelementptr inbounds i8, ptr {self.buffers[number]}, i64 {at}")

    def load_i64(self, fn: FunctionText, hint: str, pointer: str, index: str, plus: int = 0) -> str:
        at = fn.let(f"{hint}.at", f"getelementptr inbounds i64, ptr {pointer}, i64 {index}")
        if plus:
            at = fn.let(f"{hint}.at", f"getelementptr inbounds i64, ptr {at}, i64 {plus}")
        return fn.let(hint, f"load i64, ptr {at}, align 8{INVARIANT}")

    def row_slots(self, fn: FunctionText, row: str) -> tuple[str, str]:
        """First slot of a row and of the next."""
        return self.load_i64(fn, "row.slots", self.buffers[-3], row), self.load_i64(fn, "row.stop", self.buffers[-3], row, 1)

    def load_index(self, fn: FunctionText, number: int, slot: str, hint: str) -> str:
        at = fn.let(f"{hint}.at", f"getelementptr inbounds {self.index.name}, ptr {self.buffers[number]}, i64 {slot}")
        raw = fn.let(hint, f"load {self.index.name}, ptr {at}, align {self.index.bytes}{INVARIANT}")
        return raw if self.index.name == "i64" else fn.let(hint, f"sext i32 {raw} to i64")


class _Run(_Kernel):
    """Tasks first .. last - 1."""

    def emit(self) -> str:
        p = self.p
        edge, edge_copies = self.step_plan([c.step for c in p.components], self.stores(Region.EDGE))
        self.row_temps = set(self.outside([edge], Region.ROW))
        post = self.plan(Region.POST, self.stores(Region.POST))
        row = self.plan_temps(Region.ROW, list(self.row_temps_in_order(edge)))
        param = self.plan_temps(Region.PARAM, self.outside([edge, post, row], Region.PARAM))
        image = self.copy_states(True)
        fn = self.open(
            f"define void @{self.name}_run(ptr %ptrs, ptr %tasks, i64 %first, i64 %last, ptr %states, ptr %carries) nounwind",
            ["ptrs", "tasks", "first", "last", "states", "carries"],
        )
        self.load_buffers(fn)
        plans = [param, row, edge, *([edge_copies] if edge_copies else []), post, image]
        self.scratch(fn, plans)
        self.run_nests(fn, param)
        with fn.loop("task", "%first", "%last") as task:
            at = fn.let("task.off", f"mul nsw i64 {task}, 5")
            names = ("row.begin", "row.end", "slot.begin", "slot.end", "partial")
            row_begin, row_end, slot_begin, slot_end, partial = (self.load_i64(fn, n, "%tasks", at, i) for i, n in enumerate(names))
            whole = fn.let("whole", f"icmp slt i64 {partial}, 0")
            if p.carries:
                off = fn.let("carry.off", f"mul nsw i64 {task}, {p.carry_bytes}")
                self.carry_pointers(fn, fn.let("carry", f"getelementptr inbounds i8, ptr %carries, i64 {off}"))
                self.clear_carries(fn)
            after = fn.let("one", f"add nsw i64 {row_begin}, 1")
            stop = fn.let("stop", f"select i1 {whole}, i64 {row_end}, i64 {after}")
            last_slot = ""
            if edge.nests:
                limit = self.load_i64(fn, "limit", self.buffers[-3], stop)
                limit = fn.let("limit", f"select i1 {whole}, i64 {limit}, i64 {slot_end}")
                last_slot = fn.let("last.slot", f"sub nsw i64 {limit}, 1")
            with fn.loop("row", row_begin, stop) as r:
                self.enter_row(fn, r, [row, edge, post])
                self.run_nests(fn, row)
                self.init_states(fn)
                if edge.nests:
                    begin, end = self.row_slots(fn, r)
                    begin = fn.let("begin", f"select i1 {whole}, i64 {begin}, i64 {slot_begin}")
                    end = fn.let("end", f"select i1 {whole}, i64 {end}, i64 {slot_end}")
                    with fn.loop("slot", begin, end) as slot:
                        self.prefetch(fn, slot, last_slot, edge)
                        self.enter_edge(fn, slot, edge)
                        self.run_nests(fn, edge)
                        if edge_copies:
                            self.run_nests(fn, edge_copies)
                done, keep, following = fn.fresh("post"), fn.fresh("image"), fn.fresh("row.done")
                fn.branch_if(whole, done, keep)
                fn.place(keep)
                if p.components:
                    off = fn.let("state.off", f"mul nsw i64 {partial}, {p.state_bytes}")
                    self.image_pointers(fn, "part", fn.let("state", f"getelementptr inbounds i8, ptr %states, i64 {off}"))
                    self.run_nests(fn, image)
                fn.branch(following)
                fn.place(done)
                self.run_nests(fn, post)
                fn.branch(following)
                fn.place(following)
        fn.emit("ret void")
        return fn.finish()

    def prefetch(self, fn: FunctionText, slot: str, last_slot: str, plan: _RegionPlan) -> None:
        """Asks for what an edge of this task some way ahead reads at its other end and by its id: such rows lie anywhere."""
        wanted = [b for b in sorted(pointer_arguments(plan.nests, plan.planner)) if b[0] in ("other", "edge")]
        lines = {b: min(MAX_LINES, max(1, -(-self.p.arg_types[b[1]].row_bytes // 64))) for b in wanted}
        if not lines:
            return
        distance = max(1, min(MAX_DISTANCE, LINES_IN_FLIGHT // sum(lines.values())))
        ahead = fn.let("ahead", f"add nsw i64 {slot}, {distance}")
        self.module.declare("i64 @llvm.smin.i64(i64, i64)")
        self.module.declare("void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
        ahead = fn.let("ahead", f"call i64 @llvm.smin.i64(i64 {ahead}, i64 {last_slot})")
        index = {kind: self.load_index(fn, {"other": -2, "edge": -1}[kind], ahead, "ahead") for kind, _n in wanted}
        for base in wanted:
            off = fn.let("ahead.off", f"mul nsw i64 {index[base[0]]}, {self.p.arg_types[base[1]].row_bytes}")
            at = fn.let("ahead.row", f"getelementptr inbounds i8, ptr {self.buffers[base[1]]}, i64 {off}")
            for line in range(lines[base]):
                where = at if line == 0 else fn.let("ahead.line", f"getelementptr i8, ptr {at}, i64 {64 * line}")
                fn.emit(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 3, i32 1)")

    def row_temps_in_order(self, edge: _RegionPlan) -> list[Value]:
        return self.outside([edge], Region.ROW)

    def enter_edge(self, fn: FunctionText, slot: str, plan: _RegionPlan) -> None:
        wanted = sorted(pointer_arguments(plan.nests, plan.planner))
        edge_id = other = ""
        for base in wanted:
            kind, n = base
            if kind == "other":
                other = other or self.load_index(fn, -2, slot, "other")
            elif kind in ("edge", "out_edge", "edge_id"):
                edge_id = edge_id or self.load_index(fn, -1, slot, "id")
            if kind == "edge_id":
                narrow = edge_id if self.index.name == "i64" else fn.let("id", f"trunc i64 {edge_id} to i32")
                fn.emit(f"store {self.index.name} {narrow}, ptr {self.pointers[base]}, align {self.index.bytes}")
            elif kind in ("other", "edge", "out_edge"):
                index, name = (other if kind == "other" else edge_id), self.p.args[n]
                off = fn.let(f"{name}.off", f"mul nsw i64 {index}, {self.p.arg_types[n].row_bytes}")
                self.pointers[base] = fn.let(f"{name}.{kind}", f"getelementptr inbounds i8, ptr {self.buffers[n]}, i64 {off}")


class _Finish(_Kernel):
    """Split rows merged, carries summed and stored."""

    def emit(self) -> str:
        p = self.p
        merge, merge_copies = self.step_plan([c.combined for c in p.components])
        first = self.copy_states(False)
        post = self.plan(Region.POST, self.stores(Region.POST))
        carry = self.plan(Region.CARRY, self.stores(Region.CARRY))
        param = self.plan_temps(Region.PARAM, self.outside([merge, post, carry], Region.PARAM))
        fn = self.open(
            f"define void @{self.name}_finish(ptr %ptrs, ptr %hubs, i64 %num_hubs, ptr %states, ptr %carries, i64 %num_tasks) nounwind",
            ["ptrs", "hubs", "num_hubs", "states", "carries", "num_tasks"],
        )
        self.load_buffers(fn)
        self.scratch(fn, [param, merge, *([merge_copies] if merge_copies else []), first, post, carry])
        self.run_nests(fn, param)
        if p.carries:
            off = fn.let("carry.off", f"mul nsw i64 %num_tasks, {p.carry_bytes}")
            self.carry_pointers(fn, fn.let("carry", f"getelementptr inbounds i8, ptr %carries, i64 {off}"))
            self.clear_carries(fn)
        if self.spec.grouped_by:
            with fn.loop("hub", "0", "%num_hubs") as hub:
                at = fn.let("hub.off", f"mul nsw i64 {hub}, 3")
                row, begin, end = (self.load_i64(fn, n, "%hubs", at, i) for i, n in enumerate(("row", "begin", "end")))
                self.enter_row(fn, row, [post])
                if p.components:
                    self._image(fn, begin)
                    self.run_nests(fn, first)
                    second = fn.let("second", f"add nsw i64 {begin}, 1")
                    with fn.loop("part", second, end) as part:
                        self._image(fn, part)
                        self.run_nests(fn, merge)
                        if merge_copies:
                            self.run_nests(fn, merge_copies)
                self.run_nests(fn, post)
        if p.carries:
            self._sum_carries(fn)
        self.run_nests(fn, carry)
        fn.emit("ret void")
        return fn.finish()

    def _image(self, fn: FunctionText, number: str) -> None:
        off = fn.let("state.off", f"mul nsw i64 {number}, {self.p.state_bytes}")
        self.image_pointers(fn, "image", fn.let("state", f"getelementptr inbounds i8, ptr %states, i64 {off}"))

    def _sum_carries(self, fn: FunctionText) -> None:
        """Adds images 1 .. num_tasks to image 0, in order."""
        sinks = []
        for n, c in enumerate(self.p.carries):
            addend = self.p.leaf(f"%addend{n}", c.type, ("addend", n), Region.CARRY)
            sinks.append(Sink(addend, View(("carry", n), c.type.dtype, 0, contiguous(c.type.dims)), fold="sum", accumulate=True))
        plan = self.plan(Region.CARRY, sinks)
        self.carry_pointers(fn, "%carries")
        stop = fn.let("images", "add nsw i64 %num_tasks, 1")
        with fn.loop("image", "1", stop) as image:
            off = fn.let("carry.off", f"mul nsw i64 {image}, {self.p.carry_bytes}")
            base = fn.let("addends", f"getelementptr inbounds i8, ptr %carries, i64 {off}")
            for n, c in enumerate(self.p.carries):
                self.pointers[("addend", n)] = fn.let(f"addend{n}", f"getelementptr inbounds i8, ptr {base}, i64 {c.offset}")
            self.run_nests(fn, plan)
