"""Sweep IR plan -> runtime plan: names every buffer, turns dense steps into torch products and sweeps into kernels.

The emitter is a parameter: the CPU back end gives LLVM text, another back end its own; the plan around them is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gnnc.codegen.depth import room_for
from gnnc.ir.core import Func, Value
from gnnc.ir.sweep import DenseSpec, PlanSpec, SweepSpec
from gnnc.ir.types import DType, Type
from gnnc_runtime.plan import BufferSpec, CudaLaunch, DenseStep, Plan, Step, SweepStep


class KernelText(Protocol):
    """What an emitter gives for one sweep."""

    @property
    def text(self) -> str: ...
    @property
    def args(self) -> tuple[str, ...]: ...
    @property
    def num_read(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def carry_bytes(self) -> int: ...


Emit = Callable[[SweepSpec, DType, str], KernelText]
LaunchOf = Callable[[Any], CudaLaunch | None]


@dataclass(frozen=True)
class LoweredPlan:
    """The runtime plan and its kernels by name, as the emitter gave them."""

    plan: Plan
    kernels: dict[str, KernelText]


def lower_plan(spec: PlanSpec, index_dtype: DType, emit: Emit, launch_of: LaunchOf = lambda k: None) -> LoweredPlan:
    """Runs the emitter over every sweep of `spec` and lays out the buffers. ``launch_of``: how an emitted kernel is launched on a GPU."""
    buffers: dict[str, BufferSpec] = {}

    def declare(name: str, t: Type, role: str) -> None:
        buffers.setdefault(name, BufferSpec(name, t.space, t.dtype.name, t.dims, role))

    for name, t in spec.params:
        declare(name, t, "input")
    for name, t in spec.results:
        declare(name, t, "output")
    steps: list[Step] = []
    kernels: dict[str, KernelText] = {}
    for s in spec.steps:
        for p in s.func.params:
            declare(p.name, p.type, "graph" if p.name.startswith("$") else "temp")
        for name, r in zip(s.func.result_names, s.func.results, strict=True):
            declare(name, r.type, "temp")
        if isinstance(s, DenseSpec):
            steps.append(dense_step(s))
            continue
        with room_for(len(s.func.values())):
            k = emit(s, index_dtype, s.name)
        kernels[s.name] = k
        grain = s.schedule.task_edges
        step = SweepStep(s.name, s.grouped_by, s.rows, k.args, k.num_read, k.state_bytes, k.carry_bytes, grain, s.family, launch_of(k))
        steps.append(step)
    plan = Plan(
        spec.name,
        tuple(n for n, _ in spec.params),
        tuple(n for n, _ in spec.results),
        tuple(buffers.values()),
        tuple(steps),
        spec.square,
        index_dtype.name,
    )
    return LoweredPlan(plan, kernels)


def _uncast(v: Value) -> Value:
    return v.operands[0] if v.op == "cast" else v


def dense_step(spec: DenseSpec) -> DenseStep:
    """The torch product of a dense step: casts around it are the buffers' dtypes."""
    func: Func = spec.func
    (result,) = func.results
    product = _uncast(result)
    a, b = product.operands
    flipped = b.op == "transpose"
    left, right = _uncast(a), _uncast(b.operands[0] if flipped else b)
    assert left.op == right.op == "input", func
    return DenseStep(product.op, left.name, right.name, func.result_names[0], flipped, product.op)
