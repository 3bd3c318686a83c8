"""``@gnnc.monoid``: the data it becomes, its identity, the laws it is held to, its errors in full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnc
from gnnc.frontend.monoid import UserMonoid
from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret, run_monoid
from gnnc.ir.ops import GraphArrays
from gnnc.ir.parser import parse_func
from gnnc.ir.printer import print_func
from gnnc.ir.structure import monoids_equal
from gnnc.ir.types import F32, Type
from gnnc.ir.verifier import verify_monoid
from gnnc.lang import maximum, sqrt, where

from .snippets import Module

HEADER = "import gnnc\nfrom gnnc.lang import *\nfrom gnnc.frontend.layer_function import LayerFunction as layer\n"
RMS = """
@gnnc.monoid
class Rms:
    def init():
        return 0.0
    def step(state, m):
        return state + m * m
    def combine(a, b):
        return a + b
    def finish(state, degree):
        return sqrt(state / maximum(degree, 1.0))
"""


def define(folder: Path, source: str) -> Module:
    return Module(folder, source, HEADER).run()


def error(folder: Path, source: str, kind: type[Exception] = TypeError) -> str:
    return Module(folder, source, HEADER).error(lambda m: m.run(), kind)


def fold(monoid: UserMonoid, messages: np.ndarray, index: list[int], rows: int, **how: Any) -> np.ndarray:
    return run_monoid(monoid.to_ir(), "value", [messages], np.array(index), rows, **how)


@gnnc.monoid
class Spread:
    """The largest minus the smallest."""

    def init():
        return float("inf"), -float("inf")

    def step(state, m):
        low, high = state
        return where(m < low, m, low), maximum(high, m)

    def combine(a, b):
        return where(b[0] < a[0], b[0], a[0]), maximum(a[1], b[1])

    def finish(state, degree):
        return where(degree > 0, state[1] - state[0], 0.0)


# ---- what it becomes


def test_data() -> None:
    ir = Spread.to_ir()
    verify_monoid(ir)
    assert (ir.name, ir.arity, ir.doc, ir.vjp, ir.grad) == ("Spread", 1, "The largest minus the smallest.", None, None)
    assert [(c.name, c.init, c.kind, c.like) for c in ir.components] == [("s0", np.inf, "acc", (0,)), ("s1", -np.inf, "acc", (0,))]
    assert [k for k, _ in ir.parts] == ["value", "s0", "s1"]
    assert print_func(ir.step) == (
        "func @step(%a0: edge<f32>, %a1: edge<f32>, %a2: edge<f32>) -> (out0: edge<f32>, out1: edge<f32>) stage scalar {\n"
        "  %0 = lt %a2, %a0 : edge<bool>\n"
        "  %1 = where %0, %a2, %a0 : edge<f32>\n"
        "  %2 = maximum %a1, %a2 : edge<f32>\n"
        "  return %1, %2\n"
        "}\n"
    )


@pytest.mark.parametrize("how", [{}, {"splits": 3}, {"splits": 2, "strided": True}, {"splits": 3, "from_right": True}])
def test_values(how: dict[str, Any]) -> None:
    m = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 8.0], [5.0, 5.0]])
    np.testing.assert_array_equal(fold(Spread, m, [0, 0, 0, 2], 3, **how), [[2.0, 7.0], [0.0, 0.0], [0.0, 0.0]])


def test_states_that_read_no_message_are_one_number_a_row(tmp_path: Path) -> None:
    m = define(
        tmp_path,
        """
        @gnnc.monoid
        class Mean:
            def init():
                return 0, 0.0
            def step(s, m):
                return s[0] + 1, s[1] + m
            def combine(a, b):
                return a[0] + b[0], a[1] + b[1]
            def finish(s, degree):
                return s[1] / maximum(s[0], 1)
        """,
    )
    assert [c.like for c in m.Mean.to_ir().components] == [(), (0,)]


def test_several_messages(tmp_path: Path) -> None:
    m = define(
        tmp_path,
        """
        @gnnc.monoid
        class Weighted:
            def init():
                return 0.0, 0.0
            def step(s, m, w):
                return s[0] + m * w, s[1] + w
            def combine(a, b):
                return a[0] + b[0], a[1] + b[1]
            def finish(s, degree):
                return where(degree > 0, s[0] / s[1], 0.0)

        @layer
        def f(g, x: Src["F"], w: Edge[()]):
            return g.fold(Weighted, (g.src(x), w[..., None]))
        """,
    )
    ir = m.Weighted.to_ir()
    assert (ir.arity, [c.like for c in ir.components]) == (2, [(0, 1), (1,)])
    func: Func = m.f.trace_types([Type("src", F32, (2,)), Type("edge", F32)], {}, F32)
    graph = GraphArrays(np.array([0, 1]), np.array([0, 0]), 2, 2)
    (out,) = interpret(func, graph, [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 3.0])])
    np.testing.assert_allclose(out, [[2.5, 3.5], [0, 0]])
    assert print_func(parse_func(print_func(func))) == print_func(func)


def test_methods_with_self_and_static_methods(tmp_path: Path) -> None:
    m = define(
        tmp_path,
        """
        class Base:
            power = 3
            @staticmethod
            def init():
                return 0.0
            def combine(self, a, b):
                return a + b

        @gnnc.monoid
        class Power(Base):
            def step(self, state, m):
                return state + m ** self.power
            def finish(self, state, degree):
                return state
        """,
    )
    np.testing.assert_allclose(fold(m.Power, np.array([1.0, 2.0]), [0, 0], 1), [9.0])


def test_a_state_of_one_in_a_tuple_stays_a_tuple(tmp_path: Path) -> None:
    m = define(
        tmp_path,
        RMS.replace("return 0.0", "return (0.0,)")
        .replace("return state + m * m", "return (state[0] + m * m,)")
        .replace("return a + b", "return (a[0] + b[0],)")
        .replace("state /", "state[0] /"),
    )
    np.testing.assert_allclose(fold(m.Rms, np.array([3.0, 4.0]), [0, 0], 1), [sqrt(12.5)])


# ---- identity


def test_fingerprints_are_of_the_data(tmp_path: Path) -> None:
    one, same, other = (define(tmp_path, text).Rms for text in (RMS, "\n\n" + RMS, RMS.replace("m * m", "2 * m * m")))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert monoids_equal(one.to_ir(), same.to_ir())
    assert one.to_ir() is one.to_ir()
    assert len(one.fingerprint()) == 64 and int(one.fingerprint(), 16) > 0


def test_a_global_that_changes_is_seen(tmp_path: Path) -> None:
    m = define(tmp_path, "scale = 2.0\n" + RMS.replace("m * m", "scale * m * m"))
    before = m.Rms.fingerprint()
    np.testing.assert_allclose(fold(m.Rms, np.array([1.0]), [0], 1), [sqrt(2.0)])
    m.names["scale"] = 3.0
    np.testing.assert_allclose(fold(m.Rms, np.array([1.0]), [0], 1), [sqrt(3.0)])
    after = m.Rms.fingerprint()
    m.names["scale"] = 2.0
    assert (m.Rms.fingerprint(), after == before) == (before, False)


def test_a_helper_may_be_defined_further_down(tmp_path: Path) -> None:
    m = define(tmp_path, RMS.replace("m * m", "square(m)") + "\ndef square(v):\n    return v * v\n")
    np.testing.assert_allclose(fold(m.Rms, np.array([2.0]), [0], 1), [2.0])


# ---- the laws


def broken(folder: Path, old: str, new: str) -> str:
    return error(folder, RMS.replace(old, new), ValueError)


HINT = "  hint: combine(a, b) gives the state after a's messages and then b's; with init() on one side it gives the other side back"
AT = "  layer.py:10\n    def combine(a, b):\n    ^^^^^^^^^^^^^^^^^^\n"


def test_combine_must_keep_a_state_beside_the_initial_one(tmp_path: Path) -> None:
    assert broken(tmp_path, "a + b", "a + b + 1.0") == (
        "GN106: Rms.combine of the initial state and a state changes the state: "
        "it finishes as 1.10725, not 1.01292, for the messages 0.6, 0.4, 1.1, 0.4, 1.8\n" + AT + HINT
    )


def test_combine_must_go_on_as_step_does(tmp_path: Path) -> None:
    text = broken(tmp_path, "state + m * m", "state * 0.5 + m * m")
    assert text.startswith("GN106: Rms.combine of a state and one message is not Rms.step: it finishes as ")
    assert text.endswith(AT + HINT)


def test_combine_must_not_prefer_a_side(tmp_path: Path) -> None:
    """The last message is no fold of parts: init on the right is not the identity."""
    source = RMS.replace("state + m * m", "m").replace("a + b", "b").replace("sqrt(state / maximum(degree, 1.0))", "state")
    text = error(tmp_path, source, ValueError)
    assert text.startswith(
        "GN106: Rms.combine of a state and the initial state changes the state: it finishes as 0, not 1.8, for the messages "
    )


def test_combine_must_be_associative_on_what_step_makes(tmp_path: Path) -> None:
    source = RMS.replace("a + b", "where(abs(b) > 4.0, a - b, a + b)")
    text = error(tmp_path, source, ValueError)
    assert text.startswith("GN106: Rms.combine of ") and text.endswith(HINT)


def test_a_fold_of_positive_messages_alone_is_fine(tmp_path: Path) -> None:
    """log of a negative message is NaN on both sides: no law is broken by it."""
    source = RMS.replace("m * m", "log(m)").replace("sqrt(state / maximum(degree, 1.0))", "exp(state / maximum(degree, 1.0))")
    m = define(tmp_path, source)
    np.testing.assert_allclose(fold(m.Rms, np.array([2.0, 8.0]), [0, 0], 1), [4.0])


def test_a_state_may_differ_where_it_finishes_alike(tmp_path: Path) -> None:
    """(a number, its scale): two states that finish alike are as good as one."""
    m = define(
        tmp_path,
        """
        @gnnc.monoid
        class Scaled:
            def init():
                return 0.0, 1.0
            def step(s, m):
                return (s[0] * s[1] + m) / 2.0, 2.0
            def combine(a, b):
                return a[0] * a[1] + b[0] * b[1], 1.0
            def finish(s, degree):
                return s[0] * s[1]
        """,
    )
    np.testing.assert_allclose(fold(m.Scaled, np.array([2.0, 8.0]), [0, 0], 1), [10.0])


# ---- errors

SHAPE = (
    "  hint: a monoid is a class with init() -> state, step(state, m) -> state, combine(a, b) -> state and finish(state, degree) -> value"
)


def test_not_a_class() -> None:
    with pytest.raises(TypeError) as caught:
        gnnc.monoid(lambda: None)
    assert str(caught.value) == f"GN105: a monoid is a class, not a function\n{SHAPE}"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "def finish",
            "def final",
            f"GN105: the monoid Rms has no finish\n  layer.py:6\n    def init():\n    ^^^^^^^^^^^\n{SHAPE}",
        ),
        (
            "def combine(a, b)",
            "def combine(a, b, c)",
            f"GN105: Rms.combine takes 3 arguments, not 2\n  layer.py:10\n    def combine(a, b, c):\n    ^^^^^^^^^^^^^^^^^^^^^\n{SHAPE}",
        ),
        (
            "def step(state, m)",
            "def step(state)",
            f"GN105: Rms.step takes 1 argument, not 2 or more\n  layer.py:8\n    def step(state):\n    ^^^^^^^^^^^^^^^^\n{SHAPE}",
        ),
        (
            "return 0.0",
            "return [0.0]",
            "GN105: Rms.init returned a list\n  layer.py:6\n    def init():\n    ^^^^^^^^^^^\n"
            "  hint: a state is a number or a tuple of numbers",
        ),
        (
            "return 0.0",
            "return ()",
            "GN105: Rms.init returned an empty tuple\n  layer.py:6\n    def init():\n    ^^^^^^^^^^^\n"
            "  hint: a state is a number or a tuple of numbers",
        ),
        (
            "return a + b",
            "return a, b",
            "GN105: Rms.combine returned a tuple of 2, not one value\n  layer.py:10\n    def combine(a, b):\n    ^^^^^^^^^^^^^^^^^^\n"
            "  hint: states have one shape: what init returns",
        ),
        (
            "return 0.0",
            "return 0.0, 0.0",
            "GN105: Rms.step returned one value, not a tuple of 2\n  layer.py:8\n    def step(state, m):\n    ^^^^^^^^^^^^^^^^^^^\n"
            "  hint: states have one shape: what init returns",
        ),
        (
            "return state + m * m",
            "return None",
            "GN105: Rms.step returned None\n  layer.py:8\n    def step(state, m):\n    ^^^^^^^^^^^^^^^^^^^\n"
            "  hint: it returns values and numbers, alone or in one flat tuple",
        ),
        (
            "return state + m * m",
            "return state if m > 0 else m",
            "GN320: the truth value of an edge value of dims []: it has no value yet, the layer is traced once with symbols\n"
            "  layer.py:9\n    return state if m > 0 else m\n                    ^^^^^\n"
            "  hint: use where(cond, a, b) for if; &, | and ~ for and, or and not; (a < b) & (b < c) for a < b < c",
        ),
    ],
)
def test_shapes(tmp_path: Path, old: str, new: str, text: str) -> None:
    source = RMS.replace(old, new)
    if "0.0, 0.0" in new:
        source = source.replace("state + m * m", "m * m")
    assert error(tmp_path, source) == text


def test_a_bool_result_is_a_number(tmp_path: Path) -> None:
    m = define(tmp_path, RMS.replace("m * m", "(m > 1.0)").replace("sqrt(state / maximum(degree, 1.0))", "state > 1.5"))
    np.testing.assert_allclose(fold(m.Rms, np.array([2.0, 8.0, 1.0]), [0, 0, 1], 2), [1.0, 0.0])
