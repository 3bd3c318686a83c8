"""differentiate, lower_softmax, save_or_recompute: gradients against finite differences, and what is saved."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.ir.interpreter import interpret
from gnnc.ir.types import TypeRuleError
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.passes.save_or_recompute import partition
from gnnc.passes.simplify import Simplify
from tests.passes import programs


def joint(text, *wrt):
    return Differentiate(tuple(wrt)).run(programs.func(text))


@pytest.mark.parametrize("text", [programs.GATV2, programs.SPMM, programs.MAX, programs.TWO_LEVELS])
def test_gradients_are_finite_differences(text):
    f = programs.func(text)
    g = programs.graph(f.square)
    a = programs.args(f, g)
    a["grad_out"] = np.random.default_rng(9).normal(size=interpret(f, g, a)[0].shape)
    got = dict(zip((r for r in joint(text).result_names), interpret(joint(text), g, a), strict=True))

    def loss():
        return float((interpret(f, g, {p.name: a[p.name] for p in f.params})[0] * a["grad_out"]).sum())

    for p in f.params:
        flat, d = a[p.name].reshape(-1), got[f"d_{p.name}"].reshape(-1)
        for k in range(0, flat.size, max(1, flat.size // 5)):
            old = flat[k]
            flat[k] = old + 1e-6
            up = loss()
            flat[k] = old - 1e-6
            down = loss()
            flat[k] = old
            assert d[k] == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6), p.name


def test_only_requested_gradients_are_made():
    everything, one = joint(programs.SPMM), joint(programs.SPMM, "w")
    assert everything.result_names == ("out", "d_x", "d_w")
    assert one.result_names == ("out", "d_w")
    assert not [v for v in one.body if v.op == "fold" and v.attr("to") == "src"]
    assert [v for v in everything.body if v.op == "fold" and v.attr("to") == "src"]


def test_a_parameter_that_nothing_hangs_on_gets_zeros():
    text = programs.SPMM.replace("%w: edge<f64>)", "%w: edge<f64>, %unused: param<f64, 2>)")
    f = joint(text, "unused")
    a = programs.args(f, programs.graph())
    a["grad_out"] = np.ones((5, 4))
    assert interpret(f, programs.graph(), a)[1].tolist() == [0.0, 0.0]


def test_an_unknown_parameter_is_an_error():
    with pytest.raises(TypeRuleError) as e:
        joint(programs.SPMM, "nothing")
    assert str(e.value) == "'nothing' is no floating parameter of spmm"


def test_softmax_becomes_its_statistic():
    before = programs.func(programs.GATV2)
    after = LowerSoftmax().run(before)
    assert after.stage == "lowered"
    assert not [v for v in after.body if v.op == "softmax"]
    assert [v.attr("monoid") for v in after.body if v.op == "fold"] == ["logsumexp", "sum"]
    g = programs.graph()
    a = programs.args(before, g)
    assert np.allclose(interpret(before, g, a)[0], interpret(after, g, a)[0])


def test_without_a_softmax_nothing_changes_but_the_stage():
    before = programs.func(programs.SPMM)
    after = LowerSoftmax().run(before)
    assert str(after).replace("stage lowered", "stage layer") == str(before)


def cut(text, *wrt):
    f = Simplify().run(Differentiate(tuple(wrt)).run(Simplify().run(programs.func(text))))
    return partition(LowerSoftmax().run(f), 1)


def test_the_cut_saves_the_statistic_not_the_weights():
    p = cut(programs.GATV2)
    assert p.saved == ("saved0",)
    assert str(p.forward.results[1].type) == "dst<f64, 3>"
    assert not [r for r in p.forward.results if r.type.space == "edge"]
    assert "saved0 : dst<f64, 3> (fold), saved" in p.reasons
    assert "out : dst<f64, 3, 4> (fold), a result" in p.reasons  # sum(alpha * dalpha) = dout . out


def test_a_sum_saves_nothing():
    assert cut(programs.SPMM).saved == ()


def test_a_maximum_saves_its_argument():
    p = cut(programs.MAX)
    assert [str(r.type) for r in p.forward.results] == ["dst<f64, 4>", "dst<i32, 4>"]


def test_a_degree_is_graph_data_and_never_saved():
    text = programs.SPMM.replace('"sum"', '"mean"')
    assert cut(text).saved == ()


@pytest.mark.parametrize("text", [programs.GATV2, programs.SPMM, programs.MAX, programs.TWO_LEVELS])
def test_both_halves_together_are_the_joint_function(text):
    whole = joint(text)
    p = cut(text)
    g = programs.graph(whole.square)
    a = programs.args(whole, g)
    want = dict(zip(whole.result_names, interpret(whole, g, a), strict=True))
    a |= dict(zip(p.forward.result_names, interpret(p.forward, g, {q.name: a[q.name] for q in p.forward.params}), strict=True))
    got = interpret(p.backward, g, {q.name: a[q.name] for q in p.backward.params})
    for name, value in zip(p.backward.result_names, got, strict=True):
        assert np.allclose(value, want[name]), name
