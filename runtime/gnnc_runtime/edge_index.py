"""Graphs of plain ``edge_index`` tensors, cached by identity and version.

An in-place edit raises a tensor's version, so it is seen; a new tensor at an old address has another identity, so it never matches.
(Writes that torch does not count, through a numpy array that shares the memory, cannot be seen.) The cache holds neither the tensor nor
its storage: a `Graph` copies what it is made of, and goes when the tensor goes.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .graph import Graph
from .graph_checks import check_edge_index

LIMIT = 64  # graphs kept

_Counts = tuple[int | None, int | None]


@dataclass(frozen=True)
class _Entry:
    tensor: weakref.ref[Tensor]
    content: tuple[Any, ...]
    graph: Graph


_cache: OrderedDict[tuple[int, _Counts], _Entry] = OrderedDict()
_lock = threading.RLock()  # re-entrant: a collection inside may call _forget


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def graph_of(edge_index: Tensor, num_src: int | None, num_dst: int | None) -> Graph:
    """The graph of an ``edge_index`` [2, E]. Raises as `Graph.from_edge_index`; nothing is cached then."""
    ei = check_edge_index(edge_index)
    if ei.is_inference():  # such tensors count no versions, so an edit could not be seen
        return Graph.from_edge_index(ei, num_src, num_dst)
    key = (id(ei), (num_src, num_dst))
    # Assigning to `.data` raises no version, but gives another address or layout.
    content = (ei._version, ei.data_ptr(), ei.shape, ei.stride(), ei.dtype, ei.device)
    with _lock:
        found = _cache.get(key)
        if found is not None and found.tensor() is ei and found.content == content:
            _cache.move_to_end(key)
            return found.graph
    graph = Graph.from_edge_index(ei, num_src, num_dst)

    def forget(ref: weakref.ref[Tensor]) -> None:
        with _lock:
            entry = _cache.get(key)
            if entry is not None and entry.tensor is ref:  # not one that has taken the address since
                del _cache[key]

    with _lock:
        _cache[key] = _Entry(weakref.ref(ei, forget), content, graph)
        _cache.move_to_end(key)
        while len(_cache) > LIMIT:
            _cache.popitem(last=False)
    return graph
