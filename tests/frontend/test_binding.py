"""One call's arguments: what binds to what, and the whole text of every refusal."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import ones

from gnnc.frontend.errors import BadStatic, UserError
from gnnc.frontend.layer_function import LayerFunction
from gnnc.ir.types import BF16, F16, F32, F64
from gnnc.lang import Dst, Edge, Node, Param, Src

from .snippets import Module


def layer_bip(g, x: Src["H", "C"], y: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2):
    return x


def layer_node(g, x: Node["F"], w: Edge[()], eps: Param[()]):
    return x


def layer_src(g, x: Src["F"]):
    return x


BIP, NODE, SOURCE = LayerFunction(layer_bip), LayerFunction(layer_node), LayerFunction(layer_src)


def test_types_and_counts():
    call = BIP.bind((5, 4, 7), (ones(5, 2, 3), ones(4, 2, 3)), {"att": ones(2, 3, dtype=torch.float64), "slope": 1})
    assert call.names == ("x", "y", "att")
    assert [str(t) for t in call.types] == ["src<f32, 2, 3>", "dst<f32, 2, 3>", "param<f64, 2, 3>"]
    assert (call.num_src, call.num_dst, call.square) == (5, 4, False)
    assert call.statics == {"slope": 1.0} and type(call.statics["slope"]) is float
    assert call.out_dtype is F64


def test_scalars_a_row_come_in_either_shape():
    for w, eps in ((ones(7), torch.tensor(0.1)), (ones(7, 1), torch.tensor([0.1]))):
        call = NODE.bind((3, 3, 7), (ones(3, 2), w, eps), {})
        assert [tuple(t.shape) for t in call.tensors] == [(3, 2), (7,), ()]
        assert [str(t) for t in call.types] == ["node<f32, 2>", "edge<f32>", "param<f32>"]
        assert call.square


def test_reshaped_weights_keep_their_gradient():
    w = ones(7, 1, requires_grad=True)
    NODE.bind((3, 3, 7), (ones(3, 2), w, torch.tensor(0.1)), {}).tensors[1].sum().backward()
    assert torch.equal(w.grad, ones(7, 1))


@pytest.mark.parametrize("counts, x, y, want", [((None, None, 4), 5, 3, (5, 3)), ((5, 3, 4), 5, 3, (5, 3)), ((5, None, 4), 5, 3, (5, 3))])
def test_counts_come_from_the_tensors(counts, x, y, want):
    call = BIP.bind(counts, (ones(x, 2, 3), ones(y, 2, 3), ones(2, 3)), {})
    assert (call.num_src, call.num_dst) == want


def test_a_side_without_a_tensor_takes_the_others_count():
    call = SOURCE.bind((None, None, 4), (ones(6, 2),), {})
    assert (call.num_src, call.num_dst) == (6, 6)
    call = NODE.bind((None, None, 7), (ones(6, 2), ones(7), torch.tensor(0.0)), {})
    assert (call.num_src, call.num_dst) == (6, 6)
    assert SOURCE.bind((6, 2, 4), (ones(6, 2),), {}).num_dst == 2


def test_no_rows_no_edges_no_features():
    call = NODE.bind((0, 0, 0), (ones(0, 2), ones(0), torch.tensor(0.0)), {})
    assert (call.num_src, str(call.types[0])) == (0, "node<f32, 2>")
    assert str(SOURCE.bind((3, 3, 0), (ones(3, 0),), {}).types[0]) == "src<f32, 0>"


@pytest.mark.parametrize(
    "x, att, eps, want",
    [
        (torch.float16, torch.float16, torch.float32, F16),  # a 0-d tensor does not promote
        (torch.float16, torch.bfloat16, torch.float16, F32),
        (torch.bfloat16, torch.bfloat16, torch.float64, BF16),
        (torch.float32, torch.float64, torch.float16, F64),
        (torch.int64, torch.bool, torch.float64, F64),  # nothing else floats
        (torch.int64, torch.int32, torch.int64, F32),
    ],
)
def test_result_dtype(x, att, eps, want):
    def f(g, x: Src["F"], att: Param["F"], eps: Param[()]):
        return x

    args = ones(3, 2).to(x), ones(2).to(att), torch.tensor(1).to(eps)
    assert LayerFunction(f).bind((3, 3, 4), args, {}).out_dtype is want


def test_the_key_has_no_counts_but_everything_else():
    def key(n=5, c=3, dtype=torch.float32, **statics):
        return BIP.bind((n, n, 7), (ones(n, 2, c, dtype=dtype), ones(n, 2, c, dtype=dtype), ones(2, c, dtype=dtype)), statics).key

    assert key() == key(n=9) == key(slope=0.2)
    assert len({key(), key(c=4), key(dtype=torch.float16), key(slope=0.1)}) == 4


class TestStatics:
    @staticmethod
    def bound(annotation, value):
        def f(g, x: Src["F"], *, a: annotation):
            return x

        call = LayerFunction(f).bind((3, 3, 3), (ones(3, 2),), {"a": value})
        return call.statics["a"], call.key

    def test_told_apart_by_value_and_kind(self):
        def key(value):
            return self.bound(object, value)[1]

        different = [0.0, -0.0, 0, False, None, "", (), (0,), (0.0,), (False,), "0", 1e-300, math.inf]
        assert len({key(v) for v in different}) == len(different)
        assert key(math.nan) == key(float("nan"))
        assert key((1, (math.nan,))) == key((1, (-math.nan,)))
        assert key(-0.0) != key(0.0)

    @pytest.mark.parametrize(
        "annotation, value, want",
        [
            (float, 1, 1.0),
            (float, np.float32(0.5), 0.5),
            (int, np.int64(3), 3),
            (float | None, 1, 1.0),
            (int | float, 1, 1),
            (float | int, 2, 2),
            (bool, True, True),
            (tuple[float, ...], (1, 2), (1.0, 2.0)),
            (tuple[int, str], (1, "a"), (1, "a")),
            (Literal["sum", "max"], "max", "max"),
            (tuple, torch.Size([2, 3]), (2, 3)),
            (None, None, None),
        ],
        ids=str,
    )
    def test_fitted_to_the_annotation(self, annotation, value, want):
        got = self.bound(annotation, value)[0]
        assert got == want and type(got) is type(want)
        if isinstance(want, tuple):
            assert [type(x) for x in got] == [type(x) for x in want]

    @pytest.mark.parametrize(
        "annotation, value, message",
        [
            (float, "a", "is 'a', not float"),
            (float, True, "is True, not float"),
            (int, 1.0, "is 1.0, not int"),
            (int, True, "is True, not int"),
            (bool, 1, "is 1, not bool"),
            (tuple[int, str], (1, 2), "is (1, 2), not tuple[int, str]"),
            (tuple[int, str], (1,), "is (1,), not tuple[int, str]"),
            (Literal["sum"], "max", "is 'max', not typing.Literal['sum']"),
            (int | None, "a", "is 'a', not int | None"),
            (tuple, [1], "is a list"),
            (float, ones(()), "is a Tensor"),
            (object, {}, "is a dict"),
            (object, (1, [2]), "is a list"),
            (object, pytest, "is a module"),
        ],
        ids=str,
    )
    def test_refused(self, annotation, value, message):
        with pytest.raises(BadStatic) as caught:
            self.bound(annotation, value)
        assert caught.value.message == f"the static argument a {message}"
        assert caught.value.loc.text.strip() == 'def f(g, x: Src["F"], *, a: annotation):'


SOURCE_TEXT = {
    "bip": 'def f(g, x: Src["H", "C"], y: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2): return x',
    "node": 'def f(g, x: Node["F"], w: Edge[()]): return x',
    "src": 'def f(g, x: Src["F"], w: Edge["D"], s: Src["F"]): return x',
    "sized": "def f(g, x: Src[4, 2], t: Param[()], *, n: int): return x",
    "edges": "def f(g, w: Edge[()]): return w",
}
GOOD = (ones(5, 2, 3), ones(4, 2, 3), ones(2, 3))

# source, graph counts, arguments, keywords, underlined part, Python's exception, message, hint
CASES = [
    (
        "bip",
        (5, 4, 7),
        GOOD[:2],
        {},
        'att: Param["H", "C"]',
        TypeError,
        "GN201: f takes 3 tensors (x, y, att) after the graph; missing: att",
        "",
    ),
    (
        "bip",
        (5, 4, 7),
        (*GOOD, 0.1),
        {},
        "f",
        TypeError,
        "GN201: f takes 3 tensors (x, y, att) after the graph, not 4",
        "static arguments are given by name",
    ),
    ("bip", (5, 4, 7), GOOD, {"slop": 1}, "f", TypeError, "GN201: f has no argument 'slop'", "did you mean slope?"),
    ("bip", (5, 4, 7), GOOD, {"heads": 1}, "f", TypeError, "GN201: f has no argument 'heads'", "it takes x, y, att, slope"),
    ("bip", (5, 4, 7), GOOD, {"x": 1}, 'x: Src["H", "C"]', TypeError, "GN201: f got x twice", "give it by position or by name"),
    (
        "sized",
        (5, 5, 7),
        (ones(5, 4, 2), ones(())),
        {},
        "n: int",
        TypeError,
        "GN201: f needs the static argument n",
        "give it by name: n=...",
    ),
    (
        "bip",
        (5, 4, 7),
        (None, *GOOD[1:]),
        {},
        'x: Src["H", "C"]',
        TypeError,
        "GN203: x must be a torch tensor, not None",
        "convert it with torch.as_tensor",
    ),
    (
        "bip",
        (5, 4, 7),
        (np.ones((5, 2, 3)), *GOOD[1:]),
        {},
        'x: Src["H", "C"]',
        TypeError,
        "GN203: x must be a torch tensor, not a ndarray",
        "torch.from_numpy(x)",
    ),
    (
        "sized",
        (5, 5, 7),
        (ones(5, 4, 2), 0.5),
        {"n": 1},
        "t: Param[()]",
        TypeError,
        "GN203: t must be a torch tensor, not a float",
        "torch.tensor(0.5), or make t a static argument behind the `*`",
    ),
    (
        "bip",
        (5, 4, 7),
        (GOOD[0].to(torch.complex64), *GOOD[1:]),
        {},
        'x: Src["H", "C"]',
        TypeError,
        "GN204: x has dtype torch.complex64, which gnnc does not compute with",
        "convert it to float32, float64, float16, bfloat16, an integer dtype or bool, in the dense (strided) layout",
    ),
    (
        "edges",
        (5, 5, 2),
        (ones(2).to_sparse(),),
        {},
        "w: Edge[()]",
        TypeError,
        "GN204: w has layout torch.sparse_coo, which gnnc does not compute with",
        "convert it to float32, float64, float16, bfloat16, an integer dtype or bool, in the dense (strided) layout",
    ),
    (
        "bip",
        (5, 4, 7),
        (GOOD[0], GOOD[1].to("meta"), GOOD[2]),
        {},
        'y: Dst["H", "C"]',
        ValueError,
        "GN205: y is on meta, but x is on cpu",
        "move one of them: tensor.to(device), graph.to(device)",
    ),
    (
        "bip",
        (5, 3, 7),
        GOOD,
        {},
        'y: Dst["H", "C"]',
        ValueError,
        "GN206: y has 4 rows, but the graph has 3 destination nodes",
        "Dst takes one row for every destination node",
    ),
    (
        "bip",
        (5, 4, 7),
        (GOOD[1], GOOD[0], GOOD[2]),
        {},
        'x: Src["H", "C"]',
        ValueError,
        "GN206: x has 4 rows, but the graph has 5 source nodes",
        "there are 4 destination nodes: if x belongs to them, annotate it with Dst",
    ),
    (
        "node",
        (5, 5, 7),
        (ones(5, 3), ones(6)),
        {},
        "w: Edge[()]",
        ValueError,
        "GN206: w has 6 rows, but the graph has 7 edges",
        "Edge takes one row for every edge, in the order of edge_index",
    ),
    (
        "node",
        (5, 5, 7),
        (ones(4, 3), ones(7)),
        {},
        'x: Node["F"]',
        ValueError,
        "GN206: x has 4 rows, but the graph has 5 nodes",
        "Node takes one row for every node",
    ),
    (
        "src",
        (None, None, 7),
        (ones(5, 3), ones(7, 2), ones(4, 3)),
        {},
        's: Src["F"]',
        ValueError,
        "GN206: s has 4 rows, but x has 5 (source nodes)",
        "Src takes one row for every source node",
    ),
    (
        "bip",
        (5, 4, 7),
        (*GOOD[:2], ones(1, 3)),
        {},
        'att: Param["H", "C"]',
        ValueError,
        "GN207: att has feature dims [1, 3]: H was 2 from x, here 1",
        "one name is one size in a call; use another name where H may differ",
    ),
    (
        "sized",
        (5, 5, 7),
        (ones(5, 4, 3), ones(())),
        {"n": 1},
        "x: Src[4, 2]",
        ValueError,
        "GN207: x has feature dims [4, 3], but dim -1 of Src[4, 2] is 2",
        'give a tensor of that size, or name the dim to allow any: Src["F", "G"]',
    ),
    (
        "node",
        (5, 5, 7),
        (ones(5, 2, 3), ones(7)),
        {},
        'x: Node["F"]',
        ValueError,
        'GN207: x has shape [5, 2, 3], but Node["F"] takes [N, F]',
        "give one annotation dim for every feature dim of the tensor, or reshape the tensor",
    ),
    (
        "node",
        (7, 7, 7),
        (ones(7, 3), ones(7, 7)),
        {},
        "w: Edge[()]",
        ValueError,
        "GN207: w has shape [7, 7], but Edge[()] takes [E] or [E, 1]",
        "give one annotation dim for every feature dim of the tensor, or reshape the tensor",
    ),
    (
        "src",
        (5, 5, 7),
        (ones(5, 3), ones(7), ones(5, 3)),
        {},
        'w: Edge["D"]',
        ValueError,
        'GN207: w has shape [7], but Edge["D"] takes [E, D]',
        "one scalar a row is Edge[()]; as a feature dim of size 1 it is w[:, None]",
    ),
    (
        "sized",
        (5, 5, 7),
        (ones(5, 4, 2), ones(3)),
        {"n": 1},
        "t: Param[()]",
        ValueError,
        "GN207: t has shape [3], but Param[()] takes [] or [1]",
        "give one annotation dim for every feature dim of the tensor, or reshape the tensor",
    ),
    (
        "edges",
        (5, 5, 7),
        (ones(()),),
        {},
        "w: Edge[()]",
        ValueError,
        "GN207: w has shape [], but Edge[()] takes [E] or [E, 1]",
        "reshape the tensor, or annotate it with the dims it has",
    ),
    (
        "node",
        (5, 4, 7),
        (ones(5, 3), ones(7)),
        {},
        'x: Node["F"]',
        ValueError,
        "GN208: x is annotated with Node, but the graph has 5 source and 4 destination nodes",
        "Node needs num_src == num_dst; use Src and Dst for a graph with two node sets",
    ),
    (
        "edges",
        (None, None, 7),
        (ones(7),),
        {},
        "f",
        ValueError,
        "GN209: the number of nodes is unknown: a plain edge_index carries no count and f takes no node tensor",
        "pass gnnc.Graph.from_edge_index(edge_index, num_src=..., num_dst=...)",
    ),
]


@pytest.mark.parametrize("source, counts, args, kwargs, part, kind, message, hint", CASES, ids=[c[6] for c in CASES])
def test_refused_calls(tmp_path, source, counts, args, kwargs, part, kind, message, hint):
    text = SOURCE_TEXT[source]
    got = Module(tmp_path, f"@layer\n{text}\n").run().error(lambda m: m.f.bind(counts, args, kwargs), kind)
    column = 4 if part == "f" else text.index(part)
    assert got == f"{message}\n  layer.py:4\n    {text}\n    {' ' * column}{'^' * len(part)}" + (f"\n  hint: {hint}" if hint else "")


def test_the_graphs_device_counts():
    with pytest.raises(UserError, match="GN205: x is on cpu, but the graph is on meta"):
        SOURCE.bind((3, 3, 3), (ones(3, 2),), {}, device=torch.device("meta"))
    assert SOURCE.bind((3, 3, 3), (ones(3, 2),), {}, device=torch.device("cpu")).num_src == 3


def test_symbolic_rows_stay_symbolic():
    """Under torch.compile row counts are symbols; binding must not fix them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    real = ones(6, 2)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(real, symbolic_context=context)
        call = SOURCE.bind((None, None, None), (x,), {})
    assert isinstance(call.num_src, torch.SymInt)
    assert call.types[0].dims == (2,)
