"""The builder: equal operations are one object, attributes differ by kind, rewriting keeps what nothing touches."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from gnnc.ir.builder import Builder, free_inputs, rewrite
from gnnc.ir.core import Func, Loc, Value, topological
from gnnc.ir.structure import structurally_equal
from gnnc.ir.types import BOOL, F16, F32, F64, I32, DType, Type, TypeRuleError


def test_equal_operations_are_one_object() -> None:
    b = Builder()
    x, y = b.input("x", Type("edge", F32, (3,))), b.input("y", Type("edge", F32, (3,)))
    assert b.add(x, y) is b.add(x, y)
    assert b.add(x, y) is not b.add(y, x)
    assert b.op("leaky_relu", x, slope=0.01) is b.op("leaky_relu", x)
    assert b.op("leaky_relu", x, slope=0.2) is not b.op("leaky_relu", x)
    assert b.input("x", Type("edge", F32, (3,))) is x


def test_attributes_differ_by_kind_and_sign() -> None:
    b = Builder()
    made = [
        b.const(0.0),
        b.const(-0.0),
        b.const(1.0),
        b.const(1, I32),
        b.const(True, BOOL),
        b.const(math.inf),
        b.const(-math.inf),
        b.const(math.nan),
        b.const(1.0, F64),
    ]
    assert all(x is not y for x, y in combinations(made, 2))
    assert b.const(math.nan) is made[7]
    assert b.const(-0.0) is made[1]


@pytest.mark.parametrize(
    ("like", "value", "dtype", "made"),
    [
        (F16, 2.0, F32, 2.0),
        (F64, 0.5, F64, 0.5),
        (I32, 2.0, I32, 2),
        (I32, 0.5, F32, 0.5),
        (BOOL, 0.0, BOOL, False),
        (BOOL, 1.0, BOOL, True),
        (BOOL, 2.0, I32, 2),
        (BOOL, 0.5, F32, 0.5),
    ],
)
def test_a_constant_takes_after_its_partner(like: DType, value: float, dtype: DType, made: float) -> None:
    b = Builder()
    assert b.const_like(b.input("x", Type("edge", like)), value) is b.const(made, dtype)


def test_location_is_the_first_ones() -> None:
    b = Builder()
    x = b.input("x", Type("edge", F32))
    with b.at(Loc("a.py", 3)):
        first = b.neg(x)
    with b.at(Loc("a.py", 9)):
        assert b.neg(x) is first
    assert str(first.loc) == "a.py:3"
    assert b.loc is None


def test_values_are_immutable() -> None:
    x = Builder().input("x", Type("edge", F32))
    with pytest.raises(AttributeError, match="IR values are immutable"):
        x.op = "neg"


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda b, x: b.op("gathr", x), "unknown-op", "unknown operation 'gathr' (did you mean 'gather'?)"),
        (lambda b, x: b.op("add", x), "arity", "add takes 2 operands, not 1"),
        (lambda b, x: b.op("gather", x), "attribute", "gather needs the attribute end"),
        (lambda b, x: b.op("neg", x, slope=1.0), "attribute", "neg has no attribute slope"),
        (lambda b, x: b.op("leaky_relu", x, slope="a"), "attribute", "leaky_relu needs slope to be a number, not 'a'"),
        (lambda b, x: b.op("reshape", x, dims=(-3,)), "attribute", "reshape needs dims to be a tuple of sizes, not (-3,)"),
        (lambda b, x: b.op("degree", end="left"), "attribute", "end='left': an end is 'src' or 'dst'"),
        (lambda b, x: b.op("const", value=1), "dtype", "a f32 constant needs a Python float, not 1"),
        (lambda b, x: b.op("const", value=200, dtype="i8"), "dtype", "the constant 200 does not fit i8"),
        (
            lambda b, x: b.op("const", value=1.0, dtype="f8"),
            "attribute",
            "const needs dtype to be one of f16, bf16, f32, f64, i8, u8, i16, i32, i64, bool, not 'f8'",
        ),
    ],
)
def test_refused_calls(call: object, code: str, message: str) -> None:
    b = Builder()
    with pytest.raises(TypeRuleError) as e:
        call(b, b.input("x", Type("edge", F32, (3,))))  # type: ignore[operator]
    assert (e.value.code, str(e.value)) == (code, message)


def test_inline_takes_the_arguments_precision() -> None:
    inner = Builder()
    p = inner.input("p", Type("edge", F32))
    half = Func("half", (p,), (inner.mul(p, inner.const(0.5)),))
    b = Builder()
    (wide,) = b.inline(half, [b.input("x", Type("edge", F64, (3,)))])
    (narrow,) = b.inline(half, [b.input("y", Type("edge", F16, (3,)))])
    assert (str(wide.type), str(narrow.type)) == ("edge<f64, 3>", "edge<f32, 3>")


def test_rewrite_replaces_and_copies() -> None:
    b = Builder()
    x, unread = b.input("x", Type("edge", F32)), b.input("u", Type("edge", F32))
    f = Func("f", (x, unread), (b.op("exp", b.neg(x)), x))

    def no_exp(b: Builder, v: Value, operands: tuple[Value, ...]) -> Value | None:
        return operands[0] if v.op == "exp" else None

    g = rewrite(f, no_exp)
    assert [v.op for v in g.body] == ["neg"]
    assert [p.name for p in g.params] == ["x", "u"]
    assert g.results[1] is g.params[0]
    assert structurally_equal(rewrite(f, lambda _b, _v, _o: None), f)
    assert not structurally_equal(g, f)
    assert [v.name for v in free_inputs(f.results)] == ["x"]


def test_a_long_chain_does_not_recurse() -> None:
    b = Builder()
    v = x = b.input("x", Type("edge", F32))
    for _ in range(5000):
        v = b.neg(v)
        v = b.add(v, x)
    f = Func("f", (x,), (v,))
    assert len(topological(f.results)) == 10001
    assert structurally_equal(rewrite(f, lambda _b, _v, _o: None), f)
