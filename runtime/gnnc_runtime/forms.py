"""Edges grouped by one end. Grouping is stable: within a row, slots keep the caller's edge order; ties and determinism rest on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """Slots of row r are ``indptr[r] .. indptr[r + 1]`` (int64 [rows + 1]). For each slot, ``indices`` is the node at the far end and
    ``edge_ids`` the edge's position in the caller's order (int32 or int64 [E], as the graph's ``index_dtype``)."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor


def group(rows: Tensor, others: Tensor, num_rows: int, index_dtype: torch.dtype) -> Form:
    """Edges grouped by ``rows`` (int64 [E]); ``others`` are the far ends."""
    degree = torch.bincount(rows, minlength=num_rows)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(degree, 0, out=indptr[1:])
    if bool((rows[1:] >= rows[:-1]).all()):
        order = torch.arange(len(rows), device=rows.device)
        far = others
    else:
        order = torch.sort(rows, stable=True).indices
        far = others[order]
    return Form(indptr, far.to(index_dtype).contiguous(), order.to(index_dtype))
