"""Random programs on both paths: any mix of operations, shapes, regions, folds, carries and schedules must agree with the interpreter."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.types import BF16, F32, F64, I32, I64, Type, TypeRuleError
from tests.codegen.cpu.kernels import random_args, random_graph, sweep_func
from tests.codegen.cpu.test_random import programs

from .checks import interpreted
from .emulated import emulate

DIMS = [(), (1,), (6,), (4, 6), (1, 6), (4, 1), (6,), (4, 6)]
UNARY = ["neg", "abs", "tanh", "sigmoid", "relu", "leaky_relu", "sign"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
FOLDS = {
    "sum": ["value"],
    "mean": ["value"],
    "max": ["value", "arg"],
    "min": ["value", "arg"],
    "moments": ["mean", "var"],
    "logsumexp": ["value"],
    "prod": ["zeros"],
}


def grow(draw: st.DrawFn, b: Builder, pool: list[Value], steps: int) -> None:
    """Adds up to ``steps`` random values of the [H, C] algebra to ``pool``."""
    for _ in range(steps):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        kind = draw(st.sampled_from(["unary", "binary", "binary", "reduce", "where", "unsqueeze"]))
        try:
            if kind == "unary":
                pool.append(b.op(draw(st.sampled_from(UNARY)), x))
            elif kind == "binary":
                pool.append(b.op(draw(st.sampled_from(BINARY)), x, y))
            elif kind == "where":
                pool.append(b.where(b.op("gt", x, b.const(0.0)), y, b.op("tanh", x)))
            elif kind == "unsqueeze" and len(x.type.dims) == 1:
                pool.append(b.reshape(x, (*x.type.dims, 1) if x.type.dims == (4,) else (1, *x.type.dims)))
            elif kind == "reduce" and x.type.dims:
                name = draw(st.sampled_from(["reduce_sum", "reduce_max", "argmax"]))
                axis = -draw(st.integers(1, len(x.type.dims)))
                keep = {} if name == "argmax" else {"keepdim": draw(st.booleans())}
                pool.append(b.cast(b.op(name, x, axis=axis, **keep), x.type.dtype.acc))
        except TypeRuleError:
            pass


@st.composite
def fragment_programs(draw: st.DrawFn) -> tuple[list[Value], list[Value]]:
    b = Builder()
    dtype, dims = st.sampled_from([F32, F32, BF16, F64]), st.sampled_from(DIMS)
    spaces = {"s": "src", "d": "dst", "e": "edge", "p": "param"}
    params = [b.input(n, Type(space, draw(dtype), draw(dims))) for n, space in spaces.items()]
    row: list[Value] = [params[1], params[3]]
    grow(draw, b, row, draw(st.integers(0, 3)))
    edge = [b.gather(params[0], "src"), params[2], *[b.gather(v, "dst") if v.type.space == "dst" else v for v in row]]
    grow(draw, b, edge, draw(st.integers(0, 8)))
    on_edges = [v for v in edge if v.type.space == "edge"]
    post: list[Value] = list(row)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(FOLDS)))
        post.append(b.fold(name, draw(st.sampled_from(on_edges)), part=draw(st.sampled_from(FOLDS[name]))))
    if draw(st.booleans()):
        score, value = draw(st.sampled_from(on_edges)), draw(st.sampled_from(on_edges))
        with suppress(TypeRuleError):
            post += [b.fold("softmax_sum", b.op("tanh", score), value, part=p) for p in ("value", "lse")]
    grow(draw, b, post, draw(st.integers(0, 4)))
    on_rows = [v for v in post if v.type.space == "dst"]
    results = [on_rows[-1], draw(st.sampled_from(on_rows))]
    if draw(st.booleans()):
        results.append(on_edges[-1])
    if draw(st.booleans()):
        results.append(b.op("reduce_rows", draw(st.sampled_from(on_edges + on_rows))))
    return params, results


def agree(program: tuple[list[Value], list[Value]], schedule: CudaSchedule | None, seed: int, chunk: int, index: str = "i32") -> str:
    params, results = program
    func = sweep_func(params, results)
    graph = random_graph(seed, 6, 5, 14, hub=12)
    args = random_args(func, graph, seed)
    kernel = emulate(func, "dst", schedule=schedule, index_dtype=I64 if index == "i64" else I32)
    for want, got, r in zip(interpreted(func, graph, args), kernel(graph, args, chunk), results, strict=True):
        scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
        tol = 2e-2 if r.type.dtype is BF16 else 2e-4
        np.testing.assert_allclose(got, want, rtol=tol, atol=tol * scale, err_msg=f"{r}\n{kernel.text.program}")
    return kernel.text.path


SCHEDULES = st.sampled_from([None, CudaSchedule(group_rows=True), CudaSchedule(unroll=1), CudaSchedule(unroll=4, prefetch=True)])
SETTINGS: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=15, **SETTINGS)
@given(fragment_programs(), SCHEDULES, st.integers(0, 3), st.sampled_from([2, 5, 100]))
def test_random_programs_of_fragments(
    program: tuple[list[Value], list[Value]], schedule: CudaSchedule | None, seed: int, chunk: int
) -> None:
    agree(program, schedule, seed, chunk)


@settings(max_examples=10, **SETTINGS)
@given(programs(), st.sampled_from([CudaSchedule(path="general"), None]), st.integers(0, 3), st.sampled_from([2, 100]))
def test_random_programs_of_any_shape(
    program: tuple[list[Value], list[Value]], schedule: CudaSchedule | None, seed: int, chunk: int
) -> None:
    agree(program, schedule, seed, chunk, "i64")
