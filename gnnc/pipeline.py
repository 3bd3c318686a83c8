"""From a traced function to kernels, top to bottom: the compiler on one page.

Forward alone:   traced -> simplify -> lower_softmax -> fuse -> classify -> schedule -> emit
With gradients:  traced -> simplify -> differentiate -> simplify -> lower_softmax -> save_or_recompute, then both halves go on alike.

The backward half is made when it is first asked for. A verifier runs behind every pass; a pass that breaks its function is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gnnc.backends import Backend, CpuBackend
from gnnc.codegen.plan import LoweredPlan
from gnnc.frontend.errors import from_type_rule
from gnnc.ir.core import Func
from gnnc.ir.sweep import PlanSpec
from gnnc.ir.types import DType, TypeRuleError
from gnnc.ir.verifier import verify_plan
from gnnc.passes.classify import classify
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.fuse import fuse
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.passes.manager import Pass, run_pass
from gnnc.passes.save_or_recompute import Partition, partition
from gnnc.passes.schedule import schedule
from gnnc.passes.simplify import Simplify
from gnnc.stages import Stages


@dataclass
class Compilation:
    """One signature on its way down. ``wrt``: the parameters that want gradients (none: forward alone). ``stages`` records every
    step's text."""

    traced: Func
    wrt: tuple[str, ...]
    index_dtype: DType
    backend: Backend = field(default_factory=CpuBackend)
    stages: Stages = field(default_factory=Stages)
    _cut: Partition | None = None
    _no_gradient: TypeRuleError | None = None
    _plans: dict[str, PlanSpec] = field(default_factory=dict)
    _lowered: dict[str, LoweredPlan] = field(default_factory=dict)

    def _run(self, pass_: Pass, func: Func, stage: str) -> Func:
        out = run_pass(pass_, func)
        self.stages.record(stage, out)
        return out

    def _down_to_lowered(self) -> Func:
        self.stages.record("traced", self.traced)
        func = self._run(Simplify(), self.traced, "simplified")
        if self.wrt:
            try:
                func = self._run(Differentiate(self.wrt), func, "joint")
                func = self._run(Simplify(), func, "joint-simplified")
            except TypeRuleError as e:  # a fold without a gradient: forward only, an error when the backward is asked for
                self._no_gradient = e
        return self._run(LowerSoftmax(), func, "lowered")

    def cut(self) -> Partition:
        """The forward and backward halves; the backward's is empty when nothing wants a gradient."""
        if self._cut is None:
            func = self._down_to_lowered()
            n = len(self.traced.results)
            if self.wrt and self._no_gradient is None:
                self._cut = partition(func, n)
                self.stages.record("forward", self._cut.forward)
            else:
                self._cut = Partition(func, func, n, (), ())
        return self._cut

    def _plan(self, func: Func, stage: str) -> PlanSpec:
        if stage not in self._plans:
            plan = schedule(classify(fuse(func)), self.backend.vector_bits)
            verify_plan(plan)
            self.stages.record(stage, plan)
            self._plans[stage] = plan
        return self._plans[stage]

    def forward_plan(self) -> PlanSpec:
        """The forward as sweeps and dense steps. Its results are the layer's, then the saved values."""
        return self._plan(self.cut().forward, "forward-plan")

    def backward_plan(self) -> PlanSpec:
        """The backward as sweeps and dense steps. Raises a located error for a layer that is forward only."""
        func = self.cut().backward
        if self._no_gradient is not None:
            raise from_type_rule(self._no_gradient, self._no_gradient.loc)
        if "backward-plan" not in self._plans:
            self.stages.record("backward", func)
            func = self._run(Simplify(), func, "backward-simplified")
        return self._plan(func, "backward-plan")

    def mapped(self, part: str) -> dict[str, str]:
        """How each sweep of the ``forward`` or the ``backward`` is mapped to the machine, by name."""
        plan = {"forward": self.forward_plan, "backward": self.backward_plan}[part]()
        kernels = self.lower(part).kernels
        return {s.name: self.backend.describe(s, kernels[s.name]) for s in plan.sweeps}

    def lower(self, part: str) -> LoweredPlan:
        """The runtime plan and kernel texts of the ``forward`` or the ``backward``."""
        if part not in self._lowered:
            plan = {"forward": self.forward_plan, "backward": self.backward_plan}[part]()
            self._lowered[part] = self.backend.lower(plan, self.index_dtype)
            for name, kernel in self._lowered[part].kernels.items():
                self.stages.record(name, kernel.text, self.backend.extension)
        return self._lowered[part]
