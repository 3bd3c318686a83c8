"""Graphs of plain ``edge_index`` tensors, cached by identity and version.

An in-place edit raises a tensor's version, so it is seen; a new tensor at an old address has another identity, so it never matches.
The cache holds neither the tensor nor its storage: a `Graph` copies what it is made of.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict

from torch import Tensor

from .graph import Graph, check_edge_index

LIMIT = 64  # graphs kept

_Key = tuple[int, int, int, int]
_cache: OrderedDict[_Key, tuple[weakref.ref[Tensor], Graph]] = OrderedDict()
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def graph_of(edge_index: Tensor, num_src: int, num_dst: int) -> Graph:
    """The graph of an ``edge_index`` [2, E]. Raises as `Graph.from_edge_index`; nothing is cached then."""
    ei = check_edge_index(edge_index)
    if ei.is_inference():  # such tensors count no versions, so an edit could not be seen
        return Graph.from_edge_index(ei, num_src, num_dst)
    key = (id(ei), ei._version, num_src, num_dst)
    with _lock:
        found = _cache.get(key)
        if found is not None and found[0]() is ei:
            _cache.move_to_end(key)
            return found[1]
    graph = Graph.from_edge_index(ei, num_src, num_dst)
    with _lock:
        for old in [k for k, (ref, _) in _cache.items() if ref() is None or (k[0] == id(ei) and k[1] != ei._version)]:
            del _cache[old]
        _cache[key] = (weakref.ref(ei), graph)
        while len(_cache) > LIMIT:
            _cache.popitem(last=False)
    return graph
