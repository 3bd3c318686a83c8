"""Softmax becomes its statistic and an edge expression: ``exp(s - gather(logsumexp(s).lse))``.

From here on the log-sum-exp is an ordinary fold result ``[N, H]`` that the cut between forward and backward can choose to save;
`fuse` turns ``sum(exp(s - lse) * v)`` back into one online-softmax fold where both are computed in one program. The value is
softmax's own: a row of all -inf is NaN (-inf - -inf), an empty row has no edge to hold a value.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnc.ir.builder import Builder, rewrite
from gnnc.ir.core import Func, Value


@dataclass(frozen=True)
class LowerSoftmax:
    """Rewrites every ``softmax``; the function's stage becomes ``lowered``."""

    name = "lower_softmax"

    def run(self, func: Func) -> Func:
        def rule(b: Builder, v: Value, operands: tuple[Value, ...]) -> Value | None:
            if v.op != "softmax":
                return None
            (s,), end = operands, v.attr("over")
            return b.op("exp", b.sub(s, b.gather(b.fold("logsumexp", s, to=end, part="lse"), end)))

        return rewrite(func, rule).with_stage("lowered")
