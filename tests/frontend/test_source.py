"""Locations wherever source text comes from: files of any line ends, exec, ``python -c``, standard input, wrapped and nested functions."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from gnnc.frontend.errors import NotGathered, UserError
from gnnc.frontend.layer_function import LayerFunction
from gnnc.frontend.source import char_column, user_loc
from gnnc.ir.types import F32, Type
from gnnc.lang import Src

from .snippets import Module

X = Type("src", F32, (4,))
LAYER = '@layer\ndef f(g, x: Src["F"]):\n    return g.sum(x) * 1.0\n'
MESSAGE = "GN305: a fold reads edge values, this is a src value"
HINT = "  hint: gather it first: g.src(v)"
LOCATED = f"{MESSAGE}\n  layer.py:5\n    return g.sum(x) * 1.0\n           ^^^^^^^^\n{HINT}"


def trace(m):
    return m.f.trace_types([X], {}, F32)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends(tmp_path, newline):
    assert Module(tmp_path, LAYER, newline=newline).run().error(trace, TypeError) == LOCATED


def test_tabs(tmp_path):
    source = LAYER.replace("    return g.sum(x)", "\treturn\tg.sum(x)")
    want = LOCATED.replace("return g", "return\tg").replace("           ^", "          \t^")
    assert Module(tmp_path, source).run().error(trace, TypeError) == want


def test_text_beyond_ascii_is_measured_in_columns(tmp_path):
    source = LAYER.replace("return g.sum(x)", "é, 图 = 1, 2; return é * g.sum(x)")
    got = Module(tmp_path, source).run().error(trace, TypeError).split("\n")
    assert got[2:4] == ["    é, 图 = 1, 2; return é * g.sum(x) * 1.0", " " * 29 + "^" * 8]


def test_char_column():
    assert char_column("abc", 2) == 2
    assert char_column("é图x", 5) == 2


def test_exec_of_a_string_keeps_the_line():
    names = {"layer": LayerFunction, "Src": Src}
    exec(compile("\n\n" + LAYER, "<string>", "exec", dont_inherit=True), names)
    with pytest.raises(NotGathered) as caught:
        names["f"].trace_types([X], {}, F32)
    assert str(caught.value) == f"{MESSAGE}\n  <string>:5\n{HINT}"
    with pytest.raises(UserError) as caught:
        names["f"].bind((1, 1, 1), (3,), {})
    assert str(caught.value) == (
        "GN203: x must be a torch tensor, not an int\n  <string>:3\n  hint: torch.tensor(3), or make x a static argument behind the `*`"
    )


SCRIPT = """
from gnnc.lang import Src
from gnnc.frontend.layer_function import LayerFunction
from gnnc.ir.types import F32, Type

@LayerFunction
def f(g, x: Src["F"]):
    return g.sum(g.src(x)), x if GOOD else g.sum(x)

GOOD = True
print(len(f.trace_types([Type("src", F32, (4,))], {}, F32).results))
GOOD = False
try:
    f.trace_types([Type("src", F32, (4,))], {}, F32)
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["-c", "-"])
def test_python_without_a_file(how):
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "runtime")])}
    command = [sys.executable, "-c", SCRIPT] if how == "-c" else [sys.executable, "-"]
    done = subprocess.run(command, input=SCRIPT if how == "-" else None, capture_output=True, text=True, env=env, check=True, timeout=120)
    name = "<string>" if how == "-c" else "<stdin>"
    assert done.stdout == f"2\n{MESSAGE}\n  {name}:8\n{HINT}\n"


def test_the_text_of_another_version_of_the_file_is_not_trusted(tmp_path):
    """The file on disk was edited after the layer was loaded: the ``def`` cannot be found there, so its text is not shown."""
    import linecache

    m = Module(tmp_path, LAYER).run()
    m.path.write_text("# nothing\n" * 10)
    linecache.checkcache(str(m.path))
    with pytest.raises(UserError) as caught:
        m.f.bind((1, 1, 1), (3,), {})
    assert str(caught.value).replace(str(m.path), "layer.py").split("\n")[1] == "  layer.py:3"
    assert "nothing" not in str(caught.value)


def test_nested_functions_lambdas_and_comprehensions():
    def outer():
        @LayerFunction
        def inner(g, x: Src["F"]):
            scaled = [(lambda v: v * k)(x) for k in (1.0, 2.0)]
            return sum(scaled[1:], scaled[0]) + g.sum(x)

        return inner

    with pytest.raises(NotGathered) as caught:
        outer().trace_types([X], {}, F32)
    loc = caught.value.loc
    assert loc.text[loc.col : loc.end_col] == "g.sum(x)"


def test_a_lambda_needs_annotations():
    with pytest.raises(TypeError, match="GN102: x has no annotation"):
        LayerFunction(lambda g, x: x)


def test_a_wrapped_function_runs_its_wrapper():
    def doubled(fn):
        @functools.wraps(fn)
        def wrapper(g, *args, **kwargs):
            return fn(g, *args, **kwargs) * 2.0

        return wrapper

    @LayerFunction
    @doubled
    def f(g, x: Src["F"]):
        return g.sum(g.src(x))

    assert [v.op for v in f.trace_types([X], {}, F32).body] == ["gather", "fold", "const", "mul"]


def test_every_operation_carries_its_own_columns(tmp_path):
    m = Module(tmp_path, LAYER.replace("g.sum(x)", "g.sum(g.src(x) + 1)")).run()
    func = trace(m)
    got = {v.op: v.loc.text[v.loc.col : v.loc.end_col] for v in func.body if v.op != "const"}
    assert got == {"gather": "g.src(x)", "add": "g.src(x) + 1", "fold": "g.sum(g.src(x) + 1)", "mul": "g.sum(g.src(x) + 1) * 1.0"}
    assert {v.loc.line for v in func.body} == {5}
    x = func.params[0].loc
    assert (x.line, x.text[x.col : x.end_col]) == (4, 'x: Src["F"]')


def test_user_loc_is_this_line():
    loc = user_loc()
    assert loc.file == __file__ and loc.text == "    loc = user_loc()"
    assert loc.text[loc.col : loc.end_col] == "user_loc()"
