"""The interpreter's own ways: forms of arguments and results, checks, plans, whole layers against eager torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret, interpret_plan
from gnnc.ir.ops import GraphArrays
from gnnc.ir.parser import parse_func, parse_plan
from gnnc.ir.types import BOOL, F32, I8, Type
from tests.reference import cases, reference

GATV2 = """func @gatv2(%x: src<f32, 2, 3>, %y: dst<f32, 2, 3>, %att: param<f32, 2, 3>) -> (out: dst<f32, 2, 3>) {
  %0 = gather %x {end = "src"} : edge<f32, 2, 3>
  %1 = gather %y {end = "dst"} : edge<f32, 2, 3>
  %2 = add %0, %1 : edge<f32, 2, 3>
  %3 = leaky_relu %2 {slope = 0.2} : edge<f32, 2, 3>
  %4 = mul %att, %3 : edge<f32, 2, 3>
  %5 = reduce_sum %4 {axis = -1} : edge<f32, 2>
  %6 = softmax %5 : edge<f32, 2>
  %7 = reshape %6 {dims = [2, 1]} : edge<f32, 2, 1>
  %8 = mul %7, %0 : edge<f32, 2, 3>
  %9 = fold %8 {monoid = "sum"} : dst<f32, 2, 3>
  return %9
}"""


def _graph(g: cases.Graph) -> GraphArrays:
    src, dst = (np.asarray(x) for x in g.edge_index)
    return GraphArrays(src, dst, g.n_src, g.n_dst)


@pytest.mark.parametrize("make", [cases.empty_all, cases.no_edges, cases.src_zero, cases.dst_zero, cases.duplicates, cases.bipartite_tall])
def test_attention_is_torchs(make: object) -> None:
    g = make()  # type: ignore[operator]
    rng = np.random.default_rng(0)
    x, y, att = rng.normal(size=(g.n_src, 2, 3)), rng.normal(size=(g.n_dst, 2, 3)), rng.normal(size=(2, 3))
    (out,) = interpret(parse_func(GATV2), _graph(g), [x, y, att])
    src, dst = g.edge_index
    xs, ys, a = (torch.as_tensor(v) for v in (x, y, att))
    score = (a * torch.nn.functional.leaky_relu(xs[src] + ys[dst], 0.2)).sum(-1)
    alpha = reference.segment_softmax(score, dst, g.n_dst)
    want = reference.scatter_sum(alpha[..., None] * xs[src], dst, g.n_dst)
    np.testing.assert_allclose(out, want.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "var", "std", "mul"])
def test_folds_are_the_references(aggr: str) -> None:
    name, part = {"var": ("moments", "var"), "std": ("moments", "std"), "mul": ("prod", "value")}.get(aggr, (aggr, "value"))
    b = Builder()
    m = b.input("m", Type("edge", F32, (3,)))
    f = Func("f", (m,), (b.fold(name, m, part=part),))
    for make in (cases.empty_all, cases.no_edges, cases.duplicates, cases.bipartite_tall, cases.isolated):
        g = make()
        for kind in ("normal", "ties", "ones", "negative"):
            values = cases.values((g.E, 3), kind)
            want = reference.aggregate(aggr, values, g.edge_index[1], g.n_dst)
            (out,) = interpret(f, _graph(g), [values.numpy()])
            np.testing.assert_allclose(out, want.numpy(), rtol=1e-9, atol=1e-12, err_msg=f"{g.name} {kind}")


def test_forms_of_arguments_and_results() -> None:
    b = Builder()
    p, flag, small = b.input("p", Type("param", F32, (2,))), b.input("flag", Type("dst", BOOL)), b.input("small", Type("edge", I8))
    f = Func("f", (p, flag, small), (b.mul(p, p), b.op("not", flag), b.add(small, small), b.op("reduce_rows", b.cast(small, F32))))
    graph = GraphArrays(np.array([0, 0]), np.array([0, 1]), 1, 2)
    by_name = {"small": [100, 1], "flag": [1, 0], "p": np.float32([1, 2])}
    for args in (by_name, [by_name["p"], by_name["flag"], by_name["small"]]):
        square, no, double, total = interpret(f, graph, args)  # type: ignore[arg-type]
        assert (square.tolist(), square.dtype) == ([1.0, 4.0], np.float64)
        assert (no.tolist(), no.dtype) == ([False, True], np.bool_)
        assert (double.tolist(), double.dtype) == ([-56, 2], np.int8)
        assert (total.tolist(), total.shape) == (101.0, ())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"x": np.zeros((4, 2, 3)), "y": np.zeros((2, 2, 3))}, "gatv2 needs the argument 'att'"),
        ([np.zeros((4, 2, 3))], "gatv2 takes 3 arguments, not 1"),
        ([np.zeros((4, 2, 3)), np.zeros((4, 2, 3)), np.zeros((2, 3))], "argument 'y' of gatv2 has shape [4, 2, 3], expected [2, 2, 3]"),
        ([np.zeros((4, 2, 3)), np.zeros((2, 2, 3)), np.zeros((1, 2, 3))], "argument 'att' of gatv2 has shape [1, 2, 3], expected [2, 3]"),
    ],
)
def test_wrong_arguments(args: object, message: str) -> None:
    graph = GraphArrays(np.array([0]), np.array([1]), 4, 2)
    with pytest.raises(ValueError) as e:
        interpret(parse_func(GATV2), graph, args)  # type: ignore[arg-type]
    assert str(e.value) == message


def test_a_square_function_needs_a_square_graph() -> None:
    f = parse_func("func @f(%x: node<f32>) -> (o: node<f32>) square { %0 = neg %x : node<f32> return %0 }")
    with pytest.raises(ValueError) as e:
        interpret(f, GraphArrays(np.array([0]), np.array([1]), 4, 2), [np.zeros(2)])
    assert str(e.value) == "f needs a square graph, not 4 sources and 2 destinations"


PLAN = """plan @mean(x: src<f32, 2>, w: param<f32, 2, 3>) -> (out: dst<f32, 3>, total: param<f32, 3>) {
  dense @mean_0 {
    func @mean(%x: src<f32, 2>, %w: param<f32, 2, 3>) -> (h: src<f32, 3>) stage lowered {
      %0 = matmul %x, %w : src<f32, 3>
      return %0
    }
  }
  sweep @mean_1 by dst rows dst {
    family "spmm" reason "" schedule {}
    func @mean(%h: src<f32, 3>, %$in_degree: dst<f32>) -> (out: dst<f32, 3>, total: param<f32, 3>) stage sweep {
      %0 = gather %h {end = "src"} : edge<f32, 3>
      %1 = fold %0 {monoid = "sum"} : dst<f32, 3>
      %2 = const {value = 1.0} : param<f32>
      %3 = maximum %$in_degree, %2 : dst<f32>
      %4 = reshape %3 {dims = [1]} : dst<f32, 1>
      %5 = div %1, %4 : dst<f32, 3>
      %6 = reduce_rows %5 : param<f32, 3>
      return %5, %6
    }
  }
}"""


def test_plans_run_in_order_over_named_buffers() -> None:
    plan = parse_plan(PLAN)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    graph = GraphArrays(np.array([0, 1, 2, 1]), np.array([1, 1, 0, 1]), 3, 3)
    want = np.stack([(x @ w)[[2]].mean(0), (x @ w)[[0, 1, 1]].mean(0), np.zeros(3)])
    for args in ({"x": x, "w": w}, [x, w]):
        got = interpret_plan(plan, graph, args)
        assert list(got) == ["out", "total"]
        np.testing.assert_allclose(got["out"], want)
        np.testing.assert_allclose(got["total"], want.sum(0))
    with pytest.raises(ValueError, match="mean needs the argument 'w'"):
        interpret_plan(plan, graph, {"x": x})


def test_non_finite_values_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    b = Builder()
    x = b.input("x", Type("edge", F32))
    outs = (b.op("log", x), b.div(x, x), b.op("softmax", x), b.fold("logsumexp", x), b.op("exp", b.mul(x, x)))
    graph = GraphArrays(np.array([0, 0, 0]), np.array([0, 0, 1]), 1, 3)
    interpret(Func("f", (x,), outs), graph, [np.array([-np.inf, 0.0, np.nan])])
    assert not recwarn.list
