"""Lists that a sweep walks on a GPU: chunks of rows, split rows. Made on the device, once a graph, side and split size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Chunks:
    """``chunks`` [n, 4]: (row, first slot, end slot, partial); partial -1: the row is done whole, else this is part of a split row and its
    state becomes image ``partial``. ``hubs`` [h, 3]: (row, first partial, end partial). Both in the index dtype, contiguous. Parts of
    split rows come first: they run longest."""

    chunks: Tensor
    hubs: Tensor
    num_partials: int


def split_size(num_edges: int, num_rows: int) -> int:
    """Edges above which a row is split. Coarser on dense graphs, where whole rows balance by themselves and partial images cost memory."""
    return 256 if num_edges < 200 * max(num_rows, 1) else 1024


def make_chunks(indptr: Tensor, split: int, index_dtype: torch.dtype) -> Chunks:
    """The chunks of rows with these offsets (int64 [rows + 1]). One synchronisation, when the graph is first swept."""
    degree = indptr.diff()
    rows = degree.numel()
    device = indptr.device
    hub = (degree > split).nonzero().view(-1)
    pieces = (degree[hub] + split - 1) // split
    first = torch.zeros(hub.numel() + 1, dtype=torch.int64, device=device)
    torch.cumsum(pieces, 0, out=first[1:])
    total = int(first[-1])
    # Even parts: no last piece of a few edges.
    which = torch.repeat_interleave(torch.arange(hub.numel(), device=device), pieces, output_size=total)
    nth = torch.arange(total, device=device) - first[which]
    count, size = pieces[which], degree[hub[which]]
    begin = indptr[hub[which]] + nth * size // torch.clamp(count, min=1)
    end = indptr[hub[which]] + (nth + 1) * size // torch.clamp(count, min=1)
    parts = torch.stack([hub[which], begin, end, torch.arange(total, device=device)], 1)
    light = (degree <= split).nonzero().view(-1) if hub.numel() else torch.arange(rows, device=device)
    whole = torch.stack([light, indptr[light], indptr[light + 1], torch.full_like(light, -1)], 1)
    hubs = torch.stack([hub, first[:-1], first[1:]], 1)
    chunks = torch.cat([parts, whole]).to(index_dtype).contiguous()
    return Chunks(chunks, hubs.to(index_dtype).contiguous(), total)


def is_identity(edge_ids: Tensor) -> bool:
    """Whether slots are in the caller's edge order, so that kernels need no edge ids."""
    return bool((edge_ids == torch.arange(edge_ids.numel(), device=edge_ids.device, dtype=edge_ids.dtype)).all())
