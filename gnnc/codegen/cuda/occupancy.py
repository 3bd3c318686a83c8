"""Registers against resident warps: compile, look, and cap where it costs nothing.

A sweep that only adds or compares what it gathers waits for memory: more resident warps hide more of it than more registers do. The
compiler's own register count is no guide (it spends what it may), so such a sweep is compiled with few edges in flight under falling
caps, and the first one that needs no stack is taken. `benchmarks/NOTES.md` has the nine schedules that were compared.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from ...ir.sweep import SweepSpec
from ...ir.types import DType
from .compile import Cubin, compile_cuda
from .emit import emit_cuda
from .schedule import CudaSchedule
from .text import CudaText

CANDIDATES = ((4, 5), (0, 4))
"""(edges in flight, 0: the emitter's choice; resident blocks) to try for, best first."""

_cubins: OrderedDict[tuple[str, str], Cubin] = OrderedDict()
KEPT = 64


def compiled(text: CudaText, arch: str) -> Cubin:
    """The cubin of a text, kept for a while: a schedule is chosen by compiling, and built from the same text."""
    key = text.text, arch
    if key not in _cubins:
        _cubins[key] = compile_cuda(text, arch)
        while len(_cubins) > KEPT:
            _cubins.popitem(last=False)
    return _cubins[key]


def waits_for_memory(spec: SweepSpec) -> bool:
    """Whether the edges' work is loads and plain arithmetic: no reduction over features, no exponential."""
    heavy = ("reduce_sum", "reduce_max", "matmul", "exp", "log", "tanh", "sigmoid", "pow", "erf", "gelu", "silu", "elu", "softmax")
    body = spec.func.body
    on_edges = [v for v in body if v.type.space == "edge"]
    folds = [v for v in body if v.op == "fold"]
    if spec.grouped_by is None or not folds:
        return False
    return all(v.op not in heavy for v in on_edges) and all(v.attr("monoid") not in ("softmax_sum", "logsumexp") for v in folds)


def emit_resident(spec: SweepSpec, index_dtype: DType, kernel_name: str, arch: str, schedule: CudaSchedule | None = None) -> CudaText:
    """The text of a sweep for ``arch``, registers capped where that leaves the stack empty. Raises as `emit_cuda` and `compile_cuda`."""
    wish = schedule or CudaSchedule()
    plain = emit_cuda(spec, index_dtype, kernel_name, wish)
    if plain.path != "fragment" or wish.min_blocks > 1 or not waits_for_memory(spec):
        return plain
    for edges, blocks in CANDIDATES:
        capped = emit_cuda(spec, index_dtype, kernel_name, replace(wish, unroll=wish.unroll or edges, min_blocks=blocks))
        usage = compiled(capped, arch).usage[capped.run.name]
        if usage.stack == 0 and not usage.spill_stores:
            return capped
    return plain
