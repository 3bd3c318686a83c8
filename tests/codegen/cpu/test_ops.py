"""Every operation of the table in every region of a sweep (param, row, edge, after the folds) and in maps, against the evaluator."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.ops import OPS
from gnnc.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I16, I32, I64, U8, DType, Type

from .kernels import compile_sweep, random_args, random_graph, sweep_func
from .oracle import interpret

LEAVES_AND_GRAPH = {"input", "gather", "fold", "softmax", "reduce_rows", "spread", "contract_rows", "degree", "edge_id"}
"""Covered by test_sweep.py: they only make sense in one place (softmax is gone before sweeps)."""

POSITIVE = {"log", "sqrt", "rsqrt"}


def apply(b: Builder, name: str, x: Value, y: Value, w: Value) -> list[Value]:
    """Uses of the operation on values of dims [4, 6] (and a param [6, 5])."""
    op = b.op
    narrow = b.op("slice", y, axis=-1, start=2, stop=3)  # [4, 1]
    if name in ("add", "sub", "mul", "div", "maximum", "minimum"):
        return [op(name, x, y), op(name, x, narrow)]
    if name == "pow":
        size = b.add(op("abs", x), b.const_like(x, 0.5))
        return [op(name, size, y), op(name, x, b.const(2.0)), op(name, x, b.const(3.0))]
    if name in POSITIVE:
        return [op(name, b.add(op("abs", x), b.const_like(x, 0.25)))]
    if name in ("eq", "ne", "lt", "le", "gt", "ge"):
        return [op(name, x, y), op(name, op("sign", x), op("sign", y)), op(name, x, x)]
    if name in ("and", "or"):
        return [op(name, op("gt", x, y), op("lt", narrow, y))]
    if name == "not":
        return [op(name, op("gt", x, y))]
    if name == "where":
        return [op(name, op("gt", x, narrow), x, y), op(name, op("gt", narrow, b.const(0.0)), x, b.const(2.0))]
    if name == "cast":
        scaled = b.mul(x, b.const(3.0))
        return [op(name, scaled, dtype=d) for d in DTYPES if d != "u8"] + [op(name, op("abs", scaled), dtype="u8")]
    if name == "clamp":
        return [op(name, x, min=-0.5, max=0.25), op(name, x, min=0.0), op(name, x, max=0.1)]
    if name == "leaky_relu":
        return [op(name, x, slope=0.2), op(name, x, slope=-0.5), op(name, x, slope=0.0)]
    if name == "elu":
        return [op(name, x, alpha=1.5)]
    if name in ("reduce_sum", "reduce_max"):
        mixed = b.add(x, y)
        out = [op(name, mixed, axis=a, keepdim=k) for a in (-1, -2) for k in (True, False)]
        return [*out, op(name, op(name, mixed, axis=-1), axis=-1), b.mul(op(name, x, axis=-1, keepdim=True), x)]
    if name == "argmax":
        return [op(name, x, axis=a) for a in (-1, -2)] + [op(name, op("sign", x), axis=-1)]
    if name == "reshape":
        s = b.add(x, y)
        return [b.mul(b.reshape(x, (24,)), b.reshape(s, (24,))), b.reshape(s, (3, 8)), op("exp", b.reshape(b.reshape(s, (6, 4)), (8, 3)))]
    if name == "broadcast":
        return [op(name, narrow, dims=(4, 3)), op(name, b.add(narrow, narrow), dims=(2, 4, 5)), op(name, x, dims=(2, 4, 6))]
    if name == "slice":
        s = b.add(x, y)
        return [op(name, v, axis=a, start=1, stop=3) for v in (x, s) for a in (-1, -2)] + [op(name, s, axis=-1, start=2, stop=2)]
    if name == "pad":
        return [op(name, v, axis=a, before=1, after=2) for v in (x, b.add(x, y), op("gt", x, y)) for a in (-1, -2)]
    if name == "concat":
        return [op(name, x, b.add(x, y), narrow, axis=-1), op(name, b.mul(x, y), y, axis=-2), op(name, x, axis=-1)]
    if name == "transpose":
        s = b.add(x, y)
        return [op(name, x), op(name, s), b.mul(op(name, s), op(name, y)), b.reshape(op(name, y), (24,))]
    if name == "matmul":
        wide = op("transpose", b.mul(w, w))
        return [op(name, x, w), op(name, b.add(x, y), w), op(name, op(name, x, w), op("transpose", w)), op(name, op(name, x, w), wide)]
    if name == "iota":
        return [b.add(x, op(name, size=6)), b.mul(x, op(name, size=4, rank=2))]
    if name == "const":
        return [b.add(x, b.const(0.1)), b.add(b.broadcast(b.const(0.5), (4, 6)), x)]
    return [op(name, x)]


REGIONS = ("param", "row", "edge", "post", "map", "param map")


def build(name: str, region: str, dtype: DType) -> tuple[list[Value], list[Value]]:
    b = Builder()
    dims = (4, 6)
    spaces = {"param": "param", "param map": "param", "row": "dst", "map": "dst", "post": "dst", "edge": "edge"}
    x, y = (b.input(n, Type(spaces[region], dtype, dims)) for n in "xy")
    w = b.input("w", Type("param", dtype, (6, 5)))
    e = b.input("e", Type("edge", F32))
    params = [x, y, w] if "map" in region else [x, y, w, e]
    if region == "post":
        total = b.fold("sum", e)
        values = apply(b, name, b.add(b.mul(total, b.const(0.0)), x), y, w)
        return params, values
    values = apply(b, name, x, y, w)
    if region in ("map", "param map", "edge"):
        if region == "edge":
            values = [*values, b.fold("sum", b.where(b.op("ne", values[0], b.const_like(values[0], 0.0)), b.const(1.0), b.const(0.0)))]
        return params, values
    at_edges = [b.gather(v, "dst") for v in values] if region == "row" else values
    return params, [b.op("maximum", _number(b, v), b.mul(e, b.const(0.0))) for v in at_edges]


def _number(b: Builder, v: Value) -> Value:
    return b.cast(v, F32) if v.type.dtype is BOOL or not v.type.dtype.is_float else v


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("name", sorted(set(OPS) - LEAVES_AND_GRAPH))
def test_every_operation_in_every_region(name: str, region: str) -> None:
    check(name, region, F32)


@pytest.mark.parametrize("dtype", [F64, BF16, F16], ids=str)
@pytest.mark.parametrize("name", sorted(set(OPS) - LEAVES_AND_GRAPH))
def test_every_operation_of_every_float(name: str, dtype: DType) -> None:
    check(name, "edge", dtype)


def check(name: str, region: str, dtype: DType) -> None:
    params, results = build(name, region, dtype)
    func = sweep_func(params, results)
    graph = random_graph(1, 6, 5, 20)
    by = None if "map" in region else "dst"
    kernel = compile_sweep(func, by, "param" if region == "param map" else "dst")
    args = random_args(func, graph, 3)
    for want, got, r in zip(interpret(func, graph, args), kernel(graph, args), results, strict=True):
        tol = {"f16": 2e-3, "bf16": 1e-2}.get(r.type.dtype.name, 1e-11 if dtype is F64 and r.type.dtype is F64 else 3e-5)
        tol = 1e-2 if name == "cast" else tol  # the evaluator does not round
        if r.type.dtype.is_float or r.type.dtype is BOOL:
            np.testing.assert_allclose(got, want, rtol=tol, atol=tol, err_msg=f"{name}: {r}")
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{name}: {r}")


INTEGER = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "neg",
    "abs",
    "sign",
    "relu",
    "clamp",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "where",
    "cast",
    "reduce_sum",
    "reduce_max",
    "argmax",
    "concat",
    "pad",
]


@pytest.mark.parametrize("dtype", [I8, U8, I16, I32, I64], ids=str)
def test_operations_of_integers(dtype: DType) -> None:
    b = Builder()
    x, y = (b.input(n, Type("edge", dtype, (3, 5))) for n in "xy")
    one = b.const(1, dtype)
    results = []
    for name in INTEGER:
        if name in ("neg", "abs", "sign", "relu"):
            results.append(b.op(name, x if name == "neg" else b.sub(x, one) if dtype is not U8 else x))
        elif name == "clamp":
            results.append(b.op(name, x, min=1, max=3))
        elif name == "where":
            results.append(b.op(name, b.op("gt", x, y), x, y))
        elif name == "cast":
            results += [b.op(name, x, dtype=d) for d in DTYPES]
        elif name in ("reduce_sum", "reduce_max"):
            results.append(b.op(name, x, axis=-2))
        elif name == "argmax":
            results.append(b.op(name, x, axis=-1))
        elif name == "concat":
            results.append(b.op(name, x, y, axis=-1))
        elif name == "pad":
            results.append(b.op(name, x, axis=-1, before=1, after=0))
        else:
            results.append(b.op(name, x, b.add(y, one)))
    func = sweep_func([x, y], results)
    graph = random_graph(1, 6, 5, 20)
    args = random_args(func, graph, 3)
    for want, got, r in zip(interpret(func, graph, args), compile_sweep(func, "dst")(graph, args), results, strict=True):
        if dtype is U8 and r.op in ("neg", "sub", "abs", "sign") and r.type.dtype is U8:
            want = want.astype(np.uint8)  # numpy widened it
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"{dtype}: {r}")


def test_nan_and_infinities() -> None:
    b = Builder()
    x, y = b.input("x", Type("edge", F32)), b.input("y", Type("edge", F32))
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0]
    grid = np.array([(a, c) for a in values for c in values])
    names = ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
    results = [b.op(n, x, y) for n in names]
    results += [b.op(n, x) for n in ("relu", "leaky_relu", "sign", "abs", "exp", "log", "tanh", "sigmoid", "erf", "sqrt", "elu", "neg")]
    results += [b.op("clamp", x, min=-1.0, max=1.0), b.cast(x, F16), b.cast(x, BF16), b.op("pow", x, y), b.cast(x, BOOL)]
    func = sweep_func([x, y], results)
    graph = random_graph(0, 4, 4, len(grid))
    args = {"x": grid[:, 0], "y": grid[:, 1]}
    with np.errstate(all="ignore"):
        want = interpret(func, graph, args)
    for w, got, r in zip(want, compile_sweep(func, "dst")(graph, args), results, strict=True):
        np.testing.assert_allclose(got, w.astype(got.dtype), rtol=1e-2 if r.op == "cast" else 1e-6, atol=1e-6, err_msg=str(r))


def test_wide_features_stay_loops() -> None:
    """Code does not grow with the feature size once it is past a few registers."""
    lines = []
    for size in (1025, 4097):
        b = Builder()
        x, y = b.input("x", Type("edge", F32, (size,))), b.input("y", Type("dst", F32, (size,)))
        m = b.op("exp", b.mul(x, b.gather(y, "dst")))
        func = sweep_func([x, y], [b.fold("max", m), b.sum(m), b.op("reduce_rows", m)])
        lines.append(compile_sweep(func, "dst").text.text.count("\n"))
    assert abs(lines[1] - lines[0]) < 40, lines
    assert lines[1] < 6000, lines
