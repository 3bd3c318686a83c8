"""What runs on an NVIDIA GPU: golden layers, adversarial graphs, determinism, streams, capture, bad input. Marked ``gpu``."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnc
from gnnc.backends import backend_for
from gnnc.ir.types import I32
from gnnc.pipeline import Compilation
from gnnc_runtime.tables import TORCH_DTYPES
from tests.golden.harness import check, graph_of
from tests.golden.layers import CASES, gatv2, gcn, pna, spmm, weighted_max
from tests.golden.test_golden import CORE, EVERYWHERE, GRAPHS, usable
from tests.reference import cases
from tests.test_properties import EXAMPLES, draw_example, floats, same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_core_graphs_in_float64(case):
    for name in CORE:
        if usable(case, GRAPHS[name]):
            check(case, GRAPHS[name], device="cuda")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(case, dtype):
    check(case, GRAPHS["random"], dtype, seed=3, device="cuda")


@pytest.mark.parametrize("case", [c for c in CASES if c.name in EVERYWHERE], ids=lambda c: c.name)
def test_every_graph(case):
    for g in GRAPHS.values():
        if usable(case, g):
            check(case, g, seed=5, device="cuda")


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("spmm", "gatv2", "weighted_max")], ids=lambda c: c.name)
def test_big_graphs(case):
    for make in cases.BIG:
        check(case, make(), torch.float32, seed=5, device="cuda")


def calls(g):
    graph = graph_of(g, "cuda")
    gen = torch.Generator().manual_seed(0)

    def leaf(*shape):
        return torch.randn(*shape, generator=gen).cuda().requires_grad_()

    x, w = leaf(g.n_src, 33), leaf(g.E)
    h, k, att = leaf(g.n_src, 4, 16), leaf(g.n_dst, 4, 16), leaf(4, 16)
    positive = w.detach().abs().requires_grad_()
    return {
        "spmm": (lambda: spmm(graph, w, x), [w, x]),
        "max": (lambda: weighted_max(graph, x, w), [x, w]),
        "gatv2": (lambda: gatv2(graph, h, k, att), [h, k, att]),
        "pna": (lambda: pna(graph, x), [x]),
        "gcn": (lambda: gcn(graph, x, positive), [x, positive]),
    }


@pytest.mark.parametrize("name", ["spmm", "max", "gatv2", "pna", "gcn"])
def test_the_same_bits_twenty_times(name):
    for g in (cases.star_in(1000), cases.star_out(1000), cases.power_law()):
        call, inputs = calls(g)[name]
        first = None
        for _ in range(20):
            out = call()
            found = [out.detach(), *torch.autograd.grad(out.square().sum(), inputs)]
            first = first or [t.clone() for t in found]
            assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))


def test_the_callers_stream_is_used():
    call, inputs = calls(cases.power_law())["gatv2"]
    want = call().detach().clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = call()
    side.synchronize()
    assert torch.equal(out, want)


def test_capture_in_a_cuda_graph():
    g = cases.power_law()
    graph = graph_of(g, "cuda")
    x = torch.randn(g.n_src, 4, 16, device="cuda")
    att = torch.randn(4, 16, device="cuda")
    with torch.no_grad():
        gatv2(graph, x, x, att)
        torch.cuda.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            out = gatv2(graph, x, x, att)
        for seed in range(3):
            x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
            recorded.replay()
            assert torch.equal(out, gatv2(graph, x, x, att))


def test_bad_indices_leave_the_context_usable():
    x = torch.ones(4, 2, device="cuda")
    for bad in cases.bad_edge_index(4).values():
        with pytest.raises((IndexError, ValueError, TypeError)):
            gnnc.Graph.from_edge_index(bad.cuda(), num_src=4)
    good = gnnc.Graph.from_edge_index(torch.tensor([[0], [1]], device="cuda"), num_src=4)
    assert spmm(good, torch.ones(1, device="cuda"), x)[1].tolist() == [1.0, 1.0]


def test_mixed_devices_are_a_clear_error():
    g = cases.random_graph()
    with pytest.raises(gnnc.UserError):
        spmm(graph_of(g, "cuda"), torch.ones(g.E), torch.ones(g.n_src, 2, device="cuda"))


def test_layouts_give_the_same_bits():
    g = cases.random_graph()
    graph = graph_of(g, "cuda")
    w = torch.rand(g.E, device="cuda")
    base = torch.randn(g.n_src, 7)
    want = spmm(graph, w, base.cuda())
    for name, view in cases.layouts(base).items():
        assert torch.equal(spmm(graph, w, view.cuda()), want), name
    big = torch.full((g.n_src, 17), 7.0, device="cuda")
    big[:, 1:8] = base.cuda()
    assert torch.equal(spmm(graph, w, big[:, 1:8]), want)
    flat = torch.zeros(g.n_src * 7 + 1, device="cuda")
    flat[1:] = base.cuda().reshape(-1)
    assert torch.equal(spmm(graph, w, flat[1:].view(g.n_src, 7)), want)


@pytest.mark.parametrize("f", [1, 2, 3, 31, 33, 47, 65, 100, 257, 1025])
def test_odd_widths(f):
    g = cases.random_graph()
    out = spmm(graph_of(g, "cuda"), torch.ones(g.E, device="cuda"), torch.ones(g.n_src, f, device="cuda"))
    degree = torch.bincount(g.edge_index[1], minlength=g.n_dst).float().cuda()
    assert torch.equal(out, degree[:, None].expand(-1, f))


def test_autocast():
    g = cases.random_graph()
    graph = graph_of(g, "cuda")
    x = torch.randn(g.n_src, 8, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        out = spmm(graph, torch.rand(g.E, device="cuda"), x)
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_interpreter_and_gpu_agree(data):
    example = draw_example(data)
    if example is None:
        return
    func, graph, got, want = example
    backend = backend_for(torch.device("cuda"))
    c = Compilation(func, floats(func), I32, backend)
    ei = torch.from_numpy(np.stack([graph.src, graph.dst])).cuda()
    on_gpu = gnnc.Graph.from_edge_index(ei, graph.num_src, graph.num_dst)
    for part in ("forward", "backward"):
        lowered = c.lower(part)
        e = backend.load(lowered.plan, None, backend.build(lowered))
        tensors = [torch.from_numpy(np.array(got[n], order="C")).to(TORCH_DTYPES[e.plan.buffer(n).dtype]).cuda() for n in e.plan.inputs]
        got |= {n: t.cpu().numpy() for n, t in zip(e.plan.outputs, e.run(on_gpu, tensors), strict=True)}
    for name, value in want.items():
        same(got[name], value, f"GPU, {name}")
