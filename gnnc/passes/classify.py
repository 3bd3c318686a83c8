"""Names each sweep's family, with the reason that `explain` shows. The families are the field's; nothing is generated from them."""

from __future__ import annotations

from dataclasses import replace

from gnnc.ir.core import Value, topological
from gnnc.ir.sweep import PlanSpec, SweepSpec

LINEAR = ("gather", "mul", "add", "sub", "neg", "cast", "reshape", "broadcast", "input", "const", "spread")


def classify(plan: PlanSpec) -> PlanSpec:
    """`plan` with every sweep's ``family`` and ``reason``."""
    return replace(plan, steps=tuple(_with_family(s) if isinstance(s, SweepSpec) else s for s in plan.steps))


def _with_family(spec: SweepSpec) -> SweepSpec:
    family, reason = family_of(spec)
    return replace(spec, family=family, reason=reason)


def family_of(spec: SweepSpec) -> tuple[str, str]:
    """(family, reason): ``spmm``, ``reduction``, ``attention``, or ``edgewise`` / ``map`` for a sweep without folds."""
    body = spec.func.body
    folds = [v for v in body if v.op == "fold"]
    if spec.grouped_by is None:
        return "map", f"elementwise over the rows of {spec.rows}; no edge is read"
    if any(v.attr("monoid") == "softmax_sum" for v in folds):
        return "attention", "a softmax over each row weights a sum: one pass with an online softmax"
    weights = [v for v in body if _is_saved_weight(v)]
    if weights:
        return "attention", "softmax weights computed again from a row's log-sum-exp"
    if not folds:
        return "edgewise", "edge values and sums over all edges; nothing is folded by row"
    if any(v.attr("monoid") == "logsumexp" for v in folds):
        return "attention", "a row's log-sum-exp: the first pass of a softmax that is read by more than one weighted sum"
    if all(v.attr("monoid") in ("sum", "mean") for v in folds):
        odd = sorted({u.op for f in folds for u in topological(f.operands) if u.type.space == "edge" and u.op not in LINEAR})
        tables = [v for v in body if v.op == "gather" and v.attr("end") != spec.grouped_by]
        if not odd and len(tables) >= 1 and all(_one_table(f) for f in folds):
            return "spmm", "sums of one gathered row times factors that do not vary with the feature"
        if not tables:
            return "reduction", "sums of edge values; no node is gathered"
        if odd:
            return "reduction", f"a sum of edge messages that are no plain product ({', '.join(odd)})"
        return "reduction", "a sum of edge messages with more than one wide factor"
    return "reduction", "folds " + ", ".join(sorted({str(v.attr("monoid")) for v in folds}))


def _is_saved_weight(v: Value) -> bool:
    if v.op != "exp" or v.operands[0].op != "sub" or v.type.space != "edge":
        return False
    stat = v.operands[0].operands[1]
    while stat.op in ("cast", "reshape"):
        stat = stat.operands[0]
    return stat.op == "gather" and stat.type.dtype.is_float and stat.operands[0].op in ("input", "cast")


def _one_table(fold: Value) -> bool:
    """Whether the message is one wide operand times narrow ones."""
    wide = {v for v in topological(fold.operands) if v.op in ("gather", "input") and v.type.space == "edge" and v.type.size > 1}
    sums = any(v.op in ("add", "sub") for v in topological(fold.operands))
    return len(wide) <= 1 and not sums
