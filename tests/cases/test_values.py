"""Inputs that broke other implementations, sections A to E: values, sizes, direction, gradients, layouts, dtypes."""

from __future__ import annotations

import math

import pytest
import torch

import gnnc
from gnnc.lang import Dst, Edge, Node, Param, Src, leaky_relu, maximum, rsqrt, where
from tests.reference import cases


@gnnc.layer
def total(g, x: Src["F"]):
    return g.sum(g.src(x))


@gnnc.layer
def weighted(g, x: Src["F"], w: Edge[()]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def heads(g, x: Src["H", "C"], w: Edge["H"]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def largest(g, x: Src["F"]):
    return g.max(g.src(x))


@gnnc.layer
def smallest(g, x: Src["F"]):
    return g.min(g.src(x))


@gnnc.layer
def weighted_largest(g, x: Src["F"], w: Edge[()]):
    return g.max(w[..., None] * g.src(x))


@gnnc.layer
def edge_max(g, m: Edge["F"]):
    return g.max(m)


@gnnc.layer
def edge_total(g, m: Edge["F"]):
    return g.sum(m)


@gnnc.layer
def edge_std(g, m: Edge["F"]):
    return g.std(m)


@gnnc.layer
def weights_of(g, s: Edge["H"]):
    return g.softmax(s)


@gnnc.layer
def attend(g, s: Edge["H"], v: Src["H", "C"]):
    return g.sum(g.softmax(s)[..., None] * g.src(v))


@gnnc.layer
def gcn(g, x: Node["F"], w: Edge[()]):
    deg = g.sum(w)
    d = where(deg > 0, rsqrt(maximum(deg, 1e-12)), 0.0)
    return g.sum((g.src(d) * w * g.dst(d))[..., None] * g.src(x))


@gnnc.layer
def gat(g, h: Src["H", "C"], h_dst: Dst["H", "C"], a: Param["H", "C"], b: Param["H", "C"]):
    s = g.src((h * a).sum(-1)) + g.dst((h_dst * b).sum(-1))
    return g.sum(g.softmax(leaky_relu(s, 0.2))[..., None] * g.src(h))


def edges(*pairs):
    return torch.tensor([[j for j, _ in pairs], [i for _, i in pairs]], dtype=torch.long).reshape(2, -1)


def graph(pairs, num_src, num_dst=None):
    return gnnc.Graph.from_edge_index(edges(*pairs), num_src=num_src, num_dst=num_src if num_dst is None else num_dst)


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)[:, None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_r01_many_half_messages_sum_in_f32(dtype):
    g = graph([(j, 0) for j in range(4096)], 4096)
    out = total(g, torch.ones(4096, 1, dtype=dtype))
    assert out.dtype == dtype
    assert out[0].item() == 4096.0


def test_r03_extremum_of_an_empty_row_is_zero_and_a_negative_one_survives():
    for layer, sign in ((largest, 1.0), (smallest, -1.0)):
        x = (sign * column(-5.0, 2.0, 7.0)).requires_grad_()
        out = layer(graph([(0, 1)], 3), x)
        assert out.flatten().tolist() == [0.0, sign * -5.0, 0.0]
        out.sum().backward()
        assert x.grad.flatten().tolist() == [1.0, 0.0, 0.0]


def test_r05_no_edge_gives_zeros_not_old_memory():
    for _ in range(4):
        torch.full((1, 4), 1e30)  # dirty the allocator
    x = torch.randn(1, 4, requires_grad=True)
    for layer in (total, largest, smallest):
        out = layer(graph([], 1), x)
        assert out.tolist() == [[0.0] * 4]
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.tolist() == [[0.0] * 4]


def test_r06_attention_without_edges_and_without_nodes():
    for n in (3, 0):
        h = torch.randn(n, 2, 4, requires_grad=True)
        a = torch.randn(2, 4, requires_grad=True)
        out = gat(graph([], n), h, h, a, a)
        assert out.shape == (n, 2, 4)
        assert out.abs().sum() == 0
        out.sum().backward()
        assert h.grad.abs().sum() == 0
        assert a.grad.abs().sum() == 0


def test_r55_duplicate_edges_count_separately():
    g = graph([(1, 0), (1, 0), (2, 0)], 3)
    out = attend(g, torch.zeros(3, 1), torch.tensor([0.0, 3.0, 9.0])[:, None, None])
    assert out[0].item() == pytest.approx(5.0)
    assert edge_total(graph([(0, 1)] * 3, 2), torch.full((3, 1), 5.0))[1].item() == 15.0


@pytest.mark.parametrize("f", [1, 2, 3, 31, 33, 47, 65, 100, 257])
def test_r41_every_column_of_an_odd_width(f):
    g = cases.random_graph()
    out = total(gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src), torch.ones(g.n_src, f))
    degree = torch.bincount(g.edge_index[1], minlength=g.n_dst).float()
    assert torch.equal(out, degree[:, None].expand(-1, f))


def test_r09_more_destinations_than_sources():
    g, attr = graph([(0, 0), (1, 3)], 2, 4), None
    loops = g.with_self_loops("replace")
    zero = torch.zeros(1, 1)
    x_src, x_dst = column(1.0, 3.0), torch.zeros(4, 1)
    out = gat(loops, (2 * x_src)[:, None], x_dst[:, None], zero, zero)
    assert out.flatten().tolist() == [2.0, 6.0, 0.0, 6.0]
    g = graph([(0, 1), (0, 3)], 2, 4)
    _, attr = g.with_self_loops("replace", fill="mean", edge_attr=torch.tensor([4.0, 9.0]))
    assert attr.tolist() == [4.0, 9.0, 0.0, 4.0]


def test_r11_softmax_is_over_a_destinations_edges():
    assert weights_of(graph([(0, 1), (0, 2)], 3), torch.randn(2, 1)).flatten().tolist() == [1.0, 1.0]


def test_r45_existing_self_loops_are_not_counted_twice():
    x = column(6.0, 3.0, dtype=torch.float64)
    for mode, want in (("remaining", 3 + 3 / math.sqrt(2)), ("append", 4 + 3 / math.sqrt(3))):
        g, w = graph([(0, 0), (1, 0)], 2).with_self_loops(mode, fill=1.0, edge_attr=torch.ones(2, dtype=torch.float64))
        out = gcn(g, x, w).flatten().tolist()
        assert out == [pytest.approx(want, abs=1e-9), pytest.approx(3.0)]


def test_r48_std_of_equal_messages():
    g = graph([(0, 0), (0, 0), (0, 1)], 3)
    m = column(7.0, 7.0, 7.0).requires_grad_()
    out = edge_std(g, m)
    assert out.flatten().tolist() == [0.0, 0.0, 0.0]
    out.sum().backward()
    assert m.grad.flatten().tolist() == [0.0, 0.0, 0.0]
    assert edge_std(graph([(0, 0), (0, 0)], 1), column(1.0, 3.0)).item() == 1.0


def test_r50_nan_stays_in_its_row():
    g = graph([(0, 0), (0, 0), (0, 0), (0, 1)], 3)
    m = column(1.0, math.nan, 3.0, 4.0)
    for layer in (edge_max, edge_total):
        out = layer(g, m).flatten()
        assert out[0].isnan()
        assert out[1:].tolist() == [4.0, 0.0]


def test_r13_a_tie_gives_its_gradient_to_the_first_edge():
    m = column(2.0, 2.0, 1.0).requires_grad_()
    edge_max(graph([(0, 0)] * 3, 1), m).backward()
    assert m.grad.flatten().tolist() == [1.0, 0.0, 0.0]


def test_a_nan_takes_the_gradient_at_its_first_edge():
    m = column(2.0, math.nan, math.nan).requires_grad_()
    edge_max(graph([(0, 0)] * 3, 1), m).backward()
    assert m.grad.flatten().tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("want_x", [False, True])
def test_r34_edge_weights_get_their_gradient(want_x):
    g = graph([(0, 2), (1, 2)], 3)
    for layer, value, dw in ((weighted, 7.0, [2.0, 3.0]), (weighted_largest, 6.0, [0.0, 3.0])):
        x = column(2.0, 3.0, 0.0).requires_grad_(want_x)
        w = torch.tensor([0.5, 2.0], requires_grad=True)
        out = layer(g, x, w)
        assert out[2].item() == value
        out[2].sum().backward()
        assert w.grad.tolist() == dw
    x = column(2.0, 3.0, 0.0).requires_grad_()
    weighted(g, x, torch.tensor([0.5, 2.0])).sum().backward()
    assert x.grad.flatten().tolist() == [0.5, 2.0, 0.0]


def test_r18_any_layout_gives_the_same_bits():
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).t()
    assert total(graph([(0, 2), (1, 2), (2, 0)], 3), x).tolist() == [[3.0, 6.0], [0.0, 0.0], [3.0, 9.0]]
    g = cases.random_graph()
    mine = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
    base = torch.randn(g.n_src, 7)
    up = torch.randn(g.n_dst, 7)
    seen = []
    for name, view in cases.layouts(base).items():
        leaf = view.detach().requires_grad_()
        out = total(mine, leaf)
        for upstream in cases.layouts(up).values():
            (grad,) = torch.autograd.grad(out, leaf, upstream, retain_graph=True)
            seen.append((name, out.detach().clone(), grad.clone()))
    for name, out, grad in seen:
        assert torch.equal(out, seen[0][1]), name
        assert torch.equal(grad, seen[0][2]), name


def test_expanded_inputs():
    g = cases.random_graph()
    mine = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
    for name, view in cases.expanded(g.n_src, 5, dtype=torch.float32).items():
        assert torch.equal(total(mine, view), total(mine, view.contiguous())), name


def test_r52_heads_times_weights():
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]])
    out = heads(graph([(0, 1)], 2), x, torch.tensor([[10.0, 100.0]]))
    assert out[1].tolist() == [[10.0, 20.0], [300.0, 400.0]]


def test_r46_weights_as_a_column():
    g, x = graph([(0, 1), (2, 1)], 3), column(1.0, 0.0, 10.0)
    assert weighted(g, x, torch.tensor([[2.0], [3.0]])).flatten().tolist() == [0.0, 32.0, 0.0]
    assert weighted(g, x, torch.tensor([2.0, 3.0])).flatten().tolist() == [0.0, 32.0, 0.0]
    w = torch.tensor([[2.0], [3.0]], requires_grad=True)
    weighted(g, x, w).sum().backward()
    assert w.grad.shape == (2, 1)
    with pytest.raises(ValueError, match=r"w"):
        weighted(g, x, torch.ones(1, 2))


def test_r16_bad_indices_raise_before_anything_is_built():
    x = torch.ones(4, 2)
    for name, bad in cases.bad_edge_index(4).items():
        with pytest.raises((IndexError, ValueError, TypeError)):
            gnnc.Graph.from_edge_index(bad, num_src=4)
        with pytest.raises((IndexError, ValueError, TypeError)):
            total(bad, x)
        assert total(edges((0, 1)), x)[1].tolist() == [1.0, 1.0], name


def test_r62_every_container_of_the_same_edges():
    g = cases.unsorted()
    x = torch.randn(g.n_src, 3)
    want = total(gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src), x)
    for name, ei in cases.edge_index_forms(g.edge_index).items():
        assert torch.equal(total(ei, x), want), name


@pytest.mark.parametrize("kind", ["huge", "neghuge", "spread", "denormal"])
def test_softmax_of_extreme_scores(kind):
    g = cases.random_graph()
    mine = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
    s = cases.values((g.E, 2), kind)
    out = weights_of(mine, s.float()).double()
    from tests.reference import reference as ref

    assert torch.allclose(out, ref.segment_softmax(s.float().double(), g.edge_index[1], g.n_dst), atol=2e-3)
    assert out.isfinite().all()


def test_a_row_of_minus_infinity_is_nan_as_in_torch():
    g = graph([(0, 0), (1, 0), (0, 1)], 2)
    s = torch.tensor([-math.inf, -math.inf, 1.0])[:, None]
    out = attend(g, s, torch.ones(2, 1, 1)).flatten()
    assert out[0].isnan()
    assert out[1] == 1.0
    s = torch.tensor([-math.inf, 0.0, -math.inf])[:, None]
    assert attend(graph([(0, 0), (1, 0), (0, 0)], 2), s, torch.ones(2, 1, 1))[0].item() == 1.0


def test_variance_far_from_zero_does_not_cancel():
    m = cases.values((1000, 1), "offset")
    g = graph([(0, 0)] * 1000, 1)
    want = m.var(unbiased=False).sqrt().item()
    # At 1e4 an f32 step is 1e-3, a tenth of the deviation: E[m^2] - E[m]^2 has no right digit left, Welford's update most of one.
    assert edge_std(g, m.float()).item() == pytest.approx(m.float().double().std(unbiased=False).item(), rel=0.1)
    assert edge_std(g, m).item() == pytest.approx(want, rel=1e-9)


@gnnc.layer
def edge_logsumexp(g, m: Edge["F"]):
    return g.logsumexp(m)


def test_logsumexp_of_infinities_is_torchs():
    rows = [[1.0, math.inf, 2.0], [-math.inf, -math.inf], [1.0, -math.inf], [math.nan, 1.0], [0.5]]
    pairs = [(0, i) for i, r in enumerate(rows) for _ in r]
    out = edge_logsumexp(graph(pairs, 1, len(rows) + 1), column(*[v for r in rows for v in r])).flatten()
    want = [torch.logsumexp(torch.tensor(r), 0) for r in rows]
    for a, b in zip(out, want, strict=False):
        assert torch.allclose(a, b.to(a.device), equal_nan=True)
    assert out[-1] == -math.inf  # the empty row


def test_a_softmax_row_that_holds_infinity_is_nan_as_in_torch():
    s = column(1.0, math.inf, 2.0, 0.0)
    out = weights_of(graph([(0, 0), (1, 0), (0, 0), (1, 1)], 2), s).flatten()
    assert out[:3].isnan().sum() >= 1
    assert out[3] == 1.0
    assert attend(graph([(0, 0), (1, 0)], 2), column(1.0, math.inf), torch.ones(2, 1, 1))[0].isnan().all()
