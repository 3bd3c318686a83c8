"""The public face: calling layers, looking inside, dumping, and what a bad call leaves behind."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import gnnc
from gnnc.ir.parser import parse_func, parse_plan
from gnnc.lang import Dst, Edge, Node, Param, Src, leaky_relu, maximum, where

EI = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]])


@gnnc.layer
def gatv2(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2):
    """The layer of the README."""
    score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), slope)).sum(-1)
    alpha = g.softmax(score)
    return g.sum(alpha[..., None] * g.src(x_src))


@gnnc.layer
def pair(g, x: Src["F"], w: Edge[()]):
    m = w[..., None] * g.src(x)
    return g.sum(m), m


@gnnc.layer
def only(g, x: Src["F"]):
    return (g.sum(g.src(x)),)


@gnnc.layer
def selected(g, x: Node["F"], *, how: str = "sum"):
    return g.sum(g.src(x)) if how == "sum" else g.max(g.src(x))


def inputs(grad=False):
    gen = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=gen).requires_grad_(grad) for s in ((3, 2, 4), (3, 2, 4), (2, 4))]


def test_a_layer_keeps_its_name_and_doc():
    assert gatv2.__name__ == "gatv2"
    assert gatv2.__doc__ == "The layer of the README."
    assert repr(gatv2) == "<gnnc.layer gatv2>"


def test_tuples_come_back_as_returned():
    out = pair(EI, torch.ones(3, 2), torch.rand(4))
    assert isinstance(out, tuple)
    assert [t.shape for t in out] == [(3, 2), (4, 2)]
    single = only(EI, torch.ones(3, 2))
    assert isinstance(single, tuple)
    assert len(single) == 1


def test_an_edge_result_is_in_the_callers_order():
    x, w = torch.randn(3, 2), torch.rand(4)
    assert torch.allclose(pair(EI, x, w)[1], w[:, None] * x[EI[0]])


def test_a_static_argument_is_a_specialisation():
    x = torch.tensor([[1.0], [5.0], [3.0]])
    assert selected(EI, x).flatten().tolist() == [4.0, 1.0, 5.0]
    assert selected(EI, x, how="max").flatten().tolist() == [3.0, 1.0, 5.0]
    assert selected(EI, x, how="sum").flatten().tolist() == [4.0, 1.0, 5.0]


def test_arguments_by_keyword():
    a = inputs()
    assert torch.equal(gatv2(EI, *a), gatv2(EI, a[0], att=a[2], x_dst=a[1]))


def test_no_grad_and_inference_mode_run_the_forward_alone():
    a = inputs(grad=True)
    want = gatv2(EI, *a)
    assert want.requires_grad
    with torch.no_grad():
        out = gatv2(EI, *a)
    assert not out.requires_grad
    assert torch.equal(out, want)
    with torch.inference_mode():
        assert torch.equal(gatv2(EI, *a), want)


def test_a_result_that_hangs_on_no_wanted_input_asks_for_no_gradient():
    x, w = torch.randn(3, 2), torch.rand(4)

    @gnnc.layer
    def both(g, x: Src["F"], w: Edge[()]):
        return g.sum(g.src(x)), g.sum(w)

    a, b = both(EI, x.requires_grad_(), w)
    assert a.requires_grad
    assert not b.requires_grad


def test_the_ir_of_a_call_reads_back():
    a = inputs(grad=True)
    for stage in ("traced", "simplified", "joint", "joint-simplified", "lowered", "forward", "backward", "backward-simplified"):
        text = gatv2.ir(EI, *a, stage=stage)
        assert str(parse_func(text)) == text
    for stage in ("forward-plan", "backward-plan"):
        assert parse_plan(gatv2.ir(EI, *a, stage=stage)).steps


def test_an_unknown_stage_names_the_known_ones():
    with pytest.raises(KeyError) as e:
        gatv2.ir(EI, *inputs(), stage="nothing")
    assert e.value.args[0] == "no stage 'nothing'; there are traced, simplified, lowered"


def test_explain_counts_bytes_and_gives_reasons():
    e = gatv2.explain(EI, *inputs(grad=True))
    text = str(e)
    assert "gatv2(x_src: src<f32, 2, 4>*, x_dst: dst<f32, 2, 4>*, att: param<f32, 2, 4>*)" in text
    assert "graph: 3 sources, 3 destinations, 4 edges, 32-bit indices" in text
    assert "why    a softmax over each row weights a sum: one pass with an online softmax" in text
    assert "edge-wise tensors written: 0 B" in text
    assert e.fused_bytes < e.op_by_op_bytes
    assert [h.title for h in e.halves] == ["forward", "backward"]
    assert [h.title for h in gatv2.explain(EI, *inputs()).halves] == ["forward"]


def test_explain_names_an_edge_tensor_that_is_returned():
    e = pair.explain(EI, torch.ones(3, 2), torch.rand(4))
    assert e.edge_tensor_bytes == 4 * 2 * 4


def test_a_dump_holds_every_stage(tmp_path):
    a = inputs(grad=True)

    @gnnc.layer
    def fresh(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"]):
        return g.sum(g.softmax((att * g.src(x_src) * g.dst(x_dst)).sum(-1))[..., None] * g.src(x_src))

    with gnnc.dump(tmp_path):
        fresh(EI, *a).sum().backward()
    (folder,) = tmp_path.iterdir()
    names = sorted(p.name for p in folder.iterdir())
    assert names[0] == "00-traced.gir"
    assert any(n.endswith(".ll") for n in names)
    assert any(n.endswith("backward-plan.gir") for n in names)
    assert [n[:2] for n in names] == [f"{i:02d}" for i in range(len(names))]
    text = (folder / "00-traced.gir").read_text()
    assert str(parse_func(text)) == text


def test_the_environment_turns_dumping_on(tmp_path, monkeypatch):
    monkeypatch.setenv("GNNC_DUMP", str(tmp_path))

    @gnnc.layer
    def dumped(g, x: Src["F"]):
        return g.sum(g.src(x) * 3)

    dumped(EI, torch.ones(3, 2))
    assert (tmp_path / "dumped" / "00-traced.gir").is_file()


def test_a_bad_call_compiles_nothing_and_the_next_one_works():
    @gnnc.layer
    def strict(g, x: Src["F"], w: Edge[()]):
        return g.sum(w[..., None] * g.src(x))

    graph = gnnc.Graph.from_edge_index(EI, num_src=3)
    with pytest.raises(gnnc.UserError):
        strict(graph, torch.ones(2, 2), torch.rand(4))
    with pytest.raises(gnnc.UserError):
        strict(graph, torch.ones(3, 2), torch.rand(3))
    assert strict._compiled == {}
    assert strict(graph, torch.ones(3, 2), torch.ones(4)).sum() == 8


def test_nothing_keeps_the_callers_tensors_alive():
    x = torch.randn(3, 2, requires_grad=True)
    ei = EI.clone()
    out = only(ei, x)[0]
    out.sum().backward()
    refs = [weakref.ref(x), weakref.ref(ei)]
    del x, ei, out
    gc.collect()
    assert [r() for r in refs] == [None, None]


def test_gradients_accumulate_as_torch_does():
    a = inputs(grad=True)
    gatv2(EI, *a).sum().backward()
    once = [t.grad.clone() for t in a]
    gatv2(EI, *a).sum().backward()
    for t, g in zip(a, once, strict=True):
        assert torch.allclose(t.grad, 2 * g)


def test_a_tensor_changed_between_forward_and_backward_is_torchs_error():
    a = inputs(grad=True)
    x = a[0] * 1
    out = gatv2(EI, x, a[1], a[2])
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_the_backward_is_compiled_when_first_asked(monkeypatch):
    from gnnc.compiled import CompiledLayer

    parts = []
    original = CompiledLayer._executable
    monkeypatch.setattr(CompiledLayer, "_executable", lambda self, part: parts.append(part) or original(self, part))

    @gnnc.layer
    def lazy(g, x: Src["F"]):
        return g.sum(g.src(x) * g.src(x))

    x = torch.randn(3, 2, requires_grad=True)
    out = lazy(EI, x)
    assert parts == ["forward"]
    out.sum().backward()
    assert parts == ["forward", "backward"]
    lazy(EI, x).sum().backward()
    assert parts == ["forward", "backward"]


def test_a_layer_of_layers():
    @gnnc.layer
    def twice(g, x: Node["F"]):
        h = g.mean(g.src(x))
        return h + g.mean(g.src(h))

    x = torch.randn(3, 2, dtype=torch.float64)
    src, dst = EI
    deg = torch.bincount(dst, minlength=3).double()[:, None]

    def mean(v):
        return torch.zeros_like(v).index_add(0, dst, v[src]) / deg

    assert torch.allclose(twice(EI, x), mean(x) + mean(mean(x)))


def test_a_thousand_operations_deep():
    @gnnc.layer
    def deep(g, x: Src["F"], y: Dst["F"], *, steps: int):
        m = g.src(x)
        for _ in range(steps):
            m = m * 1.001 + g.dst(y) * 0.001
        return g.sum(m)

    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 2, dtype=torch.float64)
    out = deep(EI, x, y, steps=500)
    m = x[EI[0]]
    for _ in range(500):
        m = m * 1.001 + y[EI[1]] * 0.001
    want = torch.zeros(3, 2, dtype=torch.float64).index_add(0, EI[1], m)
    assert torch.allclose(out, want)
    assert torch.allclose(torch.autograd.grad(out.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])


def test_parameters_may_have_any_name():
    @gnnc.layer
    def named(g, out0: Src["F"], grad_out0: Dst["F"], d_x: Edge[()], x: Src["F"], saved0: Param["F"], t0: Src["F"], in_t0: Src["F"]):
        s = g.softmax(g.src(out0) * g.dst(grad_out0) * d_x[..., None])
        return g.sum(s * g.src(x) * saved0 + g.src(t0) * g.src(in_t0))

    gen = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (3, 2), (4,), (3, 2), (2,), (3, 2), (3, 2)]
    a = [torch.randn(s, generator=gen, dtype=torch.float64).requires_grad_() for s in shapes]
    src, dst = EI
    score = a[0][src] * a[1][dst] * a[2][:, None]
    e = score.exp()
    s = e / torch.zeros(3, 2, dtype=torch.float64).index_add(0, dst, e)[dst]
    want = torch.zeros(3, 2, dtype=torch.float64).index_add(0, dst, s * a[3][src] * a[4] + a[5][src] * a[6][src])
    out = named(EI, *a)
    assert torch.allclose(out, want)
    for x, y in zip(torch.autograd.grad(out.sum(), a), torch.autograd.grad(want.sum(), a), strict=True):
        assert torch.allclose(x, y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_hops_in_half_precision(dtype):
    @gnnc.layer
    def twohop(g, x: Node["F"]):
        return g.sum(g.src(g.sum(g.src(x)) * 0.5))

    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    out = twohop(EI, x)
    a = torch.zeros(3, 3, dtype=torch.float64).index_put((EI[1], EI[0]), torch.ones(4, dtype=torch.float64), accumulate=True)
    assert out.dtype == dtype
    assert torch.allclose(out.double(), a @ (a @ x.double()) * 0.5, atol=0.05, rtol=0.02)
    (grad,) = torch.autograd.grad(out.float().sum(), x)
    assert torch.allclose(grad.double(), (a @ a).sum(0)[:, None].expand(3, 64) * 0.5, atol=0.05, rtol=0.02)


def test_a_forward_that_reads_no_edge_still_has_its_backward():
    @gnnc.layer
    def nodes_only(g, x: Src["F"], e: Edge["F"]):
        return x * 2

    x, e = torch.randn(3, 2, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    nodes_only(EI, x, e).sum().backward()
    assert torch.equal(x.grad, torch.full((3, 2), 2.0))
    assert torch.equal(e.grad, torch.zeros(4, 2))


@gnnc.monoid
class First:
    """The first message of a row: no gradient can be derived from its combine."""

    def init():
        return 0.0, 0.0

    def step(state, m):
        return where(state[1] > 0, state[0], m), state[1] * 0 + 1.0

    def combine(a, b):
        return where(a[1] > 0, a[0], b[0]), maximum(a[1], b[1])

    def finish(state, degree):
        return state[0]


@gnnc.layer
def first(g, x: Src["F"]):
    return g.fold(First, g.src(x))


def test_a_fold_without_a_gradient_is_forward_only():
    x = torch.randn(3, 2, requires_grad=True)
    out = first(EI, x)
    assert torch.equal(out[0], x[2].detach())  # its first edge is 2 -> 0
    with pytest.raises(gnnc.UserError) as e:
        out.sum().backward()
    text = str(e.value)
    assert "the fold 'First' has no gradient" in text
    assert "return g.fold(First, g.src(x))" in text
    assert "hint: give the monoid a grad(m, state, dstate)" in text


def test_forward_mode_is_one_clear_error():
    x = torch.randn(3, 2)
    with pytest.raises(RuntimeError, match="forward-mode derivatives are not supported"):
        torch.func.jvp(lambda q: only(EI, q)[0], (x,), (torch.ones(3, 2),))


def test_inside_a_compiled_function():
    a = inputs()

    def model(x):
        return gatv2(EI, x * 2, a[1], a[2]) + 1

    want = model(a[0])
    assert torch.allclose(torch.compile(model, backend="eager")(a[0]), want)
    x = a[0].clone().requires_grad_()
    y = a[0].clone().requires_grad_()
    torch.compile(model, backend="eager")(x).square().sum().backward()
    model(y).square().sum().backward()
    assert torch.allclose(x.grad, y.grad)


def test_a_torch_function_in_a_layer_points_at_the_users_line():
    @gnnc.layer
    def wrong(g, x: Src["F"]):
        return g.sum(torch.nn.functional.relu(g.src(x)))

    with pytest.raises(gnnc.UserError) as e:
        wrong(EI, torch.ones(3, 2))
    assert "return g.sum(torch.nn.functional.relu(g.src(x)))" in str(e.value)
