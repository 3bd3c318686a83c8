"""The cache of plain edge_index tensors: hits, edits, re-used addresses, lifetimes, threads, forks."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from gnnc_runtime import edge_index as module
from gnnc_runtime.edge_index import LIMIT, graph_of
from gnnc_runtime.errors import GraphError, IndexRangeError


@pytest.fixture(autouse=True)
def empty_cache() -> Iterator[None]:
    module._cache.clear()
    yield
    module._cache.clear()


def edges() -> torch.Tensor:
    return torch.tensor([[0, 1, 2], [1, 2, 0]])


def test_the_same_tensor_gives_the_same_graph() -> None:
    ei = edges()
    g = graph_of(ei, 3, 3)
    assert graph_of(ei, 3, 3) is g
    assert graph_of(ei.clone(), 3, 3) is not g


def test_counts_are_part_of_the_key() -> None:
    ei = edges()
    a, b, c = graph_of(ei, 3, 3), graph_of(ei, 4, 3), graph_of(ei, 3, None)
    assert [repr(g) for g in (a, b, c)] == [
        "Graph(num_src=3, num_dst=3, num_edges=3, device='cpu')",
        "Graph(num_src=4, num_dst=3, num_edges=3, device='cpu')",
        "Graph(num_src=3, num_dst=3, num_edges=3, device='cpu')",
    ]
    assert graph_of(ei, 4, 3) is b and graph_of(ei, 3, 3) is a


def test_counts_are_checked_when_the_edges_are_known() -> None:
    ei = edges()
    graph_of(ei, 3, 3)
    with pytest.raises(IndexRangeError) as e:
        graph_of(ei, 2, 3)
    assert str(e.value) == "edge_index[0, 2] is 2, but sources are numbered 0 .. 1 (num_src is 2)"
    with pytest.raises(GraphError):
        graph_of(ei, None, None)


@pytest.mark.parametrize("view", [False, True])
def test_an_edit_is_seen(view: bool) -> None:
    ei = edges()
    old = graph_of(ei, 3, 3)
    (ei[0] if view else ei)[..., 0] = 2
    new = graph_of(ei, 3, 3)
    assert new.edge_index.tolist() == ei.tolist() and old.edge_index.tolist() == edges().tolist()
    assert graph_of(ei, 3, 3) is new and len(module._cache) == 1  # the old graph is not kept


def test_an_edit_out_of_range_is_an_error() -> None:
    ei = edges()
    graph_of(ei, 3, 3)
    ei[1, 1] = 3
    with pytest.raises(IndexRangeError) as e:
        graph_of(ei, 3, 3)
    assert str(e.value) == "edge_index[1, 1] is 3, but destinations are numbered 0 .. 2 (num_dst is 3)"


def test_other_data_under_the_same_tensor_is_seen() -> None:
    ei = edges()
    graph_of(ei, 3, 3)
    ei.data = torch.tensor([[2, 2, 2], [0, 0, 0]])  # raises no version
    assert graph_of(ei, 3, 3).edge_index.tolist() == ei.tolist()
    ei.data = ei.data[:, :2]  # nor does this, at the same address
    assert graph_of(ei, 3, 3).num_edges == 2


def test_a_new_tensor_at_an_old_address_never_matches() -> None:
    seen = 0
    for i in range(300):
        ei = torch.tensor([[i % 3], [0]])
        seen += (id(ei), (3, 3)) in module._cache
        assert graph_of(ei, 3, 3).edge_index.tolist() == [[i % 3], [0]]
        del ei
    assert seen == 0  # forgotten with its tensor


def test_a_stale_entry_under_a_re_used_id_never_matches() -> None:
    old, new = edges(), torch.tensor([[0, 0, 0], [0, 0, 0]])
    graph_of(old, 3, 3)
    (entry,) = module._cache.values()
    module._cache[(id(new), (3, 3))] = entry
    assert graph_of(new, 3, 3).edge_index.tolist() == new.tolist()


def test_tensor_and_graph_go_together() -> None:
    ei = edges()
    graph = graph_of(ei, 3, 3)
    graph.in_form(), graph.out_form()
    tensor, storage = weakref.ref(ei), ei.untyped_storage()
    assert all(t.untyped_storage().data_ptr() != storage.data_ptr() for t in (graph.edge_index, graph.in_indices, graph.out_indices))
    kept = weakref.ref(graph)
    del graph, storage
    gc.collect()
    assert kept() is not None  # the cache's
    del ei
    gc.collect()
    assert tensor() is None and kept() is None and not module._cache


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    tensors = [edges() for _ in range(LIMIT + 5)]
    first = graph_of(tensors[0], 3, 3)
    for t in tensors:
        graph_of(t, 3, 3)
        assert graph_of(tensors[0], 3, 3) is first
    assert len(module._cache) == LIMIT
    second = weakref.ref(graph_of(tensors[-1], 3, 3))
    for t in tensors[:-1]:
        graph_of(t, 3, 3)
    assert second() is None


def test_inference_tensors_count_no_versions_so_they_are_not_kept() -> None:
    with torch.inference_mode():
        ei = edges()
        assert graph_of(ei, 3, 3).num_edges == 3
        ei[0, 0] = 2
        assert graph_of(ei, 3, 3).edge_index.tolist() == [[2, 1, 2], [1, 2, 0]]
    assert not module._cache
    normal = edges()
    with torch.inference_mode():
        assert graph_of(normal, 3, 3) is graph_of(normal, 3, 3)


def test_errors_keep_nothing() -> None:
    ei = edges()
    for _ in range(2):
        with pytest.raises(IndexRangeError):
            graph_of(ei, 1, 3)
    assert not module._cache
    assert graph_of(ei, 3, 3).num_edges == 3


def test_many_threads() -> None:
    shared, wrong = edges(), []

    def work(seed: int) -> None:
        for i in range(100):
            mine = torch.tensor([[(i + seed) % 3], [0]])
            if graph_of(mine, 3, 3).edge_index.tolist() != mine.tolist() or graph_of(shared, 3, 3).num_edges != 3:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(module._cache) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    ei = edges()
    graph = graph_of(ei, 3, 3)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        graph._once("held", lambda: (held.set(), release.wait(30)))

    with module._lock:  # of this thread; the other one holds the graph's
        other = threading.Thread(target=hold)
        other.start()
        held.wait(30)
        pid = os.fork()
        if pid == 0:
            good = False
            try:
                done = threading.Thread(target=lambda: (graph_of(edges(), 3, 3), graph_of(ei, 3, 3).in_form()), daemon=True)
                done.start()
                done.join(20)
                good = not done.is_alive()
            finally:
                os._exit(0 if good else 1)
        _, status = os.waitpid(pid, 0)
    release.set()
    other.join()
    assert os.waitstatus_to_exitcode(status) == 0
