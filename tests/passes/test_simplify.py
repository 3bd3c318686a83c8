"""Simplify where values are special: rows without edges beside infinite factors, NaN, signs, sharing, long chains, half precision."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Loc, Value
from gnnc.ir.interpreter import interpret
from gnnc.ir.ops import GraphArrays
from gnnc.ir.printer import print_func
from gnnc.ir.structure import structurally_equal
from gnnc.ir.types import F16, F32, I64, Type
from gnnc.ir.verifier import verify
from gnnc.passes.simplify import Simplify

# Destination 2 has no edge, source 1 neither.
GRAPH = GraphArrays(np.array([0, 0, 2]), np.array([0, 1, 1]), 3, 3)


def run(func: Func, **args: list[object]) -> tuple[np.ndarray, np.ndarray]:
    after = Simplify().run(func)
    verify(after)
    (want,), (got,) = interpret(func, GRAPH, args), interpret(after, GRAPH, args)
    np.testing.assert_allclose(got, want, rtol=1e-9)
    return got, want


def ops(func: Func) -> list[str]:
    return [v.op for v in func.body]


def scaled(monoid: str, positive: bool = False, op: str = "mul") -> Func:
    b = Builder()
    w, y = b.input("w", Type("edge", F32)), b.input("y", Type("dst", F32))
    factor = b.gather(y, "dst")
    m = b.op(op, w, b.op("exp", factor) if positive else factor)
    return Func("scaled", (w, y), (b.fold(monoid, m),))


@pytest.mark.parametrize(("monoid", "positive"), [("sum", False), ("mean", False), ("max", True), ("min", True)])
@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_a_row_without_edges_is_0_beside_any_factor(monoid: str, positive: bool, factor: float) -> None:
    func = scaled(monoid, positive)
    after = Simplify().run(func)
    (fold,) = (v for v in after.body if v.op == "fold")
    assert fold.operands[0].op == "input", "the factor has left the fold"
    got, _ = run(func, w=[1.0, 2.0, 3.0], y=[0.5, 1.5, factor])
    assert got[2] == 0


@pytest.mark.parametrize("monoid", ["sum", "mean", "max", "min"])
def test_a_factor_that_is_nan_stays_nan_where_there_are_edges(monoid: str) -> None:
    got, _ = run(scaled(monoid, positive=True), w=[1.0, 2.0, 3.0], y=[np.nan, 1.0, 1.0])
    assert np.isnan(got[0]) and np.isfinite(got[1])


@pytest.mark.parametrize("monoid", ["max", "min"])
def test_an_addend_leaves_an_extremum_and_a_row_without_edges_is_0(monoid: str) -> None:
    func = scaled(monoid, op="add")
    (fold,) = (v for v in Simplify().run(func).body if v.op == "fold")
    assert fold.operands[0].op == "input"
    got, _ = run(func, w=[1.0, 2.0, 3.0], y=[0.5, -1.5, 7.0])
    assert got[2] == 0


@pytest.mark.parametrize("monoid", ["max", "min"])
def test_a_factor_of_unknown_sign_stays(monoid: str) -> None:
    func = scaled(monoid)
    (fold,) = (v for v in Simplify().run(func).body if v.op == "fold")
    assert fold.operands[0].op == "mul"
    run(func, w=[1.0, 2.0, 3.0], y=[0.5, -1.5, 7.0])


def test_no_guard_where_only_rows_with_edges_are_read() -> None:
    b = Builder()
    w, y = b.input("w", Type("edge", F32)), b.input("y", Type("dst", F32))
    total = b.fold("sum", b.mul(w, b.gather(y, "dst")))
    at_same, at_rows = b.gather(total, "dst"), total
    assert "where" not in ops(Simplify().run(Func("f", (w, y), (at_same,))))
    assert "where" in ops(Simplify().run(Func("f", (w, y), (at_rows,))))


def test_flash_sum_in_a_row_without_edges_is_0_beside_an_infinite_gradient() -> None:
    b = Builder()
    s, v = b.input("s", Type("edge", F32, (1,))), b.input("v", Type("src", F32, (2,)))
    dout = b.input("dout", Type("dst", F32, (2,)))
    out = b.fold("sum", b.mul(s, b.gather(v, "src")))
    delta = b.fold("sum", b.mul(b.reshape(s, ()), b.sum(b.mul(b.gather(dout, "dst"), b.gather(v, "src")))))
    func = Func("flash", (s, v, dout), (out, delta))
    after = Simplify().run(func)
    assert ops(after).count("fold") == 1
    args = {"s": [[0.5], [1.5], [2.0]], "v": [[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]], "dout": [[1.0, 2.0], [3.0, 4.0], [np.inf, np.nan]]}
    for got, want in zip(interpret(after, GRAPH, args), interpret(func, GRAPH, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_zero_times_infinity_stays_nan() -> None:
    b = Builder()
    w = b.input("w", Type("edge", F32))
    func = Func("f", (w,), (b.mul(w, b.const(0.0)),))
    got, _ = run(func, w=[np.inf, 1.0, np.nan])
    assert np.isnan(got[0]) and got[1] == 0 and np.isnan(got[2])


def test_a_product_with_two_readers_is_not_computed_twice() -> None:
    """w * y is read by a sum that would let y go and by a maximum that would not: one product a message, not two."""
    b = Builder()
    w, y = b.input("w", Type("edge", F32)), b.input("y", Type("dst", F32))
    m = b.mul(w, b.gather(y, "dst"))
    func = Func("f", (w, y), (b.fold("sum", m), b.fold("max", m)))
    assert structurally_equal(Simplify().run(func), func)


def test_results_keep_types_and_parameters_stay() -> None:
    b = Builder()
    x, unused = b.input("x", Type("edge", F16, (3,))), b.input("unused", Type("src", F16))
    same = b.add(x, b.const(0.0))  # f16 + number is f32: the identity is a conversion
    func = Func("f", (x, unused), (same, same, b.mul(x, b.const(1.0))), result_names=("a", "b", "c"))
    after = Simplify().run(func)
    verify(after)
    assert [p.name for p in after.params] == ["x", "unused"]
    assert [str(r.type) for r in after.results] == ["edge<f32, 3>"] * 3
    assert ops(after) == ["cast"]


def test_a_wide_cast_behind_the_gather() -> None:
    """Half rows are gathered as they are stored."""
    b = Builder()
    x = b.input("x", Type("src", F16, (3,)))
    func = Func("f", (x,), (b.fold("max", b.gather(b.cast(x, F32), "src")),))
    assert ops(Simplify().run(func)) == ["gather", "fold"]


def test_commutative_operands_have_one_order_by_structure() -> None:
    def build(swapped: bool) -> Func:
        b = Builder()
        x, y = b.input("x", Type("edge", F32)), b.input("y", Type("edge", F32))
        a, c = b.op("exp", x), b.op("tanh", y)
        return Func("f", (x, y), (b.mul(c, a) if swapped else b.mul(a, c), b.add(a, c) if swapped else b.add(c, a)))

    assert print_func(Simplify().run(build(False))) == print_func(Simplify().run(build(True)))


def test_source_locations_stay() -> None:
    b = Builder()
    with b.at(Loc("layer.py", 3)):
        x, w = b.input("x", Type("src", F32, (4,))), b.input("w", Type("param", F32, (4, 2)))
        g = b.gather(x, "src")
    with b.at(Loc("layer.py", 7)):
        m = b.op("matmul", g, w)
    after = Simplify().run(Func("f", (x, w), (m,)))
    assert [(v.op, v.loc and v.loc.line) for v in after.body] == [("matmul", 7), ("gather", 7)]


def test_wide_edge_ids_stay_wide() -> None:
    b = Builder(index_dtype=I64)
    w = b.input("w", Type("edge", F32))
    func = Func("f", (w,), (b.fold("max", w, part="arg"), b.op("edge_id")))
    assert [r.type for r in Simplify().run(func).results] == [r.type for r in func.results]


@pytest.mark.parametrize("op", ["mul", "add", "sub", "maximum"])
def test_a_chain_of_three_thousand_operations(op: str) -> None:
    b = Builder()
    x, e = b.input("x", Type("src", F32)), b.input("e", Type("edge", F32))
    v = b.gather(x, "src")
    for _ in range(3000):
        v = b.op(op, v, e)
    after = Simplify().run(Func("f", (x, e), (b.fold("sum", v), b.fold("max", v))))
    assert len(after.body) == 3003


def test_a_square_of_squares_is_not_expanded() -> None:
    """x^(2^40) has as many factors: flattening stops."""
    b = Builder()
    e = b.input("e", Type("edge", F32))
    v: Value = e
    for _ in range(40):
        v = b.mul(v, v)
    assert len(Simplify().run(Func("f", (e,), (b.fold("sum", v),))).body) == 41


def test_simplified_twice_is_simplified_once() -> None:
    b = Builder(square=True)
    x, w, e = b.input("x", Type("node", F32, (4,))), b.input("w", Type("param", F32, (8, 3))), b.input("e", Type("edge", F32, (1,)))
    i, j = b.gather(x, "dst"), b.gather(x, "src")
    m = b.op("relu", b.op("matmul", b.op("concat", i, b.sub(j, i), axis=-1), w))
    func = Func("f", (x, w, e), (b.fold("max", m), b.fold("mean", b.mul(m, e)), b.fold("sum", b.mul(e, b.mul(i, j)))), True)
    once = Simplify().run(func)
    assert structurally_equal(Simplify().run(once), once)
    assert print_func(Simplify().run(func)) == print_func(once)
