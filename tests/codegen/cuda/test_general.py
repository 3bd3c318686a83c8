"""The general path on the emulator against the interpreter: shapes that fragments do not have, any size, scratch of either kind."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func
from gnnc.ir.types import BF16, F16, F32, F64, I32, I64, DType, Type
from tests.codegen.cpu.kernels import random_args, sweep_func
from tests.codegen.cpu.test_sweep import gatv2, spmm

from .checks import TOLERANCE, check, dot_attention, empty_graph, extremum, moments
from .emulated import emulate
from .test_fragment import gradient_like, last_message

GENERAL = CudaSchedule(path="general")


def edge_mlp(dtype: DType = F32) -> Func:
    """max over relu([x_i, x_j - x_i] @ w), and the gradient-like sum over all edges of an outer product."""
    b = Builder()
    x, y = b.input("x", Type("src", dtype, (5,))), b.input("y", Type("dst", dtype, (5,)))
    w = b.input("w", Type("param", dtype, (10, 7)))
    j, i = b.gather(x, "src"), b.gather(y, "dst")
    both = b.op("concat", i, b.sub(j, i), axis=-1)
    h = b.op("relu", b.op("matmul", both, w))
    folds = [b.cast(b.fold("max", h), dtype), b.fold("max", h, part="arg")]
    return sweep_func([x, y, w], [*folds, b.op("contract_rows", both, h), b.cast(h, dtype)])


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
def test_edge_mlp(dtype: DType) -> None:
    kernel = check(edge_mlp(dtype), "dst", path="general", tol=5 * TOLERANCE[dtype.name])
    assert kernel.text.reason.startswith("concat of feature dims")


@pytest.mark.parametrize("index_dtype", [I32, I64], ids=str)
def test_slices_pads_and_transposes_by_src(index_dtype: DType) -> None:
    b = Builder(index_dtype=index_dtype)
    x, w = b.input("x", Type("dst", F32, (4, 6))), b.input("w", Type("param", F32, (3, 4)))
    j = b.gather(x, "dst")
    t = b.op("transpose", b.op("slice", j, axis=-1, start=1, stop=4))
    padded = b.op("pad", b.add(t, w), axis=-2, before=1, after=2)
    rank3 = b.mul(b.reshape(j, (2, 2, 6)), b.reshape(b.sum(j, -2, True), (1, 1, 6)))
    results = [b.fold("sum", padded, to="src"), b.fold("max", rank3, to="src"), b.fold("sum", b.reshape(j, (24,)), to="src")]
    check(sweep_func([x, w], results), "src", path="general", index_dtype=index_dtype)


@pytest.mark.parametrize(
    "func",
    [
        spmm(7),
        gatv2(3, 5),
        dot_attention(2, 4, bias=True),
        extremum("min", 6),
        moments(5),
        gradient_like(),
        last_message(),
        gatv2(2, 3, F64),
    ],
    ids=["spmm", "gatv2", "dot", "min", "moments", "gradient", "last", "f64"],
)
def test_what_fragments_do_is_right_here_too(func: Func) -> None:
    check(func, "dst", path="general", schedule=GENERAL, tol=5e-5)


def test_wide_rows_and_few_outputs_of_a_reduction() -> None:
    b = Builder()
    x, y = b.input("x", Type("src", F32, (2, 700))), b.input("y", Type("dst", F32, (2, 700)))
    score = b.sum(b.mul(b.gather(x, "src"), b.gather(y, "dst")))
    result = b.fold("sum", b.mul(b.reshape(score, (2, 1)), b.gather(x, "src")))
    check(sweep_func([x, y], [result, score]), "dst", path="general", schedule=GENERAL, tol=1e-4)


def test_scratch_that_does_not_fit_in_shared_memory_lies_in_the_workspace() -> None:
    kernel = check(edge_sum(7000), "dst", path="general", tol=1e-4)
    assert kernel.text.workspace_words > 0
    assert kernel.text.run.shared_bytes == 0
    small = emulate(edge_sum(70), "dst")
    assert small.text.workspace_words == 0
    assert small.text.run.shared_bytes > 0


def edge_sum(size: int) -> Func:
    b = Builder()
    x = b.input("x", Type("src", F32, (size,)))
    j = b.gather(x, "src")
    shifted = b.op("concat", b.op("slice", j, axis=-1, start=1, stop=size), b.op("slice", j, axis=-1, start=0, stop=1), axis=-1)
    return sweep_func([x], [b.fold("sum", b.mul(j, shifted))])


def test_feature_dims_of_size_zero() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (0,)))
    j = b.gather(x, "src")
    check(sweep_func([x], [b.fold("sum", j), b.fold("sum", b.sum(j)), b.op("reduce_rows", j)]), "dst", path="general")


def test_maps() -> None:
    b = Builder()
    x, w = b.input("x", Type("dst", F32, (4,))), b.input("w", Type("param", F32, (4, 3)))
    h = b.op("concat", b.op("matmul", x, w), x, axis=-1)
    check(sweep_func([x, w], [h, b.op("contract_rows", x, h)]), None, "dst", path="general")
    b = Builder()
    w = b.input("w", Type("param", F32, (4, 3)))
    check(sweep_func([w], [b.op("matmul", w, b.op("transpose", w))]), None, "param", path="general")


def test_empty_graphs() -> None:
    kernel = emulate(edge_mlp(), "dst")
    graph = empty_graph()
    value, arg, total, _edges = kernel(graph, random_args(kernel.spec.func, graph))
    assert (value == 0).all()
    assert (arg == -1).all()
    assert (total == 0).all()
    nowhere = empty_graph(2, 0)
    assert (kernel(nowhere, random_args(kernel.spec.func, nowhere))[2] == 0).all()


def test_nan_and_ties_of_a_split_row() -> None:
    kernel = emulate(extremum("max", 2), "dst", schedule=GENERAL)
    from .checks import compare, one_row_each

    x = np.zeros((8, 2))
    x[3:, 1] = np.nan
    _value, arg = compare(kernel, one_row_each(8), {"x": x}, chunk=3)
    np.testing.assert_array_equal(arg[:2], [[0, 3], [8, 11]])
