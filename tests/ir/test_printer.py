"""Printed text: exact forms, and the round trip parse(print(f)) for every operation, odd names and numbers, folds and plans."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Loc
from gnnc.ir.monoid import Component, Monoid, make_func, make_monoid
from gnnc.ir.parser import parse_func, parse_module, parse_plan
from gnnc.ir.printer import attr_text, print_func, print_plan
from gnnc.ir.structure import monoids_equal, plans_equal, structurally_equal
from gnnc.ir.sweep import DenseSpec, PlanSpec, Schedule, SweepSpec
from gnnc.ir.types import BOOL, DTYPES, F16, F32, I32, I64, Type
from gnnc.ir.verifier import verify, verify_plan
from tests.strategies import funcs

from .cases_of_ops import CASES, Case


def round_trip(f: Func) -> str:
    text = print_func(f)
    g = parse_func(text)
    assert structurally_equal(f, g)
    assert print_func(g) == text
    assert str(f) == text
    return text


def test_layer_text() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (2, 4)))
    att = b.input("att", Type("param", F32, (2, 4)))
    unread = b.input("unread", Type("dst", BOOL))
    m = b.gather(x, "src")
    alpha = b.op("softmax", b.sum(b.mul(att, b.op("leaky_relu", m, slope=0.2))))
    out = b.fold("sum", b.mul(b.reshape(alpha, (2, 1)), m))
    f = Func("gat", (x, att, unread), (out, out), result_names=("out", "again"))
    assert round_trip(f) == (
        "func @gat(\n"
        "    %x: src<f32, 2, 4>,\n"
        "    %att: param<f32, 2, 4>,\n"
        "    %unread: dst<bool>\n"
        ") -> (\n"
        "    out: dst<f32, 2, 4>,\n"
        "    again: dst<f32, 2, 4>\n"
        ") stage layer {\n"
        '  %0 = gather %x {end = "src"} : edge<f32, 2, 4>\n'
        "  %1 = leaky_relu %0 {slope = 0.2} : edge<f32, 2, 4>\n"
        "  %2 = mul %att, %1 : edge<f32, 2, 4>\n"
        "  %3 = reduce_sum %2 {axis = -1} : edge<f32, 2>\n"
        '  %4 = softmax %3 {over = "dst"} : edge<f32, 2>\n'
        "  %5 = reshape %4 {dims = [2, 1]} : edge<f32, 2, 1>\n"
        "  %6 = mul %5, %0 : edge<f32, 2, 4>\n"
        '  %7 = fold %6 {monoid = "sum", to = "dst"} : dst<f32, 2, 4>\n'
        "  return %7, %7\n"
        "}\n"
    )


def test_smallest_functions() -> None:
    assert round_trip(Func("nothing", (), ())) == "func @nothing() -> () stage layer {\n  return\n}\n"
    x = Builder(square=True).input("x", Type("node", I64))
    assert round_trip(Func("same", (x,), (x,), square=True, stage="lowered")) == (
        "func @same(%x: node<i64>) -> (out0: node<i64>) stage lowered square {\n  return %x\n}\n"
    )


def test_locations_are_comments() -> None:
    b = Builder()
    x = b.input("x", Type("edge", F32))
    with b.at(Loc("layer.py", 12, text="    return -x")):
        y = b.neg(x)
    f = Func("f", (x,), (b.op("exp", y),))
    text = print_func(f, locs=True)
    assert text.splitlines()[1:3] == ["  %0 = neg %x : edge<f32>  // layer.py:12: return -x", "  %1 = exp %0 : edge<f32>"]
    assert structurally_equal(parse_func(text), f)
    assert "//" not in print_func(f)


def test_wide_edge_ids_are_said() -> None:
    b = Builder(index_dtype=I64)
    m = b.input("m", Type("edge", F32))
    for v in (b.op("edge_id"), b.fold("max", m, part="arg")):
        f = Func("f", (m,), (v,))
        verify(f)
        assert " stage layer index i64 {" in round_trip(f)
    narrow = Builder()
    assert "index" not in round_trip(Func("f", (), (narrow.op("edge_id"),)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (True, "true"),
        (1, "1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e-12, "1e-12"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        ('a "b"\n', '"a \\"b\\"\\n"'),
        ((), "[]"),
        ((1, (2.0, None), "x"), '[1, [2.0, none], "x"]'),
    ],
)
def test_attribute_text(value: object, text: str) -> None:
    assert attr_text(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}-{i}") for n, cs in CASES.items() for i, c in enumerate(cs)])
def test_every_operation_round_trips(name: str, case: Case) -> None:
    b = Builder()
    ps = tuple(b.input(f"x{i}", t) for i, t in enumerate(case.types))
    round_trip(Func("f", ps, (case.build(b, *ps),)))


@settings(max_examples=50, deadline=None)
@given(funcs())
def test_random_functions_round_trip(f: Func) -> None:
    verify(f)
    round_trip(f)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(), max_size=3),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=2),
    st.lists(st.booleans(), max_size=2),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=3, max_size=5, unique=True),
    st.sampled_from(sorted(DTYPES)),
)
def test_odd_names_and_numbers_round_trip(floats: list[float], ints: list[int], bools: list[bool], names: list[str], dtype: str) -> None:
    b = Builder()
    params = tuple(b.input(n, Type("edge", DTYPES[dtype], (0, 3))) for n in names[1:])
    values = [b.const(x) for x in floats] + [b.const(x, I32) for x in ints] + [b.const(x, BOOL) for x in bools]
    results = (*values, params[0])
    round_trip(Func(names[0], params, results, result_names=tuple(f"{names[-1]}{i}" for i in range(len(results)))))


def test_names_that_look_like_numbers_and_keywords() -> None:
    b = Builder()
    ps = tuple(b.input(n, Type("edge", F32)) for n in ("0", "return", "square", "$in_degree:f64", "inf", "a b"))
    f = Func("func", ps, tuple(b.neg(p) for p in ps), result_names=("stage", "1", "square", "$x", "none", ""))
    text = round_trip(f)
    assert '%"0": edge<f32>' in text
    assert "%$in_degree:f64: edge<f32>" in text


# ---- folds


def _fold_with_everything() -> Monoid:
    m = make_monoid(
        "my fold",
        [Component("best", -math.inf), Component("n", 0.0, like=()), Component("arg", -1, "index", (0, 1))],
        lambda b, best, n, arg, m, w, e: [b.op("maximum", best, b.mul(m, w)), b.add(n, b.const(1.0)), e],
        lambda b, best, n, arg, best2, n2, arg2: [b.op("maximum", best, best2), b.add(n, n2), b.op("maximum", arg, arg2)],
        {"value": lambda b, best, n, arg, deg: b.where(b.op("gt", deg, b.const(0.0)), best, b.const(math.nan)), "n": lambda b, *s: s[1]},
        arity=2,
        uses_edge_id=True,
        doc='two lines\nand a "quote"',
    )
    acc, index = Type("edge", F32), Type("edge", I32)
    grad = make_func("grad", [acc, acc, acc, acc, index, acc, acc, index], lambda b, m, w, *_: [b.mul(m, w), w])
    return replace(m, grad=grad, vjp=None)


def test_a_functions_folds_round_trip() -> None:
    mine = _fold_with_everything()
    b = Builder(monoids=(mine,))
    x, w = b.input("x", Type("edge", F16, (2, 1))), b.input("w", Type("edge", F32, (3,)))
    f = Func("f", (x, w), (b.fold("my fold", x, w), b.fold("my fold", x, w, part="n", to="src")), monoids=(mine,))
    verify(f)
    text = round_trip(f)
    (again,) = parse_func(text).monoids
    assert monoids_equal(mine, again)
    assert again.vjp is None
    assert (
        '  monoid @"my fold" arity 2 edge_id {\n    doc "two lines\\nand a \\"quote\\""\n    component best : acc = -inf like [0]\n' in text
    )
    assert "    component n : acc = 0.0 like []\n    component arg : index = -1 like [0, 1]\n    step func @step(" in text
    assert (
        "    part value func @value(%a0: edge<f32>, %a1: edge<f32>, %a2: edge<i32>, %a3: edge<f32>) -> (out0: edge<f32>) stage scalar {"
        in text
    )


# ---- plans


def _plan() -> PlanSpec:
    b = Builder()
    h, w, c = b.input("h", Type("src", F32, (4,))), b.input("w", Type("param", F32, (3, 4))), b.input("c", Type("edge", F32))
    x = b.input("x", Type("src", F32, (3,)))
    product = Func("layer", (x, w), (b.op("matmul", x, w),), stage="lowered", result_names=("h",))
    degree = b.input("$in_degree", Type("dst", F32))
    message = b.mul(b.gather(h, "src"), b.reshape(c, (1,)))
    scale = b.reshape(b.op("maximum", degree, b.const(1.0)), (1,))
    program = Func("layer", (h, c, degree), (b.div(b.fold("sum", message), scale),), stage="sweep", result_names=("out",))
    return PlanSpec(
        "layer",
        (("x", x.type), ("w", w.type), ("c", c.type)),
        (("out", Type("dst", F32, (4,))),),
        (DenseSpec("layer_0", product), SweepSpec("layer_1", program, "dst", "dst", "spmm", 'a "product"', Schedule(512, 128, "small"))),
    )


def test_plan_text() -> None:
    plan = _plan()
    verify_plan(plan)
    text = print_plan(plan)
    again = parse_plan(text)
    assert plans_equal(again, plan)
    assert print_plan(again) == text
    assert text == (
        "plan @layer(x: src<f32, 3>, w: param<f32, 3, 4>, c: edge<f32>) -> (out: dst<f32, 4>) {\n"
        "  dense @layer_0 {\n"
        "    func @layer(%x: src<f32, 3>, %w: param<f32, 3, 4>) -> (h: src<f32, 4>) stage lowered {\n"
        "      %0 = matmul %x, %w : src<f32, 4>\n"
        "      return %0\n"
        "    }\n"
        "  }\n"
        "  sweep @layer_1 by dst rows dst {\n"
        '    family "spmm"\n'
        '    reason "a \\"product\\""\n'
        '    schedule {task_edges = 512, vector_bits = 128, reason = "small"}\n'
        "    func @layer(%h: src<f32, 4>, %c: edge<f32>, %$in_degree: dst<f32>) -> (out: dst<f32, 4>) stage sweep {\n"
        '      %0 = gather %h {end = "src"} : edge<f32, 4>\n'
        "      %1 = reshape %c {dims = [1]} : edge<f32, 1>\n"
        "      %2 = mul %0, %1 : edge<f32, 4>\n"
        '      %3 = fold %2 {monoid = "sum", to = "dst"} : dst<f32, 4>\n'
        "      %4 = const {value = 1.0} : param<f32>\n"
        "      %5 = maximum %$in_degree, %4 : dst<f32>\n"
        "      %6 = reshape %5 {dims = [1]} : dst<f32, 1>\n"
        "      %7 = div %3, %6 : dst<f32, 4>\n"
        "      return %7\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"square": True},
        {"params": ()},
        {"results": ()},
        {"steps": ()},
    ],
)
def test_plans_that_differ(change: dict[str, object]) -> None:
    plan = _plan()
    assert not plans_equal(plan, replace(plan, **change))  # type: ignore[arg-type]
    dense, sweep = plan.steps
    assert not plans_equal(plan, replace(plan, steps=(dense, replace(sweep, reason="other"))))  # type: ignore[type-var]
    assert not plans_equal(plan, replace(plan, steps=(replace(dense, name="n"), sweep)))


def test_map_and_square_plan() -> None:
    b = Builder(square=True)
    x = b.input("x", Type("node", F32))
    program = Func("f", (x,), (b.neg(x),), square=True, stage="sweep", result_names=("y",))
    plan = PlanSpec("f", (("x", x.type),), (("y", x.type),), (SweepSpec("f_0", program, None, "node"),), square=True)
    verify_plan(plan)
    text = print_plan(plan)
    assert text.startswith('plan @f(x: node<f32>) -> (y: node<f32>) square {\n  sweep @f_0 by none rows node {\n    family ""\n')
    assert plans_equal(parse_plan(text), plan)


# ---- equality


def test_functions_that_differ() -> None:
    b = Builder()
    x, y = b.input("x", Type("edge", F32)), b.input("y", Type("edge", F32))
    f = Func("f", (x, y), (b.add(x, y), b.const(0.0)))
    others = [
        replace(f, name="g"),
        replace(f, stage="lowered"),
        replace(f, square=True),
        replace(f, result_names=("a", "b")),
        replace(f, params=(y, x)),
        replace(f, results=(b.add(y, x), b.const(0.0))),
        replace(f, results=(b.add(x, y), b.const(-0.0))),
        replace(f, results=(b.add(x, y), b.const(0, I32))),
        replace(f, monoids=(_fold_with_everything(),)),
    ]
    assert structurally_equal(f, replace(f))
    assert not any(structurally_equal(f, g) for g in others)
    assert len({print_func(g) for g in [f, *others]}) == len(others) + 1


def test_a_module_holds_several_functions() -> None:
    texts = [print_func(Func(n, (), ())) for n in ("a", "b")]
    assert [f.name for f in parse_module("// two\n" + "\n".join(texts))] == ["a", "b"]
    assert parse_module("") == []
