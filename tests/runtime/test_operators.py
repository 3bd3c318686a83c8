"""Layers as torch operators: values, gradients, what is saved, second derivatives, compilation, autocast, graphs found again."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnc_runtime.executor import Executable
from gnnc_runtime.form_graph import FormGraph, form_args, graph_of_args, owner_of_args
from gnnc_runtime.graph import Graph
from gnnc_runtime.operators import LayerOperator, autocast_inputs, grad_mask
from gnnc_runtime.plan import BufferSpec, Plan, SweepStep
from tests.runtime import scaled
from tests.runtime.python_kernels import PythonKernel

ALL = (True, True, True)
BACKWARD_INPUTS = ("grad_out", "x", "w", "s", "saved0")


def operator(digest: str, **changes: Any) -> LayerOperator:
    kwargs: dict[str, Any] = {"num_results": 2, "mask": ALL, "backward": scaled.backward, "backward_inputs": BACKWARD_INPUTS} | changes
    return LayerOperator("scaled", digest, scaled.forward(), **kwargs)


OP = operator("all")
PLAIN = operator("plain", mask=(False,) * 3, backward=None, backward_inputs=None)


def wanted(graph: Graph, n: int = 3) -> tuple[Tensor, ...]:
    return tuple(t.requires_grad_(i < n) for i, t in enumerate(scaled.inputs(graph)))


# ---- values and gradients


def test_forward_and_backward() -> None:
    g = scaled.a_graph()
    mine, theirs = wanted(g), wanted(g)
    out, degree = OP(g, mine)
    want, want_degree = scaled.eager(g, *theirs)
    torch.testing.assert_close(out, want)
    assert torch.equal(degree, want_degree)
    assert out.requires_grad and not degree.requires_grad
    (out.square().sum()).backward()
    (want.square().sum()).backward()
    for a, b in zip(mine, theirs, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_without_gradients() -> None:
    g = scaled.a_graph()
    x, w, s = scaled.inputs(g)
    out, _ = PLAIN(g, (x, w, s))
    torch.testing.assert_close(out, scaled.eager(g, x, w, s)[0])
    assert not out.requires_grad
    with torch.no_grad():
        assert not OP(g, wanted(g))[0].requires_grad
    with torch.inference_mode():
        assert torch.equal(PLAIN(g, (x, w, s))[0], out)


def test_a_gradient_that_was_not_compiled_is_refused() -> None:
    g = scaled.a_graph()
    with pytest.raises(RuntimeError) as e:
        PLAIN(g, wanted(g, 1))
    assert str(e.value) == "gnnc::scaled_plain was compiled without gradients, but an input requires one"
    only_x = operator("only_x", mask=(True, False, False))
    with pytest.raises(RuntimeError) as e:
        only_x(g, wanted(g, 2))
    assert str(e.value) == "gnnc: scaled_only_x was compiled without the gradient of an input that now requires one"
    (out, _) = only_x(g, wanted(g, 1))
    assert out.requires_grad


def test_only_masked_inputs_get_gradients() -> None:
    g = scaled.a_graph()
    op = operator("mask_w", mask=(False, True, False))
    x, w, s = scaled.inputs(g)
    w.requires_grad_()
    op(g, (x, w, s))[0].sum().backward()
    v = scaled.inputs(g)[1].requires_grad_()
    scaled.eager(g, x, v, s)[0].sum().backward()
    assert x.grad is None and w.grad is not None
    torch.testing.assert_close(w.grad, v.grad)


def two_results() -> tuple[Executable, Callable[[], Executable]]:
    """a = x + 1, b = 2 x, each float: an upstream gradient may be undefined."""
    x = BufferSpec("x", "src", "f32", (), "input")
    out = [BufferSpec(n, "src", "f32", (), "output") for n in ("a", "b")]

    def store(v: Any, row: int, _: Any) -> None:
        v.a[1][row], v.a[2][row] = v.a[0][row] + 1, 2 * v.a[0][row]

    fwd = Executable(
        Plan("two", ("x",), ("a", "b"), (x, *out), (SweepStep("f", None, "src", ("x", "a", "b"), 1),)),
        {"f": PythonKernel([("f32", ())] * 3, store=store).kernel()},
    )
    grads = [BufferSpec(n, "src", "f32", (), "input") for n in ("grad_a", "grad_b")]
    kernel = PythonKernel([("f32", ())] * 3, store=lambda v, row, _: scaled.put(v, 2, row, v.a[0][row] + 2 * v.a[1][row])).kernel()

    def bwd() -> Executable:
        buffers = (*grads, BufferSpec("d_x", "src", "f32", (), "output"))
        plan = Plan("two_backward", ("grad_a", "grad_b"), ("d_x",), buffers, (SweepStep("b", None, "src", ("grad_a", "grad_b", "d_x"), 2),))
        return Executable(plan, {"b": kernel})

    return fwd, bwd


def test_undefined_upstream_gradients_are_zero() -> None:
    forward, backward = two_results()
    op = LayerOperator("two", "0", forward, 2, (True,), backward, ("grad_a", "grad_b"))
    g = scaled.a_graph()
    for pick, slope in ((0, 1.0), (1, 2.0)):
        x = torch.ones(7, requires_grad=True)
        op(g, (x,))[pick].sum().backward()
        assert x.grad is not None and x.grad.tolist() == [slope] * 7


def test_results_that_hang_on_no_input_require_no_gradient() -> None:
    forward, backward = two_results()
    op = LayerOperator("two", "constant", forward, 2, (True,), backward, ("grad_a", "grad_b"), constant_results=("b",))
    a, b = op(scaled.a_graph(), (torch.ones(7, requires_grad=True),))
    assert a.requires_grad and not b.requires_grad


def test_upstream_gradients_of_any_layout() -> None:
    g = scaled.a_graph()
    a, b = wanted(g), wanted(g)
    OP(g, a)[0].sum().backward()  # expanded, strides 0
    scaled.eager(g, *b)[0].sum().backward()
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


# ---- what is saved


def test_the_backward_is_made_when_first_needed() -> None:
    made = []

    def backward() -> Executable:
        made.append(1)
        return scaled.backward()

    g = scaled.a_graph()
    op = operator("lazy", backward=backward)
    out = op(g, wanted(g))[0]
    assert not made
    out.sum().backward()
    op(g, wanted(g))[0].sum().backward()
    assert made == [1]
    eager = operator("eager", backward=backward, backward_inputs=None)
    eager(g, wanted(g))
    assert made == [1, 1]  # without the names it must be made to know what to save


def test_saved_tensors_are_checked_and_the_others_are_free() -> None:
    g = scaled.a_graph()
    x, w, s = wanted(g)
    out, _ = OP(g, (x, w, s))
    with torch.no_grad():
        out.mul_(2)  # not read by the backward
    out.sum().backward()
    y = x.detach().clone().requires_grad_()
    out, _ = OP(g, (y, w, s))
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_nothing_keeps_tensors_or_graphs_alive() -> None:
    g = scaled.a_graph()
    tensors = wanted(g)
    out = OP(g, tensors)[0]
    out.sum().backward()
    refs = [weakref.ref(t) for t in (*tensors, out)] + [weakref.ref(g)]  # type: ignore[list-item]
    gc.disable()
    try:
        del tensors, out, g
        assert [r() is None for r in refs] == [True] * 5
    finally:
        gc.enable()


def test_the_graph_lives_until_the_backward() -> None:
    x, w, s = wanted(scaled.a_graph())
    out = OP(scaled.a_graph(), (x, w, s))[0]
    gc.collect()
    out.sum().backward()
    assert x.grad is not None


# ---- second derivatives

NO_SECOND = (
    "gnnc: second derivatives are not supported: the backward of scaled_all was differentiated (a gradient penalty, create_graph=True or a "
    "Hessian does this); compute that part with plain torch operations"
)


def test_second_derivatives_are_one_clear_error() -> None:
    g = scaled.a_graph()
    x, w, s = wanted(g)
    out = OP(g, (x, w, s))[0]
    grads = torch.autograd.grad(out.square().sum(), (x, w, s), create_graph=True)
    want = torch.autograd.grad(scaled.eager(g, x, w, s)[0].square().sum(), (x, w, s))
    for a, b in zip(grads, want, strict=True):
        torch.testing.assert_close(a, b)
    for penalty in (grads[0].square().sum(), sum(d.sum() for d in grads)):
        with pytest.raises(RuntimeError) as e:
            penalty.backward(retain_graph=True)  # type: ignore[union-attr]
        assert str(e.value) == NO_SECOND


# ---- as torch sees it


def packed(op: LayerOperator, graph: Graph, tensors: tuple[Tensor, ...]) -> tuple[Any, tuple[Any, ...]]:
    namespace, name = op.qualname.split("::")
    return getattr(getattr(torch.ops, namespace), name).default, (*tensors, *form_args(graph, ("dst", "src")))


def test_opcheck() -> None:
    g = scaled.a_graph()
    for op, tensors in ((OP, wanted(g)), (OP, wanted(g, 1)), (PLAIN, scaled.inputs(g)), (OP, wanted(scaled.a_graph(7, 0, 0)))):
        graph = g if tensors[1].numel() else scaled.a_graph(7, 0, 0)
        overload, args = packed(op, graph, tensors)
        results = torch.library.opcheck(overload, args)
        assert set(results.values()) == {"SUCCESS"}


def test_opcheck_of_the_backward() -> None:
    g = scaled.a_graph()
    x, w, s = scaled.inputs(g)
    h = torch.randn(5, 3)
    assert OP.backward.plan.name == "scaled_backward"  # defines the operator
    args = (torch.randn(5, 3), x, w, s, h, *form_args(g, ("dst", "src")))
    results = torch.library.opcheck(torch.ops.gnnc.scaled_all_backward.default, args)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_of_the_operator_on_tensors(backend: str) -> None:
    torch._dynamo.reset()
    overload, _ = packed(OP, scaled.a_graph(), scaled.inputs(scaled.a_graph()))

    def layer(x: Tensor, w: Tensor, s: Tensor, forms: tuple[Tensor, ...], counts: tuple[int, int, int]) -> Tensor:
        out: Tensor = overload(torch.tanh(x), w, s, *forms, *counts)[0]
        return out.square().sum()

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    for seed, edges in enumerate((40, 55, 61)):
        g = scaled.a_graph(num_edges=edges, seed=seed)
        mine, theirs = wanted(g), wanted(g)
        args = form_args(g, ("dst", "src"))
        compiled(*mine, args[:6], args[6:]).backward()
        scaled.eager(g, torch.tanh(theirs[0]), *theirs[1:])[0].square().sum().backward()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_of_a_layer_call(backend: str) -> None:
    torch._dynamo.reset()
    g = scaled.a_graph()
    g.in_form(), g.out_form()

    def layer(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
        return OP(g, (torch.tanh(x), w, s))[0].square().sum()

    mine, theirs = wanted(g), wanted(g)
    torch.compile(layer, backend=backend, fullgraph=True)(*mine).backward()
    scaled.eager(g, torch.tanh(theirs[0]), *theirs[1:])[0].square().sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_compiled_layers_have_no_second_derivative_either() -> None:
    torch._dynamo.reset()
    g = scaled.a_graph()
    g.in_form(), g.out_form()
    x, w, s = wanted(g)
    out = torch.compile(lambda *t: OP(g, t)[0], backend="eager")(x, w, s)
    (d,) = torch.autograd.grad(out.sum(), w, create_graph=True)
    with pytest.raises(RuntimeError) as e:
        d.sum().backward()
    assert str(e.value) == NO_SECOND


# ---- registration


def test_registered_once() -> None:
    assert operator("all").qualname == OP.qualname == "gnnc::scaled_all"
    assert operator("all")._op is OP._op
    with pytest.raises(ValueError) as e:
        operator("all", mask=(True, False, True))
    assert str(e.value) == "operator gnnc::scaled_all exists with another plan"


def test_registered_from_many_threads() -> None:
    made: list[LayerOperator] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        made.append(operator("threads"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8 and len({id(op._op) for op in made}) == 1


def test_any_layer_name_will_do() -> None:
    op = LayerOperator("<lambda>.é", "ab", scaled.forward(), 2, (False,) * 3)
    assert op.qualname == "gnnc::_lambda____ab"
    g = scaled.a_graph()
    assert op(g, scaled.inputs(g))[0].shape == (5, 3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mask": (True,)}, "scaled: 1 flags for 3 inputs"),
        ({"backward": None}, "scaled: gradients are wanted but there is no backward"),
    ],
)
def test_wrong_operators_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as e:
        operator("wrong", **changes)
    assert str(e.value) == text


# ---- autocast and masks


def test_grad_mask() -> None:
    a, b = torch.zeros(1, requires_grad=True), torch.zeros(1)
    assert grad_mask((a, b)) == (True, False)
    with torch.no_grad():
        assert grad_mask((a, b)) == (False, False)


def test_autocast_inputs() -> None:
    a = torch.ones(2, requires_grad=True)
    tensors = (a, torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float16))
    assert all(x is y for x, y in zip(autocast_inputs(tensors), tensors, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        cast = autocast_inputs(tensors)
    assert [t.dtype for t in cast] == [torch.bfloat16, torch.float64, torch.int64, torch.bfloat16]
    cast[0].sum().backward()
    assert a.grad is not None and a.grad.dtype == torch.float32
    with torch.autocast("cuda", torch.float16, enabled=False):
        assert autocast_inputs(tensors)[0] is a


def test_the_operator_runs_under_autocast_as_it_is() -> None:
    g = scaled.a_graph()
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = OP(g, wanted(g))
    assert out.dtype == torch.float32


# ---- from tensors back to graphs


def test_forms_of_a_known_graph_are_recognised() -> None:
    g = scaled.a_graph(5, 5)
    OP(g, wanted(g))[0].sum().backward()
    for sides in (("dst",), ("dst", "src")):
        assert owner_of_args(form_args(g, sides)) is g
    other = scaled.a_graph(5, 5, seed=1)
    mixed = (*form_args(g, ("dst",))[:2], form_args(other, ("dst",))[2], None, None, None, *form_args(g, ())[6:])
    assert owner_of_args(mixed) is None  # another order of edges is another graph
    assert owner_of_args((*form_args(g, ("dst",))[:6], 6, 5, 40)) is None
    assert owner_of_args(form_args(g, ())) is None


def test_forms_of_unknown_origin_make_a_graph_once() -> None:
    g = scaled.a_graph()
    args = tuple(t.clone() if isinstance(t, Tensor) else t for t in form_args(g, ("dst", "src")))
    found = graph_of_args(args)
    assert isinstance(found, FormGraph) and graph_of_args(args) is found
    assert torch.equal(found.in_degree(torch.float32), g.in_degree()) and torch.equal(
        found.out_degree(torch.float64), g.out_degree(torch.float64)
    )
    assert torch.equal(found.out_form().indices, g.out_form().indices)
    args[2].copy_(args[2].flip(0))
    assert graph_of_args(args) is not found  # an edit is seen
    gone = weakref.ref(found)
    del found, args
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("at", range(6))
def test_forms_that_do_not_fit_are_refused(at: int) -> None:
    args = [t.clone() if isinstance(t, Tensor) else t for t in form_args(scaled.a_graph(), ("dst", "src"))]
    args[at][-1] = 99  # type: ignore[index]
    with pytest.raises(ValueError) as e:
        graph_of_args(tuple(args))
    assert str(e.value) == f"gnnc: the {'in' if at < 3 else 'out'} form does not fit a graph of 7 sources, 5 destinations and 40 edges"


def test_a_missing_form_is_refused() -> None:
    g = scaled.a_graph()
    args = tuple(t.clone() if isinstance(t, Tensor) else t for t in form_args(g, ("src",)))
    overload, _ = packed(PLAIN, g, scaled.inputs(g))
    with pytest.raises(ValueError) as e:
        overload(*scaled.inputs(g), *args)
    assert str(e.value) == "gnnc: this operator reads the graph's in form: pass in_indptr, in_indices and in_edge_ids"
