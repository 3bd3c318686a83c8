"""The fragment path on the emulator against the interpreter: folds, tails, hubs, dtypes, index widths, schedules, carries."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.codegen.cuda.emit import emit_cuda
from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.codegen.cuda.shapes import DoesNotFit
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func
from gnnc.ir.monoid import Component, make_monoid
from gnnc.ir.sweep import SweepSpec
from gnnc.ir.types import BF16, BOOL, F16, F32, F64, I16, I32, I64, U8, DType, Type
from tests.codegen.cpu.kernels import random_args, random_graph, sweep_func
from tests.codegen.cpu.test_sweep import gatv2, spmm

from .checks import TOLERANCE, check, compare, dot_attention, empty_graph, extremum, moments, one_row_each, weighted
from .emulated import emulate


@pytest.mark.parametrize("size", [1, 3, 7, 8, 33, 100])
def test_spmm_of_every_size(size: int) -> None:
    check(spmm(size), "dst", path="fragment")


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
def test_spmm_of_every_dtype(dtype: DType) -> None:
    check(spmm(40, dtype), "dst", path="fragment", tol=TOLERANCE[dtype.name])


@pytest.mark.parametrize("index_dtype", [I32, I64], ids=str)
def test_spmm_by_src(index_dtype: DType) -> None:
    check(spmm(12, by="src"), "src", path="fragment", index_dtype=index_dtype)


@pytest.mark.parametrize("dims", [(8, 32), (3, 20), (5, 7), (1, 100), (40, 3)], ids=str)
def test_gatv2(dims: tuple[int, int]) -> None:
    check(gatv2(*dims), "dst", path="fragment")


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
def test_gatv2_of_every_dtype(dtype: DType) -> None:
    check(gatv2(4, 6, dtype), "dst", path="fragment", tol=TOLERANCE[dtype.name])


def test_dot_attention_with_edge_bias_and_edge_output() -> None:
    kernel = check(dot_attention(3, 8, bias=True), "dst", path="fragment")
    assert "one rescale" in kernel.text.program


@pytest.mark.parametrize("index_dtype", [I32, I64], ids=str)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremum_and_its_argument(name: str, index_dtype: DType) -> None:
    check(extremum(name, 7, index_dtype), "dst", path="fragment", index_dtype=index_dtype)


@pytest.mark.parametrize("group_rows", [False, True])
def test_argument_of_ties_nan_and_infinities_is_the_first_edge(group_rows: bool) -> None:
    """Rows of ties, of NaN, of -inf alone: the first such edge in the user's order, whatever groups and chunks the row is cut into."""
    graph = one_row_each(12)
    kernel = emulate(extremum("max", 5), "dst", schedule=CudaSchedule(group_rows=group_rows))
    x = np.zeros((12, 5))
    x[:, 1] = -np.inf
    x[3:, 2] = np.nan
    x[7, 3], x[9, 3] = np.inf, np.inf
    x[:, 4] = np.nan
    for chunk in (100, 5):
        value, arg = compare(kernel, graph, {"x": x}, chunk=chunk)
        np.testing.assert_array_equal(arg[0], [0, 0, 3, 7, 0])
        np.testing.assert_array_equal(arg[1], [12, 12, 15, 19, 12])
        np.testing.assert_array_equal(value[0], [0, -np.inf, np.nan, np.inf, np.nan])


def test_argument_of_an_empty_row_is_minus_one() -> None:
    kernel = emulate(extremum("max", 3), "dst")
    value, arg = kernel(empty_graph(), {"x": np.ones((4, 3))})
    assert (value == 0).all()
    assert (arg == -1).all()


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_moments(dtype: DType) -> None:
    check(moments(9, dtype), "dst", path="fragment", tol=TOLERANCE[dtype.name] * 2)


def test_moments_of_equal_messages_are_exactly_zero() -> None:
    """Also where the message is a product: nothing may contract it into an fma that sees the unrounded product."""
    b = Builder()
    x, w = b.input("x", Type("src", F32, (3,))), b.input("w", Type("edge", F32, (1,)))
    func = sweep_func([x, w], [b.fold("moments", b.mul(w, b.gather(x, "src")), part="var")])
    graph = one_row_each(9)
    args = {"x": np.full((9, 3), np.float32(0.1)).astype(np.float64), "w": np.full((81, 1), np.float32(1 / 3)).astype(np.float64)}
    (var,) = emulate(func, "dst")(graph, args, chunk=4)
    assert (var == 0).all()


def test_prod_mean_and_logsumexp_in_one_sweep() -> None:
    b = Builder()
    m = b.gather(b.input("x", Type("src", F32, (2, 6))), "src")
    folds = [b.fold("prod", m), b.fold("mean", m), b.fold("logsumexp", m), b.fold("sum", m), b.fold("prod", m, part="zeros")]
    check(sweep_func([m.operands[0]], folds), "dst", path="fragment")


def test_softmax_of_a_row_of_minus_infinity_is_nan_and_of_a_nan_score_too() -> None:
    func = dot_attention(1, 4, bias=True)
    graph = one_row_each(5)
    args = random_args(func, graph)
    args["bias"][:5] = -np.inf
    args["bias"][7] = np.nan
    out, lse, _score = compare(emulate(func, "dst"), graph, args, chunk=2)
    assert np.isnan(out[:2]).all()
    assert not np.isnan(out[2:]).any()
    assert lse[0] == -np.inf


def test_absent_edges_never_touch_a_row() -> None:
    """Row values of inf and NaN only reach their own rows: edges that a batch lacks are not computed with zeros."""
    b = Builder()
    x, y = b.input("x", Type("src", F32, (5,))), b.input("y", Type("dst", F32, (5,)))
    func = sweep_func([x, y], [b.fold("sum", b.mul(b.gather(x, "src"), b.gather(y, "dst")))])
    graph = one_row_each(5)
    args = {"x": np.ones((5, 5)), "y": np.ones((5, 5))}
    args["y"][2] = np.inf
    (out,) = compare(emulate(func, "dst"), graph, args)
    assert (out[2] == np.inf).all()


def gradient_like(space: str = "param") -> Func:
    """Folds, an edge output, sums over all edges and all rows: a backward in small."""
    b = Builder()
    x, y = b.input("x", Type("src", F32, (3, 8))), b.input("y", Type("dst", F32, (3, 8)))
    a, lse = b.input("a", Type("param", F32, (3, 8))), b.input("lse", Type("dst", F32, (3,)))
    j, i = b.gather(x, "src"), b.gather(y, "dst")
    weight = b.op("exp", b.sub(b.sum(b.mul(a, b.op("tanh", j))), b.gather(lse, "dst")))
    d = b.mul(b.reshape(weight, (3, 1)), b.where(b.op("gt", j, i), a, b.const(0.5)))
    total = b.fold("sum", d)
    results = [total, weight, b.op("reduce_rows", d), b.op("reduce_rows", total), b.op("reduce_rows", weight)]
    return sweep_func([x, y, a, lse], results)


@pytest.mark.parametrize("blocks", [1, 3])
def test_carries_over_edges_and_rows(blocks: int) -> None:
    kernel = check(gradient_like(), "dst", path="fragment", tol=5e-5, blocks=blocks)
    assert kernel.text.carry is not None


def test_carries_of_an_empty_graph_are_zero() -> None:
    kernel = emulate(gradient_like(), "dst")
    graph = empty_graph()
    for got in kernel(graph, random_args(kernel.spec.func, graph)):
        assert (got == 0).all()
    nowhere = empty_graph(2, 0)
    assert (kernel(nowhere, random_args(kernel.spec.func, nowhere))[2] == 0).all()


SCHEDULES = [
    CudaSchedule(unroll=1),
    CudaSchedule(unroll=8, prefetch=True, fence=True),
    CudaSchedule(lanes=32, vec=1, unroll=2),
    CudaSchedule(slices=4),
    CudaSchedule(group_rows=True),
    CudaSchedule(group_rows=True, prefetch=True, slices=2),
    CudaSchedule(block=64),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"u{s.unroll} v{s.vec} s{s.slices} g{s.group_rows} p{s.prefetch} b{s.block}")
def test_every_schedule_gives_the_same_answer(schedule: CudaSchedule) -> None:
    check(weighted(4, 8), "dst", path="fragment", schedule=schedule)


def test_slices_with_carries_and_statistics() -> None:
    check(gradient_like(), "dst", path="fragment", schedule=CudaSchedule(slices=3), tol=5e-5)
    check(gatv2(4, 8), "dst", path="fragment", schedule=CudaSchedule(slices=2))


def test_a_schedule_that_does_not_fit_says_why() -> None:
    spec = SweepSpec("s", weighted(4, 8), "dst", "dst")
    with pytest.raises(DoesNotFit) as e:
        emit_cuda(spec, I32, "k", CudaSchedule(path="fragment", slices=3))
    assert str(e.value) == "3 slices of 4 x 8"


@pytest.mark.parametrize("dtype", [U8, I16, I32, I64, BOOL], ids=str)
def test_integer_and_bool_inputs(dtype: DType) -> None:
    b = Builder()
    x, t = b.input("x", Type("src", F32, (6,))), b.input("t", Type("edge", dtype, ()))
    flag = t if dtype is BOOL else b.op("gt", t, b.const(1, dtype))
    m = b.mul(b.gather(x, "src"), b.cast(t, F32))
    func = sweep_func([x, t], [b.fold("sum", b.where(flag, m, b.const(-1.0))), b.add(b.cast(t, I32), b.const(2, I32))])
    check(func, "dst", path="fragment")


def test_wide_integer_tables() -> None:
    b = Builder()
    x = b.input("x", Type("src", U8, (20,)))
    func = sweep_func([x], [b.fold("max", b.gather(x, "src")), b.op("reduce_max", b.gather(x, "src"), axis=-1)])
    check(func, "dst", path="fragment")


def last_message(square: bool = False) -> Func:
    """A user's monoid that hangs on the order of edges: combine is associative and does not commute."""
    last = make_monoid(
        "last",
        [Component("any", 0.0), Component("value", 0.0)],
        lambda b, seen, value, m: [b.const(1.0), m],
        lambda b, s1, v1, s2, v2: [b.op("maximum", s1, s2), b.where(b.op("gt", s2, b.const(0.0)), v2, v1)],
        {"value": lambda b, seen, value, deg: value},
    )
    b = Builder(monoids=(last,))
    m = b.gather(b.input("x", Type("src", F32, (5,))), "src")
    return sweep_func([m.operands[0]], [b.fold("last", m)], monoids=(last,))


@pytest.mark.parametrize("group_rows", [False, True])
def test_a_monoid_that_does_not_commute_sees_edges_in_order(group_rows: bool) -> None:
    kernel = check(last_message(), "dst", path="fragment", schedule=CudaSchedule(group_rows=group_rows))
    assert "kOrdered = true" in kernel.text.program


def test_iota_argmax_and_reductions_over_heads() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (4, 6)))
    j = b.gather(x, "src")
    results = [b.fold("sum", b.cast(b.op("argmax", j, axis=a), F32)) for a in (-1, -2)]
    results += [b.fold("sum", b.sum(j, -2)), b.fold("sum", b.op("reduce_max", j, axis=-2, keepdim=True))]
    check(sweep_func([x], results), "dst", path="fragment")


def test_maps_over_rows_and_params() -> None:
    b = Builder()
    x, a = b.input("x", Type("dst", F16, (3, 5))), b.input("a", Type("param", F32, (5,)))
    y = b.op("relu", b.add(x, a))
    check(sweep_func([x, a], [b.cast(y, F16), b.op("reduce_rows", y), b.sum(y)]), None, "dst", path="fragment", tol=2e-3)
    b = Builder()
    a = b.input("a", Type("param", F32, (5,)))
    check(sweep_func([a], [b.op("exp", a)]), None, "param", path="fragment")


def test_degrees_of_split_rows() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (4,)))
    mean = b.div(b.gather(x, "src"), b.gather(b.op("maximum", b.degree("dst"), b.const(1.0)), "dst"))
    check(sweep_func([x], [b.fold("sum", mean), b.degree("dst", F64)]), "dst", path="fragment")


def test_square_function_with_all_ranks_flat() -> None:
    b = Builder(square=True)
    x = b.input("x", Type("node", F32, (2, 3, 4)))
    m = b.mul(b.gather(x, "src"), b.gather(x, "dst"))
    kernel = check(sweep_func([x], [b.fold("sum", m)], square=True), "dst", path="fragment")
    assert kernel.text.reason == "values of one size, no feature reduction"


def test_runs_are_bitwise_equal_for_one_grid() -> None:
    kernel = emulate(gradient_like(), "dst")
    graph = random_graph(1, 20, 17, 100, hub=60)
    args = random_args(kernel.spec.func, graph)
    first, second = (kernel(graph, args, blocks=3) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()


UNARY = ["neg", "abs", "sign", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "relu", "leaky_relu", "elu", "gelu", "silu"]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_every_elementwise_operation_at_ordinary_and_special_values(dtype: DType) -> None:
    b = Builder()
    x, y = b.input("x", Type("dst", dtype, ())), b.input("y", Type("dst", dtype, ()))
    results = [b.op(n, x) for n in UNARY]
    results += [b.op(n, x, y) for n in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")]
    results += [b.op(n, x, y) for n in ("eq", "ne", "lt", "le", "gt", "ge")]
    results += [b.op("clamp", x, min=-0.5, max=1.0), b.cast(x, I32), b.cast(x, BOOL), b.cast(x, F16), b.op("pow", x, b.const(2.0))]
    results.append(b.op("or", b.op("not", b.op("lt", x, y)), b.op("and", b.op("gt", x, y), b.op("ne", y, y))))
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 80.0, -80.0, 1e-30, np.inf, -np.inf, np.nan]
    xs, ys = (a.ravel() for a in np.meshgrid(special, special))
    keep = np.isfinite(xs)  # a cast of inf to an integer is the platform's in the interpreter
    graph = empty_graph(1, int(keep.sum()))
    kernel = emulate(sweep_func([x, y], results), None, "dst")
    args = {"x": xs[keep].astype(np.float32).astype(np.float64), "y": ys[keep].astype(np.float32).astype(np.float64)}
    with np.errstate(all="ignore"):
        compare(kernel, graph, args, 1e-3 if dtype is F32 else 1e-11)
    graph = empty_graph(1, len(xs))
    kernel = emulate(sweep_func([x, y], results[: len(UNARY) + 14]), None, "dst")
    compare(kernel, graph, {"x": xs, "y": ys}, 1e-3 if dtype is F32 else 1e-11)


def parts_of_rows(dtype: DType = F32) -> Func:
    """Slices of tables as loads with a distance between heads, a concat as several stores: along both axes, of edges and of rows."""
    b = Builder()
    x, e = b.input("x", Type("src", dtype, (4, 12))), b.input("e", Type("edge", dtype, (24,)))
    w, y = b.input("w", Type("param", dtype, (4, 12))), b.input("y", Type("dst", dtype, (8, 6)))
    j = b.gather(x, "src")
    low, high = (b.op("slice", j, axis=-1, start=s, stop=s + 6) for s in (0, 6))
    score = b.add(b.sum(b.mul(high, b.op("slice", w, axis=-1, start=0, stop=6))), b.op("slice", e, axis=-1, start=8, stop=12))
    m = b.mul(b.reshape(score, (4, 1)), low)
    out, rest = b.fold("sum", m), b.op("slice", y, axis=-2, start=4, stop=8)
    results = [b.op("concat", out, rest, axis=-1), b.op("concat", out, rest, axis=-2), b.op("concat", m, high, axis=-1)]
    return sweep_func([x, e, w, y], [b.cast(r, dtype) for r in results])


@pytest.mark.parametrize("schedule", [None, CudaSchedule(slices=2)], ids=["whole", "slices"])
def test_parts_of_wider_rows(schedule: CudaSchedule | None) -> None:
    check(parts_of_rows(), "dst", path="fragment", schedule=schedule)


def test_parts_of_wider_rows_in_bf16() -> None:
    check(parts_of_rows(BF16), "dst", path="fragment", tol=TOLERANCE["bf16"])


def test_a_transposed_part_takes_the_general_path() -> None:
    b = Builder()
    x, y = b.input("x", Type("src", F32, (6, 4))), b.input("y", Type("src", F32, (3, 6)))
    m = b.mul(b.op("slice", b.op("transpose", b.gather(x, "src")), axis=-2, start=0, stop=3), b.gather(y, "src"))
    kernel = check(sweep_func([x, y], [b.fold("sum", m)]), "dst", path="general")
    assert kernel.text.reason == "slice whose elements are 4 apart"


def test_aggregators_side_by_side_are_one_gather() -> None:
    b = Builder()
    m = b.gather(b.input("x", Type("src", F32, (7,))), "src")
    folds = [b.fold("moments", m, part="mean"), b.fold("moments", m, part="std"), b.fold("min", m), b.fold("max", m)]
    kernel = check(sweep_func([m.operands[0]], [b.op("concat", *folds, axis=-1)]), "dst", path="fragment")
    assert kernel.text.program.count("fetch<") == 1


def test_slices_and_concats_move_through_arithmetic() -> None:
    """The layout of aggregators times scalers, and its gradient: no value is ever moved between lanes."""
    b = Builder()
    x, g = b.input("x", Type("src", F32, (6,))), b.input("g", Type("dst", F32, (24,)))
    m = b.gather(x, "src")
    folds = [b.fold("mean", m), b.fold("max", m)]
    both = b.op("concat", *folds, axis=-1)
    scaled = b.mul(b.op("log", b.add(b.degree("dst"), b.const(1.0))), both)
    forward = b.op("concat", both, scaled, axis=-1)
    upstream = b.gather(b.op("tanh", g), "dst")
    backward = b.fold("sum", b.mul(b.op("slice", upstream, axis=-1, start=6, stop=12), m))
    check(sweep_func([x, g], [forward, backward]), "dst", path="fragment")


def test_a_concat_of_one_value_and_a_slice_of_everything() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (6,)))
    m = b.op("slice", b.op("neg", b.gather(x, "src")), axis=-1, start=0, stop=6)
    check(sweep_func([x], [b.op("concat", b.fold("sum", m), axis=-1)]), "dst", path="general")


def test_chains_of_a_thousand_operations_are_emitted_without_recursion() -> None:
    b = Builder()
    v = b.gather(b.input("x", Type("src", F32, (8,))), "src")
    x = v.operands[0]
    for _ in range(600):
        v = b.op("abs", b.mul(v, b.const(0.999)))
    text = emit_cuda(SweepSpec("s", sweep_func([x], [b.fold("sum", v)]), "dst", "dst"), I32, "k")
    assert text.path == "fragment"
    assert text.program.count("= abs(") == 600
