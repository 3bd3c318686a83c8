"""fuse and classify: how many sweeps, what they read and write, and that plans compute what the function does."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.ir.interpreter import interpret, interpret_plan
from gnnc.ir.sweep import DenseSpec
from gnnc.ir.verifier import verify_plan
from gnnc.passes.classify import classify
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.fuse import fuse
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.passes.save_or_recompute import partition
from gnnc.passes.simplify import Simplify
from tests.passes import programs


def plan_of(text):
    return classify(fuse(LowerSoftmax().run(programs.func(text))))


def halves(text):
    f = Simplify().run(Differentiate().run(Simplify().run(programs.func(text))))
    p = partition(LowerSoftmax().run(f), 1)
    return fuse(p.forward), fuse(Simplify().run(p.backward))


def shape(plan):
    return ["dense" if isinstance(s, DenseSpec) else s.grouped_by or f"map {s.rows}" for s in plan.steps]


def folds(plan):
    return [v.attr("monoid") for s in plan.sweeps for v in s.func.body if v.op == "fold"]


def test_attention_is_one_sweep_with_an_online_softmax():
    plan = plan_of(programs.GATV2)
    assert shape(plan) == ["dst"]
    assert folds(plan) == ["softmax_sum"]
    assert plan.sweeps[0].family == "attention"
    assert plan.sweeps[0].reason == "a softmax over each row weights a sum: one pass with an online softmax"


def test_weights_that_are_returned_need_a_second_pass():
    text = programs.GATV2.replace("(out: dst<f64, 3, 4>)", "(out: dst<f64, 3, 4>, alpha: edge<f64, 3>)").replace(
        "return %9", "return %9, %6"
    )
    plan = plan_of(text)
    assert shape(plan) == ["dst", "dst"]
    assert folds(plan) == ["softmax_sum", "softmax_sum"]  # value and statistic of one state
    assert [s.family for s in plan.sweeps] == ["attention", "attention"]


def test_weights_squared_are_no_online_softmax():
    text = programs.GATV2.replace("%8 = mul %7, %0", "%q = mul %7, %7 : edge<f64, 3, 1>\n  %8 = mul %q, %0")
    plan = plan_of(text)
    # One factor of the square is taken for the online fold, the other needs the statistic first.
    f = programs.func(text)
    g = programs.graph()
    a = programs.args(f, g)
    assert np.allclose(interpret(f, g, a)[0], interpret_plan(plan, g, a)["out"])
    assert shape(plan) == ["dst", "dst"]


def test_backward_of_attention_is_one_sweep_each_way():
    forward, backward = halves(programs.GATV2)
    assert shape(forward) == ["dst"]
    assert shape(backward) == ["dst", "src"]  # dout . out is made in the first and read by the second
    written = [r for s in (*forward.steps, *backward.steps) for r in s.func.results if r.type.space == "edge"]
    assert written == []


def test_a_maximum_nobody_differentiates_keeps_no_argument():
    assert folds(plan_of(programs.MAX)) == ["maxonly"]
    forward, _ = halves(programs.MAX)
    assert folds(forward) == ["max", "max"]  # value and argument of one state
    assert len(forward.steps) == 1


def test_a_fold_read_by_an_edge_ends_a_level():
    plan = plan_of(programs.TWO_LEVELS)
    assert shape(plan) == ["dst", "dst"]
    first, second = plan.sweeps
    # exp is in the first sweep's epilogue: what is gathered at the far end is written once, not computed on every edge.
    assert [v.op for v in first.func.body] == ["fold", "exp"]
    assert "exp" not in [v.op for v in second.func.body]
    assert first.func.result_names[0] in {p.name for p in second.func.params}


def test_folds_of_one_level_and_side_share_a_sweep():
    text = """
    func @many(%x: src<f64, 4>) -> (a: dst<f64, 4>, b: dst<f64, 4>, c: dst<f64, 4>) stage layer {
      %0 = gather %x {end = "src"} : edge<f64, 4>
      %1 = fold %0 {monoid = "mean"} : dst<f64, 4>
      %2 = fold %0 {monoid = "moments", part = "std"} : dst<f64, 4>
      %3 = fold %0 {monoid = "min"} : dst<f64, 4>
      return %1, %2, %3
    }
    """
    plan = plan_of(text)
    assert shape(plan) == ["dst"]
    assert plan.sweeps[0].family == "reduction"
    assert plan.sweeps[0].reason == "folds mean, minonly, moments"


def test_a_fold_that_can_wait_joins_a_later_sweep():
    text = """
    func @wait(%w: edge<f64>, %x: node<f64, 4>) -> (a: node<f64, 4>, b: node<f64, 4>) stage layer square {
      %0 = fold %w {monoid = "sum"} : node<f64>
      %1 = gather %0 {end = "src"} : edge<f64>
      %2 = reshape %1 {dims = [1]} : edge<f64, 1>
      %3 = gather %x {end = "src"} : edge<f64, 4>
      %4 = mul %2, %3 : edge<f64, 4>
      %5 = fold %4 {monoid = "sum"} : node<f64, 4>
      %6 = fold %3 {monoid = "max"} : node<f64, 4>
      return %5, %6
    }
    """
    plan = plan_of(text)
    assert shape(plan) == ["dst", "dst"]
    assert folds(plan)[:1] == ["sum"]
    assert sorted(folds(plan)[1:]) == ["maxonly", "sum"]


def test_dense_products_of_nodes_are_steps_of_their_own():
    text = """
    func @lin(%x: node<f64, 4>, %w: param<f64, 4, 3>) -> (out: node<f64, 3>) stage layer square {
      %0 = matmul %x, %w : node<f64, 3>
      %1 = gather %0 {end = "src"} : edge<f64, 3>
      %2 = fold %1 {monoid = "sum"} : node<f64, 3>
      %3 = relu %2 : node<f64, 3>
      return %3
    }
    """
    assert shape(plan_of(text)) == ["dense", "dst"]
    _, backward = halves(text)
    assert "dense" in shape(backward)


def test_a_dense_product_of_edges_stays_in_the_sweep():
    text = """
    func @edges(%e: edge<f64, 4>, %w: param<f64, 4, 3>) -> (out: dst<f64, 3>) stage layer {
      %0 = matmul %e, %w : edge<f64, 3>
      %1 = relu %0 : edge<f64, 3>
      %2 = fold %1 {monoid = "sum"} : dst<f64, 3>
      return %2
    }
    """
    assert shape(plan_of(text)) == ["dst"]
    _, backward = halves(text)
    assert shape(backward) == ["dst"]  # d_e is written, d_w is a sum over all edges


def test_spmm_and_what_is_none():
    assert classify(plan_of(programs.SPMM)).sweeps[0].family == "spmm"
    odd = programs.SPMM.replace("%2 = mul %1, %0", "%q = tanh %0 : edge<f64, 4>\n  %2 = mul %1, %q")
    plan = plan_of(odd)
    assert plan.sweeps[0].family == "reduction"
    assert plan.sweeps[0].reason == "a sum of edge messages that are no plain product (tanh)"


def test_a_result_that_is_an_input_is_copied():
    text = "func @id(%x: src<f64, 4>) -> (a: src<f64, 4>, b: src<f64, 4>) stage layer {\n  return %x, %x\n}\n"
    plan = plan_of(text)
    g = programs.graph()
    a = programs.args(programs.func(text), g)
    out = interpret_plan(plan, g, a)
    assert np.array_equal(out["a"], a["x"])
    assert np.array_equal(out["b"], a["x"])


def test_names_and_order_are_the_same_every_time():
    assert str(halves(programs.GATV2)) == str(halves(programs.GATV2))


@pytest.mark.parametrize("text", [programs.GATV2, programs.SPMM, programs.MAX, programs.TWO_LEVELS])
def test_plans_compute_what_the_function_does(text):
    f = programs.func(text)
    g = programs.graph(f.square)
    whole = Differentiate().run(f)
    a = programs.args(whole, g)
    want = dict(zip(whole.result_names, interpret(whole, g, a), strict=True))
    forward, backward = halves(text)
    verify_plan(forward)
    verify_plan(backward)
    out = interpret_plan(forward, g, a)
    out |= interpret_plan(backward, g, {**a, **out})
    for name, value in want.items():
        assert np.allclose(out[name], value), name
