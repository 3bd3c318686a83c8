"""Edges of other libraries' graphs, read by duck typing: neither scipy nor networkx is imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import GraphTypeError
from .graph_checks import describe


def edges_of_scipy(matrix: Any) -> tuple[Tensor, int, int, Any]:
    """``edge_index`` [2, E], the counts of rows and columns and the stored values (numpy, [E]) of a scipy sparse matrix or array."""
    if not hasattr(matrix, "tocoo") or len(getattr(matrix, "shape", ())) != 2:
        raise GraphTypeError(f"from_scipy takes a two-dimensional scipy sparse matrix or array, not {describe(matrix)}")
    coo = matrix.tocoo(copy=False)
    pairs = np.stack([np.asarray(coo.row, np.int64), np.asarray(coo.col, np.int64)])
    return torch.from_numpy(pairs), int(coo.shape[0]), int(coo.shape[1]), coo.data


def weight_of_scipy(values: Any) -> Tensor:
    """Stored values as a tensor of their own. Raises GraphTypeError for a dtype that torch lacks."""
    try:
        return torch.from_numpy(np.array(values))
    except TypeError:
        raise GraphTypeError(f"torch has no dtype for a scipy matrix of {values.dtype}: convert it with .astype first") from None


def edges_of_networkx(graph: Any) -> tuple[Tensor, int]:
    """``edge_index`` [2, E] and the count of nodes of a networkx graph."""
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise GraphTypeError(f"from_networkx takes a networkx graph, not {describe(graph)}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    both = not graph.is_directed()
    pairs: list[tuple[int, int]] = []
    for edge in graph.edges():
        u, v = number[edge[0]], number[edge[1]]
        pairs.append((u, v))
        if both and u != v:
            pairs.append((v, u))
    return torch.from_numpy(np.array(pairs, np.int64).reshape(-1, 2).T), len(number)
