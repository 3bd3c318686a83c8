"""The pass manager: order, verification between passes, the broken pass by name, pipelines as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gnnc.ir.builder import Builder, rewrite
from gnnc.ir.core import Func, Value
from gnnc.ir.parser import parse_func
from gnnc.ir.printer import print_func
from gnnc.ir.types import TypeRuleError
from gnnc.ir.verifier import VerifyError
from gnnc.passes import manager
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.passes.manager import PASSES, BrokenPassError, PassManager, parse_pipeline, run_pass

TEXT = """func @f(%x: edge<f32>) -> (out: dst<f32>) stage layer {
  %0 = softmax %x {over = "dst"} : edge<f32>
  %1 = fold %0 {monoid = "sum", to = "dst"} : dst<f32>
  return %1
}
"""


@dataclass(frozen=True)
class Scripted:
    """A pass that does what it is told."""

    does: Callable[[Func], Func]
    name = "scripted"

    def run(self, func: Func) -> Func:
        return self.does(func)


def test_passes_run_in_order_and_are_seen() -> None:
    seen: list[tuple[str, str, str]] = []
    func = parse_func(TEXT)
    double = Scripted(lambda f: rewrite(f, lambda b, v, o: b.add(o[0], o[0]) if v.op == "exp" else None))
    out = PassManager([LowerSoftmax(), double], lambda name, before, after: seen.append((name, before.stage, after.stage))).run(func)
    assert seen == [("lower_softmax", "layer", "lowered"), ("scripted", "lowered", "lowered")]
    assert [v.op for v in out.body] == ["fold", "gather", "sub", "add", "fold"]
    assert PassManager([]).run(func) is func


def test_a_pass_that_makes_illegal_ir_is_named() -> None:
    func = parse_func(TEXT)
    broken = Scripted(lambda f: f.with_stage("lowered"))
    with pytest.raises(BrokenPassError) as e:
        PassManager([broken]).run(func)
    after = TEXT.replace("stage layer", "stage lowered")
    assert str(e.value) == (
        "internal error, please report: the pass scripted is broken: illegal IR at stage lowered in @f after scripted: softmax is not "
        'legal at this stage\n  %0 = softmax %x {over = "dst"} : edge<f32>\n'
        f"--- before\n{TEXT}--- after\n{after}"
    )
    assert (e.value.pass_name, e.value.before, e.value.after) == ("scripted", TEXT, after)


def _raise(error: Exception) -> Func:
    raise error


def test_a_pass_that_fails_is_named() -> None:
    func = parse_func(TEXT)
    for error, why in ((KeyError("k"), "KeyError: 'k'"), (TypeRuleError("arity", "add takes 2"), "TypeRuleError: add takes 2")):
        with pytest.raises(BrokenPassError) as e:
            run_pass(Scripted(lambda f, error=error: _raise(error)), func)
        assert str(e.value) == f"internal error, please report: the pass scripted is broken: {why}\n--- before\n{TEXT}"
        assert e.value.__cause__ is error


def test_a_missing_gradient_is_the_users() -> None:
    func = parse_func(TEXT.replace("fold %0 {monoid", 'fold %0 {part = "zeros", monoid').replace('"sum"', '"prod"'))
    with pytest.raises(TypeRuleError) as e:
        PassManager(parse_pipeline("differentiate")).run(func)
    assert e.value.code == "no-gradient"
    assert str(e.value).startswith("the fold 'prod' has no gradient")


def test_illegal_input_is_no_passs_fault() -> None:
    with pytest.raises(VerifyError):
        PassManager([LowerSoftmax()]).run(parse_func(TEXT).with_stage("lowered"))


def test_a_pass_does_not_touch_its_input() -> None:
    func = parse_func(TEXT)
    PassManager(parse_pipeline("differentiate,lower_softmax")).run(func)
    assert print_func(func) == TEXT


# ---- pipelines as text


def test_pipelines() -> None:
    assert parse_pipeline("") == []
    assert parse_pipeline("lower_softmax") == [LowerSoftmax()]
    assert parse_pipeline(" differentiate{wrt=x;att} , lower_softmax ") == [Differentiate(("x", "att")), LowerSoftmax()]
    assert parse_pipeline("differentiate,differentiate{}") == [Differentiate(), Differentiate()]
    assert list(PASSES) == ["simplify", "differentiate", "lower_softmax"]
    assert [p.name for p in parse_pipeline(",".join(PASSES))] == list(PASSES)


@dataclass(frozen=True)
class Options:
    """A pass with an option of every kind."""

    names: tuple[str, ...] = ()
    fast: bool = False
    rounds: int = 1
    mode: str = "a"
    name = "options"

    def run(self, func: Func) -> Func:
        return func


@pytest.fixture
def _options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(manager.PASSES, "options", lambda: Options)


@pytest.mark.usefixtures("_options")
def test_options_have_the_kind_of_their_default() -> None:
    (p,) = parse_pipeline("options{fast=true rounds=3 mode=b names=x;y}")
    assert p == Options(("x", "y"), True, 3, "b")
    assert parse_pipeline("options{names=}") == [Options()]


@pytest.mark.usefixtures("_options")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simplfy", "unknown pass 'simplfy', one of simplify, differentiate, lower_softmax, options"),
        ("lower_softmax,", "the pipeline 'lower_softmax,' ends with a comma"),
        ("lower_softmax differentiate", "cannot read the pipeline 'lower_softmax differentiate' at 'lower_softmax differentiate'"),
        ("differentiate{wrt=x", "cannot read the pipeline 'differentiate{wrt=x' at 'differentiate{wrt=x'"),
        ("differentiate{wrt}", "pass differentiate: 'wrt' is no option, write key=value"),
        ("differentiate{to=x}", "pass differentiate has no option 'to', one of wrt"),
        ("lower_softmax{to=x}", "pass lower_softmax has no option 'to', it has none"),
        ("options{fast=1}", "pass options: fast is true or false, not '1'"),
        ("options{rounds=x}", "pass options: rounds is an integer, not 'x'"),
    ],
)
def test_bad_pipelines(text: str, message: str) -> None:
    with pytest.raises(ValueError) as e:
        parse_pipeline(text)
    assert str(e.value) == message


def test_values_of_two_builders_do_not_mix() -> None:
    """A pass that leaves half of its result in the old builder is seen: the inputs are not the parameters."""
    func = parse_func(TEXT)

    def mixed(f: Func) -> Func:
        b = Builder.like(f)
        x: Value = b.input("x", f.params[0].type)
        return replace(f, params=(x,))

    with pytest.raises(BrokenPassError, match="%x is an input but no parameter of the function"):
        run_pass(Scripted(mixed), func)
