"""Runs a `Plan`: allocates its buffers, calls its kernels over the tasks of a graph, and torch for its dense products.

What depends on the plan alone is worked out when an `Executable` is made, what depends on the graph too (shapes, pointers of forms,
tasks) at the first call with that graph, and is kept as long as the graph lives.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .dense import build_dense
from .kernels import FINISH, RUN, CpuKernel
from .plan import BufferSpec, DenseStep, Plan, Step, SweepStep
from .tasks import Tasks, map_tasks, row_tasks
from .threads import parallel_for
from .weak import WeakIdMap

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
ALIGN = 64  # of state and carry images
CPU = torch.device("cpu")

Values = list[Tensor | None]


class GraphForm(Protocol):
    """Edges grouped by one side: ``indptr`` i64 ``[rows + 1]``, ``indices`` and ``edge_ids`` i32 or i64 ``[E]``."""

    @property
    def indptr(self) -> Tensor: ...
    @property
    def indices(self) -> Tensor: ...
    @property
    def edge_ids(self) -> Tensor: ...


class GraphForms(Protocol):
    """What a plan needs of a graph. It never changes; `gnnc_runtime.graph.Graph` is one."""

    @property
    def num_src(self) -> int: ...
    @property
    def num_dst(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    def in_form(self) -> GraphForm: ...
    def out_form(self) -> GraphForm: ...
    def in_degree(self, dtype: torch.dtype) -> Tensor: ...
    def out_degree(self, dtype: torch.dtype) -> Tensor: ...


def rows_of(space: str, num_src: int, num_dst: int, num_edges: int) -> int:
    """Rows of a row space; a ``param`` map has one."""
    return {"src": num_src, "dst": num_dst, "node": num_dst, "edge": num_edges, "param": 1}[space]


def shape_of(spec: BufferSpec, num_src: int, num_dst: int, num_edges: int) -> tuple[int, ...]:
    """Shape of a buffer: a parameter has no row axis."""
    return spec.dims if spec.space == "param" else (rows_of(spec.space, num_src, num_dst, num_edges), *spec.dims)


def degree_of(graph: GraphForms, name: str) -> Tensor:
    """The graph-owned buffer called ``$in_degree``, ``$out_degree`` (f32) or with a dtype: ``$in_degree:f64``."""
    base, _, dtype = name.partition(":")
    find = {"$in_degree": graph.in_degree, "$out_degree": graph.out_degree}[base]
    return find(TORCH_DTYPES[dtype or "f32"])


# Tasks depend on the graph, the side and the grain alone, so all plans share them.
_tasks: WeakIdMap[dict[tuple[str, int], Tasks]] = WeakIdMap()


def graph_tasks(graph: GraphForms, grouped_by: str, task_edges: int) -> Tasks:
    """The tasks of a sweep over the edges grouped by one side, made once for a graph."""
    known = _tasks.get(graph)
    if known is None:
        known = _tasks.set(graph, {})
    key = (grouped_by, task_edges)
    found = known.get(key)
    if found is None:
        form = graph.in_form() if grouped_by == "dst" else graph.out_form()
        found = known[key] = row_tasks(form.indptr, task_edges)
    return found


@dataclass(frozen=True)
class _Sweep:
    """A sweep step with buffers by number and its C functions."""

    step: SweepStep
    run: Callable[[int, int, int, int, int, int], None]
    finish: Callable[[int, int, int, int, int, int], None]
    args: tuple[int, ...]


@dataclass(frozen=True)
class _Launch:
    """A plan on one graph: shapes of all buffers, values with the graph's own filled in, one function a step."""

    shapes: tuple[tuple[int, ...], ...]
    values: tuple[Tensor | None, ...]
    steps: tuple[Callable[[Values], None], ...]


class Executable:
    """A plan with its kernels, ready to run on any graph. Safe to use from several threads.

    Raises KeyError when a kernel of the plan is missing.
    """

    def __init__(self, plan: Plan, kernels: dict[str, CpuKernel]) -> None:
        self.plan = plan
        self._kernels = {s.kernel: kernels[s.kernel] for s in plan.steps if isinstance(s, SweepStep)}  # keeps them loaded
        self._number = {b.name: i for i, b in enumerate(plan.buffers)}
        self._dtypes = tuple(TORCH_DTYPES[b.dtype] for b in plan.buffers)
        self._inputs = tuple((self._number[n], self._dtypes[self._number[n]]) for n in plan.inputs)
        self._outputs = tuple(self._number[n] for n in plan.outputs)
        given = {*plan.inputs, *(b.name for b in plan.buffers if b.role == "graph")}
        # A result that is an input (or a degree) as it stands is returned as a copy: results never alias.
        self._copied = tuple(i for i, n in enumerate(plan.outputs) if n in given or n in plan.outputs[:i])
        self._steps = tuple(self._prepare(s) for s in plan.steps)
        self._new = self._first_writes(given)
        self._dead = self._last_uses()
        self._launches: WeakIdMap[_Launch] = WeakIdMap()

    @property
    def sides(self) -> tuple[str, ...]:
        """The graph forms that a run reads: ``dst`` (edges grouped by destination), ``src``."""
        found = {s.grouped_by for s in self.plan.steps if isinstance(s, SweepStep)}
        names = {b.name.partition(":")[0] for b in self.plan.buffers if b.role == "graph"}
        found |= {side for name, side in (("$in_degree", "dst"), ("$out_degree", "src")) if name in names}
        return tuple(side for side in ("dst", "src") if side in found)

    def run(self, graph: GraphForms, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of the plan, new contiguous tensors, in its order. Not recorded by autograd.

        ``inputs``: in the plan's order, ``[rows(space), *dims]`` (a parameter ``[*dims]``) in the plan's dtypes, any strides, on the CPU.
        Raises ValueError for anything else.
        """
        launch = self._launches.get(graph) or self._launches.set(graph, self._launch(graph))
        if len(inputs) != len(self._inputs):
            raise ValueError(f"{self.plan.name} takes {len(self._inputs)} tensors, not {len(inputs)}")
        values, shapes = list(launch.values), launch.shapes
        for (i, dtype), t in zip(self._inputs, inputs, strict=True):
            if t.dtype is not dtype or t.shape != shapes[i] or not t.is_cpu:
                raise self._refusal(i, shapes[i], t)
            values[i] = (t.detach() if t.requires_grad else t).contiguous()
        del inputs
        for step in launch.steps:
            step(values)
        out = [values[i] for i in self._outputs]
        for k in self._copied:
            out[k] = out[k].clone()  # type: ignore[union-attr]
        return tuple(out)  # type: ignore[arg-type]

    def _refusal(self, i: int, shape: tuple[int, ...], t: Tensor) -> ValueError:
        b = self.plan.buffers[i]
        return ValueError(
            f"{self.plan.name}: {b.name} must be {list(shape)} of {str(self._dtypes[i])[6:]} on cpu, "
            f"not {list(t.shape)} of {str(t.dtype)[6:]} on {t.device}"
        )

    # ---- once a plan

    def _prepare(self, step: Step) -> _Sweep | DenseStep:
        if isinstance(step, DenseStep):
            return step
        k = self._kernels[step.kernel]
        return _Sweep(step, RUN(k.run), FINISH(k.finish), tuple(self._number[a] for a in step.args))

    @staticmethod
    def _names(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Buffers a step reads and writes."""
        if isinstance(step, DenseStep):
            return (step.a, step.b), (step.out,)
        return step.args[: step.num_read], step.args[step.num_read :]

    def _first_writes(self, given: set[str]) -> tuple[tuple[int, ...], ...]:
        """Buffers that each step must allocate."""
        known, out = set(given), []
        for s in self.plan.steps:
            new = [n for n in dict.fromkeys(self._names(s)[1]) if n not in known]
            known |= set(new)
            out.append(tuple(self._number[n] for n in new))
        if missing := [n for n in self.plan.outputs if n not in known]:
            raise ValueError(f"plan {self.plan.name}: no step writes {', '.join(missing)}")
        return tuple(out)

    def _last_uses(self) -> tuple[tuple[int, ...], ...]:
        """Buffers that nothing needs after each step."""
        needed, out = set(self.plan.outputs), []
        for s in reversed(self.plan.steps):
            reads, writes = self._names(s)
            dead = [n for n in dict.fromkeys((*reads, *writes)) if n not in needed]
            needed |= set(dead)
            out.append(tuple(self._number[n] for n in dead))
        return tuple(reversed(out))

    # ---- once a graph

    def _launch(self, graph: GraphForms) -> _Launch:
        if self.plan.square and graph.num_src != graph.num_dst:
            raise ValueError(f"{self.plan.name} needs as many sources as destinations, not {graph.num_src} and {graph.num_dst}")
        counts = (graph.num_src, graph.num_dst, graph.num_edges)
        shapes = tuple(shape_of(b, *counts) for b in self.plan.buffers)
        values = tuple(degree_of(graph, b.name).contiguous() if b.role == "graph" else None for b in self.plan.buffers)
        steps = []
        for s, new, dead in zip(self._steps, self._new, self._dead, strict=True):
            work = self._dense(s, shapes) if isinstance(s, DenseStep) else self._sweep(s, graph)
            steps.append(_bracket(work, tuple((i, shapes[i], self._dtypes[i]) for i in new), dead))
        return _Launch(shapes, values, tuple(steps))

    def _dense(self, s: DenseStep, shapes: tuple[tuple[int, ...], ...]) -> Callable[[Values], None]:
        a, b, out = (self._number[n] for n in (s.a, s.b, s.out))
        multiply = build_dense(s, shapes[a], shapes[b], self._dtypes[a], self._dtypes[b], self._dtypes[out])

        def work(values: Values) -> None:
            x, y, z = values[a], values[b], values[out]
            assert x is not None and y is not None and z is not None
            multiply(x, y, z)

        return work

    def _sweep(self, s: _Sweep, graph: GraphForms) -> Callable[[Values], None]:
        step, run, finish, args = s.step, s.run, s.finish, s.args
        if step.grouped_by is None:
            rows = rows_of(step.rows, graph.num_src, graph.num_dst, graph.num_edges)
            tasks = map_tasks(rows, step.task_edges)
            keep: tuple[Tensor, ...] = ()
            head = (0, 0, 0)
        else:
            form = graph.in_form() if step.grouped_by == "dst" else graph.out_form()
            index = TORCH_DTYPES[self.plan.index_dtype]
            for t, dtype in ((form.indptr, torch.int64), (form.indices, index), (form.edge_ids, index)):
                if t.dtype is not dtype or not t.is_contiguous() or not t.is_cpu:
                    raise ValueError(
                        f"{self.plan.name} was compiled for {str(index)[6:]} graph forms on cpu, not {str(t.dtype)[6:]} on {t.device}"
                    )
            tasks = graph_tasks(graph, step.grouped_by, step.task_edges)
            keep = (form.indptr, form.indices, form.edge_ids)
            head = (keep[0].data_ptr(), keep[1].data_ptr(), keep[2].data_ptr())
        num_tasks, num_hubs = tasks.tasks.shape[0], tasks.hubs.shape[0]
        task_ptr, hub_ptr = tasks.tasks.data_ptr(), tasks.hubs.data_ptr()
        # States of split rows first, then the carry image of every task and one for the split rows.
        state_bytes = tasks.num_partials * step.state_bytes
        scratch_bytes = state_bytes + (num_tasks + 1) * step.carry_bytes
        keep += (tasks.tasks, tasks.hubs)

        def work(values: Values, _keep: tuple[Tensor, ...] = keep) -> None:
            pointers = array("Q", [*head, *[values[i].data_ptr() for i in args]])  # type: ignore[union-attr]
            at = pointers.buffer_info()[0]
            states = carries = 0
            if scratch_bytes:
                scratch = torch.empty(scratch_bytes + ALIGN, dtype=torch.uint8, device=CPU)
                states = (scratch.data_ptr() + ALIGN - 1) // ALIGN * ALIGN
                carries = states + state_bytes
            if num_tasks == 1:
                run(at, task_ptr, 0, 1, states, carries)
            elif num_tasks:
                parallel_for(num_tasks, lambda first, last: run(at, task_ptr, first, last, states, carries))
            finish(at, hub_ptr, num_hubs, states, carries, num_tasks)

        return work


def _bracket(
    work: Callable[[Values], None], new: tuple[tuple[int, tuple[int, ...], torch.dtype], ...], dead: tuple[int, ...]
) -> Callable[[Values], None]:
    """`work` with the buffers it writes first allocated before it, and those nobody needs any more dropped after it."""

    def step(values: Values) -> None:
        for i, shape, dtype in new:
            values[i] = torch.empty(shape, dtype=dtype, device=CPU)
        work(values)
        for i in dead:
            values[i] = None

    return step
