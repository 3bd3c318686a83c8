"""SweepSpec -> CUDA C++: chooses the path and says why."""

from __future__ import annotations

from ...ir.sweep import SweepSpec
from ...ir.types import DType
from ..cpu.program import lower_sweep
from .fragment import emit_fragment
from .general import emit_general
from .schedule import CudaSchedule
from .shapes import DoesNotFit
from .text import CudaText


def emit_cuda(spec: SweepSpec, index_dtype: DType, kernel_name: str, schedule: CudaSchedule | None = None) -> CudaText:
    """The translation unit of one sweep. ``index_dtype``: i32 or i64, of the lists, neighbours and edge ids. ``kernel_name`` must be a C
    identifier. The spec is trusted to have passed the verifier; every such sweep has a text.

    Raises DoesNotFit only where ``schedule.path`` is "fragment" and the program needs the general path.
    """
    wish = schedule or CudaSchedule()
    reason = "asked for by the schedule"
    if wish.path != "general":
        try:
            return emit_fragment(spec, lower_sweep(spec, index_dtype), index_dtype, kernel_name, wish)
        except DoesNotFit as e:
            if wish.path == "fragment":
                raise
            reason = str(e)
    return emit_general(spec, lower_sweep(spec, index_dtype), index_dtype, kernel_name, wish, reason)
