"""Chooses how each sweep maps to CPU tasks.

First simple form: a task is about as much work as hides its own cost, and no task is so large that two threads wait for one. Split rows
are merged with the fold's `combine`, so the choice changes no result's determinism.
"""

from __future__ import annotations

from dataclasses import replace

from gnnc.ir.core import topological
from gnnc.ir.sweep import PlanSpec, Schedule, SweepSpec

TASK_ELEMENTS = 1 << 18  # elements touched by one task: about 50 us of work on one core


def schedule(plan: PlanSpec, vector_bits: int = 256) -> PlanSpec:
    """`plan` with every sweep's `Schedule`."""
    return replace(plan, steps=tuple(_scheduled(s, vector_bits) if isinstance(s, SweepSpec) else s for s in plan.steps))


def _scheduled(spec: SweepSpec, vector_bits: int) -> SweepSpec:
    widest = max((v.type.size for v in topological(spec.func.results)), default=1)
    edges = 1 << max(9, min(14, (TASK_ELEMENTS // max(widest, 1)).bit_length() - 1))
    reason = f"{edges} edges and rows a task: widest value {widest} elements"
    return replace(spec, schedule=Schedule(edges, vector_bits, reason))
