"""Random programs: any mix of operations, shapes, regions, folds and carries must agree with the evaluator."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.types import BF16, F32, F64, Type, TypeRuleError

from .kernels import compile_sweep, random_args, random_graph, sweep_func
from .oracle import interpret

DIMS = [(), (1,), (4,), (6,), (4, 6), (1, 6), (4, 1), (2, 2, 6), (24,), (3, 8), (33,), (5, 40), (200,), (24, 20)]
UNARY = ["neg", "abs", "tanh", "sigmoid", "relu", "leaky_relu", "sign"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]


def grow(draw: st.DrawFn, b: Builder, pool: list[Value], steps: int) -> None:
    """Adds ``steps`` random values over ``pool`` to it."""
    for _ in range(steps):
        x = draw(st.sampled_from(pool))
        kind = draw(st.sampled_from(["unary", "binary", "reduce", "shape", "where", "concat", "slice"]))
        dims = x.type.dims
        try:
            if kind == "unary":
                pool.append(b.op(draw(st.sampled_from(UNARY)), x))
            elif kind == "binary":
                pool.append(b.op(draw(st.sampled_from(BINARY)), x, draw(st.sampled_from(pool))))
            elif kind == "where":
                y = draw(st.sampled_from(pool))
                pool.append(b.where(b.op("gt", x, b.const(0.0)), y, b.op("tanh", x)))
            elif kind == "reduce" and dims:
                axis = -draw(st.integers(1, len(dims)))
                name = draw(st.sampled_from(["reduce_sum", "reduce_max"]))
                y = b.op(name, x, axis=axis, keepdim=draw(st.booleans()))
                pool.append(b.mul(y, b.const(0.25)) if name == "reduce_sum" else y)
            elif kind == "shape":
                same = [d for d in DIMS if np.prod(d, dtype=int) == x.type.size]
                y = b.reshape(x, draw(st.sampled_from([*same, (*dims, 1), dims])))
                if len(y.type.dims) >= 2 and draw(st.booleans()):
                    y = b.op("transpose", y)
                pool.append(y)
            elif kind == "concat" and dims:
                pool.append(b.op("concat", x, draw(st.sampled_from([v for v in pool if v.type.dims == dims])), axis=-1))
            elif kind == "slice" and dims:
                stop = draw(st.integers(1, dims[-1]))
                pool.append(b.op("slice", x, axis=-1, start=draw(st.integers(0, stop - 1)), stop=stop))
        except TypeRuleError:
            pass
        if pool[-1].type.size > 1000:
            pool.pop()


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Value], list[Value]]:
    b = Builder()
    dtype = st.sampled_from([F32, F32, F32, BF16, F64])
    dims = st.sampled_from(DIMS)
    params = [
        b.input("s", Type("src", draw(dtype), draw(dims))),
        b.input("d", Type("dst", draw(dtype), draw(dims))),
        b.input("e", Type("edge", draw(dtype), draw(dims))),
        b.input("p", Type("param", draw(dtype), draw(dims))),
    ]
    constant: list[Value] = [params[3]]
    grow(draw, b, constant, draw(st.integers(0, 3)))
    row: list[Value] = [params[1], *constant]
    grow(draw, b, row, draw(st.integers(0, 4)))
    edge = [b.gather(params[0], "src"), params[2], *[b.gather(v, "dst") if v.type.space == "dst" else v for v in row]]
    grow(draw, b, edge, draw(st.integers(0, 8)))
    on_edges = [v for v in edge if v.type.space == "edge"]
    post: list[Value] = list(row)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["sum", "mean", "max", "moments", "logsumexp"]))
        part = {"moments": "var", "max": draw(st.sampled_from(["value", "arg"]))}.get(name, "value")
        post.append(b.fold(name, draw(st.sampled_from(on_edges)), part=part))
    grow(draw, b, post, draw(st.integers(0, 5)))
    on_rows = [v for v in post if v.type.space == "dst"]
    results = [on_rows[-1], draw(st.sampled_from(on_rows))]
    if draw(st.booleans()):
        results.append(on_edges[-1])
    if draw(st.booleans()):
        results.append(b.op("reduce_rows", draw(st.sampled_from(on_edges + on_rows))))
    if draw(st.booleans()):
        x = draw(st.sampled_from(on_edges))
        same = [v for v in on_edges if v.type.dims and v.type.dims[:-1] == x.type.dims[:-1]]
        if x.type.dims and x.type.dims[-1] * 33 < 5000:
            results.append(b.op("contract_rows", x, draw(st.sampled_from(same))))
    return params, results


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([128, 256, 512]), st.integers(0, 3))
def test_random_programs(program: tuple[list[Value], list[Value]], bits: int, seed: int) -> None:
    params, results = program
    func = sweep_func(params, results)
    graph = random_graph(seed, 6, 5, 14, hub=12)
    args = random_args(func, graph, seed)
    kernel = compile_sweep(func, "dst", vector_bits=bits)
    for want, got, r in zip(interpret(func, graph, args), kernel(graph, args), results, strict=True):
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
        tol = 2e-2 if r.type.dtype is BF16 else 2e-4
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol * scale, err_msg=str(r))
