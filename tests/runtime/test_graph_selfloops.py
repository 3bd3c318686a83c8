"""Self-loops against the reference, values and gradients, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnc_runtime.errors import GnncError, GraphError, GraphTypeError
from gnnc_runtime.graph import Graph
from tests.reference import cases
from tests.reference import reference as ref

MODES = ["replace", "remaining", "append"]
FILLS = [1.0, 0.5, "mean", "sum", "max", "min"]
GRAPHS = [g for g in cases.all_graphs() if g.name not in ("long_empty_prefix", "power_law")] + [cases.power_law(300, 2000)]


def attributes(g: cases.Graph, tail: tuple[int, ...], kind: str = "normal") -> Tensor:
    return cases.values((g.E, *tail), kind, seed=3).requires_grad_()


def both(g: cases.Graph, mode: str, fill: object, tail: tuple[int, ...], kind: str = "normal") -> list[tuple[Tensor, Tensor, Tensor]]:
    """(edge_index, attributes, their gradient) of ours and of the reference."""
    out = []
    for ours in (True, False):
        attr = attributes(g, tail, kind)
        if ours:
            mine, new = Graph.from_edge_index(g.edge_index, g.n_src, g.n_dst).with_self_loops(mode, fill, attr)  # type: ignore[arg-type]
            ei = mine.edge_index
        else:
            ei, new = ref.with_self_loops(g.edge_index, min(g.n_src, g.n_dst), attr, mode, fill)
        weight = torch.arange(1, new.numel() + 1, dtype=new.dtype).view(new.shape)
        (grad,) = torch.autograd.grad((new * weight).sum(), attr, allow_unused=True)
        out.append((ei, new.detach(), torch.zeros_like(attr) if grad is None else grad))
    return out


@pytest.mark.parametrize("g", GRAPHS, ids=lambda g: g.name)
def test_values_and_gradients_are_the_references(g: cases.Graph) -> None:
    for mode in MODES:
        for fill in FILLS:
            for tail in ((), (3,)):
                (ei, attr, grad), (ref_ei, ref_attr, ref_grad) = both(g, mode, fill, tail)
                assert torch.equal(ei, ref_ei), (mode, fill)
                assert torch.allclose(attr, ref_attr, rtol=1e-12, atol=1e-12), (mode, fill)
                assert torch.allclose(grad, ref_grad, rtol=1e-12, atol=1e-12), (mode, fill)


@pytest.mark.parametrize("fill", ["max", "min"])
@pytest.mark.parametrize("kind", ["ties", "negative", "ninf1", "inf1"])
def test_extrema_of_ties_and_infinities(fill: str, kind: str) -> None:
    for g in (cases.duplicates(), cases.complete(), cases.bipartite_tall(), cases.duplicate_self_loops()):
        for mode in MODES:
            (_, attr, grad), (_, ref_attr, ref_grad) = both(g, mode, fill, (2,), kind)
            assert torch.equal(attr, ref_attr) and torch.equal(grad, ref_grad)


def test_a_tied_maximum_gives_its_gradient_to_the_first_edge() -> None:
    g = Graph.from_edge_index(torch.tensor([[1, 2, 3], [0, 0, 0]]), 4)
    attr = torch.tensor([2.0, 2.0, 1.0], requires_grad=True)
    _, new = g.with_self_loops(fill="max", edge_attr=attr)
    new[3].backward()
    assert new[3].item() == 2.0 and attr.grad is not None and attr.grad.tolist() == [1.0, 0.0, 0.0]


def test_nan_is_a_maximum_and_takes_the_gradient() -> None:
    g = Graph.from_edge_index(torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]]), 4)
    attr = torch.tensor([1.0, float("nan"), float("nan"), 4.0], requires_grad=True)
    _, new = g.with_self_loops(fill="max", edge_attr=attr)
    assert new[4].isnan() and new[5:].tolist() == [4.0, 0.0, 0.0]
    new[4:].sum().backward()
    assert attr.grad is not None and attr.grad.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_dropped_loops_get_no_gradient() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 0, 1, 0], [0, 0, 0, 1]]), 2)
    for mode, want in (("replace", [0.0, 0.0, 1.0, 1.0]), ("remaining", [0.0, 1.0, 1.0, 1.0]), ("append", [1.0, 1.0, 1.0, 1.0])):
        attr = torch.ones(4, requires_grad=True)
        g.with_self_loops(mode, 1.0, attr)[1].sum().backward()
        assert attr.grad is not None and attr.grad.tolist() == want, mode


def test_gradients_twice() -> None:
    g = cases.duplicate_self_loops()
    graph = Graph.from_edge_index(g.edge_index, g.n_src)
    for mode in MODES:
        for fill in FILLS:
            attr = attributes(g, (2,))
            f = lambda a: graph.with_self_loops(mode, fill, a)[1]  # noqa: B023
            assert torch.autograd.gradcheck(f, (attr,)) and torch.autograd.gradgradcheck(f, (attr,))


def test_r09_more_destinations_than_sources() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 1], [0, 3]]), 2, 4).with_self_loops("replace")
    assert g.edge_index.tolist() == [[1, 0, 1], [3, 0, 1]] and (g.num_src, g.num_dst) == (2, 4)
    g, attr = Graph.from_edge_index(torch.tensor([[0, 0], [1, 3]]), 2, 4).with_self_loops(fill="mean", edge_attr=torch.tensor([4.0, 9.0]))
    assert g.edge_index.tolist() == [[0, 0, 0, 1], [1, 3, 0, 1]] and attr.tolist() == [4.0, 9.0, 0.0, 4.0]


def test_r45_remaining_counts_a_loop_once() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 1], [0, 0]]), 2)
    x = torch.tensor([[6.0], [3.0]], dtype=torch.float64)
    for mode, want in (("remaining", [3 + 3 / 2**0.5, 3.0]), ("append", [4 + 3 / 3**0.5, 3.0])):
        new, w = g.with_self_loops(mode, 1.0, torch.ones(2, dtype=torch.float64))
        src, dst = new.edge_index
        d = ref.scatter_sum(w, dst, 2).rsqrt()
        out = ref.spmm(new.edge_index, d[src] * w * d[dst], x, 2)
        assert out.view(-1).tolist() == pytest.approx(want, abs=1e-12)


def test_loops_alone() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 3)
    assert g.with_self_loops().edge_index.tolist() == [[1, 0, 1, 2], [2, 0, 1, 2]]  # replace
    assert g.with_self_loops("remaining").edge_index.tolist() == [[1, 0, 1, 2], [2, 0, 1, 2]]
    assert g.with_self_loops("append").edge_index.tolist() == [[0, 1, 0, 1, 2], [0, 2, 0, 1, 2]]
    assert g.num_edges == 2


def test_fill_tensors_are_differentiable() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 3)
    for shape, want in (((2,), [2.0, 2.0]), ((), 4.0), ((3, 2), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])):
        fill = torch.full(shape, 5.0, dtype=torch.float64, requires_grad=True)
        _, new = g.with_self_loops("remaining", fill, torch.zeros(2, 2))
        assert new.dtype == torch.float32 and new[1:].tolist() == [[0.0, 0.0], [5.0, 5.0], [5.0, 5.0]]
        new.sum().backward()
        assert fill.grad is not None and fill.grad.tolist() == want


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("fill", "want"), [("sum", 4096.0), ("mean", 1.0)])
def test_half_attributes_are_added_in_f32(dtype: torch.dtype, fill: str, want: float) -> None:
    g = Graph.from_edge_index(torch.stack([torch.ones(4096).long(), torch.zeros(4096).long()]), 2)
    _, new = g.with_self_loops(fill=fill, edge_attr=torch.ones(4096, dtype=dtype))
    assert new.dtype == dtype and new[4096].item() == want


@pytest.mark.parametrize("fill", [2, 2.0, "sum", "max", "min", torch.tensor(2)])
def test_integer_attributes_stay_integers(fill: object) -> None:
    g = Graph.from_edge_index(torch.tensor([[1], [0]]), 2)
    _, new = g.with_self_loops(fill=fill, edge_attr=torch.tensor([2]))  # type: ignore[arg-type]
    assert new.dtype == torch.int64 and new.tolist()[:2] == [2, 2]


def test_the_same_bits_every_time() -> None:
    g = cases.power_law()
    attr = torch.randn(g.E, 3)
    graph = Graph.from_edge_index(g.edge_index, g.n_src)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            found.append(graph.with_self_loops(fill="mean", edge_attr=attr)[1])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(f, found[0]) for f in found)


NUMBER = "fill must be a number, a tensor, 'mean', 'sum', 'max' or 'min', not"
BAD = [
    ({"mode": "keep"}, GraphError, "mode must be 'replace', 'remaining' or 'append', not 'keep'"),
    ({"fill": "median"}, GraphError, f"{NUMBER} 'median'"),
    ({"fill": None}, GraphTypeError, f"{NUMBER} a NoneType"),
    ({"fill": torch.zeros(3)}, GraphError, "fill of shape [3] does not broadcast to the new loops' attributes, [3, 2]"),
    ({"fill": torch.zeros(1, 3, 2)}, GraphError, "fill of shape [1, 3, 2] does not broadcast to the new loops' attributes, [3, 2]"),
    ({"edge_attr": torch.ones(3, 2)}, GraphError, "edge_attr must have one row an edge, [2, ...], but has shape [3, 2]"),
    ({"edge_attr": torch.tensor(1.0)}, GraphError, "edge_attr must have one row an edge, [2, ...], but has shape []"),
    ({"edge_attr": [1.0, 2.0]}, GraphTypeError, "edge_attr must be a tensor [2, ...], one row an edge, not a list"),
    ({"edge_attr": torch.ones(2, device="meta")}, GraphError, "edge_attr is on meta, the graph on cpu: move one of them"),
    ({"edge_attr": torch.ones(2).int(), "fill": 0.5}, GraphTypeError, "fill is 0.5, but edge_attr holds int32: give an integer fill"),
    (
        {"edge_attr": torch.ones(2).int(), "fill": torch.tensor(1.0)},
        GraphTypeError,
        "fill is a float32 tensor [], but edge_attr holds int32: give an integer fill",
    ),
    (
        {"edge_attr": torch.ones(2).int(), "fill": "mean"},
        GraphTypeError,
        "fill='mean' cannot be taken of edge_attr of int32: give a number",
    ),
    ({"edge_attr": torch.ones(2).bool(), "fill": "max"}, GraphTypeError, "fill='max' cannot be taken of edge_attr of bool: give a number"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_is_refused(change: dict[str, object], error: type[Exception], text: str) -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 1], [0, 2]]), 3)
    given = {"mode": "replace", "fill": 1.0, "edge_attr": torch.ones(2, 2)}
    g.with_self_loops(**given)  # type: ignore[call-overload]
    with pytest.raises(error) as e:
        g.with_self_loops(**(given | change))  # type: ignore[call-overload]
    assert isinstance(e.value, GnncError) and str(e.value) == text
