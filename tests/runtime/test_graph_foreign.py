"""Graphs from grouped edges, scipy and networkx."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from gnnc_runtime.errors import GraphError, GraphTypeError, IndexRangeError
from gnnc_runtime.graph import Graph
from tests.reference import cases

PTR, FAR = torch.tensor([0, 2, 2, 3]), torch.tensor([4, 0, 1])


# ---- grouped edges


def test_csr_grouped_by_destination() -> None:
    g = Graph.from_csr(PTR, FAR, num_src=5)
    assert (g.num_src, g.num_dst) == (5, 3)
    assert g.edge_index.tolist() == [[4, 0, 1], [0, 0, 2]]
    assert g.in_edge_ids.tolist() == [0, 1, 2]


def test_csr_grouped_by_source() -> None:
    g = Graph.from_csr(PTR.int(), FAR, grouped_by="src", num_src=3, num_dst=5)
    assert (g.num_src, g.num_dst) == (3, 5)
    assert g.edge_index.tolist() == [[0, 0, 2], [4, 0, 1]]


def test_csr_is_a_node_graph_by_default() -> None:
    g = Graph.from_csr(PTR, torch.tensor([2, 0, 1]))
    assert (g.num_src, g.num_dst) == (3, 3)


@pytest.mark.parametrize("g", [*cases.all_graphs()], ids=lambda g: g.name)
@pytest.mark.parametrize("side", ["dst", "src"])
def test_forms_make_the_same_graph(g: cases.Graph, side: str) -> None:
    mine = Graph.from_edge_index(g.edge_index, g.n_src, g.n_dst)
    form = mine.in_form() if side == "dst" else mine.out_form()
    back = Graph.from_csr(form.indptr, form.indices, form.edge_ids, grouped_by=side, num_src=g.n_src, num_dst=g.n_dst)
    assert torch.equal(back.edge_index, g.edge_index) and repr(back) == repr(mine)


def test_csr_slots_follow_the_callers_edge_order() -> None:
    g = Graph.from_csr(PTR, FAR, torch.tensor([2, 0, 1]), num_src=5)
    assert g.edge_index.tolist() == [[0, 1, 4], [0, 2, 0]]
    assert g.in_edge_ids.tolist() == [0, 2, 1] and g.in_indices.tolist() == [0, 4, 1]  # not the given slot order


def test_csr_tensors_of_any_stride() -> None:
    strided = torch.stack([FAR, FAR + 9], 1)[:, 0]
    assert torch.equal(Graph.from_csr(PTR, strided, num_src=5).edge_index, Graph.from_csr(PTR, FAR, num_src=5).edge_index)


INT = "of int32 or int64, not"
BAD_CSR = [
    ({"indptr": torch.tensor([1, 2, 3])}, GraphError, "indptr[0] must be 0, is 1"),
    ({"indptr": torch.tensor([0, 3, 2, 3])}, GraphError, "indptr must not fall, but indptr[2] is 2 after 3"),
    ({"indptr": torch.tensor([0, 2**40, 3])}, GraphError, f"indptr must not fall, but indptr[2] is 3 after {2**40}"),
    ({"indptr": torch.tensor([0, 2])}, GraphError, "indptr[1] must be the number of indices, 3, is 2"),
    ({"indptr": torch.tensor([0, 4])}, GraphError, "indptr[1] must be the number of indices, 3, is 4"),
    ({"indptr": PTR[:0]}, GraphError, "indptr must have one element more than there are rows, but is empty"),
    ({"indptr": PTR.float()}, GraphTypeError, f"indptr must be a dense tensor [rows + 1] {INT} a float32 tensor [4]"),
    ({"indptr": [0, 3]}, GraphTypeError, f"indptr must be a dense tensor [rows + 1] {INT} a list"),
    ({"indptr": PTR[None]}, GraphError, "indptr must have shape [rows + 1], not [1, 4]"),
    ({"indices": FAR.bool()}, GraphTypeError, f"indices must be a dense tensor [E] {INT} a bool tensor [3]"),
    ({"indices": torch.tensor([0, 5, 1])}, IndexRangeError, "indices[1] is 5, but sources are numbered 0 .. 4 (num_src is 5)"),
    ({"indices": torch.tensor([0, 1, 2**32])}, IndexRangeError, f"indices[2] is {2**32}, but sources are numbered 0 .. 4 (num_src is 5)"),
    (
        {"indices": torch.tensor([-1, 1, 2]), "grouped_by": "src", "num_src": None, "num_dst": 4},
        IndexRangeError,
        "indices[0] is -1, but destinations are numbered 0 .. 3 (num_dst is 4)",
    ),
    ({"edge_ids": torch.tensor([0, 1])}, GraphError, "edge_ids must be a permutation of 0 .. 2, but has 2 elements"),
    ({"edge_ids": torch.tensor([0, 3, 1])}, GraphError, "edge_ids must be a permutation of 0 .. 2, but edge_ids[1] is 3"),
    ({"edge_ids": torch.tensor([0, 1, -1])}, GraphError, "edge_ids must be a permutation of 0 .. 2, but edge_ids[2] is -1"),
    ({"edge_ids": torch.tensor([0, 1, 1])}, GraphError, "edge_ids must be a permutation of 0 .. 2, but 1 comes more than once"),
    ({"grouped_by": "row"}, GraphError, "grouped_by must be 'dst' or 'src', not 'row'"),
    ({"num_dst": 4}, GraphError, "num_dst is 4, but indptr has 3 rows"),
    ({"num_dst": 3.0}, GraphTypeError, "num_dst must be an int, not a float"),
    ({"num_src": -5}, GraphError, "num_src must not be negative, is -5"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD_CSR)
def test_bad_csr(change: dict[str, object], error: type[Exception], text: str) -> None:
    given = {"indptr": PTR, "indices": FAR, "num_src": 5}
    Graph.from_csr(**given)  # type: ignore[arg-type]
    with pytest.raises(error) as e:
        Graph.from_csr(**(given | change))  # type: ignore[arg-type]
    assert str(e.value) == text


def test_csr_without_edges_takes_no_edge_ids() -> None:
    assert Graph.from_csr(torch.tensor([0]), FAR[:0], FAR[:0]).num_dst == 0
    with pytest.raises(GraphError) as e:
        Graph.from_csr(torch.tensor([0]), FAR[:0], FAR)
    assert str(e.value) == "edge_ids must be empty, as indices are, but has 3 elements"


# ---- scipy


@pytest.mark.parametrize("container", ["coo_matrix", "csr_matrix", "csc_array", "coo_array", "lil_matrix", "dok_array"])
def test_scipy_rows_are_sources(container: str) -> None:
    sp = pytest.importorskip("scipy.sparse")
    dense = np.array([[0.0, 2.0, 0.0, 1.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
    matrix = getattr(sp, container)(dense)
    graph, w = Graph.from_scipy(matrix, return_weight=True)
    assert (graph.num_src, graph.num_dst) == (3, 4) and w.dtype == torch.float64
    back = torch.zeros(3, 4, dtype=torch.float64)
    back[tuple(graph.edge_index)] = w
    assert torch.equal(back, torch.from_numpy(dense))
    assert repr(Graph.from_scipy(matrix)) == repr(graph)


def test_scipy_entries_are_not_merged_or_dropped() -> None:
    sp = pytest.importorskip("scipy.sparse")
    matrix = sp.coo_matrix((np.array([5, 0, 7], np.float32), ([1, 0, 1], [2, 0, 2])), shape=(3, 3))
    graph, w = Graph.from_scipy(matrix, return_weight=True)
    assert graph.edge_index.tolist() == [[1, 0, 1], [2, 0, 2]] and w.tolist() == [5.0, 0.0, 7.0]
    w.fill_(1.0)
    assert matrix.data.tolist() == [5.0, 0.0, 7.0]


def test_scipy_stays_on_the_cpu_under_a_default_device() -> None:
    sp = pytest.importorskip("scipy.sparse")
    with torch.device("meta"):
        graph, w = Graph.from_scipy(sp.eye_array(3), return_weight=True)
    assert graph.edge_index.tolist() == [[0, 1, 2], [0, 1, 2]] and w.device.type == "cpu"


def test_what_is_no_scipy_matrix() -> None:
    sp = pytest.importorskip("scipy.sparse")
    rule = "from_scipy takes a two-dimensional scipy sparse matrix or array, not"
    for given, what in ((np.eye(2), "a ndarray"), (torch.eye(2), "a float32 tensor [2, 2]"), (sp.coo_array(np.ones(3)), "a coo_array")):
        with pytest.raises(GraphTypeError) as e:
            Graph.from_scipy(given)
        assert str(e.value) == f"{rule} {what}"
    odd = sp.coo_array(np.eye(2, dtype=np.longdouble))
    assert Graph.from_scipy(odd).num_edges == 2
    with pytest.raises(GraphTypeError) as e:
        Graph.from_scipy(odd, return_weight=True)
    assert str(e.value) == f"torch has no dtype for a scipy matrix of {odd.dtype}: convert it with .astype first"


# ---- networkx


def test_directed_networkx_in_the_order_of_its_nodes() -> None:
    nx = pytest.importorskip("networkx")
    g = nx.DiGraph()
    g.add_nodes_from(["c", "a", "b", "alone"])
    g.add_edges_from([("a", "c"), ("b", "b"), ("c", "a")])
    mine = Graph.from_networkx(g)
    assert mine.num_src == mine.num_dst == 4
    assert mine.edge_index.tolist() == [[0, 1, 2], [1, 0, 2]]


def test_undirected_networkx_goes_both_ways() -> None:
    nx = pytest.importorskip("networkx")
    g = nx.Graph([(0, 1), (1, 1), (2, 0)])
    assert Graph.from_networkx(g).edge_index.tolist() == [[0, 1, 0, 2, 1], [1, 0, 2, 0, 1]]


@pytest.mark.parametrize("directed", [True, False])
def test_parallel_networkx_edges_are_kept(directed: bool) -> None:
    nx = pytest.importorskip("networkx")
    g = (nx.MultiDiGraph if directed else nx.MultiGraph)([(0, 1), (0, 1), (1, 1), (1, 1)])
    mine = Graph.from_networkx(g)
    ways = 1 if directed else 2
    assert mine.in_degree(torch.int64).tolist() == [2 * (ways - 1), 4]
    assert mine.num_edges == 2 * ways + 2


def test_empty_networkx() -> None:
    nx = pytest.importorskip("networkx")
    assert repr(Graph.from_networkx(nx.Graph())) == "Graph(num_src=0, num_dst=0, num_edges=0, device='cpu')"
    assert Graph.from_networkx(nx.empty_graph(3)).num_src == 3


def test_what_is_no_networkx_graph() -> None:
    with pytest.raises(GraphTypeError) as e:
        Graph.from_networkx({0: [1]})
    assert str(e.value) == "from_networkx takes a networkx graph, not a dict"


def test_the_graph_imports_no_other_library() -> None:
    modules = "gnnc_runtime.graph, gnnc_runtime.edge_index, gnnc_runtime.tasks"
    code = f"import sys, {modules}; print(sorted({{'scipy', 'networkx', 'gnnc'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
