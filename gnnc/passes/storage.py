"""Which dtype a value has in memory between two steps.

Wide values take the layer's storage dtype (f16 or bf16 where the layer returns that), narrow ones and statistics stay in the
accumulation dtype: a log-sum-exp, an argument or a ``[N, H]`` logit costs little to keep and much to round.
"""

from __future__ import annotations

from gnnc.ir.core import Func, Value
from gnnc.ir.types import DType

WIDE = 32  # elements a row from which rounding to the storage dtype is worth its error


def layer_storage(func: Func) -> DType | None:
    """The half dtype that the function's float results share, or None."""
    found = {r.type.dtype for r in func.results if r.type.dtype.is_float}
    half = {d for d in found if d.bits == 16}
    return half.pop() if len(half) == 1 and len(found) == 1 else None


def stored_dtype(v: Value, storage: DType | None) -> DType:
    """The dtype of `v` in a buffer between steps."""
    d = v.type.dtype
    statistic = v.op == "fold" and (v.attr("part") != "value" or v.attr("monoid") == "logsumexp")
    if storage is None or not d.is_float or d.bits == 64 or statistic or v.type.size < WIDE:
        return d
    return storage
