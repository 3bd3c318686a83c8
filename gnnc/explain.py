"""`layer.explain(graph, ...)`: what the compiler made of a layer, as text.

Stages, sweeps with their family and the reason, buffers, and the bytes that the fused plan moves beside those of one kernel an
operation, counted for this graph's sizes (`traffic.py` says how).
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnc.ir.core import Func
from gnnc.ir.sweep import DenseSpec, PlanSpec, StepSpec, SweepSpec
from gnnc.traffic import Sizes, edge_tensor_bytes, op_by_op_bytes, plan_bytes, step_bytes


def human(n: float) -> str:
    """Bytes in decimal units: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1000
    raise AssertionError


@dataclass(frozen=True)
class Half:
    """The forward or the backward: its function before fusion, its plan, and how each sweep is mapped to the machine, by name."""

    title: str
    func: Func
    plan: PlanSpec
    mapped: dict[str, str]


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; ``str()`` gives the report. ``fused_bytes`` and ``op_by_op_bytes`` are sums over the halves."""

    layer: str
    signature: str
    sizes: Sizes
    stages: tuple[str, ...]
    halves: tuple[Half, ...]
    saved: tuple[str, ...]

    @property
    def fused_bytes(self) -> int:
        return sum(plan_bytes(h.plan, self.sizes) for h in self.halves)

    @property
    def op_by_op_bytes(self) -> int:
        return sum(op_by_op_bytes(h.func, self.sizes) for h in self.halves)

    @property
    def edge_tensor_bytes(self) -> int:
        """Bytes of edge-wise tensors written (0 unless the layer returns one, or an edge input wants its gradient)."""
        return sum(edge_tensor_bytes(h.plan, self.sizes) for h in self.halves)

    def __str__(self) -> str:
        n = self.sizes
        lines = [
            f"{self.layer}({self.signature})",
            f"graph: {n.num_src} sources, {n.num_dst} destinations, {n.num_edges} edges, {8 * n.index_bytes}-bit indices",
            f"stages: {' > '.join(self.stages)}",
        ]
        for h in self.halves:
            lines += ["", *self._half(h)]
        if self.saved:
            lines += ["", "kept for the backward", *(f"  {s}" for s in self.saved)]
        ratio = self.op_by_op_bytes / max(self.fused_bytes, 1)
        lines += [
            "",
            f"bytes moved: fused {human(self.fused_bytes)}, one kernel an operation {human(self.op_by_op_bytes)} ({ratio:.1f}x)",
            f"edge-wise tensors written: {human(self.edge_tensor_bytes)}",
        ]
        return "\n".join(lines)

    def _half(self, h: Half) -> list[str]:
        sweeps = len(h.plan.sweeps)
        lines = [
            f"{h.title}: {sweeps} sweep{'s' * (sweeps != 1)}, {len(h.plan.steps) - sweeps} dense, "
            f"{human(plan_bytes(h.plan, self.sizes))} (one kernel an operation: {human(op_by_op_bytes(h.func, self.sizes))})"
        ]
        for s in h.plan.steps:
            lines += self._step(s, h.mapped)
        return lines

    def _step(self, s: StepSpec, mapped: dict[str, str]) -> list[str]:
        reads = ", ".join(f"{p.name} {p.type}" for p in s.func.params)
        writes = ", ".join(f"{n} {r.type}" for n, r in zip(s.func.result_names, s.func.results, strict=True))
        moved = human(step_bytes(s, self.sizes))
        if isinstance(s, DenseSpec):
            return [f"  {s.name}  dense  {moved}", f"    reads  {reads}", f"    writes {writes}"]
        walk = f"by {s.grouped_by}" if s.grouped_by else f"rows of {s.rows}"
        return [
            f"  {s.name}  {walk}  {s.family}  {moved}",
            f"    why    {s.reason}",
            *self._folds(s),
            f"    reads  {reads}",
            f"    writes {writes}",
            f"    runs   {mapped[s.name]}",
        ]

    @staticmethod
    def _folds(s: SweepSpec) -> list[str]:
        folds = [f"{v.attr('monoid')}.{v.attr('part')} {v.type}" for v in s.func.body if v.op == "fold"]
        return [f"    folds  {', '.join(folds)}"] if folds else []
