"""What the parser refuses, and how it says so: the place, the line, a caret."""

from __future__ import annotations

import pytest

from gnnc.ir.parser import IRParseError, parse_func, parse_module, parse_plan
from gnnc.ir.printer import print_func
from gnnc.ir.types import F32

GOOD = """// a layer
func @f(%x: src<f32, 3>, %w: edge<f32>) -> (out: dst<f32, 3>) {
  %m = gather %x {end = "src"} : edge<f32, 3>  // comments go anywhere
  %c = reshape %w {dims = [1]} : edge<f32, 1>
  %p = mul %m, %c : edge<f32, 3>
  %out = fold %p {monoid = "sum"} : dst<f32, 3>
  return %out
}
"""


def test_hand_written_text() -> None:
    f = parse_func(GOOD)
    assert (f.name, f.stage, f.square, f.result_names) == ("f", "layer", False, ("out",))
    assert [v.op for v in f.body] == ["gather", "reshape", "mul", "fold"]


def test_dead_operations_vanish_and_equal_ones_are_one() -> None:
    text = GOOD.replace("  return", "  %dead = exp %p : edge<f32, 3>\n  return").replace("%p {monoid", "%again {monoid")
    text = text.replace("  %out =", "  %again = mul %m, %c : edge<f32, 3>\n  %out =")
    assert print_func(parse_func(text)) == print_func(parse_func(GOOD))


def test_an_integer_where_a_float_constant_is_meant() -> None:
    f = parse_func(
        "func @f() -> (a: param<f32>, b: param<i32>) { %0 = const {value = 1} : param<f32> "
        '%1 = const {value = 1, dtype = "i32"} : param<i32> return %0, %1 }'
    )
    assert [repr(r.attr("value")) for r in f.results] == ["1.0", "1"]
    assert f.results[0].type.dtype is F32


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mul %m, %c", "mull %m, %c", "5:8: unknown operation 'mull' (did you mean 'mul'?)"),
        ("mul %m, %c", "mul %m, %d", "5:16: %d is not defined before this line"),
        (": edge<f32, 3>\n  %out", ": edge<f32, 1>\n  %out", "5:21: mul gives edge<f32, 3>, the text says edge<f32, 1>"),
        ("%p = mul", "%m = mul", "5:3: %m is defined twice"),
        (
            "mul %m, %c",
            "mul %m, %x",
            "5:8: operands live in different spaces: edge and src (bring the src value to the edges with g.src(v))",
        ),
        ("mul %m, %c", "mul %m", "5:8: mul takes 2 operands, not 1"),
        ("mul %m, %c : edge<f32, 3>", "mul %m, %c", "6:3: unexpected '%out', expected ',', ':' or '{'"),
        ("edge<f32, 1>", "edge<f33, 1>", "4:39: unknown dtype 'f33', one of f16, bf16, f32, f64, i8, u8, i16, i32, i64, bool"),
        ("edge<f32, 1>", "edge<f32, -1>", "4:44: a feature dim is 0 or more, not -1"),
        ("%w: edge<f32>", "%w: edges<f32>", "2:30: unknown space 'edges', one of src, dst, node, edge, param"),
        ("return %out", "return", "7:3: 0 values returned, 1 results declared"),
        ("return %out", "return %p", "2:45: the returned value is edge<f32, 3>, the result is declared dst<f32, 3>"),
        ("return %out\n}", "return %out", "7:14: the text ends here, expected ',' or '}'"),
        ("{dims = [1]}", "{dims = }", "4:27: unexpected '}', expected a number, a string, an integer, '[', 'false', 'none' or 'true'"),
        ("{dims = [1]}", "{dims = [1], dims = [1]}", "4:32: attribute dims is given twice"),
        ("{dims = [1]}", "", "4:8: reshape needs the attribute dims"),
        ("{dims = [1]}", "{dims = 1}", "4:8: reshape needs dims to be a tuple of sizes, not 1"),
        ("mul %m, %c", "mul % m", "5:12: unexpected '%', expected a %value, ':' or '{'"),
        ("mul %m, %c", "input", "5:8: an input is a parameter of the function, not an operation"),
        ("%w: edge", "%x: edge", "2:26: %x is defined twice"),
        (") {\n", ") index i5 {\n", "2:69: unknown dtype 'i5', one of f16, bf16, f32, f64, i8, u8, i16, i32, i64, bool"),
    ],
)
def test_errors_are_located(old: str, new: str, message: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    line, column, _ = message.split(":", 2)
    source = text.splitlines()[int(line) - 1]
    with pytest.raises(IRParseError) as e:
        parse_func(text, "layer.gir")
    assert str(e.value) == f"layer.gir:{message}\n  {source}\n  {' ' * (int(column) - 1)}^"
    assert (e.value.file, e.value.line, e.value.column, e.value.source) == ("layer.gir", int(line), int(column), source)


def test_what_the_text_holds() -> None:
    plan = "plan @p() -> () {\n}\n"
    assert parse_plan(plan).name == "p"
    for call, text, message in (
        (parse_func, "", "<text>:1:1: expected one function, found nothing\n  \n  ^"),
        (parse_func, plan, "<text>:1:1: expected one function, found a plan\n  plan @p() -> () {\n  ^"),
        (
            parse_plan,
            GOOD,
            "<text>:2:1: expected one plan, found a function\n  func @f(%x: src<f32, 3>, %w: edge<f32>) -> (out: dst<f32, 3>) {\n  ^",
        ),
        (parse_plan, plan + plan, "<text>:3:1: expected one plan, found 2 items\n  plan @p() -> () {\n  ^"),
        (parse_module, plan, "<text>:1:1: a plan where functions are expected\n  plan @p() -> () {\n  ^"),
        (parse_module, "fun", "<text>:1:1: unexpected 'fun', expected the end, 'func' or 'plan'\n  fun\n  ^"),
    ):
        with pytest.raises(IRParseError) as e:
            call(text)
        assert str(e.value) == message


STEP = "step func @step(%s: edge<f32>, %m: edge<f32>) -> (o: edge<f32>) stage scalar { %0 = add %s, %m : edge<f32> return %0 }"
FOLD = f"""func @f(%m: edge<f32>) -> (o: dst<f32>) {{
  monoid @mine arity 1 {{
    component s : acc = 0.0 like [0]
    {STEP}
    {STEP.replace("step", "combine")}
    part value func @v(%s: edge<f32>, %d: edge<f32>) -> (o: edge<f32>) stage scalar {{ return %s }}
  }}
  %0 = fold %m {{monoid = "mine"}} : dst<f32>
  return %0
}}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("= 0.0 like", "= true like", "3:25: a component starts with a number"),
        ("like [0]", "like [0.5]", "3:34: `like` is a list of message numbers"),
        ("    step func", "    combine func", "2:3: monoid @mine needs one step, found 0"),
        (
            '"mine"',
            '"yours"',
            "8:8: unknown fold 'yours' (one of sum, mean, max, min, maxonly, minonly, prod, moments, logsumexp, softmax_sum)",
        ),
    ],
)
def test_folds_in_text(old: str, new: str, message: str) -> None:
    assert parse_func(FOLD).monoids[0].components[0].name == "s"
    with pytest.raises(IRParseError) as e:
        parse_func(FOLD.replace(old, new, 1))
    assert str(e.value).splitlines()[0] == f"<text>:{message}"


def test_steps_in_text() -> None:
    head = 'plan @p() -> () {\n  sweep @s by dst rows dst {\n    family "" reason ""\n    schedule {}\n'
    text = head + "    func @f() -> () { return }\n  }\n}\n"
    (step,) = parse_plan(text).steps
    assert step.name == "s"
    for old, new, message in (
        ("by dst", "by edge", "2:15: a sweep is by dst, src or none, not edge"),
        ("{}", "{lanes = 4}", "4:14: a schedule has no lanes"),
    ):
        with pytest.raises(IRParseError) as e:
            parse_plan(text.replace(old, new))
        assert str(e.value).splitlines()[0] == f"<text>:{message}"


def test_a_long_function_parses() -> None:
    lines = ["func @f(%x: edge<f32>) -> (o: edge<f32>) {", "  %0 = neg %x : edge<f32>"]
    lines += [f"  %{i} = exp %{i - 1} : edge<f32>" for i in range(1, 3000)]
    f = parse_func("\n".join([*lines, "  return %2999", "}"]))
    assert len(f.body) == 3000
