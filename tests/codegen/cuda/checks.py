"""Compares an emulated sweep with the interpreter, and programs that several test files use."""

from __future__ import annotations

import numpy as np

from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.interpreter import interpret
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.types import F32, I32, DType, Type
from tests.codegen.cpu.kernels import quantised, random_args, random_graph, sweep_func

from .emulated import Emulated, emulate

TOLERANCE = {"f64": 1e-11, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def interpreted(func: Func, graph: GraphArrays, args: dict[str, Array]) -> list[Array]:
    """The interpreter's results, params with a row axis as kernels have them."""
    given = {p.name: args[p.name][0] if p.type.space == "param" else args[p.name] for p in func.params}
    outs = interpret(func, graph, given)
    return [o[None] if r.type.space == "param" else o for o, r in zip(outs, func.results, strict=True)]


def compare(
    kernel: Emulated, graph: GraphArrays, args: dict[str, Array], tol: float = 2e-5, chunk: int = 8, blocks: int = 2
) -> list[Array]:
    """Runs the kernel and compares every result; gives the results."""
    with np.errstate(all="ignore"):
        want = interpreted(kernel.spec.func, graph, args)
    got = kernel(graph, args, chunk, blocks)
    for w, x, r in zip(want, got, kernel.spec.func.results, strict=True):
        if r.type.dtype.is_float:
            w = quantised(w, r.type.dtype).reshape(w.shape)  # what overflows in storage is inf there
        finite = np.abs(w[np.isfinite(w)]) if r.type.dtype.is_float else np.zeros(0)
        scale = max(1.0, float(finite.max(initial=0)))
        np.testing.assert_allclose(x, w, rtol=tol, atol=tol * scale, err_msg=f"{r}\n{kernel.text.program}")
    return got


def check(
    func: Func,
    by: str | None,
    rows: str | None = None,
    *,
    path: str | None = None,
    index_dtype: DType = I32,
    tol: float = 2e-5,
    chunk: int = 8,
    blocks: int = 2,
    schedule: CudaSchedule | None = None,
    graph: GraphArrays | None = None,
) -> Emulated:
    """Emits, builds, runs with tiny chunks (so that rows split) and compares."""
    graph = graph or random_graph(0, 20, 20 if func.square else 17, 60, hub=40)
    kernel = emulate(func, by, rows, index_dtype=index_dtype, schedule=schedule)
    if path is not None:
        assert kernel.text.path == path, kernel.text.reason
    compare(kernel, graph, random_args(func, graph), tol, chunk, blocks)
    return kernel


def one_row_each(num: int = 6) -> GraphArrays:
    """Every destination has edges from all sources, in order."""
    src, dst = np.meshgrid(np.arange(num), np.arange(num))
    return GraphArrays(src.ravel().astype(np.int64), dst.ravel().astype(np.int64), num, num)


def empty_graph(num_src: int = 4, num_dst: int = 3) -> GraphArrays:
    return GraphArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), num_src, num_dst)


def weighted(heads: int, channels: int, dtype: DType = F32) -> Func:
    """SpMM with a weight a head, [H, C]."""
    b = Builder()
    x, w = b.input("x", Type("src", dtype, (heads, channels))), b.input("w", Type("edge", dtype, (heads,)))
    return sweep_func([x, w], [b.cast(b.fold("sum", b.mul(b.reshape(w, (heads, 1)), b.gather(x, "src"))), dtype)])


def extremum(name: str, size: int, index_dtype: DType = I32, dtype: DType = F32) -> Func:
    b = Builder(index_dtype=index_dtype)
    m = b.gather(b.input("x", Type("src", dtype, (size,))), "src")
    return sweep_func([m.operands[0]], [b.cast(b.fold(name, m), dtype), b.fold(name, m, part="arg")])


def moments(size: int, dtype: DType = F32) -> Func:
    b = Builder()
    m = b.gather(b.input("x", Type("src", dtype, (size,))), "src")
    return sweep_func([m.operands[0]], [b.cast(b.fold("moments", m, part=p), dtype) for p in ("mean", "var", "std")])


def dot_attention(heads: int, channels: int, dtype: DType = F32, bias: bool = False) -> Func:
    """Scaled dot-product attention with its log-sum-exp; with ``bias``, an edge bias is added and the scores are written."""
    b = Builder()
    q = b.input("q", Type("dst", dtype, (heads, channels)))
    k, v = (b.input(n, Type("src", dtype, (heads, channels))) for n in ("k", "v"))
    score = b.mul(b.sum(b.mul(b.gather(q, "dst"), b.gather(k, "src"))), b.const(channels**-0.5, dtype.acc))
    params: list[Value] = [q, k, v]
    if bias:
        params.append(b.input("bias", Type("edge", dtype, (heads,))))
        score = b.add(score, params[-1])
    column, value = b.reshape(score, (heads, 1)), b.gather(v, "src")
    results = [b.cast(b.fold("softmax_sum", column, value), dtype), b.reshape(b.fold("softmax_sum", column, value, part="lse"), (heads,))]
    return sweep_func(params, [*results, b.cast(score, dtype)] if bias else results)
