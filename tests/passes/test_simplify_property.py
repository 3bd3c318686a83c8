"""Simplified functions compute the same: random layer functions, forward and with gradients, on graphs with empty rows."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret
from gnnc.ir.ops import GraphArrays
from gnnc.ir.structure import structurally_equal
from gnnc.ir.types import F16
from gnnc.ir.verifier import verify
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.passes.simplify import Simplify
from tests.strategies import arguments, funcs, graphs


def assert_same(before: Func, after: Func, graph: GraphArrays, seed: int) -> None:
    verify(after)
    assert [r.type for r in after.results] == [r.type for r in before.results]
    args = arguments(before, graph, seed)
    for name, want, got in zip(before.result_names, interpret(before, graph, args), interpret(after, graph, args), strict=True):
        size = np.abs(want).max(initial=0.0)
        assume(np.isfinite(size) and size < 1e4)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * max(size, 1.0), err_msg=name)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_forward(data: st.DataObject) -> None:
    func = data.draw(funcs())
    after = Simplify().run(func)
    assert_same(func, after, data.draw(graphs(func.square)), data.draw(st.integers(0, 99)))
    assert structurally_equal(Simplify().run(after), after)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_with_gradients(data: st.DataObject) -> None:
    func = data.draw(funcs(most_steps=10))
    joint = Differentiate().run(func)
    assert_same(joint, Simplify().run(joint), data.draw(graphs(func.square)), data.draw(st.integers(0, 99)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_lowered(data: st.DataObject) -> None:
    func = LowerSoftmax().run(Differentiate().run(data.draw(funcs(most_steps=8))))
    after = Simplify().run(func)
    assert after.stage == "lowered"
    assert_same(func, after, data.draw(graphs(func.square)), data.draw(st.integers(0, 99)))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_half(data: st.DataObject) -> None:
    func = data.draw(funcs(dtype=F16, most_steps=10))
    assert_same(func, Simplify().run(func), data.draw(graphs(func.square)), data.draw(st.integers(0, 99)))
