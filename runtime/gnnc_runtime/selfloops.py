"""Self-loops: adding, replacing or keeping them, with edge attributes that stay differentiable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from .errors import GraphError, GraphTypeError
from .graph_checks import describe

Fill: TypeAlias = "float | str | Tensor"
MODES = ("replace", "remaining", "append")
REDUCTIONS = ("mean", "sum", "max", "min")


@dataclass(frozen=True)
class Loops:
    """The edges with loops: ``pairs`` [2, kept + n]; ``kept``, the numbers of the old edges that stay; ``is_loop`` [E], the old loops."""

    pairs: Tensor
    kept: Tensor
    is_loop: Tensor
    num_loops: int
    mode: str


@torch.inference_mode(False)
def add_loops(pairs: Tensor, num_loops: int, mode: str) -> Loops:
    """Loops on the first ``num_loops`` nodes of the edges ``pairs`` [2, E]: what stays first, in order. Raises GraphError."""
    if mode not in MODES:
        raise GraphError(f"mode must be 'replace', 'remaining' or 'append', not {mode!r}")
    is_loop = pairs[0] == pairs[1]
    kept = torch.arange(pairs.shape[1], device=pairs.device) if mode == "append" else (~is_loop).nonzero().view(-1)
    loops = torch.arange(num_loops, dtype=pairs.dtype, device=pairs.device).expand(2, -1)
    return Loops(torch.cat([pairs[:, kept], loops], 1), kept, is_loop, num_loops, mode)


def loop_attr(pairs: Tensor, num_dst: int, loops: Loops, fill: Fill, attr: Tensor) -> Tensor:
    """The attributes of ``loops.pairs``, given those of ``pairs``; see `Graph.with_self_loops`. Raises GraphError, GraphTypeError."""
    _check(attr, fill, pairs)
    n, tail = loops.num_loops, attr.shape[1:]
    kept = attr.index_select(0, loops.kept)
    if isinstance(fill, str):
        into = pairs[1].long()
        base = attr
        if loops.mode == "replace":
            base, into = kept, into[loops.kept]
        below = (into < n).nonzero().view(-1)  # with more destinations than loops, some receive none
        new = _reduce(fill, base.index_select(0, below), into[below], n)
    elif isinstance(fill, Tensor):
        new = _expand(fill.to(attr), n, tail)
    else:
        new = torch.full((n, *tail), fill, dtype=attr.dtype, device=attr.device)
    if loops.mode == "remaining":
        old = loops.is_loop.nonzero().view(-1)
        if len(old):
            last = torch.full((n,), -1, device=old.device).scatter_reduce(0, pairs[0][old].long(), old, "amax")
            new = torch.where(_column(last >= 0, new), attr.index_select(0, last.clamp(min=0)), new)
    return torch.cat([kept, new])


def _check(attr: object, fill: object, pairs: Tensor) -> None:
    num_edges = pairs.shape[1]
    if not isinstance(attr, Tensor):
        raise GraphTypeError(f"edge_attr must be a tensor [{num_edges}, ...], one row an edge, not {describe(attr)}")
    if attr.dim() < 1 or attr.shape[0] != num_edges:
        raise GraphError(f"edge_attr must have one row an edge, [{num_edges}, ...], but has shape {list(attr.shape)}")
    if attr.device != pairs.device:
        raise GraphError(f"edge_attr is on {attr.device}, the graph on {pairs.device}: move one of them")
    if isinstance(fill, str):
        if fill not in REDUCTIONS:
            raise GraphError(f"fill must be a number, a tensor, 'mean', 'sum', 'max' or 'min', not {fill!r}")
        if attr.dtype == torch.bool or (fill == "mean" and not attr.is_floating_point()):
            raise GraphTypeError(f"fill={fill!r} cannot be taken of edge_attr of {str(attr.dtype)[6:]}: give a number")
    elif isinstance(fill, Tensor):
        if fill.is_floating_point() and not attr.is_floating_point():
            raise GraphTypeError(f"fill is {describe(fill)}, but edge_attr holds {str(attr.dtype)[6:]}: give an integer fill")
    elif not isinstance(fill, (int, float)):
        raise GraphTypeError(f"fill must be a number, a tensor, 'mean', 'sum', 'max' or 'min', not {describe(fill)}")
    elif isinstance(fill, float) and not fill.is_integer() and not attr.is_floating_point():
        raise GraphTypeError(f"fill is {fill!r}, but edge_attr holds {str(attr.dtype)[6:]}: give an integer fill")


def _expand(fill: Tensor, n: int, tail: torch.Size) -> Tensor:
    try:
        return fill.expand((n, *tail))
    except RuntimeError:
        raise GraphError(f"fill of shape {list(fill.shape)} does not broadcast to the new loops' attributes, {[n, *tail]}") from None


def _column(per_row: Tensor, like: Tensor) -> Tensor:
    return per_row.view(-1, *(1,) * (like.dim() - 1))


def _reduce(kind: str, attr: Tensor, into: Tensor, rows: int) -> Tensor:
    """A reduction of ``attr`` [E, *dims] into rows ``into`` [E], in a fixed order; 0 for a row that gets nothing."""
    if kind in ("max", "min"):
        return _extremum(attr, into, rows, kind == "max")
    # Half sums would stick where adding one more no longer changes them.
    wide = attr.float() if attr.dtype in (torch.float16, torch.bfloat16) else attr
    zeros = torch.zeros((rows, *attr.shape[1:]), dtype=wide.dtype, device=attr.device)
    # index_add adds in order on a CPU, but with atomics on a GPU, where index_put sorts first.
    total = zeros.index_put((into,), wide, accumulate=True) if attr.is_cuda else zeros.index_add(0, into, wide)
    if kind == "mean":
        total = total / _column(torch.bincount(into, minlength=rows).clamp(min=1), total)
    return total.to(attr.dtype)


def _extremum(attr: Tensor, into: Tensor, rows: int, is_max: bool) -> Tensor:
    """The value and the whole gradient are those of the first edge that attains the extremum; NaN is above all."""
    num_edges = attr.shape[0]
    if num_edges == 0 or rows == 0:
        return torch.zeros((rows, *attr.shape[1:]), dtype=attr.dtype, device=attr.device)
    with torch.no_grad():
        shape = (rows, *attr.shape[1:])
        index = _column(into, attr).expand_as(attr)
        best = torch.zeros(shape, dtype=attr.dtype, device=attr.device)
        best = best.scatter_reduce(0, index, attr.detach(), "amax" if is_max else "amin", include_self=False).index_select(0, into)
        hit = (attr == best) | ((attr != attr) & (best != best))
        edge = _column(torch.arange(num_edges, device=attr.device), attr).expand_as(attr)
        first = torch.full(shape, num_edges, device=attr.device)
        first = first.scatter_reduce(0, index, torch.where(hit, edge, num_edges), "amin")
    value = attr.gather(0, first.clamp(max=num_edges - 1))
    return torch.where(first < num_edges, value, torch.zeros((), dtype=attr.dtype, device=attr.device))
