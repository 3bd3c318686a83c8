"""`Graph`: an immutable sparse pattern and the forms derived from it, each built once, on the graph's device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar, overload

import torch
from torch import Tensor

from .errors import GraphError, GraphTypeError, ImmutableError
from .foreign import edges_of_networkx, edges_of_scipy, weight_of_scipy
from .forms import Form, group, row_offsets
from .graph_checks import check_count, check_counts, check_edge_ids, check_edge_index, check_index_tensor, check_indptr, check_range
from .selfloops import Fill, add_loops, loop_attr

T = TypeVar("T")


@dataclass(frozen=True)
class Stats:
    """What `explain` and schedules ask: mean and maximum degree and empty rows at each end (in: destinations, out: sources)."""

    mean_in: float
    max_in: int
    empty_in: int
    mean_out: float
    max_out: int
    empty_out: int


class Graph:
    """A sparse pattern: edge ``e`` goes from ``src[e]`` to ``dst[e]``. Duplicates and self-loops are ordinary edges.

    Make one with `from_edge_index`, `from_csr`, `from_scipy` or `from_networkx`. Node numbers are checked there, once. Derived forms
    (`in_form`, `out_form`) are built when first asked for and kept; nobody may change their tensors. Immutable, picklable, safe to share
    between threads.
    """

    __slots__ = ("__weakref__", "_cache", "_locks", "_pairs", "num_dst", "num_edges", "num_src")

    num_src: int
    num_dst: int
    num_edges: int
    _pairs: Tensor  # [2, E] of index_dtype, contiguous, seen by nobody else
    _cache: dict[object, Any]
    _locks: dict[int, threading.RLock]  # by process: a forked child must not wait for a thread that only its parent has

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise GraphTypeError("make a Graph with Graph.from_edge_index, from_csr, from_scipy or from_networkx")

    @classmethod
    def _own(cls, pairs: Tensor, num_src: int, num_dst: int) -> Graph:
        """Takes over checked edges [2, E] that nobody else changes."""
        self = object.__new__(cls)
        num_edges = int(pairs.shape[1])
        narrow = max(num_src, num_dst, num_edges) < 2**31
        values = {
            "num_src": num_src,
            "num_dst": num_dst,
            "num_edges": num_edges,
            "_pairs": pairs.to(torch.int32 if narrow else torch.int64).contiguous(),
            "_cache": {},
            "_locks": {},
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ImmutableError(f"a Graph is immutable: {name} cannot be set, make another Graph")

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(f"a Graph is immutable: {name} cannot be deleted, make another Graph")

    def __repr__(self) -> str:
        return f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, device={str(self.device)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_edge_index, (self._pairs, self.num_src, self.num_dst)  # checks what a file says

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # immutable

    # ---- front doors. Tensors made in inference mode could not take part in autograd later, so none is made in it.

    @classmethod
    @torch.inference_mode(False)
    def from_edge_index(cls, edge_index: Tensor, num_src: int | None = None, num_dst: int | None = None) -> Graph:
        """A graph from ``edge_index`` [2, E] (int32 or int64, any strides): row 0 sources, row 1 destinations. One count stands for both.

        The tensor is copied. Raises GraphTypeError (a TypeError), GraphError (a ValueError), IndexRangeError (an IndexError).
        """
        ei = check_edge_index(edge_index)
        src, dst = check_counts(num_src, num_dst)
        # Copied as it is and checked then: before anything narrows a number, and what was checked cannot be edited afterwards.
        pairs = ei.detach().clone(memory_format=torch.contiguous_format).as_subclass(Tensor)
        check_range(pairs[0], "src", src, "edge_index[0, {}]")
        check_range(pairs[1], "dst", dst, "edge_index[1, {}]")
        return cls._own(pairs, src, dst)

    @classmethod
    @torch.inference_mode(False)
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
        """A graph from edges grouped by one end. ``indptr`` [rows + 1]; ``indices`` [E]: the far ends; ``edge_ids`` [E]: each slot's
        position in the caller's edge order (default: slot order). The grouped side has ``len(indptr) - 1`` nodes, the other one as
        many unless its count is given. All int32 or int64, any strides, on one device; copied.

        Raises GraphTypeError, GraphError, IndexRangeError.
        """
        if grouped_by not in ("dst", "src"):
            raise GraphError(f"grouped_by must be 'dst' or 'src', not {grouped_by!r}")
        ptr = check_index_tensor(indptr, "indptr", "[rows + 1]", 1).detach().to(torch.int64, copy=True)
        far = check_index_tensor(indices, "indices", "[E]", 1).detach().to(torch.int64, copy=True)
        ids = None if edge_ids is None else check_index_tensor(edge_ids, "edge_ids", "[E]", 1).detach().to(torch.int64, copy=True)
        for name, t in (("indices", far), ("edge_ids", ids)):
            if t is not None and t.device != ptr.device:
                raise GraphError(f"indptr is on {ptr.device}, {name} on {t.device}: move them to one device")
        check_indptr(ptr, len(far))
        rows, far_end = len(ptr) - 1, "src" if grouped_by == "dst" else "dst"
        given = {"src": num_src, "dst": num_dst}
        if given[grouped_by] is not None and check_count(f"num_{grouped_by}", given[grouped_by]) != rows:
            raise GraphError(f"num_{grouped_by} is {given[grouped_by]}, but indptr has {rows} rows")
        count = rows if given[far_end] is None else check_count(f"num_{far_end}", given[far_end])
        check_range(far, far_end, count, "indices[{}]")
        near = torch.repeat_interleave(torch.arange(rows, device=ptr.device), ptr.diff(), output_size=len(far))
        pairs = torch.stack([far, near] if grouped_by == "dst" else [near, far])
        if ids is not None:
            check_edge_ids(ids, len(far))
            pairs = torch.empty_like(pairs).index_copy_(1, ids, pairs)
        return cls._own(pairs, *((count, rows) if grouped_by == "dst" else (rows, count)))

    @overload
    @classmethod
    def from_scipy(cls, matrix: Any, *, return_weight: Literal[False] = False) -> Graph: ...
    @overload
    @classmethod
    def from_scipy(cls, matrix: Any, *, return_weight: Literal[True]) -> tuple[Graph, Tensor]: ...
    @classmethod
    @torch.inference_mode(False)
    def from_scipy(cls, matrix: Any, *, return_weight: bool = False) -> Graph | tuple[Graph, Tensor]:
        """A graph, on the CPU, from a scipy sparse adjacency matrix or array [num_src, num_dst]: entry (i, j) is an edge i -> j.

        Every stored entry is an edge, explicit zeros and duplicates included, in the matrix's storage order (that of its ``tocoo()``). With
        ``return_weight``: (graph, values [E]). Raises GraphTypeError.
        """
        edge_index, num_src, num_dst, values = edges_of_scipy(matrix)
        graph = cls.from_edge_index(edge_index, num_src, num_dst)
        return (graph, weight_of_scipy(values)) if return_weight else graph

    @classmethod
    def from_networkx(cls, graph: Any) -> Graph:
        """A node graph, on the CPU, from a networkx graph. Nodes are numbered in the order of ``graph.nodes``, edges follow
        ``graph.edges()``; every edge of an undirected graph goes both ways, one after the other, a loop once. Raises GraphTypeError."""
        edge_index, num_nodes = edges_of_networkx(graph)
        return cls.from_edge_index(edge_index, num_nodes)

    # ---- what it is

    @property
    def device(self) -> torch.device:
        """Where the graph's tensors are."""
        return self._pairs.device

    @property
    def is_square(self) -> bool:
        """Whether both ends may be the same nodes: ``num_src == num_dst``."""
        return self.num_src == self.num_dst

    @property
    def index_dtype(self) -> torch.dtype:
        """dtype of the forms' indices: int32 where every count fits, else int64."""
        return self._pairs.dtype

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, E] in the caller's edge order: a copy, kept until it is edited, so that no edit reaches the graph."""
        known = self._cache.get("edge_index")
        if known is None or known[0]._version != known[1]:
            with torch.inference_mode(False):
                copy = self._pairs.to(torch.int64, copy=True)
            known = self._cache["edge_index"] = (copy, copy._version)
        out: Tensor = known[0]
        return out

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """What `make` returns, made at the first call with this key by one thread; no other thread sees half of it."""
        found = self._cache.get(key)
        if found is None:
            with self._locks.setdefault(os.getpid(), threading.RLock()), torch.inference_mode(False):
                found = self._cache.get(key)
                if found is None:
                    found = self._cache[key] = make()
        out: T = found
        return out

    @property
    def in_indptr(self) -> Tensor:
        """int64 [num_dst + 1]: where each destination's slots begin."""
        return self._once("in_indptr", lambda: row_offsets(self._pairs[1], self.num_dst))

    @property
    def out_indptr(self) -> Tensor:
        """int64 [num_src + 1]: where each source's slots begin."""
        return self._once("out_indptr", lambda: row_offsets(self._pairs[0], self.num_src))

    def in_form(self) -> Form:
        """Edges grouped by destination; ``indices`` are sources."""
        return self._once("in", lambda: group(self.in_indptr, self._pairs[1], self._pairs[0]))

    def out_form(self) -> Form:
        """Edges grouped by source; ``indices`` are destinations."""
        return self._once("out", lambda: group(self.out_indptr, self._pairs[0], self._pairs[1]))

    @property
    def in_indices(self) -> Tensor:
        """``index_dtype`` [E]: the source of each slot, grouped by destination."""
        return self.in_form().indices

    @property
    def in_edge_ids(self) -> Tensor:
        """``index_dtype`` [E]: the edge of each slot, grouped by destination."""
        return self.in_form().edge_ids

    @property
    def out_indices(self) -> Tensor:
        """``index_dtype`` [E]: the destination of each slot, grouped by source."""
        return self.out_form().indices

    @property
    def out_edge_ids(self) -> Tensor:
        """``index_dtype`` [E]: the edge of each slot, grouped by source."""
        return self.out_form().edge_ids

    def in_degree(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Edges that enter each destination: a new tensor [num_dst]."""
        return self.in_indptr.diff().to(dtype)

    def out_degree(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Edges that leave each source: a new tensor [num_src]."""
        return self.out_indptr.diff().to(dtype)

    def stats(self) -> Stats:
        """Degree statistics of both ends; needs no form."""

        def one(degree: Tensor) -> tuple[float, int, int]:
            if not len(degree):
                return 0.0, 0, 0
            return self.num_edges / len(degree), int(degree.max()), int((degree == 0).sum())

        return self._once("stats", lambda: Stats(*one(self.in_indptr.diff()), *one(self.out_indptr.diff())))

    # ---- other graphs

    @torch.inference_mode(False)
    def reverse(self) -> Graph:
        """Every edge turned round, edge order kept."""
        return self._own(self._pairs.flip(0), self.num_dst, self.num_src)

    @torch.inference_mode(False)
    def to(self, device: torch.device | str) -> Graph:
        """This graph on another device; itself if it is there."""
        moved = self._pairs.to(device)
        return self if moved is self._pairs else self._own(moved, self.num_src, self.num_dst)

    @overload
    def with_self_loops(self, mode: str = ..., fill: Fill = ..., edge_attr: None = ...) -> Graph: ...
    @overload
    def with_self_loops(self, mode: str = ..., fill: Fill = ..., *, edge_attr: Tensor) -> tuple[Graph, Tensor]: ...
    @overload
    def with_self_loops(self, mode: str, fill: Fill, edge_attr: Tensor) -> tuple[Graph, Tensor]: ...
    def with_self_loops(self, mode: str = "replace", fill: Fill = 1.0, edge_attr: Tensor | None = None) -> Graph | tuple[Graph, Tensor]:
        """This graph with a loop on each of the first ``min(num_src, num_dst)`` nodes: surviving edges first, in order, then the loops.

        ``mode``: "append" leaves existing loops alone (A + I), "replace" drops them first, "remaining" keeps one loop of a node that has
        some, with the attribute of the last of them. ``fill``: the attribute of new loops: a number, a tensor that broadcasts to
        [n, *dims], or "mean", "sum", "max" or "min" of the attributes that enter the node (without the dropped loops for "replace"; 0
        where none do).

        With ``edge_attr`` [E, *dims] (on the graph's device) the result is (graph, edge_attr); gradients flow to the edges that survive or
        are reduced, never to a loop that was dropped. Raises GraphError, GraphTypeError.
        """
        loops = add_loops(self._pairs, min(self.num_src, self.num_dst), mode)
        if edge_attr is None:
            return self._own(loops.pairs, self.num_src, self.num_dst)
        attr = loop_attr(self._pairs, self.num_dst, loops, fill, edge_attr)
        return self._own(loops.pairs, self.num_src, self.num_dst), attr
