"""Every operation of the table: its value against an independent formulation, its adjoint against central differences."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from gnnc.ir.adjoint import pullback
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.interpreter import interpret, numpy_dtype
from gnnc.ir.ops import OPS, Array, GraphArrays
from gnnc.ir.types import F16, F32, F64, I32, Type, TypeRuleError
from gnnc.ir.verifier import verify

from .cases_of_ops import CASES, GRAPH, SQUARE, Case, dst, edge, param

ALL = [pytest.param(name, c, id=f"{name}-{i}") for name, cases in CASES.items() for i, c in enumerate(cases)]
SLOPES = [p for p in ALL if p.values[1].differentiable]  # type: ignore[attr-defined]


def test_no_operation_is_forgotten() -> None:
    assert set(CASES) == set(OPS)
    assert all(cases for cases in CASES.values())
    for name, op in OPS.items():
        assert op.name == name
        assert op.doc, name
        assert op.adjoint is not None or name == "input", name


def _shape(t: Type, graph: GraphArrays) -> tuple[int, ...]:
    return t.dims if t.space == "param" else (graph.rows(t.space), *t.dims)


def _inputs(case: Case, graph: GraphArrays, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [case.draw(rng, _shape(t, graph)) for t in case.types]


def _func(case: Case, square: bool = False) -> tuple[Builder, tuple[Value, ...], Value]:
    b = Builder(square)
    ps = tuple(b.input(f"x{i}", t.with_space("node") if square and t.is_node else t) for i, t in enumerate(case.types))
    return b, ps, case.build(b, *ps)


@pytest.mark.parametrize(("name", "case"), ALL)
def test_value(name: str, case: Case) -> None:
    b, ps, out = _func(case)
    f = Func("f", ps, (out,), stage="lowered" if name != "softmax" else "layer")
    verify(f)
    args = _inputs(case, GRAPH)
    (got,) = interpret(f, GRAPH, args)
    assert got.shape == _shape(out.type, GRAPH)
    assert got.dtype == numpy_dtype(out.type.dtype)
    if case.want is not None:
        np.testing.assert_allclose(got, case.want(*args), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "case"), ALL)
def test_no_rows(name: str, case: Case) -> None:
    """A graph without nodes and edges gives empty arrays, params as ever."""
    empty = GraphArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0)
    _, ps, out = _func(case)
    (got,) = interpret(Func("f", ps, (out,)), empty, _inputs(case, empty))
    assert got.shape == _shape(out.type, empty)


def _gradients(case: Case, square: bool) -> tuple[Func, Func]:
    """The function and one with the gradients of its inputs behind an upstream ``g``."""
    b, ps, out = _func(case, square)
    g = b.input("g", out.type)
    found = pullback(b, [(out, g)], ps)
    grads = tuple(b.mul(p, b.const(0.0, F64)) if d is None else d for p, d in zip(ps, found, strict=True))
    for p, d in zip(ps, grads, strict=True):
        assert d.type == p.type, (d.type, p.type)
    f, df = Func("f", ps, (out,), square), Func("df", (*ps, g), grads, square)
    verify(df)
    return f, df


@pytest.mark.parametrize("square", [False, True], ids=["bipartite", "square"])
@pytest.mark.parametrize(("name", "case"), SLOPES)
def test_adjoint(name: str, case: Case, square: bool) -> None:
    graph = SQUARE if square else GRAPH
    if square and _func(case)[2].get("space") == "src":
        pytest.skip("a square function has no space src to spread to")
    f, df = _gradients(case, square)
    args = _inputs(case, graph)
    (out,) = interpret(f, graph, args)
    g = np.where(np.isfinite(out), np.random.default_rng(1).normal(size=out.shape), 0.0)  # an empty row's log-sum-exp is -inf
    finite = np.isfinite(out)

    def loss() -> float:
        (y,) = interpret(f, graph, args)
        return float((np.where(finite, y, 0.0) * g).sum())

    grads = interpret(df, graph, [*args, g])
    step = 1e-6
    for a, d in zip(args, grads, strict=True):
        a, flat = np.asarray(a), d.reshape(-1)
        for k in range(a.size):
            at = np.unravel_index(k, a.shape)
            old = a[at]
            a[at] = old + step
            up = loss()
            a[at] = old - step
            down = loss()
            a[at] = old
            np.testing.assert_allclose(flat[k], (up - down) / (2 * step), rtol=2e-6, atol=2e-7, err_msg=f"{name}, element {at}")


def test_gradients_that_are_none() -> None:
    """Operations with results that are no floats, or without a slope, give no cotangent."""
    for name, cases in CASES.items():
        for case in cases:
            b, ps, out = _func(case)
            if out.type.dtype.is_float or name == "input":
                continue
            assert pullback(b, [(out, b.const(1.0, F64))], ps) == [None] * len(ps), name
    b = Builder()
    x = b.input("x", edge(3))
    assert pullback(b, [(b.op("sign", x), b.input("g", edge(3)))], [x]) == [None]


@pytest.mark.parametrize(
    ("monoid", "part"),
    [("softmax_sum", "value"), ("softmax_sum", "lse"), ("maxonly", "value"), ("minonly", "value"), ("prod", "zeros"), ("prod", "nonzero")],
)
def test_folds_without_a_gradient(monoid: str, part: str) -> None:
    b = Builder()
    x, w = b.input("x", edge(3)), b.input("w", edge(1))
    out = b.fold(monoid, *([w, x] if monoid == "softmax_sum" else [x]), part=part)
    with pytest.raises(TypeRuleError) as e:
        pullback(b, [(out, b.input("g", out.type))], [x])
    assert (e.value.code, str(e.value)) == (
        "no-gradient",
        f"the fold {monoid!r} has no gradient (give the monoid a grad(m, state, dstate), or a combine made of +, *, max, min or "
        "log-add-exp only)",
    )


TORCH = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": torch.relu,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.01),
    "elu": torch.nn.functional.elu,
    "abs": torch.abs,
    "clamp": lambda x: torch.clamp(x, -1.0, 1.0),
    "sqrt": torch.sqrt,
    "div": torch.div,
    "pow": torch.pow,
    "exp": torch.exp,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


@pytest.mark.parametrize("name", TORCH)
def test_special_points_are_torchs(name: str) -> None:
    """Values and slopes at 0, at ties, on bounds and (values only) at infinities and NaN."""
    points = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5]
    wild = [*points, np.inf, -np.inf, np.nan, 1e300, 1e-300, -1e300]
    attrs = {"min": -1.0, "max": 1.0} if name == "clamp" else {}
    arity = OPS[name].arity
    for values, slopes in ((points, True), (wild, False)):
        if name in ("sqrt", "log") and slopes:
            values = [v for v in values if v > 0]  # torch and we agree that 0 has an infinite slope there
        grid = np.meshgrid(*[np.array(values)] * (arity or 1))
        args = [g.reshape(-1) for g in grid]
        if name == "pow" and slopes:
            keep = args[0] > 0
            args = [a[keep] for a in args]
        b = Builder()
        ps = tuple(b.input(f"x{i}", Type("param", F64, args[0].shape)) for i in range(len(args)))
        out = b.op(name, *ps, **attrs)
        tensors = [torch.tensor(a, requires_grad=True) for a in args]
        want = TORCH[name](*tensors)  # type: ignore[operator]
        (got,) = interpret(Func("f", ps, (out,)), GRAPH, args)
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12)
        if slopes:
            finite = torch.isfinite(want)
            grads = torch.autograd.grad(want[finite].sum(), tensors)
            g = b.input("g", out.type)
            found = [d for d in pullback(b, [(out, g)], ps) if d is not None]
            got_grads = interpret(Func("df", (*ps, g), tuple(found)), GRAPH, [*args, finite.double().numpy()])
            for have, wanted, ok in zip(got_grads, grads, [finite.numpy()] * len(grads), strict=True):
                np.testing.assert_allclose(have[ok], wanted.numpy()[ok], rtol=1e-12)


def test_integers_wrap_and_promote() -> None:
    b = Builder()
    x, y = b.input("x", Type("edge", I32)), b.input("y", Type("edge", F16))
    f = Func("f", (x, y), (b.mul(x, x), b.add(x, y), b.div(x, x)))
    assert [str(r.type) for r in f.results] == ["edge<i32>", "edge<f32>", "edge<f32>"]
    big = np.full(7, 1 << 20)
    got = interpret(f, GRAPH, [big, np.ones(7)])
    assert got[0].tolist() == [0] * 7
    assert got[1].tolist() == [(1 << 20) + 1.0] * 7
    assert got[2].tolist() == [1.0] * 7


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b, x, m: b.add(m, m), "arithmetic on bool values (convert with v.to('f32') or use where(cond, a, b))"),
        (lambda b, x, m: b.op("and", x, m), "a logical operation needs bool values (compare first, as in (a > 0) & (b > 0))"),
        (lambda b, x, m: b.where(x, x, x), "where's condition has dtype f64 (compare first, as in where(x > 0, a, b))"),
        (lambda b, x, m: b.sum(m), "a sum or maximum of bool values (convert with v.to('f32'))"),
        (lambda b, x, m: b.op("softmax", b.cast(x, I32)), "softmax of i32 scores (convert with v.to('f32'))"),
        (
            lambda b, x, m: b.op("clamp", b.cast(x, I32), min=0.5),
            "clamp of i32 values at 0.5 (convert with v.to('f32') or give an integer)",
        ),
        (lambda b, x, m: b.sum(x, axis=-3), "axis -3 of a value with feature dims [2, 3] (one of [-2, -1])"),
        (
            lambda b, x, m: b.sum(x, axis=0),
            "axis 0 of a value with feature dims [2, 3] (axes see feature dims only and are negative: -1 is the last one; to reduce over "
            "edges use a fold such as g.sum(v))",
        ),
        (lambda b, x, m: b.reshape(x, (4,)), "cannot reshape feature dims [2, 3] (6 elements) to [4]"),
        (lambda b, x, m: b.broadcast(x, (3, 3)), "cannot broadcast feature dims [2, 3] to [3, 3]"),
        (lambda b, x, m: b.op("slice", x, axis=-1, start=2, stop=4), "slice 2:4 of an axis of size 3"),
        (lambda b, x, m: b.op("concat", x, b.sum(x), axis=-1), "concat of feature dims [2, 3] and [2] along axis -1"),
        (lambda b, x, m: b.op("transpose", b.sum(x)), "transpose needs two feature dims, not [2]"),
        (
            lambda b, x, m: b.op("matmul", x, x),
            'the right side of @ is edge<f64, 2, 3> (it must be a parameter of two dims, Param["K", "F"]; write (a * b).sum(-1) for a '
            "dot product)",
        ),
        (
            lambda b, x, m: b.op("matmul", x, b.input("w", param(2, 2))),
            "cannot multiply feature dims [2, 3] by [2, 2]: the last dim must be 2",
        ),
        (lambda b, x, m: b.gather(x, "src"), "g.src of an edge value: it is on the edges already (use the value as it is)"),
        (
            lambda b, x, m: b.gather(b.input("p", param(3)), "dst"),
            "g.dst of a parameter: parameters reach every edge as they are (use the value as it is)",
        ),
        (
            lambda b, x, m: b.gather(b.input("y", dst(3)), "src"),
            'g.src of a dst value (write g.dst(v); to gather one value at both ends annotate it (or another input) with Node["F"], for '
            "graphs whose ends are the same nodes)",
        ),
        (lambda b, x, m: b.fold("sum", b.input("y", dst(3))), "a fold reads edge values, this is a dst value (gather it first: g.dst(v))"),
        (
            lambda b, x, m: b.fold("sum", b.input("p", param(3))),
            "a fold reads edge values, this is a param value (a parameter has no edges; multiply it with an edge value or use "
            "g.in_degree())",
        ),
        (
            lambda b, x, m: b.fold("median", x),
            "unknown fold 'median' (one of sum, mean, max, min, maxonly, minonly, prod, moments, logsumexp, softmax_sum)",
        ),
        (lambda b, x, m: b.fold("max", x, part="index"), "fold max has no part 'index' (one of value, arg)"),
        (lambda b, x, m: b.fold("sum", x, x), "fold sum takes 1 messages, not 2"),
        (
            lambda b, x, m: b.op("softmax", b.input("y", dst(3))),
            "a softmax reads edge values, this is a dst value (gather it first: g.src(v) or g.dst(v))",
        ),
        (lambda b, x, m: b.op("spread", x, space="edge"), "spread of edge<f64, 2, 3> to 'edge'"),
        (
            lambda b, x, m: b.op("reduce_max", b.op("slice", x, axis=-1, start=0, stop=0), axis=-1),
            "max over an axis of size 0 has no value",
        ),
    ],
)
def test_refused_operands(build: object, message: str) -> None:
    b = Builder()
    x = b.input("x", edge(2, 3))
    with pytest.raises(TypeRuleError) as e:
        build(b, x, b.op("gt", x, x))  # type: ignore[operator]
    assert str(e.value) == message


def test_half_arithmetic_is_f32() -> None:
    b = Builder()
    x = b.input("x", Type("src", F16, (4,)))
    m = b.gather(x, "src")
    assert m.type.dtype is F16  # moving a value does not round or widen it
    assert {v.type.dtype for v in (b.add(m, m), b.op("exp", m), b.fold("sum", m), b.sum(m), b.op("softmax", m))} == {F32}


def test_every_builtin_fold_and_part_has_a_case() -> None:
    from gnnc.ir.monoid import builtin_monoids

    used = set()
    for case in chain(CASES["fold"]):
        _, _, v = _func(case)
        used.add((v.attr("monoid"), v.attr("part"), v.attr("to")))
    assert used == {(m.name, part, to) for m in builtin_monoids().values() for part, _ in m.parts for to in ("dst", "src")}
