"""What every executor asks of a plan: buffer numbers and dtypes, what each step allocates and frees, input checks, results.

Worked out once a plan; nothing here knows a device's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .plan import BufferSpec, DenseStep, Plan, Step, SweepStep

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


def step_buffers(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Buffers a step reads and writes."""
    if isinstance(step, DenseStep):
        return (step.a, step.b), (step.out,)
    return step.args[: step.num_read], step.args[step.num_read :]


class PlanTables:
    """``number`` and ``dtypes`` of buffers; ``inputs`` and ``outputs`` by number; for each step the buffers that it must allocate (``new``)
    and those that nothing needs after it (``dead``); ``sides``: the graph forms a run reads."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.number = {b.name: i for i, b in enumerate(plan.buffers)}
        self.dtypes = tuple(TORCH_DTYPES[b.dtype] for b in plan.buffers)
        self.inputs = tuple((self.number[n], self.dtypes[self.number[n]]) for n in plan.inputs)
        self.outputs = tuple(self.number[n] for n in plan.outputs)
        given = {*plan.inputs, *(b.name for b in plan.buffers if b.role == "graph")}
        # A result that is an input (or a degree) as it stands is returned as a copy: results never alias.
        self.copied = tuple(i for i, n in enumerate(plan.outputs) if n in given or n in plan.outputs[:i])
        self.new = self._first_writes(given)
        self.dead = self._last_uses()
        self.sides = self._sides()

    def _sides(self) -> tuple[str, ...]:
        found = {s.grouped_by for s in self.plan.steps if isinstance(s, SweepStep)}
        names = {b.name.partition(":")[0] for b in self.plan.buffers if b.role == "graph"}
        found |= {side for name, side in (("$in_degree", "dst"), ("$out_degree", "src")) if name in names}
        return tuple(side for side in ("dst", "src") if side in found)

    def _first_writes(self, given: set[str]) -> tuple[tuple[int, ...], ...]:
        known, out = set(given), []
        for s in self.plan.steps:
            new = [n for n in dict.fromkeys(step_buffers(s)[1]) if n not in known]
            known |= set(new)
            out.append(tuple(self.number[n] for n in new))
        if missing := [n for n in self.plan.outputs if n not in known]:
            raise ValueError(f"plan {self.plan.name}: no step writes {', '.join(missing)}")
        return tuple(out)

    def _last_uses(self) -> tuple[tuple[int, ...], ...]:
        needed, out = set(self.plan.outputs), []
        for s in reversed(self.plan.steps):
            reads, writes = step_buffers(s)
            dead = [n for n in dict.fromkeys((*reads, *writes)) if n not in needed]
            needed |= set(dead)
            out.append(tuple(self.number[n] for n in dead))
        return tuple(reversed(out))

    def bind(self, values: Values, shapes: tuple[tuple[int, ...], ...], inputs: Sequence[Tensor], device: torch.device) -> None:
        """Puts checked, contiguous inputs into `values`. Raises ValueError for a wrong number, shape, dtype or device."""
        if len(inputs) != len(self.inputs):
            raise ValueError(f"{self.plan.name} takes {len(self.inputs)} tensors, not {len(inputs)}")
        for (i, dtype), t in zip(self.inputs, inputs, strict=True):
            if t.dtype is not dtype or t.shape != shapes[i] or t.device != device:
                raise ValueError(
                    f"{self.plan.name}: {self.plan.buffers[i].name} must be {list(shapes[i])} of {str(dtype)[6:]} on {device}, "
                    f"not {list(t.shape)} of {str(t.dtype)[6:]} on {t.device}"
                )
            values[i] = (t.detach() if t.requires_grad else t).contiguous()

    def results(self, values: Values) -> tuple[Tensor, ...]:
        """The outputs in order, copied where they would alias."""
        out = [values[i] for i in self.outputs]
        for k in self.copied:
            out[k] = out[k].clone()  # type: ignore[union-attr]
        return tuple(out)  # type: ignore[arg-type]

    def bracket(
        self,
        work: Callable[[Values], None],
        new: tuple[int, ...],
        dead: tuple[int, ...],
        shapes: tuple[tuple[int, ...], ...],
        device: torch.device,
    ) -> Callable[[Values], None]:
        """`work` with the buffers it writes first allocated before it, and those nobody needs any more dropped after it."""
        made = tuple((i, shapes[i], self.dtypes[i]) for i in new)

        def step(values: Values) -> None:
            for i, shape, dtype in made:
                values[i] = torch.empty(shape, dtype=dtype, device=device)
            work(values)
            for i in dead:
                values[i] = None

        return step
