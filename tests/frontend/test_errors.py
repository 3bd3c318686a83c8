"""The error family itself: rendering, pickling, one code a class."""

from __future__ import annotations

import pickle

import pytest

from gnnc.frontend import errors
from gnnc.frontend.errors import GnncError, ShapeMismatch, UserError, from_type_rule, render_location
from gnnc.ir.core import Loc
from gnnc.ir.types import TypeRuleError


def family():
    return [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, UserError) and c is not UserError]


def test_codes_are_unique_and_every_class_is_a_python_exception_too():
    codes = [c.code for c in family()]
    assert len(set(codes)) == len(codes) > 20
    for c in family():
        assert issubclass(c, GnncError)
        assert [b for b in c.__mro__ if b not in (c, UserError, GnncError, Exception, BaseException, object)], c


LOC = Loc("a.py", 3, 8, 3, 11, "    x = foo(1)")


def test_rendering():
    assert str(ShapeMismatch(LOC, message="wrong", hint="mend")) == "GN302: wrong\n  a.py:3\n    x = foo(1)\n        ^^^\n  hint: mend"


@pytest.mark.parametrize(
    "loc, text",
    [
        (None, ""),
        (Loc("a.py", 3), "  a.py:3"),
        (Loc("a.py", 3, text="   x = 1  "), "  a.py:3\n    x = 1"),
        (Loc("a.py", 3, 4, 4, 2, "    x = (1 +  "), "  a.py:3\n    x = (1 +\n    ^^^^^^^^"),
        (Loc("a.py", 3, 0, 3, 99, "    x = 1"), "  a.py:3\n    x = 1\n    ^^^^^"),
        (Loc("a.py", 3, 50, 3, 60, "    x = 1"), "  a.py:3\n    x = 1"),
        (Loc("a.py", 3, 3, 3, 4, "\ta\tb"), "  a.py:3\n    a\tb\n     \t^"),
        (Loc("a.py", 3, 2, 3, 3, "图 b"), "  a.py:3\n    图 b\n       ^"),
    ],
)
def test_locations(loc, text):
    assert render_location(loc) == text


def test_without_a_location_or_hint():
    assert str(ShapeMismatch(None, message="wrong")) == "GN302: wrong"


def test_pickled():
    for loc in (LOC, None):
        error = errors.BadIndex(loc, message="wrong")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is errors.BadIndex and str(back) == str(error) and back.loc == loc
        assert back.hint == errors.BadIndex.mend


@pytest.mark.parametrize(
    "code, kind",
    [
        ("shape-mismatch", ValueError),
        ("space-mismatch", TypeError),
        ("unknown-op", AttributeError),
        ("no-gradient", RuntimeError),
        ("new-rule", TypeError),
    ],
)
def test_type_rules_become_located_errors(code, kind):
    error = from_type_rule(TypeRuleError(code, "wrong {braces}", "mend {them}"), LOC)
    assert isinstance(error, kind) and isinstance(error, UserError)
    assert (error.message, error.hint) == ("wrong {braces}", "mend {them}")


def test_every_rule_of_the_ir_has_a_class():
    import re
    from pathlib import Path

    import gnnc.ir

    text = "".join(
        p.read_text() for p in Path(gnnc.ir.__file__).parent.glob("*.py") if p.name.startswith(("ops", "types", "builder", "monoid"))
    )
    used = set(re.findall(r'TypeRuleError\(\s*"([a-z-]+)"', text))
    assert len(used) > 5
    assert used <= set(errors._RULES), used - set(errors._RULES)


def test_described():
    assert [errors.described(x) for x in (None, 1, 1.0, [], ())] == ["None", "an int", "a float", "a list", "a tuple"]
