"""Edges grouped by one end. Grouping is stable: within a row, slots keep the caller's edge order; ties and determinism rest on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """Slots of row r are ``indptr[r] .. indptr[r + 1]`` (int64 [rows + 1]). For each slot, ``indices`` is the node at the far end and
    ``edge_ids`` the edge's position in the caller's order (int32 or int64 [E], as the graph's ``index_dtype``). All contiguous."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor


def row_offsets(rows: Tensor, num_rows: int) -> Tensor:
    """``indptr`` int64 [num_rows + 1] of edges that belong to ``rows`` [E], in any order."""
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(torch.bincount(rows, minlength=num_rows), 0, out=indptr[1:])
    return indptr


def group(indptr: Tensor, rows: Tensor, far: Tensor) -> Form:
    """The form of edges that belong to ``rows`` and lead to ``far`` (both [E], of the graph's index dtype)."""
    if bool((rows[1:] >= rows[:-1]).all()):  # one pass, far cheaper than the sort
        order = torch.arange(len(rows), dtype=rows.dtype, device=rows.device)
        return Form(indptr, far.contiguous(), order)
    order = torch.sort(rows, stable=True).indices
    return Form(indptr, far[order], order.to(rows.dtype))
