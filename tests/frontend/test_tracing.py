"""What a layer's body says: the traced IR, and its values by the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc import lang
from gnnc.frontend import lang as frontend_lang
from gnnc.frontend.errors import OperandCount
from gnnc.frontend.graph_proxy import GraphProxy
from gnnc.frontend.tracing import TracedValue, Tracer
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret
from gnnc.ir.monoid import builtin_monoids
from gnnc.ir.ops import GraphArrays
from gnnc.ir.types import BF16, F16, F32, F64, I32, I64, U8, Type

from .snippets import trace_body

GRAPH = GraphArrays(np.array([0, 1, 2, 0]), np.array([1, 1, 0, 2]), 3, 3)


def result_types(func):
    return [str(r.type) for r in func.results]


def ops(func):
    return [v.op for v in func.body]


def test_gatv2_is_traced_line_by_line(tmp_path):
    body = """
        score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), slope)).sum(-1)
        alpha = g.softmax(score)
        return g.sum(alpha[..., None] * g.src(x_src))
    """
    arguments = 'x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2'
    types = [Type("src", F32, (2, 3)), Type("dst", F32, (2, 3)), Type("param", F32, (2, 3))]
    func = trace_body(tmp_path, body, arguments, types, slope=0.2)
    assert str(func) == (
        "func @f(%x_src: src<f32, 2, 3>, %x_dst: dst<f32, 2, 3>, %att: param<f32, 2, 3>) -> (out0: dst<f32, 2, 3>) stage layer {\n"
        '  %0 = gather %x_src {end = "src"} : edge<f32, 2, 3>\n'
        '  %1 = gather %x_dst {end = "dst"} : edge<f32, 2, 3>\n'
        "  %2 = add %0, %1 : edge<f32, 2, 3>\n"
        "  %3 = leaky_relu %2 {slope = 0.2} : edge<f32, 2, 3>\n"
        "  %4 = mul %att, %3 : edge<f32, 2, 3>\n"
        "  %5 = reduce_sum %4 {axis = -1} : edge<f32, 2>\n"
        '  %6 = softmax %5 {over = "dst"} : edge<f32, 2>\n'
        "  %7 = reshape %6 {dims = [2, 1]} : edge<f32, 2, 1>\n"
        "  %8 = mul %7, %0 : edge<f32, 2, 3>\n"
        '  %9 = fold %8 {monoid = "sum", to = "dst"} : dst<f32, 2, 3>\n'
        "  return %9\n"
        "}\n"
    )


def test_node_makes_every_node_space_one(tmp_path):
    types = [Type("node", F32, (3,)), Type("src", F32, ()), Type("edge", F32, ())]
    body = "d = g.sum(w)\nreturn g.sum((g.src(d) * w * g.dst(d) * g.dst(s))[..., None] * g.src(x), to='src')"
    func = trace_body(tmp_path, body, 'x: Node["F"], s: Src[()], w: Edge[()]', types)
    assert func.square
    assert [str(p.type) for p in func.params] == ["node<f32, 3>", "node<f32>", "edge<f32>"]
    assert result_types(func) == ["node<f32, 3>"]


def test_statics_and_python_control_flow(tmp_path):
    body = """
        out = g.src(x)
        for i in range(n):
            out = out * scale if i % 2 else out + scale
        if mode == "max":
            return g.max(out)
        return g.sum(out), g.mean(out)
    """
    arguments = 'x: Src["F"], *, n: int, scale: float = 2.0, mode: str = "sum"'
    types = [Type("src", F32, (2,))]
    assert ops(trace_body(tmp_path, body, arguments, types, n=3, scale=2.0, mode="max")) == ["gather", "const", "add", "mul", "add", "fold"]
    both = trace_body(tmp_path, body, arguments, types, n=0, scale=2.0, mode="sum")
    assert [v.attr("monoid") for v in both.results] == ["sum", "mean"]


def test_folds_by_name(tmp_path):
    names = ["sum", "mean", "max", "min", "prod", "logsumexp", "var", "std"]
    func = trace_body(tmp_path, f"return {', '.join(f'g.{n}(e)' for n in names)}, g.sum(e, 'src'), g.softmax(e, 'src')")
    folds = [(r.attr("monoid"), r.attr("part")) for r in func.results[:8]]
    assert folds == [*((n, "value") for n in names[:6]), ("moments", "var"), ("moments", "std")]
    assert [r.type.space for r in func.results[8:]] == ["src", "edge"]


class TestDtypes:
    def test_half_is_computed_in_f32_and_stored_in_half(self, tmp_path):
        types = [Type("src", F16, (2,))]
        func = trace_body(tmp_path, "return g.sum(g.src(x) * 0.1)", 'x: Src["F"]', types, F16)
        assert [(v.op, str(v.type.dtype)) for v in func.body] == [
            ("gather", "f16"),
            ("const", "f32"),
            ("mul", "f32"),
            ("fold", "f32"),
            ("cast", "f16"),
        ]

    def test_numbers_are_exact_in_f64(self, tmp_path):
        func = trace_body(tmp_path, "return x * 0.1", 'x: Src["F"]', [Type("src", F64, (2,))], F64)
        const = func.body[0]
        assert (const.attr("value"), const.type.dtype) == (0.1, F64)
        assert func.results[0].op == "mul"

    def test_a_wide_scalar_parameter_does_not_promote(self, tmp_path):
        types = [Type("src", F32, (2,)), Type("param", F64, ())]
        func = trace_body(tmp_path, "return x * t", 'x: Src["F"], t: Param[()]', types, F32)
        assert [(v.op, v.type.dtype) for v in func.body] == [("cast", F32), ("mul", F32)]

    def test_a_wide_vector_parameter_does(self, tmp_path):
        types = [Type("src", F32, (2,)), Type("param", F64, (2,))]
        assert result_types(trace_body(tmp_path, "return x * t", 'x: Src["F"], t: Param["F"]', types, F64)) == ["src<f64, 2>"]

    @pytest.mark.parametrize(
        "body, want",
        [
            ("return x.to('f32')", "src<f32, 2>"),  # the last word on its dtype
            ("return x.to('f32') * 1.0", "src<f16, 2>"),  # not the last word
            ("return x.to(torch.float64)", "src<f64, 2>"),
            ("return (x * 2).to(x.dtype)", "src<f16, 2>"),
            ("return x > 0", "src<bool, 2>"),
            ("return (x > 0).to('i32')", "src<i32, 2>"),
            ("return x", "src<f16, 2>"),
        ],
    )
    def test_results(self, tmp_path, body, want):
        func = trace_body(tmp_path, "import torch\n" + body, 'x: Src["F"]', [Type("src", F16, (2,))], F16)
        assert result_types(func) == [want]

    def test_an_input_of_another_dtype_is_cast(self, tmp_path):
        types = [Type("src", F16, (2,)), Type("src", BF16, (2,))]
        assert result_types(trace_body(tmp_path, "return x", 'x: Src["F"], y: Src["F"]', types, F32)) == ["src<f32, 2>"]

    @pytest.mark.parametrize(
        "body, want",
        [
            ("return t + 1", "edge<u8>"),
            ("return t + 300", "edge<i64>"),
            ("return t * 0.5", "edge<f64>"),
            ("return t / 2", "edge<f32>"),
            ("return t == 1", "edge<bool>"),
            ("return (t == 1) + 1", "edge<i64>"),
            ("return (t == 1) * 0.5", "edge<f64>"),
            ("return t ** 2", "edge<u8>"),
            ("return where(t == 1, 1, 0)", "edge<i64>"),
            ("return where(t == 1, 1, 0.0)", "edge<f64>"),
            ("return (t == 1) & True", "edge<bool>"),
        ],
    )
    def test_integers(self, tmp_path, body, want):
        func = trace_body(tmp_path, body + "\n", "t: Edge[()]", [Type("edge", U8, ())], F64)
        if want == "edge<f32>":  # an integer division has no floating partner: it is rounded once, at the end
            assert func.results[0].operands[0].type == Type("edge", F32)
        else:
            assert result_types(func) == [want]

    def test_integer_messages_are_folded_in_the_layers_precision(self, tmp_path):
        for out in (F32, F64):
            func = trace_body(tmp_path, "return g.sum(t == 1), g.max(t), g.in_degree()", "t: Edge[()]", [Type("edge", I32, ())], out)
            assert [r.type.dtype for r in func.results] == [out] * 3

    def test_feature_sums_of_integers(self, tmp_path):
        func = trace_body(
            tmp_path, "return t.sum(-1), (t > 0).sum(-1), t.max(-1), t.mean(-1)", 't: Edge["K"]', [Type("edge", I32, (3,))], F32
        )
        assert [r.type.dtype for r in func.results] == [I64, I64, I32, F32]

    def test_concat_has_one_dtype(self, tmp_path):
        types = [Type("edge", F16, (3,)), Type("edge", F32, (2,))]
        func = trace_body(tmp_path, "return concat([a, b])", 'a: Edge["F"], b: Edge["G"]', types, F32)
        assert {o.type.dtype for o in func.results[0].operands} == {F32}


class TestPowers:
    @pytest.mark.parametrize("exponent, op", [("2", "mul"), ("3", "mul"), ("0.5", "sqrt"), ("-1", "div"), ("1", "input"), ("2.5", "pow")])
    def test_exact_forms(self, tmp_path, exponent, op):
        assert trace_body(tmp_path, f"return y ** {exponent}").results[0].op == op

    def test_number_to_a_value(self, tmp_path):
        r = trace_body(tmp_path, "return 2 ** y").results[0]
        assert (r.op, r.operands[0].op, r.operands[1].op) == ("pow", "const", "input")


VALUES = torch.tensor([[-2.0, -0.5, 0.0, 0.5, 1.5, 3.0]] * 3, dtype=torch.float64) * torch.tensor(
    [[1.0], [0.3], [-0.7]], dtype=torch.float64
)


@pytest.mark.parametrize(
    "body, torch_body",
    [
        ("x + 1 - x * 2 / 3", "x + 1 - x * 2 / 3"),
        ("1 - x, 2 / (x + 10), -x, +x", "(1 - x, 2 / (x + 10), -x, x)"),
        ("abs(x)", "x.abs()"),
        ("x ** 2 + x ** 3 + (x * x) ** 0.5 + (x + 9) ** -1 + 2 ** x", "x ** 2 + x ** 3 + x.abs() + 1 / (x + 9) + 2 ** x"),
        ("(x > 0) & (x < 1) | ~(x != 0)", "(x > 0) & (x < 1) | ~(x != 0)"),
        ("where((x >= 0) | (x <= -1), x, 0.5)", "where((x >= 0) | (x <= -1), x, 0.5)"),
        ("leaky_relu(x, 0.2), relu(x), elu(x, 1.5)", "tuple(f(x) for f in (F.LeakyReLU(0.2), F.ReLU(), F.ELU(1.5)))"),
        ("gelu(x), silu(x), sigmoid(x), tanh(x)", "tuple(f(x) for f in (F.GELU(), F.SiLU(), F.Sigmoid(), F.Tanh()))"),
        ("exp(x), log(x + 9), sqrt(x + 9), rsqrt(x + 9)", "(x.exp(), (x + 9).log(), (x + 9).sqrt(), (x + 9).rsqrt())"),
        (
            "clamp(x, -1, 1), clamp(x, min=0), clamp(x, max=0.25), clamp(x, -x, x[..., 0:1] * 0)",
            "(x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.25), torch.minimum(torch.maximum(x, -x), x[:, :1] * 0))",
        ),
        ("maximum(x, 0.25), minimum(0.25, x), maximum(x, -x)", "(x.clamp(min=0.25), x.clamp(max=0.25), x.abs())"),
        ("x.sum(-1), x.mean(-1), x.max(-1), x.sum(-1, keepdim=True)", "(x.sum(-1), x.mean(-1), x.amax(-1), x.sum(-1, keepdim=True))"),
        (
            "x.reshape(2, 3).sum((-2, -1)), x.reshape((3, -1)).max(-2), x.reshape(2, 3).mean((-1, -2), keepdim=True)",
            "(x.sum(-1), x.reshape(3, 3, 2).amax(-2), x.mean(-1)[:, None, None])",
        ),
        ("concat([x, -x], -1), concat((x[..., None], x[..., None]))", "(torch.cat([x, -x], -1), torch.stack([x, x], -1))"),
        (
            "leaky_relu(x, x[..., 0:1] * 0.1), elu(x, x[..., 5:6])",
            "(torch.where(x > 0, x, x * x[:, :1] * 0.1), torch.where(x > 0, x, x[:, 5:] * torch.expm1(x.clamp(max=0))))",
        ),
    ],
)
def test_operations_have_the_values_of_torch(tmp_path, body, torch_body):
    func = trace_body(tmp_path, f"return {body}", 'x: Src["F"]', [Type("src", F64, (6,))], F64)
    got = interpret(func, GRAPH, {"x": VALUES.numpy()})
    want = eval(torch_body, {"x": VALUES, "torch": torch, "F": torch.nn, "where": torch.where})
    want = want if isinstance(want, tuple) else (want,)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-12, atol=1e-12)


INDEX = st.one_of(st.none(), st.integers(-3, 2), st.builds(slice, st.none() | st.integers(-5, 5), st.none() | st.integers(-5, 5)))


@given(st.lists(INDEX, max_size=5))
@settings(max_examples=80, deadline=None)
def test_indices_are_numpys(index):
    data = np.arange(3 * 3 * 4 * 3, dtype=np.float64).reshape(3, 3, 4, 3)
    builder = Builder()
    x = builder.input("x", Type("src", F64, data.shape[1:]))
    key = (Ellipsis, *index)
    try:
        # With the rows in front an index may not run into them.
        want = np.stack([row[key] for row in data])
    except IndexError:
        with pytest.raises(IndexError):
            TracedValue(Tracer(builder, F64), x)[key]
        return
    got = TracedValue(Tracer(builder, F64), x)[key]
    assert got.dims == want.shape[1:]
    if want.size:
        np.testing.assert_array_equal(interpret(Func("f", (x,), (got._ir,)), GRAPH, {"x": data})[0], want)


def test_numpy_scalars_are_numbers(tmp_path):
    body = "import numpy as np\nreturn np.float32(2) * y, y * np.float64(0.5), y + np.int64(1), y > np.float32(0), y[..., np.int64(1)]"
    assert result_types(trace_body(tmp_path, body)) == ["dst<f32, 4>"] * 3 + ["dst<bool, 4>", "dst<f32>"]


def test_static_where_chooses_while_tracing(tmp_path):
    assert trace_body(tmp_path, "return where(True, y, 1.0), where(False, y, x)").results[0].name == "y"


def test_properties(tmp_path):
    body = """
        assert (x.dims, x.shape, x.dtype, x.space) == ((4,), (4,), "f32", "src")
        assert repr(x) == "<src<f32, 4> value of a layer>"
        return x
    """
    assert trace_body(tmp_path, body).body == []


def test_helpers_work_on_numbers_too():
    assert lang.relu(-1.0) == 0.0 and lang.relu(2) == 2
    assert lang.leaky_relu(-2.0, 0.1) == -0.2
    assert lang.sigmoid(0.0) == 0.5 and lang.sigmoid(-800.0) == 0.0
    assert lang.elu(-1.0) == pytest.approx(float(torch.nn.functional.elu(torch.tensor(-1.0, dtype=torch.float64))))
    assert lang.gelu(0.7) == pytest.approx(float(torch.nn.functional.gelu(torch.tensor(0.7, dtype=torch.float64))))
    assert lang.silu(0.7) == pytest.approx(float(torch.nn.functional.silu(torch.tensor(0.7, dtype=torch.float64))))
    assert (lang.abs(-3), lang.maximum(1, 2), lang.minimum(1, 2), lang.clamp(5, 0, 1), lang.clamp(-1.0, min=0)) == (3, 2, 1, 1, 0)
    assert lang.maximum(float("nan"), 1.0) != lang.maximum(float("nan"), 1.0)
    assert lang.rsqrt(4.0) == 0.5 and lang.exp(0) == 1.0 and lang.log(1) == 0.0 and lang.sqrt(9) == 3.0 and lang.tanh(0) == 0.0
    assert lang.where(2 > 1, "a", "b") == "a"


def test_lang_names_are_the_front_ends():
    assert lang.__all__ == frontend_lang.__all__
    assert all(getattr(lang, n) is getattr(frontend_lang, n) for n in lang.__all__)


class TestOwnMonoids:
    class Two:
        """Stands for a user's monoid: its data is a built-in's under another name."""

        def __init__(self, name):
            self.name = name

        def to_ir(self):
            return replace(builtin_monoids()["sum"], name=self.name)

    def trace(self, body, monoids):
        builder = Builder()
        tracer = Tracer(builder, F32)
        e = TracedValue(tracer, builder.input("e", Type("edge", F32, (2,))))
        return builder, [body(GraphProxy(tracer), e, m)._ir for m in monoids]

    def test_registered_once(self):
        rms = self.Two("rms")
        builder, out = self.trace(lambda g, e, m: g.fold(m, e), [rms, rms])
        assert out[0] is out[1]
        assert [m.name for m in builder.monoids] == ["rms"]

    def test_two_of_one_name_and_a_builtins_name(self):
        builder, out = self.trace(lambda g, e, m: g.fold(m, e), [self.Two("rms"), self.Two("rms"), self.Two("sum")])
        assert [m.name for m in builder.monoids] == ["rms", "rms_2", "sum_2"]
        assert [v.attr("monoid") for v in out] == ["rms", "rms_2", "sum_2"]

    def test_wrong_number_of_messages(self):
        with pytest.raises(OperandCount, match="fold rms takes 1 messages, not 2"):
            self.trace(lambda g, e, m: g.fold(m, (e, e)), [self.Two("rms")])
