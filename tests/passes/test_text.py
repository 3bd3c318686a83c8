"""Every ``.gir`` file under this folder: passes run on text, the output checked line by line and by value. See conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnc.ir.parser import parse_func, parse_module, parse_plan
from gnnc.ir.structure import plans_equal, structurally_equal
from gnnc.ir.sweep import PlanSpec

from .conftest import HERE, TextTest, assert_same_values, filecheck, ir_text, run_pipeline, text_tests


@pytest.mark.parametrize("path", text_tests(), ids=lambda p: p.relative_to(HERE).as_posix())
def test_text(path: Path) -> None:
    test = TextTest.read(path)
    assert test.run, f"{path}: no RUN line"
    for pipeline in test.run:
        funcs = test.functions()
        outputs = [run_pipeline(pipeline, f) for f in funcs]
        text = "\n".join(map(ir_text, outputs))
        error = filecheck(test.text, text, path.name)
        assert not error, f"RUN: {pipeline}\n{error}\n--- output\n{text}"
        for f, out in zip(funcs, outputs, strict=True):
            if not test.no_interpret:
                assert_same_values(f, out)
            if isinstance(out, PlanSpec):
                assert plans_equal(parse_plan(ir_text(out)), out)
            else:
                assert structurally_equal(parse_func(ir_text(out)), out)


DOUBLE = """
// RUN: lower_softmax
func @f(%x: edge<f32>) -> (out: dst<f32>) {
  %0 = softmax %x : edge<f32>
  %1 = fold %0 {monoid = "sum"} : dst<f32>
  return %1
}
"""


@pytest.mark.parametrize(
    ("checks", "holds"),
    [
        ("// CHECK: func @f\n// CHECK-NEXT: fold", False),
        ("// CHECK: func @f\n// CHECK-NEXT: softmax %x", True),
        ("// CHECK-NOT: softmax\n// CHECK: return", False),
        ("// CHECK-NOT: exp\n// CHECK: return", True),
        ("// CHECK: [[S:%[0-9]+]] = softmax\n// CHECK-NEXT: fold [[S]]", True),
        ("nothing to check", False),
    ],
)
def test_filecheck_can_fail(checks: str, holds: bool) -> None:
    output = ir_text(parse_module(DOUBLE)[0])
    assert (filecheck(checks, output) == "") is holds


def test_values_that_differ_are_seen() -> None:
    (f,) = parse_module(DOUBLE)
    (g,) = parse_module(DOUBLE.replace("%0 {monoid", "%x {monoid"))
    assert_same_values(f, f)
    with pytest.raises(AssertionError, match="result out on graph"):
        assert_same_values(f, g)
