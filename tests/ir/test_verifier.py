"""The verifier: what is legal passes at every stage, and each rule has a program that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.monoid import Component, Monoid, builtin_monoids, find_monoid, make_func
from gnnc.ir.ops import OPS
from gnnc.ir.parser import parse_func
from gnnc.ir.sweep import DenseSpec, PlanSpec, SweepSpec
from gnnc.ir.types import F32, F64, I32, Type
from gnnc.ir.verifier import STAGE_OPS, VerifyError, graph_buffer, verify, verify_dense, verify_monoid, verify_plan, verify_sweep

EDGE, DST, SRC = Type("edge", F32, (3,)), Type("dst", F32, (3,)), Type("src", F32, (3,))


def message(call: Callable[[], None]) -> str:
    with pytest.raises(VerifyError) as e:
        call()
    return str(e.value)


def raw(op: str, operands: tuple[Value, ...], attrs: dict[str, object], type: Type) -> Value:
    """A value that no builder checked."""
    return Value(op, operands, tuple(attrs.items()), type, None)  # type: ignore[arg-type]


def test_stages_are_data() -> None:
    assert set(STAGE_OPS) == {"layer", "lowered", "sweep", "scalar"}
    assert STAGE_OPS["layer"] == set(OPS)
    assert set(OPS) - STAGE_OPS["lowered"] == {"softmax"}
    assert STAGE_OPS["scalar"] == {n for n, d in OPS.items() if d.kind == "elementwise"} | {"const", "input"}


def _softmax() -> Func:
    b = Builder()
    x = b.input("x", EDGE)
    return Func("f", (x,), (b.op("softmax", x),))


def test_softmax_only_in_a_layer() -> None:
    verify(_softmax())
    assert message(lambda: verify(_softmax().with_stage("lowered"), where="after some_pass")) == (
        "illegal IR at stage lowered in @f after some_pass: softmax is not legal at this stage\n"
        '  %0 = softmax %x {over = "dst"} : edge<f32, 3>'
    )
    assert message(lambda: verify(_softmax().with_stage("sweep"))).startswith("illegal IR at stage sweep in @f: softmax is not legal")
    assert message(lambda: verify(_softmax().with_stage("late"))) == (
        "illegal IR at stage late in @f: unknown stage 'late', one of layer, lowered, sweep, scalar"
    )


def test_the_error_has_its_parts() -> None:
    with pytest.raises(VerifyError) as e:
        verify(_softmax().with_stage("lowered"), where="here")
    error = e.value
    assert (error.stage, error.func, error.where, error.why) == ("lowered", "f", "here", "softmax is not legal at this stage")
    assert error.op == '%0 = softmax %x {over = "dst"} : edge<f32, 3>'


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda b, x: raw("neg", (x,), {}, EDGE.with_dims((4,))), "the type rule gives edge<f32, 3>\n  %0 = neg %x : edge<f32, 4>"),
        (lambda b, x: raw("negg", (x,), {}, EDGE), "unknown operation 'negg'\n  %0 = negg %x : edge<f32, 3>"),
        (lambda b, x: raw("add", (x,), {}, EDGE), "add takes 2 operands, not 1\n  %0 = add %x : edge<f32, 3>"),
        (
            lambda b, x: raw("leaky_relu", (x,), {}, EDGE),
            "attributes are not complete and in the table's order\n  %0 = leaky_relu %x : edge<f32, 3>",
        ),
        (
            lambda b, x: raw("neg", (x,), {"slope": 1.0}, EDGE),
            "neg has no attribute slope\n  %0 = neg %x {slope = 1.0} : edge<f32, 3>",
        ),
        (
            lambda b, x: raw("reduce_sum", (x,), {"axis": -2, "keepdim": False}, EDGE),
            "axis -2 of a value with feature dims [3] (one of [-1])\n  %0 = reduce_sum %x {axis = -2} : edge<f32, 3>",
        ),
        (
            lambda b, x: b.add(raw("neg", (x,), {}, EDGE), b.neg(x)),
            "not interned: equal to %0\n  %1 = neg %x : edge<f32, 3>",
        ),
        (lambda b, x: b.neg(b.input("y", EDGE)), "%y is an input but no parameter of the function"),
        (lambda b, x: b.neg(Builder().input("x", EDGE)), "%x is an input but no parameter of the function"),
        (
            lambda b, x: b.fold("maxonly", x),
            'the fold maxonly is made by passes only\n  %0 = fold %x {monoid = "maxonly", to = "dst"} : dst<f32, 3>',
        ),
        (
            lambda b, x: raw("degree", (), {"end": "dst", "dtype": "f32"}, Type("node", F32)),
            'the type rule gives dst<f32>\n  %0 = degree {end = "dst"} : node<f32>',
        ),
    ],
)
def test_broken_values(make: Callable[[Builder, Value], Value], why: str) -> None:
    b = Builder()
    x = b.input("x", EDGE)
    verify(Func("f", (x,), (b.neg(x),)))
    v = make(b, x)
    assert message(lambda: verify(Func("f", (x,), (v,)))) == f"illegal IR at stage layer in @f: {why}"


def test_functions() -> None:
    b = Builder()
    x, y = b.input("x", EDGE), b.input("y", EDGE)
    good = Func("f", (x, y), (x, x), result_names=("a", "b"))
    verify(good)
    head = "illegal IR at stage layer in @f: "
    assert message(lambda: verify(replace(good, result_names=("a", "a")))) == f"{head}two results are called 'a'"
    assert message(lambda: verify(replace(good, params=(x, x)))) == f"{head}two parameters are called 'x'"
    assert (
        message(lambda: verify(replace(good, params=(x, b.neg(x))))) == f"{head}a parameter that is no input\n  %? = neg %x : edge<f32, 3>"
    )
    node = Builder(square=True).input("n", Type("node", F32))
    assert message(lambda: verify(Func("f", (node,), ()))) == (
        f'{head}space node in a bipartite function\n  %n = input {{name = "n"}} : node<f32>'
    )
    verify(Func("f", (node,), (), square=True))
    s = b.input("s", SRC)
    assert "space src in a square function" in message(lambda: verify(Func("f", (s,), (), square=True)))


def test_scalar_stage() -> None:
    for m in builtin_monoids().values():
        for f in (m.step, m.combine, *(p for _, p in m.parts)):
            verify(f)
    x = Builder().input("x", EDGE)
    assert "a fold's function works on single numbers: space edge or param, no feature dims" in message(
        lambda: verify(Func("f", (x,), (), stage="scalar"))
    )
    b = Builder()
    y = b.input("y", Type("edge", F32))
    for v in (b.op("edge_id"), b.fold("sum", y), b.op("iota", size=1)):
        assert f"{v.op} is not legal at this stage" in message(lambda v=v: verify(Func("f", (y,), (v,), stage="scalar")))


def _fold(**change: object) -> Monoid:
    return replace(find_monoid("max"), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("monoid", "why"),
    [
        (_fold(components=()), "monoid max has no component"),
        (_fold(components=(Component("a", 0.0), Component("a", 0.0))), "monoid max: two components are called 'a'"),
        (_fold(components=(Component("a", 0.0), Component("b", 0, "count"))), "monoid max: component b has the unknown kind 'count'"),
        (
            _fold(components=(Component("a", 0.0), Component("b", 0, like=(1,)))),
            "monoid max: component b is like a message that is not there",
        ),
        (_fold(parts=find_monoid("max").parts * 2), "monoid max: two parts are called 'value'"),
        (_fold(combine=find_monoid("sum").combine), "monoid max: combine takes 2 values and gives 1, expected 4 and 2"),
        (_fold(uses_edge_id=False), "monoid max: step takes 4 values and gives 2, expected 3 and 2"),
        (_fold(arity=2), "monoid max: step takes 4 values and gives 2, expected 5 and 2"),
        (_fold(grad=find_monoid("max").step), "monoid max: grad takes 4 values and gives 2, expected 5 and 1"),
        (_fold(step=find_monoid("max").step.with_stage("layer")), "monoid max: step is at stage layer, not scalar"),
    ],
)
def test_broken_folds(monoid: Monoid, why: str) -> None:
    verify_monoid(find_monoid("max"))
    assert message(lambda: verify_monoid(monoid)) == f"illegal IR at stage scalar in @max: {why}"
    f = Func("f", (), (), monoids=(monoid,))
    assert message(lambda: verify(f)) == f"illegal IR at stage layer in @f: {why}"


def test_a_folds_functions_are_verified() -> None:
    wide = Type("edge", F32, (2,))
    bad = replace(find_monoid("sum"), step=make_func("step", [wide, wide], lambda b, s, m: [b.add(s, m)]))
    assert message(lambda: verify_monoid(bad)) == (
        "illegal IR at stage scalar in @step (monoid sum, step): a fold's function works on single numbers: space edge or param, no "
        "feature dims\n  %0 = add %a0, %a1 : edge<f32, 2>"
    )
    own = replace(find_monoid("sum"), vjp=None)
    twice = Func("f", (), (), monoids=(own, own))
    assert message(lambda: verify(twice)) == "illegal IR at stage layer in @f: two monoids are called 'sum'"


# ---- sweeps


def sweep(text: str, by: str | None = "dst", rows: str = "dst") -> SweepSpec:
    return SweepSpec("s", parse_func(text), by, rows)


GOOD = """func @f(%x: src<f32, 3>, %y: dst<f32, 3>, %w: edge<f32, 3>, %p: param<f32, 3>) -> (
    out: dst<f32, 3>, e: edge<f32, 3>, d_p: param<f32, 3>) stage sweep {
  %a = gather %x {end = "src"} : edge<f32, 3>
  %n = exp %y : dst<f32, 3>
  %b = gather %n {end = "dst"} : edge<f32, 3>
  %c = mul %a, %b : edge<f32, 3>
  %d = mul %c, %p : edge<f32, 3>
  %e = mul %d, %w : edge<f32, 3>
  %s = fold %e {monoid = "sum", to = "dst"} : dst<f32, 3>
  %g = degree {end = "dst"} : dst<f32>
  %h = reshape %g {dims = [1]} : dst<f32, 1>
  %out = add %s, %h : dst<f32, 3>
  %r = reduce_rows %out : param<f32, 3>
  %q = cast %r {dtype = "f32"} : param<f32, 3>
  return %out, %e, %q
}"""


def test_a_legal_sweep() -> None:
    verify_sweep(sweep(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("stage sweep", "stage lowered", "a sweep's function is at stage sweep"),
        (
            "%a = gather %x",
            "%z = neg %x : src<f32, 3>\n  %a = gather %z",
            "the rows of this sweep are dst; another node table is only read by a gather\n  %0 = neg %x : src<f32, 3>",
        ),
        (
            '%e {monoid = "sum", to = "dst"} : dst<f32, 3>',
            '%e {monoid = "sum", to = "src"} : src<f32, 3>\n  %s2 = fold %e {monoid = "sum"} : dst<f32, 3>',
            "",
        ),
        (
            "return %out, %e, %q",
            '%late = gather %out {end = "dst"} : edge<f32, 3>\n  %f = mul %late, %w : edge<f32, 3>\n  return %out, %f, %q',
            'a gather at the grouped end reads a value that hangs on a fold of this sweep\n  %10 = gather %9 {end = "dst"} : edge<f32, 3>',
        ),
        (
            "%d = mul %c, %p",
            "%sum = reduce_rows %c : param<f32, 3>\n  %d = mul %c, %sum",
            "a sum over all rows is known only after the sweep; nothing but a cast may read it\n  %5 = mul %3, %4 : edge<f32, 3>",
        ),
        ("return %out, %e, %q", "return %out, %e, %p", "a sweep's result is a row value, an edge value or a sum over all rows"),
    ],
)
def test_broken_sweeps(old: str, new: str, why: str) -> None:
    text = GOOD.replace(old, new).replace("%out = add %s,", "%out = add %s2," if "%s2" in new else "%out = add %s,")
    if not why:  # a fold to the other side that is a result
        text = text.replace("-> (\n    out: dst", "-> (\n    o: src<f32, 3>, out: dst").replace("return ", "return %s, ")
        why = 'another node table is only read by a gather\n  %6 = fold %5 {monoid = "sum", to = "src"} : src<f32, 3>'
    assert why in message(lambda: verify_sweep(sweep(text)))


def test_square_sweeps() -> None:
    text = """func @f(%x: node<f32>, %t: node<f32>) -> (out: node<f32>) stage sweep square {
      %a = gather %x {end = "src"} : edge<f32>
      %b = gather %x {end = "dst"} : edge<f32>
      %c = mul %a, %b : edge<f32>
      %s = fold %c {monoid = "sum", to = "dst"} : node<f32>
      %r = add %s, %t : node<f32>
      return %r
    }"""
    verify_sweep(sweep(text, rows="node"))
    verify_sweep(sweep(text.replace('to = "dst"', 'to = "src"'), "src", "node"))
    assert message(lambda: verify_sweep(sweep(text, "src", "node"))) == (
        'illegal IR at stage sweep in @f: a fold to dst in a sweep grouped by src\n  %3 = fold %2 {monoid = "sum", to = "dst"} : node<f32>'
    )
    assert message(lambda: verify_sweep(sweep(text, rows="dst"))).endswith("rows 'dst' do not fit, expected node")
    far = text.replace("%a = gather %x", "%n = neg %x : node<f32>\n      %a = gather %n")
    assert message(lambda: verify_sweep(sweep(far, rows="node"))) == (
        "illegal IR at stage sweep in @f: a gather at the other end reads a parameter, not the result of neg\n"
        '  %1 = gather %0 {end = "src"} : edge<f32>'
    )
    degree = text.replace("%r = add %s, %t", '%g = degree {end = "src"} : node<f32>\n      %r = add %s, %g')
    assert "the degree at src is a table here: read it from a parameter" in message(lambda: verify_sweep(sweep(degree, rows="node")))
    # an edge value reads a value known after the row's edges, through a value that is no gather: impossible by types, so by hand
    b = Builder(square=True)
    x = b.input("x", Type("node", F32))
    total = b.fold("sum", b.gather(x, "src"))
    spread = b.op("reduce_rows", total)
    func = Func("f", (x,), (b.mul(b.gather(x, "src"), spread),), True, "sweep")
    assert "a sum over all rows is known only after the sweep" in message(lambda: verify_sweep(SweepSpec("s", func, "dst", "node")))


def test_maps() -> None:
    text = """func @f(%x: dst<f32, 3>, %p: param<f32, 3>) -> (out: dst<f32, 3>, d: param<f32, 3>) stage sweep {
      %a = mul %x, %p : dst<f32, 3>
      %r = reduce_rows %a : param<f32, 3>
      return %a, %r
    }"""
    verify_sweep(sweep(text, None))
    assert message(lambda: verify_sweep(sweep(text, None, "edge"))).endswith("rows 'edge' do not fit, expected dst or src or param")
    assert message(lambda: verify_sweep(sweep(text, "in"))).endswith("a sweep is grouped by dst, src or nothing, not 'in'")
    assert "a map over rows reads no edges" in message(lambda: verify_sweep(sweep(GOOD, None)))
    only = "func @f(%p: param<f32, 3>) -> (o: param<f32, 3>) stage sweep { %0 = exp %p : param<f32, 3> return %0 }"
    verify_sweep(sweep(only, None, "param"))
    assert "a sweep's result is" in message(lambda: verify_sweep(sweep(only, None, "dst")))


# ---- dense steps and plans

DENSE = """func @f(%x: src<f16, 4>, %w: param<f16, 5, 4>) -> (y: src<f16, 5>) stage lowered {
  %t = transpose %w : param<f16, 4, 5>
  %m = matmul %x, %t : src<f32, 5>
  %c = cast %m {dtype = "f16"} : src<f16, 5>
  return %c
}"""


def test_dense_steps() -> None:
    verify_dense(DenseSpec("d", parse_func(DENSE)))

    def refused(text: str) -> str:
        return message(lambda: verify_dense(DenseSpec("d", parse_func(text))))

    assert refused(DENSE.replace("stage lowered", "")).endswith("a dense step's function is at stage lowered")
    assert refused(DENSE.replace("src<", "edge<")).startswith(
        "illegal IR at stage lowered in @f: a dense step multiplies node or parameter values\n  %1 = matmul"
    )
    assert "a dense step multiplies parameters, not the result of exp" in refused(
        DENSE.replace("%m = matmul %x", "%e = exp %x : src<f32, 4>\n  %m = matmul %e")
    )
    assert "a dense step's result is a matmul or contract_rows, perhaps behind a cast" in refused(
        DENSE.replace("%c = cast %m", "%e = exp %m : src<f32, 5>\n  %c = cast %e")
    )
    assert "a dense step has one result, not 0" in refused("func @f() -> () stage lowered { return }")


def _plan() -> PlanSpec:
    x, w, h = Type("src", F32, (4,)), Type("param", F32, (4, 3)), Type("src", F32, (3,))
    dense = parse_func(
        "func @f(%x: src<f32, 4>, %w: param<f32, 4, 3>) -> (h: src<f32, 3>) stage lowered { %0 = matmul %x, %w : src<f32, 3> return %0 }"
    )
    program = parse_func(
        "func @f(%h: src<f32, 3>, %$in_degree: dst<f32>) -> (out: dst<f32, 3>) stage sweep {\n"
        '%0 = gather %h {end = "src"} : edge<f32, 3>\n %1 = fold %0 {monoid = "sum"} : dst<f32, 3>\n'
        "%2 = reshape %$in_degree {dims = [1]} : dst<f32, 1>\n %3 = mul %1, %2 : dst<f32, 3>\n return %3 }"
    )
    steps = (DenseSpec("f_0", dense), SweepSpec("f_1", program, "dst", "dst"))
    assert h == dense.results[0].type
    return PlanSpec("f", (("x", x), ("w", w)), (("out", DST),), steps)


def test_a_legal_plan() -> None:
    verify_plan(_plan())
    assert graph_buffer("$out_degree:f64", False) == Type("src", F64)
    assert graph_buffer("$in_degree", True) == Type("node", F32)
    assert graph_buffer("$degree", True) is None
    assert graph_buffer("$in_degree:f8", True) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: replace(p, params=p.params[:1]), "step @f_0 reads 'w' before it is defined"),
        (lambda p: replace(p, params=p.params * 2), "two parameters are called 'x'"),
        (lambda p: replace(p, steps=p.steps[::-1]), "step @f_1 reads 'h' before it is defined"),
        (lambda p: replace(p, steps=(p.steps[0], p.steps[0])), "two steps are called 'f_0'"),
        (
            lambda p: replace(p, steps=(p.steps[0], replace(p.steps[0], name="f_9"), p.steps[1])),
            "step @f_9 writes 'h', which is defined already",
        ),
        (lambda p: replace(p, square=True), "step @f_0 and the plan differ in being square"),
        (lambda p: replace(p, results=(("y", DST),)), "the result 'y' is never written"),
        (lambda p: replace(p, results=(("out", SRC),)), "the result 'out' is dst<f32, 3>, declared src<f32, 3>"),
        (
            lambda p: replace(p, params=(("x", Type("src", F64, (4,))), p.params[1])),
            "step @f_0 reads 'x' as src<f32, 4>, it is src<f64, 4>",
        ),
    ],
)
def test_broken_plans(change: Callable[[PlanSpec], PlanSpec], why: str) -> None:
    assert message(lambda: verify_plan(change(_plan()))) == f"illegal IR at stage plan in @f: {why}"


def test_a_plans_steps_are_verified() -> None:
    plan = _plan()
    dense, program = plan.steps
    bad = replace(program, func=program.func.with_stage("lowered"))
    assert message(lambda: verify_plan(replace(plan, steps=(dense, bad)))) == (
        "illegal IR at stage lowered in @f (step @f_1): a sweep's function is at stage sweep"
    )
    assert I32.name == "i32"
