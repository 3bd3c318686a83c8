"""Graphs: their front doors, what they refuse, immutability, copies."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

from gnnc_runtime.errors import GnncError, GraphError, GraphTypeError, ImmutableError, IndexRangeError
from gnnc_runtime.graph import Graph, Stats
from tests.reference import cases

EDGES = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2]])


def message(error: type[Exception], make: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(error) as e:
        make(*args, **kwargs)  # type: ignore[operator]
    assert isinstance(e.value, GnncError)
    return str(e.value)


# ---- edge_index


@pytest.mark.parametrize("g", [*cases.all_graphs(), cases.many_nodes()], ids=lambda g: g.name)
def test_counts_and_edges_are_the_callers(g: cases.Graph) -> None:
    for name, ei in cases.edge_index_forms(g.edge_index).items():
        mine = Graph.from_edge_index(ei, g.n_src, g.n_dst)
        assert (mine.num_src, mine.num_dst, mine.num_edges, mine.is_square) == (g.n_src, g.n_dst, g.E, g.square), name
        assert mine.edge_index.dtype == torch.int64
        assert torch.equal(mine.edge_index, g.edge_index), name


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["offset", "row stride 0", "negative numpy strides"])
def test_unusual_layouts(dtype: torch.dtype, layout: str) -> None:
    if layout == "offset":
        ei = torch.cat([torch.full((1, 5), 7), torch.nn.functional.pad(EDGES, (1, 0), value=7)]).to(dtype)[1:, 1:]
    elif layout == "row stride 0":
        ei = torch.tensor([[0, 2, 1]], dtype=dtype).expand(2, 3)
    else:
        ei = torch.from_numpy(np.ascontiguousarray(EDGES.to(dtype).numpy()[:, ::-1]))
    assert torch.equal(Graph.from_edge_index(ei, 3).edge_index, ei.long())


def test_one_count_stands_for_both() -> None:
    for kwargs in ({"num_src": 5}, {"num_dst": 5}, {"num_src": np.int64(5)}, {"num_src": 5, "num_dst": torch.tensor(5)}):
        g = Graph.from_edge_index(EDGES, **kwargs)
        assert (type(g.num_src), g.num_src, type(g.num_dst), g.num_dst) == (int, 5, int, 5)
    g = Graph.from_edge_index(EDGES, 4, 3)
    assert (g.num_src, g.num_dst, g.is_square) == (4, 3, False)


def test_counts_are_never_guessed() -> None:
    assert message(GraphError, Graph.from_edge_index, EDGES) == (
        "give num_src or num_dst (one stands for both), such as num_src=x.shape[0]: an edge_index does not say how many nodes"
    )


@pytest.mark.parametrize(
    ("count", "error", "text"),
    [
        (-1, GraphError, "num_src must not be negative, is -1"),
        (3.0, GraphTypeError, "num_src must be an int, not a float"),
        (True, GraphTypeError, "num_src must be an int, not a bool"),
        ("3", GraphTypeError, "num_src must be an int, not a str"),
        (torch.tensor(3.0), GraphTypeError, "num_src must be an int, not a float32 tensor []"),
    ],
)
def test_bad_counts(count: object, error: type[Exception], text: str) -> None:
    assert message(error, Graph.from_edge_index, EDGES, count) == text


RULE = "edge_index must be a dense tensor [2, E] of int32 or int64, not"
SHAPE = "edge_index must have shape [2, E] (row 0 sources, row 1 destinations), not"
BAD = {
    "too_large_dst": (IndexRangeError, "edge_index[1, 1] is 4, but destinations are numbered 0 .. 3 (num_dst is 4)"),
    "too_large_src": (IndexRangeError, "edge_index[0, 1] is 4, but sources are numbered 0 .. 3 (num_src is 4)"),
    "negative": (IndexRangeError, "edge_index[0, 1] is -1, but sources are numbered 0 .. 3 (num_src is 4)"),
    "way_out": (IndexRangeError, f"edge_index[0, 1] is {2**40}, but sources are numbered 0 .. 3 (num_src is 4)"),
    "int32_wrap": (IndexRangeError, f"edge_index[0, 1] is {2**32}, but sources are numbered 0 .. 3 (num_src is 4)"),
    "float": (GraphTypeError, f"{RULE} a float32 tensor [2, 2]"),
    "bool": (GraphTypeError, f"{RULE} a bool tensor [2, 2]"),
    "three_rows": (GraphError, f"{SHAPE} [3, 2]; pass edge_index.t()"),
    "one_dim": (GraphError, "edge_index must have shape [2, E], not [3]"),
    "E_by_2": (GraphError, f"{SHAPE} [3, 2]; pass edge_index.t()"),
}


def test_every_bad_edge_index_is_named() -> None:
    bad = cases.bad_edge_index(4)
    assert bad.keys() == BAD.keys()
    for name, ei in bad.items():
        error, text = BAD[name]
        assert message(error, Graph.from_edge_index, ei, 4) == text


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([[0], [1]], GraphTypeError, f"{RULE} a list"),
        (np.zeros((2, 1), np.int64), GraphTypeError, f"{RULE} a ndarray"),
        (None, GraphTypeError, f"{RULE} a NoneType"),
        (torch.zeros(2, 1, dtype=torch.int16), GraphTypeError, f"{RULE} a int16 tensor [2, 1]"),
        (torch.zeros(2, 1, dtype=torch.int64).to_sparse(), GraphTypeError, f"{RULE} a int64 sparse_coo tensor [2, 1]"),
        (torch.zeros(2, 1, dtype=torch.int64, device="meta"), GraphTypeError, f"{RULE} a int64 meta tensor [2, 1]"),
        (torch.zeros(3, 4, dtype=torch.int64), GraphError, f"{SHAPE} [3, 4]"),
        (torch.zeros(2, 1, 1, dtype=torch.int64), GraphError, "edge_index must have shape [2, E], not [2, 1, 1]"),
        (
            torch.tensor([[0, 0], [0, -(2**63)]]),
            IndexRangeError,
            f"edge_index[1, 1] is {-(2**63)}, but destinations are numbered 0 .. 0 (num_dst is 1)",
        ),
    ],
)
def test_what_is_no_edge_index(given: object, error: type[Exception], text: str) -> None:
    assert message(error, Graph.from_edge_index, given, 1) == text


def test_an_end_without_nodes_has_no_edges() -> None:
    ei = torch.tensor([[0], [0]])
    assert message(IndexRangeError, Graph.from_edge_index, ei, 0, 3) == "edge_index[0, 0] is 0, but there are no sources (num_src is 0)"
    assert (
        message(IndexRangeError, Graph.from_edge_index, ei, 3, 0) == "edge_index[1, 0] is 0, but there are no destinations (num_dst is 0)"
    )
    assert Graph.from_edge_index(ei[:, :0], 0, 3).num_edges == 0


def test_errors_are_the_built_in_ones_too() -> None:
    assert issubclass(GraphError, ValueError) and issubclass(GraphTypeError, TypeError)
    assert issubclass(IndexRangeError, IndexError) and issubclass(ImmutableError, AttributeError)


def test_the_last_node_of_each_end_is_in_range() -> None:
    assert Graph.from_edge_index(torch.tensor([[6], [4]]), 7, 5).num_edges == 1


class Wrapped(torch.Tensor):
    """A subclass that gives its tensor on request, as PyG's EdgeIndex does."""

    def as_tensor(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_tensor_subclasses_become_plain_tensors() -> None:
    for ei in (EDGES.as_subclass(Wrapped), torch.nn.Parameter(EDGES, requires_grad=False)):
        g = Graph.from_edge_index(ei, 3)
        assert {type(t) for t in (g.edge_index, g.in_indptr, g.in_indices, g.in_edge_ids)} == {torch.Tensor}
        assert torch.equal(g.edge_index, EDGES)


# ---- immutability and copies


def test_a_graph_is_not_made_unchecked() -> None:
    assert message(GraphTypeError, Graph, EDGES, 1, 1) == "make a Graph with Graph.from_edge_index, from_csr, from_scipy or from_networkx"


def test_attributes_cannot_be_set_or_deleted() -> None:
    g = Graph.from_edge_index(EDGES, 3)
    assert message(ImmutableError, setattr, g, "num_src", 7) == "a Graph is immutable: num_src cannot be set, make another Graph"
    assert message(ImmutableError, setattr, g, "other", 7) == "a Graph is immutable: other cannot be set, make another Graph"
    assert message(ImmutableError, delattr, g, "num_src") == "a Graph is immutable: num_src cannot be deleted, make another Graph"
    assert g.num_src == 3


def test_no_edit_reaches_a_graph() -> None:
    ei = EDGES.clone()
    g = Graph.from_edge_index(ei, 3)
    ei.fill_(2)
    g.in_degree().fill_(9.0)
    shown = g.edge_index
    assert shown is g.edge_index
    shown.fill_(1)
    assert torch.equal(g.edge_index, EDGES)
    assert torch.equal(g.in_indices, torch.tensor([1, 0, 2, 0], dtype=torch.int32))
    assert g.in_degree().tolist() == [1.0, 2.0, 1.0]
    assert torch.equal(g.with_self_loops("append").edge_index[:, :4], EDGES)


@pytest.mark.parametrize("forms_first", [False, True])
def test_copies_and_pickles(forms_first: bool) -> None:
    g = Graph.from_edge_index(EDGES, 4, 3)
    if forms_first:
        g.in_form(), g.out_form(), g.stats()
    assert copy.copy(g) is g and copy.deepcopy({"g": g})["g"] is g
    back = pickle.loads(pickle.dumps(g))
    assert (repr(back), back.index_dtype) == (repr(g), torch.int32)
    assert torch.equal(back.edge_index, g.edge_index) and torch.equal(back.out_edge_ids, g.out_edge_ids)


def test_a_pickle_is_checked() -> None:
    make, (pairs, num_src, num_dst) = Graph.from_edge_index(EDGES, 3).__reduce__()
    assert make(pairs, num_src, num_dst).num_edges == 4
    assert (
        message(IndexRangeError, make, pairs + 1, num_src, num_dst)
        == "edge_index[0, 1] is 3, but sources are numbered 0 .. 2 (num_src is 3)"
    )


def test_repr() -> None:
    assert repr(Graph.from_edge_index(EDGES, 4, 3)) == "Graph(num_src=4, num_dst=3, num_edges=4, device='cpu')"


def test_graphs_made_in_inference_mode_serve_outside_it() -> None:
    with torch.inference_mode():
        g = Graph.from_edge_index(EDGES.clone(), 3)
        tensors = [g.edge_index, g.in_indptr, g.in_indices, g.in_edge_ids, g.reverse().edge_index, g.with_self_loops().in_indices]
        tensors.append(Graph.from_csr(torch.tensor([0, 1]), torch.tensor([0])).out_indices)
    assert not any(t.is_inference() for t in tensors)
    x = torch.ones(3, requires_grad=True)
    x[g.in_indices].sum().backward()  # saves the indices
    assert x.grad is not None and x.grad.tolist() == [2.0, 1.0, 1.0]


def test_to_and_reverse() -> None:
    g = Graph.from_edge_index(EDGES, 4, 3)
    assert g.to("cpu") is g and g.device == torch.device("cpu")
    r = g.reverse()
    assert (r.num_src, r.num_dst) == (3, 4) and torch.equal(r.edge_index, EDGES.flip(0))
    assert torch.equal(r.in_indptr, g.out_indptr) and torch.equal(r.in_edge_ids, g.out_edge_ids)
    away = g.to("meta")
    assert away is not g and away.device.type == "meta" and away.num_src == 4


# ---- statistics


def test_stats() -> None:
    assert Graph.from_edge_index(EDGES, 5, 4).stats() == Stats(1.0, 2, 1, 0.8, 2, 2)
    assert Graph.from_edge_index(EDGES[:, :0], 0, 2).stats() == Stats(0.0, 0, 2, 0.0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_degrees(dtype: torch.dtype) -> None:
    g = Graph.from_edge_index(EDGES, 5, 4)
    assert torch.equal(g.in_degree(dtype), torch.tensor([1, 2, 1, 0], dtype=dtype))
    assert torch.equal(g.out_degree(dtype), torch.tensor([2, 1, 1, 0, 0], dtype=dtype))


def test_degrees_and_stats_need_no_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph.from_edge_index(EDGES, 3)
    monkeypatch.setattr(torch, "sort", None)
    assert g.stats().max_in == 2 and g.out_degree().tolist() == [2.0, 1.0, 1.0]
    with pytest.raises(TypeError):
        g.in_form()


# ---- threads


def test_forms_are_built_once_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnc_runtime import graph as module

    calls, build = [], module.group

    def slow(*args: torch.Tensor) -> object:
        calls.append(threading.get_ident())
        wait.wait(0.05)
        return build(*args)

    wait = threading.Event()
    monkeypatch.setattr(module, "group", slow)
    g = Graph.from_edge_index(EDGES, 3)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(g.in_form())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(calls) == 1 and len(found) == 8 and all(f is found[0] for f in found)
