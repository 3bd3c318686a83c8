"""Runs a `Plan`: allocates its buffers, calls its kernels over the tasks of a graph, and torch for its dense products.

What depends on the plan alone is worked out when an `Executable` is made, what depends on the graph too (shapes, pointers of forms,
tasks) at the first call with that graph, and is kept as long as the graph lives.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .dense import build_dense
from .kernels import FINISH, RUN, CpuKernel
from .plan import DenseStep, Plan, Step, SweepStep
from .tables import TORCH_DTYPES, GraphForms, PlanTables, Values, degree_of, rows_of, shape_of
from .tasks import Tasks, map_tasks, row_tasks
from .threads import parallel_for
from .weak import WeakIdMap

ALIGN = 64  # of state and carry images
CPU = torch.device("cpu")

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

    dispatch_key = "CPU"

    def __init__(self, plan: Plan, kernels: dict[str, CpuKernel]) -> None:
        self.plan = plan
        self._kernels = {s.kernel: kernels[s.kernel] for s in plan.steps if isinstance(s, SweepStep)}  # keeps them loaded
        self._tables = PlanTables(plan)
        self._number = self._tables.number
        self._steps = tuple(self._prepare(s) for s in plan.steps)
        self._launches: WeakIdMap[_Launch] = WeakIdMap()

    @property
    def sides(self) -> tuple[str, ...]:
        """The graph forms that a run reads: ``dst`` (edges grouped by destination), ``src``."""
        return self._tables.sides

    def run(self, graph: GraphForms, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of the plan, new contiguous tensors, in its order. Not recorded by autograd.

        ``inputs``: in the plan's order, ``[rows(space), *dims]`` (a parameter ``[*dims]``) in the plan's dtypes, any strides, on the CPU.
        Raises ValueError for anything else.
        """
        launch = self._launches.get(graph) or self._launches.set(graph, self._launch(graph))
        values = list(launch.values)
        self._tables.bind(values, launch.shapes, inputs, CPU)
        del inputs
        for step in launch.steps:
            step(values)
        return self._tables.results(values)

    # ---- once a plan

    def _prepare(self, step: Step) -> _Sweep | DenseStep:
        if isinstance(step, DenseStep):
            return step
        k = self._kernels[step.kernel]
        return _Sweep(step, RUN(k.run), FINISH(k.finish), tuple(self._number[a] for a in step.args))

    # ---- once a graph

    def _launch(self, graph: GraphForms) -> _Launch:
        if self.plan.square and graph.num_src != graph.num_dst:
            raise ValueError(f"{self.plan.name} needs as many sources as destinations, not {graph.num_src} and {graph.num_dst}")
        counts = (graph.num_src, graph.num_dst, graph.num_edges)
        shapes = tuple(shape_of(b, *counts) for b in self.plan.buffers)
        values = tuple(degree_of(graph, b.name).contiguous() if b.role == "graph" else None for b in self.plan.buffers)
        steps = []
        for s, new, dead in zip(self._steps, self._tables.new, self._tables.dead, strict=True):
            work = self._dense(s, shapes) if isinstance(s, DenseStep) else self._sweep(s, graph)
            steps.append(self._tables.bracket(work, new, dead, shapes, CPU))
        return _Launch(shapes, values, tuple(steps))

    def _dense(self, s: DenseStep, shapes: tuple[tuple[int, ...], ...]) -> Callable[[Values], None]:
        a, b, out = (self._number[n] for n in (s.a, s.b, s.out))
        multiply = build_dense(s, shapes[a], shapes[b], self._tables.dtypes[a], self._tables.dtypes[b], self._tables.dtypes[out])

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
