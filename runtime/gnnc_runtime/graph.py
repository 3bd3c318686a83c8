"""`Graph`: an immutable sparse pattern and the forms derived from it, each built once, on the graph's device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from .errors import GraphError, GraphTypeError, IndexRangeError
from .forms import Form, group

T = TypeVar("T")
INDEX_DTYPES = (torch.int32, torch.int64)


@dataclass(frozen=True)
class Stats:
    """What `explain` and schedules ask: mean and maximum degree and empty rows at each end."""

    mean_in: float
    max_in: int
    empty_in: int
    mean_out: float
    max_out: int
    empty_out: int


def _describe(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _count(name: str, n: object) -> int:
    if isinstance(n, bool) or not isinstance(n, int):
        raise GraphTypeError(f"{name} must be an int, not {type(n).__name__}")
    if n < 0:
        raise GraphError(f"{name} must not be negative, is {n}")
    return n


def _counts(num_src: int | None, num_dst: int | None, example: str) -> tuple[int, int]:
    if num_src is None and num_dst is None:
        raise GraphError(f"how many nodes? Give num_src or num_dst (one stands for both), as in {example}")
    src = _count("num_src", num_dst if num_src is None else num_src)
    return src, _count("num_dst", num_src if num_dst is None else num_dst)


def check_edge_index(edge_index: object) -> Tensor:
    """``edge_index`` if it is an int32 or int64 tensor [2, E]. Raises GraphTypeError or GraphError."""
    if not isinstance(edge_index, Tensor):
        raise GraphTypeError(f"edge_index must be a tensor of int32 or int64 [2, E], not {_describe(edge_index)}")
    if edge_index.dtype not in INDEX_DTYPES:
        raise GraphTypeError(f"edge_index must be int32 or int64, not {edge_index.dtype}")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise GraphError(f"edge_index must have shape [2, E], not {list(edge_index.shape)}")
    return edge_index


def _check_range(ids: Tensor, count: int, what: str) -> None:
    """Raises IndexRangeError, naming the first offender, before anything is built of ``ids`` (int64)."""
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= count:
        at = int(((ids < 0) | (ids >= count)).nonzero()[0])
        raise IndexRangeError(f"{what}[{at}] is {int(ids[at])}, not in 0 .. {count - 1} (num_{what} is {count})")


class Graph:
    """A sparse pattern: edge ``e`` goes from ``src[e]`` to ``dst[e]``. Duplicates and self-loops are ordinary edges.

    Make one with `from_edge_index`, `from_csr`, `from_scipy` or `from_networkx`. Node numbers are checked there, once. Derived forms
    (`in_form`, `out_form`, degrees) are built when first asked for and kept. Immutable, picklable, safe to share between threads.
    """

    __slots__ = ("__weakref__", "_cache", "_edge_index", "_lock", "num_dst", "num_edges", "num_src")

    num_src: int
    num_dst: int
    num_edges: int
    _edge_index: Tensor
    _cache: dict[object, Any]
    _lock: threading.RLock

    def __init__(self, edge_index: Tensor, num_src: int, num_dst: int) -> None:
        """Takes over a checked, contiguous int64 [2, E] that nobody else changes; use the ``from_...`` functions instead."""
        for name, value in (
            ("_edge_index", edge_index),
            ("num_src", num_src),
            ("num_dst", num_dst),
            ("num_edges", int(edge_index.shape[1])),
            ("_cache", {}),
            ("_lock", threading.RLock()),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Graph is immutable: make another one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Graph is immutable: make another one")

    def __repr__(self) -> str:
        return f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, device={str(self.device)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, (self._edge_index, self.num_src, self.num_dst)

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # immutable

    # ---- front doors

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_src: int | None = None, num_dst: int | None = None) -> Graph:
        """A graph from ``edge_index`` [2, E] (int32 or int64, any layout): row 0 sources, row 1 destinations. One count stands for both.

        Raises GraphTypeError (TypeError), GraphError (ValueError), IndexRangeError (IndexError). The tensor is copied.
        """
        ei = check_edge_index(edge_index)
        src, dst = _counts(num_src, num_dst, "Graph.from_edge_index(edge_index, num_src=x.shape[0])")
        own = ei.detach().to(torch.int64, copy=True).contiguous()
        _check_range(own[0], src, "src")
        _check_range(own[1], dst, "dst")
        return cls(own, src, dst)

    @classmethod
    def from_csr(
        cls,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | None = None,
        *,
        grouped_by: str = "dst",
        num_src: int | None = None,
        num_dst: int | None = None,
    ) -> Graph:
        """A graph from edges grouped by one end. ``indptr`` [rows + 1], ``indices`` [E]: the far ends; ``edge_ids`` [E]: each slot's
        position in the caller's edge order (default: slot order). The grouped side's count is ``len(indptr) - 1``.

        Raises GraphTypeError, GraphError, IndexRangeError.
        """
        if grouped_by not in ("dst", "src"):
            raise GraphError(f"grouped_by must be 'dst' or 'src', not {grouped_by!r}")
        given = [("indptr", indptr), ("indices", indices)] + ([] if edge_ids is None else [("edge_ids", edge_ids)])
        for name, t in given:
            if not isinstance(t, Tensor) or t.dtype not in INDEX_DTYPES or t.dim() != 1:
                raise GraphTypeError(f"{name} must be a one-dimensional int32 or int64 tensor, not {_describe(t)}")
        ptr, far = indptr.long(), indices.long()
        if len(ptr) < 1 or int(ptr[0]) != 0 or int(ptr[-1]) != len(far) or bool((ptr[1:] < ptr[:-1]).any()):
            raise GraphError(f"indptr must rise from 0 to the number of edges, {len(far)}")
        rows, mine, other = len(ptr) - 1, *((num_dst, num_src) if grouped_by == "dst" else (num_src, num_dst))
        if mine is not None and mine != rows:
            raise GraphError(f"num_{grouped_by} is {mine}, but indptr has {rows} rows")
        near = torch.repeat_interleave(torch.arange(rows, device=ptr.device), ptr[1:] - ptr[:-1])
        if edge_ids is not None:
            ids = edge_ids.long()
            if len(ids) != len(far) or not torch.equal(ids.sort().values, torch.arange(len(far), device=ids.device)):
                raise GraphError(f"edge_ids must be a permutation of 0 .. {len(far) - 1}")
            near, far = torch.empty_like(near).scatter_(0, ids, near), torch.empty_like(far).scatter_(0, ids, far)
        count = rows if other is None else other
        if grouped_by == "dst":
            return cls.from_edge_index(torch.stack([far, near]), count, rows)
        return cls.from_edge_index(torch.stack([near, far]), rows, count)

    @classmethod
    def from_scipy(cls, matrix: Any, *, return_weight: bool = False) -> Any:
        """A graph from a scipy sparse adjacency [num_src, num_dst]: entry (i, j) is an edge i -> j. Stored entries are edges, explicit zeros
        and duplicates included. With ``return_weight``: (graph, values [E])."""
        if not hasattr(matrix, "tocoo"):
            raise GraphTypeError(f"from_scipy takes a scipy sparse matrix, not {_describe(matrix)}")
        coo = matrix.tocoo(copy=False)
        ei = torch.stack([torch.as_tensor(coo.row.astype("int64")), torch.as_tensor(coo.col.astype("int64"))])
        graph = cls.from_edge_index(ei, int(coo.shape[0]), int(coo.shape[1]))
        return (graph, torch.as_tensor(coo.data.copy())) if return_weight else graph

    @classmethod
    def from_networkx(cls, graph: Any) -> Graph:
        """A node graph from a networkx graph: nodes in the order of ``graph.nodes``; every edge of an undirected graph both ways."""
        if not (hasattr(graph, "nodes") and hasattr(graph, "edges") and hasattr(graph, "is_directed")):
            raise GraphTypeError(f"from_networkx takes a networkx graph, not {_describe(graph)}")
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs: list[tuple[int, int]] = []
        for edge in graph.edges():
            u, v = number[edge[0]], number[edge[1]]
            pairs.append((u, v))
            if not graph.is_directed() and u != v:
                pairs.append((v, u))
        ei = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
        return cls.from_edge_index(ei, len(number))

    # ---- what it is

    @property
    def device(self) -> torch.device:
        return self._edge_index.device

    @property
    def is_square(self) -> bool:
        """Whether both ends may be the same nodes: ``num_src == num_dst``."""
        return self.num_src == self.num_dst

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, E] in the caller's edge order. Do not change it in place."""
        return self._edge_index

    @property
    def index_dtype(self) -> torch.dtype:
        """dtype of the forms' indices: int32 where every count fits, else int64."""
        return torch.int32 if max(self.num_src, self.num_dst, self.num_edges) < 2**31 else torch.int64

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._cache:
            with self._lock:
                if key not in self._cache:
                    self._cache[key] = make()
        out: T = self._cache[key]
        return out

    def in_form(self) -> Form:
        """Edges grouped by destination."""
        src, dst = self._edge_index
        return self._once("in", lambda: group(dst, src, self.num_dst, self.index_dtype))

    def out_form(self) -> Form:
        """Edges grouped by source."""
        src, dst = self._edge_index
        return self._once("out", lambda: group(src, dst, self.num_src, self.index_dtype))

    @property
    def in_indptr(self) -> Tensor:
        return self.in_form().indptr

    @property
    def in_indices(self) -> Tensor:
        return self.in_form().indices

    @property
    def in_edge_ids(self) -> Tensor:
        return self.in_form().edge_ids

    @property
    def out_indptr(self) -> Tensor:
        return self.out_form().indptr

    @property
    def out_indices(self) -> Tensor:
        return self.out_form().indices

    @property
    def out_edge_ids(self) -> Tensor:
        return self.out_form().edge_ids

    def in_degree(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Edges that enter each destination, [num_dst]."""
        return self._once(("in_degree", dtype), lambda: self.in_indptr.diff().to(dtype))

    def out_degree(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Edges that leave each source, [num_src]."""
        return self._once(("out_degree", dtype), lambda: self.out_indptr.diff().to(dtype))

    def stats(self) -> Stats:
        """Degree statistics of both ends."""

        def make() -> Stats:
            out: list[Any] = []
            for d in (self.in_indptr.diff(), self.out_indptr.diff()):
                out += [self.num_edges / max(len(d), 1), int(d.max()) if len(d) else 0, int((d == 0).sum())]
            return Stats(*out)

        return self._once("stats", make)

    # ---- other graphs

    def reverse(self) -> Graph:
        """Every edge turned round, edge order kept."""
        return Graph(self._edge_index.flip(0), self.num_dst, self.num_src)

    def to(self, device: torch.device | str) -> Graph:
        """This graph on another device (itself if it is there)."""
        moved = self._edge_index.to(device)
        return self if moved is self._edge_index else Graph(moved, self.num_src, self.num_dst)

    def with_self_loops(self, mode: str = "remaining", fill: Any = 1.0, edge_attr: Tensor | None = None) -> Any:
        """This graph with a loop on each of the first ``min(num_src, num_dst)`` nodes: see `selfloops.py`. (graph, edge_attr) when
        ``edge_attr`` is given."""
        from .selfloops import with_self_loops

        return with_self_loops(self, mode, fill, edge_attr)
