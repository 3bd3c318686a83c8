"""Runs a `Plan` on a GPU: same plans, same buffers as `gnnc_runtime.executor`, kernels launched on torch's current stream.

Nothing here synchronises once a graph has been swept on a device (its lists are made then), and all memory is torch's, so a warm call can
be captured in a CUDA graph. Launches are deterministic: grids depend on the graph and the device alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..plan import CudaEntry, DenseStep, Plan, SweepStep
from ..tables import TORCH_DTYPES, GraphForm, GraphForms, PlanTables, Values, degree_of, rows_of, shape_of
from ..weak import WeakIdMap
from .dense import build_dense
from .driver import Arguments, Function, activate, launch, load, signed
from .lists import Chunks, is_identity, make_chunks, split_size

ALIGN = 16  # bytes that buffers start at a multiple of


@dataclass(frozen=True)
class CudaModule:
    """A sweep's cubin. The functions are loaded on each device when first used there."""

    cubin: bytes


@dataclass(frozen=True)
class _Lists:
    chunks: Chunks
    identity: bool


_lists: WeakIdMap[dict[str, _Lists]] = WeakIdMap()


def graph_lists(graph: GraphForms, side: str) -> tuple[GraphForm, _Lists]:
    """A side's form and its lists, made once a graph."""
    known = _lists.get(graph)
    if known is None:
        known = _lists.set(graph, {})
    form = graph.in_form() if side == "dst" else graph.out_form()
    if side not in known:
        split = split_size(form.indices.numel(), form.indptr.numel() - 1)
        known[side] = _Lists(make_chunks(form.indptr, split, form.indices.dtype), is_identity(form.edge_ids))
    return form, known[side]


@dataclass(frozen=True)
class _Launch:
    shapes: tuple[tuple[int, ...], ...]
    values: tuple[Tensor | None, ...]
    steps: tuple[Callable[[Values], None], ...]


class CudaExecutable:
    """A plan with its cubins, ready to run on graphs of any CUDA device. Safe to use from several threads.

    Raises KeyError when a kernel of the plan is missing.
    """

    dispatch_key = "CUDA"

    def __init__(self, plan: Plan, kernels: dict[str, CudaModule]) -> None:
        self.plan = plan
        self._modules = {s.kernel: kernels[s.kernel] for s in plan.steps if isinstance(s, SweepStep)}
        self._tables = PlanTables(plan)
        self._functions: dict[tuple[int, str], dict[str, Function]] = {}
        self._launches: dict[int, WeakIdMap[_Launch]] = {}

    @property
    def sides(self) -> tuple[str, ...]:
        """The graph forms that a run reads: ``dst`` (edges grouped by destination), ``src``."""
        return self._tables.sides

    def run(self, graph: GraphForms, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of the plan, new contiguous tensors on the inputs' device, in its order. Not recorded by autograd.

        ``inputs``: as for `Executable.run`, on one CUDA device, which is the graph's. Raises ValueError for anything else.
        """
        device = self._device(graph, inputs)
        with torch.cuda.device(device):
            activate(device.index)
            per_device = self._launches.setdefault(device.index, WeakIdMap())
            made = per_device.get(graph) or per_device.set(graph, self._launch(graph, device))
            values: Values = list(made.values)
            self._tables.bind(values, made.shapes, inputs, device)
            for i, _ in self._tables.inputs:
                t = values[i]
                if t is not None and t.data_ptr() % ALIGN:  # a view that starts inside a 16-byte word: kernels load whole ones
                    values[i] = t.clone()
            for step in made.steps:
                step(values)
            return self._tables.results(values)

    def _device(self, graph: GraphForms, inputs: Sequence[Tensor]) -> torch.device:
        device = inputs[0].device if inputs else torch.device("cuda", torch.cuda.current_device())
        if device.type != "cuda":
            raise ValueError(f"{self.plan.name} was compiled for cuda, not {device}")
        return device

    # ---- once a graph and device

    def _launch(self, graph: GraphForms, device: torch.device) -> _Launch:
        plan = self.plan
        if plan.square and graph.num_src != graph.num_dst:
            raise ValueError(f"{plan.name} needs as many sources as destinations, not {graph.num_src} and {graph.num_dst}")
        shapes = tuple(shape_of(b, graph.num_src, graph.num_dst, graph.num_edges) for b in plan.buffers)
        values = tuple(degree_of(graph, b.name).contiguous() if b.role == "graph" else None for b in plan.buffers)
        steps = []
        for s, new, dead in zip(plan.steps, self._tables.new, self._tables.dead, strict=True):
            work = self._dense(s, shapes) if isinstance(s, DenseStep) else self._sweep(s, graph, device)
            steps.append(self._tables.bracket(work, new, dead, shapes, device))
        return _Launch(shapes, values, tuple(steps))

    def _dense(self, s: DenseStep, shapes: tuple[tuple[int, ...], ...]) -> Callable[[Values], None]:
        a, b, out = (self._tables.number[n] for n in (s.a, s.b, s.out))
        multiply = build_dense(s, shapes[a], shapes[b])

        def work(values: Values) -> None:
            x, y, z = values[a], values[b], values[out]
            assert x is not None
            assert y is not None
            assert z is not None
            multiply(x, y, z)

        return work

    def _loaded(self, step: SweepStep, device: int) -> dict[str, Function]:
        key = device, step.kernel
        if key not in self._functions:
            assert step.cuda is not None, f"{step.kernel} has no launch for a GPU"
            entries = [e for e in (step.cuda.run, step.cuda.merge, step.cuda.carry) if e is not None]
            wanted = [(e.name, e.block, e.shared_bytes) for e in entries]
            self._functions[key] = load(self._modules[step.kernel].cubin, wanted, device)
        return self._functions[key]

    def _sweep(self, step: SweepStep, graph: GraphForms, device: torch.device) -> Callable[[Values], None]:
        assert step.cuda is not None, f"{step.kernel} has no launch for a GPU"
        entry, functions = step.cuda, self._loaded(step, device.index)
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        args = tuple(self._tables.number[a] for a in step.args)
        keep: tuple[Tensor, ...] = ()
        head = (0, 0, 0)
        chunks, hubs = 0, 0
        if step.grouped_by is None:
            count, num_hubs, partials = rows_of(step.rows, graph.num_src, graph.num_dst, graph.num_edges), 0, 0
        else:
            form, lists = graph_lists(graph, step.grouped_by)
            index = TORCH_DTYPES[self.plan.index_dtype]
            if form.indices.dtype is not index or form.indices.device != device:
                raise ValueError(
                    f"{self.plan.name} was compiled for {str(index)[6:]} graph forms on {device}, "
                    f"not {str(form.indices.dtype)[6:]} on {form.indices.device}"
                )
            made = lists.chunks
            count, num_hubs, partials = made.chunks.shape[0], made.hubs.shape[0], made.num_partials
            keep = (form.indptr, form.indices, form.edge_ids, made.chunks, made.hubs)
            head = (form.indptr.data_ptr(), form.indices.data_ptr(), 0 if lists.identity else form.edge_ids.data_ptr())
            chunks, hubs = made.chunks.data_ptr(), made.hubs.data_ptr()
        run_grid = max(_grid(entry.run, count, functions[entry.run.name], processors, step.carry_bytes), 1 if entry.carry else 0)
        merge_grid = 0 if entry.merge is None else -(-num_hubs // entry.merge.items_per_block)
        images = run_grid * entry.run.images_per_block + (merge_grid * entry.merge.images_per_block if entry.merge else 0)
        partial_bytes = _round(partials * step.state_bytes)
        carry_bytes = _round(images * step.carry_bytes)
        work_bytes = entry.workspace_bytes * max(run_grid, merge_grid, 1 if entry.carry else 0)
        scratch_bytes = partial_bytes + carry_bytes + work_bytes

        def work(values: Values, _keep: tuple[Tensor, ...] = keep) -> None:
            stream = torch.cuda.current_stream(device).cuda_stream
            base = 0
            if scratch_bytes:
                scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=device)
                base = scratch.data_ptr()
            tail = [signed(values[i].data_ptr()) for i in args]  # type: ignore[union-attr]
            where = (signed(base), signed(base + partial_bytes), signed(base + partial_bytes + carry_bytes))

            def go(e: CudaEntry, grid: int, items: int, n: int, carry_base: int) -> None:
                a = Arguments([signed(items), n, *map(signed, head), where[0], where[1], carry_base, where[2], *tail])
                launch(functions[e.name], grid, e.block, e.shared_bytes, stream, a)

            if run_grid:
                go(entry.run, run_grid, chunks, count, 0)
            if entry.merge is not None and merge_grid:
                go(entry.merge, merge_grid, hubs, num_hubs, run_grid * entry.run.images_per_block)
            if entry.carry is not None:
                go(entry.carry, 1, 0, images, 0)

        return work


def _round(n: int) -> int:
    return (n + 255) // 256 * 256


IMAGES = 32 << 20  # bytes of carry images that one launch may leave: a [K, F] gradient has large ones


def _grid(e: CudaEntry, count: int, f: Function, processors: int, image_bytes: int) -> int:
    """Blocks for `count` items: as many as there is work, or as many as are resident at once where each leaves images."""
    blocks = -(-count // e.items_per_block)
    if e.persistent:
        room = IMAGES // max(1, e.images_per_block * image_bytes)
        return min(blocks, processors * f.resident, max(room, processors))
    return min(blocks * e.slices, 2**31 - 1)
