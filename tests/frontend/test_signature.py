"""What a layer's ``def`` may say: annotations read at decoration, and the whole text of every refusal."""

from __future__ import annotations

import functools

import pytest

from gnnc.frontend.annotations import Dst, Edge, Node, Param, SpaceAnnotation, Src
from gnnc.frontend.errors import BadAnnotation, NotALayerFunction
from gnnc.frontend.layer_function import LayerFunction

from .snippets import HEADER, Module


def read(fn):
    return {t.name: str(t.annotation) for t in LayerFunction(fn).signature.tensors}


class TestAnnotations:
    def test_dims(self):
        assert str(Src["H", "C"]) == 'Src["H", "C"]'
        assert str(Edge[()]) == "Edge[()]"
        assert str(Param[32]) == "Param[32]"
        assert str(Dst["F", 3]) == 'Dst["F", 3]'
        assert Node["F"] == SpaceAnnotation("node", ("F",))
        assert Node["F"] != Src["F"]

    @pytest.mark.parametrize("dim", [1.5, None, True, -1, "", "a b", "2F", ..., ["F"]])
    def test_what_is_no_dim(self, dim):
        with pytest.raises(BadAnnotation) as caught:
            Src["F", dim]
        assert caught.value.message == f"{dim!r} is not a feature dim of Src"
        assert caught.value.loc.text.strip() == 'Src["F", dim]'
        assert caught.value.loc.text[caught.value.loc.col : caught.value.loc.end_col] == 'Src["F", dim]'


class TestResolving:
    """This file has `from __future__ import annotations`, so every annotation below is a string."""

    def test_globals(self):
        def f(g, x: Src["F"], w: Edge[()], *, slope: float = 0.2): ...

        assert read(f) == {"x": 'Src["F"]', "w": "Edge[()]"}

    def test_names_of_the_enclosing_function(self):
        from gnnc.lang import Src as Source

        width = 16

        def f(g, x: Source[width]): ...

        assert read(f) == {"x": "Src[16]"}

    def test_names_of_a_class_body(self):
        class A:
            width = 8

            @LayerFunction
            def f(g, x: Src[width]):
                return x

        assert str(A.f.signature.tensors[0].annotation) == "Src[8]"
        assert A().f is A.f

    def test_closure(self):
        def outer(width):
            def f(g, x: Src[width]):
                return x * width

            return f

        assert read(outer(5)) == {"x": "Src[5]"}

    def test_quoted_twice(self):
        def f(g, x: "Src['F']"): ...

        assert read(f) == {"x": 'Src["F"]'}

    def test_without_the_future_import(self, tmp_path):
        m = Module(tmp_path, '@layer\ndef f(g, x: Src["F"], y: "Dst[3]"): return x\n').run()
        assert [str(t.annotation) for t in m.f.signature.tensors] == ['Src["F"]', "Dst[3]"]

    def test_a_staticmethod_either_way(self):
        class A:
            @LayerFunction
            @staticmethod
            def f(g, x: Src["F"]):
                return x

            @staticmethod
            @LayerFunction
            def h(g, x: Src["F"]):
                return x

        assert A.f.name == "f" and A().h.name == "h"

    def test_a_wrapped_function(self):
        def twice(fn):
            @functools.wraps(fn)
            def wrapper(g, *args):
                return fn(g, *args) * 2

            return wrapper

        @LayerFunction
        @twice
        def f(g, x: Src["F"]):
            return x

        assert f.name == "f" and f.signature.names == ("x",)

    def test_unresolvable(self, tmp_path):
        m = Module(tmp_path, 'from __future__ import annotations\n@layer\ndef f(g, x: Source["F"]):\n    return x\n', header="")
        m.names["layer"] = LayerFunction
        assert m.error(lambda m: m.run(), NameError) == (
            "GN104: the annotation Source['F'] of x cannot be read: NameError: name 'Source' is not defined\n"
            "  layer.py:3\n"
            '    def f(g, x: Source["F"]):\n'
            "             ^^^^^^^^^^^^^^\n"
            "  hint: import the names it uses (from gnnc.lang import Src, Dst, Edge, Node, Param) where the layer is defined"
        )

    def test_bad_dim_in_a_string_annotation(self, tmp_path):
        m = Module(
            tmp_path,
            "from __future__ import annotations\nfrom gnnc.lang import Src\n@layer\ndef f(g, x: Src[1.5]):\n    return x\n",
            header="",
        )
        m.names["layer"] = LayerFunction
        assert m.error(lambda m: m.run(), TypeError) == (
            "GN103: 1.5 is not a feature dim of Src\n"
            "  layer.py:4\n"
            "    def f(g, x: Src[1.5]):\n"
            "             ^^^^^^^^^^^\n"
            '  hint: a dim is a name such as "F", a size such as 32, or () alone for one scalar a row'
        )


SPACES = 'say where it lives: Src["F"], Dst["F"], Edge["F"], Node["F"] or Param["F"]'

CASES = [
    ("def f(g, x): return x", "x", "GN102: x has no annotation", SPACES),
    (
        "def f(g, x: Src): return x",
        "x: Src",
        "GN102: x is annotated with Src alone",
        'say its feature dims: Src["F"], Src["H", "C"], or Src[()] for one scalar a row',
    ),
    (
        "def f(g, x: float): return x",
        "x: float",
        "GN102: x is annotated with float, which is no space",
        "tensors are annotated with Src, Dst, Edge, Node or Param; a static argument stands behind a `*`: (g, ..., *, x)",
    ),
    (
        'def f(g, x: Src["F"] = None): return x',
        'x: Src["F"]',
        "GN102: the tensor x has a default",
        "every tensor is given at the call; write two layers or a static switch for an optional one",
    ),
    ('def f(g, *x: Src["F"]): return x', 'x: Src["F"]', "GN102: a layer cannot take *x", "name every tensor and every static argument"),
    ("def f(g, **more): return g", "more", "GN102: a layer cannot take **more", "name every tensor and every static argument"),
    (
        'def f(g, *, x: Src["F"]): return x',
        'x: Src["F"]',
        'GN102: x is keyword-only, so it is static, but is annotated with Src["F"]',
        "tensors stand in front of the `*`",
    ),
    (
        'def f(g, x: Src["F"], *, a: list): return x',
        "a: list",
        "GN102: the static argument a is annotated with list",
        "static arguments are bool, int, float, str, None or tuples of them",
    ),
    (
        'def f(x: Src["F"], g): return x',
        'x: Src["F"]',
        'GN102: the first parameter x is the graph, but is annotated with Src["F"]',
        'put the graph in front: def f(g, x: Src["F"], ...)',
    ),
    ("def f(): pass", "f", "GN102: f has no graph parameter", "the first parameter is the graph: def name(g, x: Src[...])"),
    (
        'def f(self, g, x: Src["F"]): return x',
        "self",
        "GN102: f is a method: its first parameter is self, not the graph",
        "make it a @staticmethod (above @gnnc.layer) or a function outside of the class; pass what it reads as arguments",
    ),
    (
        'def f(g, x: Src["F"]): yield x',
        "f",
        "GN101: a layer is a plain function, not a generator",
        "write `@gnnc.layer` above `def name(g, x: Src[...], ...)`",
    ),
]


@pytest.mark.parametrize("source, part, message, hint", CASES, ids=[c[2] for c in CASES])
def test_refused_definitions(tmp_path, source, part, message, hint):
    got = Module(tmp_path, f"@layer\n{source}\n").error(lambda m: m.run(), TypeError)
    future = "from __future__ import annotations\n"
    assert Module(tmp_path, f"@layer\n{source}\n", future + HEADER).error(lambda m: m.run(), TypeError) == got.replace("py:4", "py:5")
    column = source.index(part, 4) if part != "f" else source.index("f", 3)
    assert got == f"{message}\n  layer.py:4\n    {source}\n    {' ' * column}{'^' * len(part)}\n  hint: {hint}"


@pytest.mark.parametrize(
    "thing, what",
    [(3, "an int"), (dict, "a class"), (functools.partial(print), "a partial"), (len, "a builtin_function_or_method")],
    ids=str,
)
def test_what_is_no_function(thing, what):
    with pytest.raises(NotALayerFunction) as caught:
        LayerFunction(thing)
    assert caught.value.message == f"a layer is a plain function, not {what}"


def test_a_bound_method():
    class A:
        def f(self, g, x: Src["F"]):
            return x

    with pytest.raises(NotALayerFunction, match="not a method bound to its object"):
        LayerFunction(A().f)


def test_a_parameter_on_its_own_line(tmp_path):
    source = '@layer\ndef f(\n    g,\n    x: Src["F"],\n    bad: int,\n):\n    return x\n'
    got = Module(tmp_path, source).error(lambda m: m.run(), TypeError)
    assert got.split("\n")[1:4] == ["  layer.py:7", "    bad: int,", "    ^^^^^^^^"]


def test_static_annotations():
    def f(g, x: Src["F"], *, a: bool, b: int | None, c: tuple[int, ...] = (), d: tuple[str, float] = ("", 0.0), e=None, h: None = None): ...

    assert [p.name for p in LayerFunction(f).signature.statics] == list("abcdeh")
