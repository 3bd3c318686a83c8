"""Self-loops: adding, replacing, keeping, with edge attributes that stay differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import GraphError, GraphTypeError

if TYPE_CHECKING:
    from .graph import Graph

MODES = ("replace", "remaining", "append")
REDUCTIONS = ("mean", "sum", "max", "min")


def with_self_loops(graph: Graph, mode: str, fill: Any, edge_attr: Tensor | None) -> Any:
    """``graph`` with loops on nodes 0 .. n - 1, n = min(num_src, num_dst): surviving edges first, in order, then the loops.

    ``append`` leaves existing edges alone (A + I); ``replace`` drops existing loops first; ``remaining`` keeps one loop of a node that has
    some, with the attribute of the last of them. ``fill``: the attribute of new loops: a number, a tensor of one edge's shape, or
    ``mean``/``sum``/``max``/``min`` of the attributes that enter the node (0 where none does; after loops were dropped for ``replace``).
    ``edge_attr`` [E] or [E, *dims]; the result is then (graph, edge_attr) and gradients flow to the edges that survive.
    Raises GraphError, GraphTypeError.
    """
    if mode not in MODES:
        raise GraphError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    if isinstance(fill, str) and fill not in REDUCTIONS:
        raise GraphError(f"fill must be a number, a tensor or one of {', '.join(REDUCTIONS)}, not {fill!r}")
    if edge_attr is not None and (not isinstance(edge_attr, Tensor) or edge_attr.dim() < 1 or edge_attr.shape[0] != graph.num_edges):
        what = f"{list(edge_attr.shape)}" if isinstance(edge_attr, Tensor) else type(edge_attr).__name__
        raise GraphTypeError(f"edge_attr must be a tensor [{graph.num_edges}, ...], one row an edge, not {what}")
    ei = graph.edge_index
    n = min(graph.num_src, graph.num_dst)
    is_loop = ei[0] == ei[1]
    keep = torch.ones_like(is_loop) if mode == "append" else ~is_loop
    loops = torch.arange(n, device=ei.device)
    new = type(graph)(torch.cat([ei[:, keep], loops.expand(2, n)], 1), graph.num_src, graph.num_dst)
    if edge_attr is None:
        return new
    kept = edge_attr[keep]
    tail = edge_attr.shape[1:]
    if isinstance(fill, str):
        base, into = (edge_attr, ei[1]) if mode == "remaining" else (kept, ei[1][keep])
        extra = _reduce(fill, base, into, graph.num_dst)[:n]
    elif isinstance(fill, Tensor):
        extra = fill.to(edge_attr).expand((n, *tail))
    else:
        extra = torch.full((n, *tail), fill, dtype=edge_attr.dtype, device=edge_attr.device)
    if mode == "remaining" and bool(is_loop.any()):
        last = torch.full((n,), -1, device=ei.device)
        last = last.scatter_reduce(0, ei[0][is_loop], is_loop.nonzero().view(-1), "amax")
        has = (last >= 0).view(-1, *(1,) * len(tail))
        extra = torch.where(has, edge_attr[last.clamp(min=0)], extra)
    return new, torch.cat([kept, extra])


def _reduce(kind: str, attr: Tensor, into: Tensor, rows: int) -> Tensor:
    index = into.view(-1, *(1,) * (attr.dim() - 1)).expand_as(attr)
    zeros = torch.zeros((rows, *attr.shape[1:]), dtype=attr.dtype, device=attr.device)
    name = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin"}[kind]
    return zeros.scatter_reduce(0, index, attr, name, include_self=False)
