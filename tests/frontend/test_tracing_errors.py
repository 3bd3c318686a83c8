"""What a layer's body may not say: the whole text of every error."""

from __future__ import annotations

import pytest

from gnnc.frontend.errors import CapturedValue, OtherTrace
from gnnc.frontend.layer_function import LayerFunction
from gnnc.frontend.tracing import TracedValue, Tracer
from gnnc.ir.builder import Builder
from gnnc.ir.types import F32, Type
from gnnc.lang import Src

from .snippets import DST, EDGE, PARAM, SRC, body_error, body_module, trace_body

TRUTH = "use where(cond, a, b) for if; &, | and ~ for and, or and not; (a < b) & (b < c) for a < b < c"
INDEX = "indices come after `...` and see feature dims only: v[..., None], v[..., i], v[..., a:b]"
AXES = "axes see feature dims only and are negative: -1 is the last one; to reduce over edges use a fold such as g.sum(v)"
SYMBOL = "it has no value yet, the layer is traced once with symbols"
BOTH = "bring both to the edges with g.src(v) and g.dst(v), or annotate with Node if both ends are the same nodes"
NODE = (
    'write g.dst(v); to gather one value at both ends annotate it (or another input) with Node["F"], '
    "for graphs whose ends are the same nodes"
)
FOREIGN = "it does not know the values of a layer"
ARGUMENT = "pass it as an argument: annotate a parameter with Src, Dst, Edge, Node or Param"
OPERANDS = "operands are values of the layer and Python numbers"

# body, the part that is underlined, Python's exception, code and message, hint
CASES = [
    # spaces
    ("return g.sum(x)", "g.sum(x)", TypeError, "GN305: a fold reads edge values, this is a src value", "gather it first: g.src(v)"),
    ("return g.sum(x * y)", "x * y", TypeError, "GN301: operands live in different spaces: dst and src", BOTH),
    (
        "return g.sum(g.src(x) * y)",
        "g.src(x) * y",
        TypeError,
        "GN301: operands live in different spaces: dst and edge",
        "bring the dst value to the edges with g.dst(v)",
    ),
    ("return g.src(y)", "g.src(y)", TypeError, "GN301: g.src of a dst value", NODE),
    ("return g.src(e)", "g.src(e)", TypeError, "GN301: g.src of an edge value: it is on the edges already", "use the value as it is"),
    (
        "return g.sum(w)",
        "g.sum(w)",
        TypeError,
        "GN305: a fold reads edge values, this is a param value",
        "a parameter has no edges; multiply it with an edge value or use g.in_degree()",
    ),
    (
        "return g.sum(1.0)",
        "g.sum(1.0)",
        TypeError,
        "GN305: a fold reads edge values, this is a param value",
        "a parameter has no edges; multiply it with an edge value or use g.in_degree()",
    ),
    (
        "return g.softmax(y)",
        "g.softmax(y)",
        TypeError,
        "GN305: a softmax reads edge values, this is a dst value",
        "gather it first: g.src(v) or g.dst(v)",
    ),
    ("return concat([y, x])", "concat([y, x])", TypeError, "GN301: operands live in different spaces: dst and src", BOTH),
    ("return maximum(y, x)", "maximum(y, x)", TypeError, "GN301: operands live in different spaces: dst and src", BOTH),
    # shapes and axes
    (
        "return y * y[..., 0:3]",
        "y * y[..., 0:3]",
        ValueError,
        "GN302: feature dims [4] and [3] do not broadcast: axis -1 has sizes [3, 4]",
        "dims align at the right and a 1 stretches; add an axis with v[..., None]",
    ),
    ("return y.reshape(3, -1)", "y.reshape(3, -1)", ValueError, "GN302: cannot reshape feature dims [4] (4 elements) to [3, -1]", ""),
    ("return y.reshape(5)", "y.reshape(5)", ValueError, "GN302: cannot reshape feature dims [4] (4 elements) to [5]", ""),
    (
        "return y.reshape(2.0)",
        "y.reshape(2.0)",
        ValueError,
        "GN308: reshape to (2.0,): a float is not a size",
        "dims are ints: v.reshape(4, -1)",
    ),
    (
        "return y.reshape(-1, -1)",
        "y.reshape(-1, -1)",
        ValueError,
        "GN308: reshape to [-1, -1]",
        "sizes are not negative; one of them may be -1",
    ),
    ("return y.sum()", "y.sum()", ValueError, "GN308: sum needs an axis", "sum(-1) reduces the last feature dim"),
    ("return y.sum(0)", "y.sum(0)", ValueError, "GN304: axis 0 of a value with feature dims [4]", AXES),
    ("return y.max(1)", "y.max(1)", ValueError, "GN304: axis 1 of a value with feature dims [4]", AXES),
    ("return y.mean(-2)", "y.mean(-2)", ValueError, "GN304: axis -2 of a value with feature dims [4]", "one of [-1]"),
    ("return w.sum((-1, -1))", "w.sum((-1, -1))", ValueError, "GN308: axes (-1, -1) name one feature dim twice", "give each axis once"),
    ("return concat([y, y], 0)", "concat([y, y], 0)", ValueError, "GN304: axis 0 of a value with feature dims [4]", AXES),
    ("return x @ e", "x @ e", ValueError, "GN306: the right side of @ is edge<f32, 4>", None),
    # indices
    ("return y[0]", "y[0]", IndexError, "GN323: the first index is not `...`: the row axis (nodes, edges) cannot be indexed", INDEX),
    ("return y[:, 0]", "y[:, 0]", IndexError, "GN323: the first index is not `...`: the row axis (nodes, edges) cannot be indexed", INDEX),
    ("return y[..., 4]", "y[..., 4]", IndexError, "GN323: index 4 of a feature dim of size 4 (feature dims [4])", INDEX),
    ("return y[..., -5]", "y[..., -5]", IndexError, "GN323: index -5 of a feature dim of size 4 (feature dims [4])", INDEX),
    ("return y[..., 0, 0]", "y[..., 0, 0]", IndexError, "GN323: 2 indices for feature dims [4]", INDEX),
    ("return y[..., ::2]", "y[..., ::2]", IndexError, "GN323: a slice with step 2", "slices of a feature dim have step 1: v[..., a:b]"),
    ("return y[..., 'a']", "y[..., 'a']", IndexError, "GN323: a str is not an index", INDEX),
    ("return y[..., True]", "y[..., True]", IndexError, "GN323: a bool is not an index", INDEX),
    ("return y[..., 0, ...]", "y[..., 0, ...]", IndexError, "GN323: `...` stands once, in front", INDEX),
    ("return y[..., 'a':]", "y[..., 'a':]", IndexError, "GN323: the bounds of a slice are ints", INDEX),
    (
        "return y[..., y]",
        "y[..., y]",
        IndexError,
        "GN323: a value of the layer is not an index: it differs from row to row",
        "select with where(index == k, a, b), or sum over a comparison: ((index[..., None] == k) * v).sum(-1)",
    ),
    (
        "y[..., 0] = 1",
        "y[..., 0]",
        TypeError,
        "GN324: a dst value of dims [4] cannot be assigned to: values of a layer are immutable",
        None,
    ),
    # dtypes
    (
        "return y.to('f17')",
        "y.to('f17')",
        ValueError,
        "GN308: unknown dtype 'f17'",
        "one of f16, bf16, f32, f64, i8, u8, i16, i32, i64, bool",
    ),
    (
        "return where(y, y, y)",
        "where(y, y, y)",
        TypeError,
        "GN303: where's condition has dtype f32",
        "compare first, as in where(x > 0, a, b)",
    ),
    ("return y & y", "y & y", TypeError, "GN303: a logical operation needs bool values", "compare first, as in (a > 0) & (b > 0)"),
    ("return ~y", "~y", TypeError, "GN303: a logical operation needs bool values", "compare first, as in (a > 0) & (b > 0)"),
    ("return -(y > 0)", "-(y > 0)", TypeError, "GN303: arithmetic on bool values", "convert with v.to('f32') or use where(cond, a, b)"),
    ("return g.softmax(e > 0)", "g.softmax(e > 0)", TypeError, "GN303: softmax of bool scores", "convert with v.to('f32')"),
    # values that are not known yet
    ("if y > 0:\n    return y\nreturn -y", "y > 0", TypeError, f"GN320: the truth value of a dst value of dims [4]: {SYMBOL}", TRUTH),
    ("while e.sum(-1):\n    pass", "e.sum(-1)", TypeError, f"GN320: the truth value of an edge value of dims []: {SYMBOL}", TRUTH),
    ("assert y > 0\nreturn y", "y > 0", TypeError, f"GN320: the truth value of a dst value of dims [4]: {SYMBOL}", TRUTH),
    ("return 0 < y < 1", "0 < y < 1", TypeError, f"GN320: the truth value of a dst value of dims [4]: {SYMBOL}", TRUTH),
    ("return bool(y)", "bool(y)", TypeError, f"GN320: the truth value of a dst value of dims [4]: {SYMBOL}", TRUTH),
    (
        "return y * float(y)",
        "float(y)",
        TypeError,
        f"GN320: the number of a dst value of dims [4]: {SYMBOL}",
        "use the functions of gnnc.lang instead of math's",
    ),
    (
        "return range(y)",
        "range(y)",
        TypeError,
        f"GN320: the number of a dst value of dims [4]: {SYMBOL}",
        "use v.to('i32') to convert, where(cond, a, b) to choose by value",
    ),
    (
        "for v in y:\n    pass",
        "y",
        TypeError,
        f"GN320: the elements of a dst value of dims [4]: {SYMBOL}",
        "loop over heads with `for h in range(v.dims[-1])` and v[..., h]",
    ),
    (
        "return y * len(y)",
        "len(y)",
        TypeError,
        f"GN320: the length of a dst value of dims [4]: {SYMBOL}",
        "v.dims are the feature dims; the number of rows is not known while tracing",
    ),
    ("return 1 in y", "1 in y", TypeError, f"GN320: the elements of a dst value of dims [4]: {SYMBOL}", "use (v == item), a bool value"),
    # names
    (
        "return y.rehsape(2, 2)",
        "y.rehsape",
        AttributeError,
        "GN307: unknown operation .rehsape of a dst value of dims [4]",
        "did you mean .reshape?",
    ),
    (
        "return y.exp()",
        "y.exp",
        AttributeError,
        "GN307: unknown operation .exp of a dst value of dims [4]",
        "it is a function: `from gnnc.lang import exp`, then exp(v)",
    ),
    (
        "return y.unsqueeze(-1)",
        "y.unsqueeze",
        AttributeError,
        "GN307: unknown operation .unsqueeze of a dst value of dims [4]",
        "write v[..., None]",
    ),
    (
        "return y.frobnicate()",
        "y.frobnicate",
        AttributeError,
        "GN307: unknown operation .frobnicate of a dst value of dims [4]",
        "functions such as exp, relu, where are in gnnc.lang, folds are on the graph: g.sum(v)",
    ),
    ("return g.summ(e)", "g.summ", AttributeError, "GN307: unknown operation g.summ", "did you mean g.sum?"),
    ("return g.quux(e)", "g.quux", AttributeError, "GN307: unknown operation g.quux", "a fold of your own is g.fold(monoid, m)"),
    (
        "return y / g.num_dst",
        "g.num_dst",
        AttributeError,
        "GN307: unknown operation g.num_dst",
        "counts and indices differ from graph to graph and are not known while tracing; degrees are g.in_degree() and g.out_degree()",
    ),
    ("return y % 2", "y % 2", AttributeError, "GN307: unknown operation % of a dst value of dims [4]", "write a - (a / b).to('i32') * b"),
    # arguments
    ("return g.sum(e, to='node')", "g.sum(e, to='node')", ValueError, "GN308: to='node': an end is 'src' or 'dst'", ""),
    ("return g.softmax(e, over=1)", "g.softmax(e, over=1)", ValueError, "GN308: over=1: an end is 'src' or 'dst'", ""),
    (
        "return g.fold(3, e)",
        "g.fold(3, e)",
        ValueError,
        "GN308: g.fold of an int",
        "its first argument is a class decorated with @gnnc.monoid",
    ),
    ("return clamp(y)", "clamp(y)", ValueError, "GN308: clamp without a bound", "give min=, max= or both"),
    ("return clamp(y, max='a')", "clamp(y, max='a')", ValueError, "GN308: clamp's max is a str", "it is a number or a value of the layer"),
    ("return elu(y, None)", "elu(y, None)", ValueError, "GN308: elu's alpha is None", "it is a number or a value of the layer"),
    (
        "return concat(y)",
        "concat(y)",
        ValueError,
        "GN308: concat of a TracedValue",
        "its first argument is a list of values: concat([a, b], -1)",
    ),
    # foreign values
    ("return y + 'a'", "y + 'a'", TypeError, "GN322: a str cannot be combined with a value of the layer", OPERANDS),
    ("return None * y", "None * y", TypeError, "GN322: None cannot be combined with a value of the layer", OPERANDS),
    ("return y * 3j", "y * 3j", TypeError, "GN322: a complex cannot be combined with a value of the layer", OPERANDS),
    ("return where(1, y, y)", "where(1, y, y)", TypeError, "GN322: an int cannot be combined with a value of the layer", OPERANDS),
    ("return exp('a')", "exp('a')", TypeError, "GN322: a str cannot be combined with a value of the layer", OPERANDS),
    ("return concat([y, 1.0])", "concat([y, 1.0])", TypeError, "GN322: a float cannot be combined with a value of the layer", OPERANDS),
    (
        "import torch\nreturn y * torch.ones(4)",
        "y * torch.ones(4)",
        TypeError,
        "GN322: a tensor of shape [4] cannot be combined with a value of the layer",
        ARGUMENT,
    ),
    (
        "import torch\nreturn torch.ones(4) * y",
        "torch.ones(4) * y",
        TypeError,
        "GN322: a tensor of shape [4] cannot be combined with a value of the layer",
        ARGUMENT,
    ),
    (
        "import numpy as np\nreturn np.ones(4) * y",
        "np.ones(4) * y",
        TypeError,
        "GN322: an array of shape [4] cannot be combined with a value of the layer",
        ARGUMENT,
    ),
    (
        "import torch\nreturn torch.relu(y)",
        "torch.relu(y)",
        TypeError,
        f"GN321: torch.relu was given a dst value of dims [4]: {FOREIGN}",
        "use relu from gnnc.lang",
    ),
    (
        "import torch\nreturn torch.cat([y, y], -1)",
        "torch.cat([y, y], -1)",
        TypeError,
        f"GN321: torch.cat was given a dst value of dims [4]: {FOREIGN}",
        "use concat from gnnc.lang",
    ),
    (
        "import numpy as np\nreturn np.cumsum(y)",
        "np.cumsum(y)",
        TypeError,
        f"GN321: numpy.cumsum was given a dst value of dims [4]: {FOREIGN}",
        "use the functions of gnnc.lang and the folds of g",
    ),
    (
        "import numpy as np\nreturn np.exp(y)",
        "np.exp(y)",
        TypeError,
        f"GN321: numpy.exp was given a dst value of dims [4]: {FOREIGN}",
        "use exp from gnnc.lang",
    ),
    # results
    (
        "return 1.0",
        "1.0",
        TypeError,
        "GN401: f returned the number 1.0, which is not a tensor",
        "a layer returns one value or a tuple of values computed from its arguments",
    ),
    ("return [y, y]", "[y, y]", TypeError, "GN401: f returned a list, which is not a value of the layer", "return a, b gives two results"),
    (
        "return ()",
        "()",
        TypeError,
        "GN401: f returned an empty tuple",
        "a layer returns one value or a tuple of values computed from its arguments",
    ),
    (
        "return y, (y, y)",
        "y, (y, y)",
        TypeError,
        "GN402: f returned a tuple inside its result tuple",
        "return one flat tuple of values: `return a, b`",
    ),
    (
        "return w * 2",
        "w * 2",
        TypeError,
        "GN403: f returned a param value of dims [4, 2], which has no row for a node or an edge",
        "a result lives on nodes or edges; compute what depends on parameters alone outside of the layer",
    ),
]


@pytest.mark.parametrize("body, part, kind, message, hint", CASES, ids=[c[0].replace("\n", "; ") for c in CASES])
def test_error(tmp_path, body, part, kind, message, hint):
    got = body_error(tmp_path, body, kind).split("\n")
    lines = body.split("\n")
    at = next(i for i, line in enumerate(lines) if part in line.replace("import ", ""))
    line = lines[at].strip()
    assert got[:4] == [message, f"  layer.py:{5 + at}", f"    {line}", "    " + " " * line.index(part) + "^" * len(part)]
    if hint is not None:
        assert got[4:] == ([f"  hint: {hint}"] if hint else [])


def test_function_that_falls_off_its_end_is_located_at_its_def(tmp_path):
    assert body_error(tmp_path, "z = y", TypeError) == (
        "GN401: f returned None, which is not a value of the layer\n"
        "  layer.py:4\n"
        '    def f(g, x: Src["F"], y: Dst["F"], e: Edge["F"], w: Param["F", "G"]):\n'
        "        ^\n"
        "  hint: a layer returns one value or a tuple of values computed from its arguments"
    )


def test_first_line_of_an_expression_over_several_lines(tmp_path):
    assert body_error(tmp_path, "return (y  # a node value\n        * x)", TypeError).split("\n")[1:4] == [
        "  layer.py:5",
        "    return (y  # a node value",
        "            ^^^^^^^^^^^^^^^^^",
    ]


def test_error_in_a_helper_shows_the_helpers_line(tmp_path):
    module = body_module(tmp_path, "return helper(x, y)", before="def helper(a, b):\n    return a + b\n\n").run()
    got = module.error(lambda m: m.f.trace_types([SRC, DST, EDGE, PARAM], {}, F32), TypeError).split("\n")
    assert got[1:4] == ["  layer.py:4", "    return a + b", "           ^^^^^"]


def test_node_value_in_a_fold_names_both_ends(tmp_path):
    node = Type("node", SRC.dtype, (4,))
    got = body_error(tmp_path, "return g.sum(x)", TypeError, 'x: Node["F"]', [node])
    assert got == (
        "GN305: a fold reads edge values, this is a node value\n"
        "  layer.py:5\n"
        "    return g.sum(x)\n"
        "           ^^^^^^^^\n"
        "  hint: gather it first: g.src(v) or g.dst(v)"
    )


def test_value_of_another_call():
    kept = {}

    def keep(g, x: Src["F"]):
        kept["x"] = x
        return x

    with pytest.raises(CapturedValue, match="keep reads kept, a dict, from outside"):
        LayerFunction(keep).trace_types([SRC], {}, F32)
    one, other = (TracedValue(t, t.builder.input("x", SRC)) for t in (Tracer(Builder(), F32), Tracer(Builder(), F32)))
    with pytest.raises(OtherTrace) as caught:
        one + other
    assert caught.value.message == "src<f32, 4> belongs to another call of a layer"
    assert caught.value.loc.text.strip() == "one + other"
    assert (one + one).dims == (4,)


def test_hasattr_sees_what_is_there(tmp_path):
    func = trace_body(tmp_path, "return y * (2.0 if hasattr(y, 'dims') and not hasattr(y, 'exp') else 1.0)")
    assert [v.attr("value") for v in func.body if v.op == "const"] == [2.0]
