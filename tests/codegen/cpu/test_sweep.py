"""Kernels of whole sweeps against the evaluator: folds, both directions, split rows, carries, maps, every size and dtype."""

from __future__ import annotations

import numpy as np
import pytest

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.types import BF16, F16, F32, F64, I8, I32, I64, U8, DType, Type

from .kernels import Kernel, compile_sweep, random_args, random_graph, sweep_func
from .oracle import interpret

SIZES = [0, 1, 2, 3, 7, 8, 16, 31, 33, 47, 65, 100, 257, 1025]
TOLERANCE = {"f64": 1e-11, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def check(
    func: Func, by: str | None, rows: str | None = None, index_dtype: DType = I32, tol: float = 2e-5, seed: int = 0, bits: int = 256
) -> Kernel:
    """Compiles, runs with tiny tasks (so that rows split) and compares every result."""
    graph = random_graph(seed, 20, 20 if func.square else 17, 60, hub=40)
    kernel = compile_sweep(func, by, rows, index_dtype=index_dtype, vector_bits=bits)
    args = random_args(func, graph, seed)
    want = interpret(func, graph, args)
    for w, got, r in zip(want, kernel(graph, args), func.results, strict=True):
        np.testing.assert_allclose(got, w, rtol=tol, atol=tol, err_msg=str(r))
    return kernel


def spmm(size: int, dtype: DType = F32, by: str = "dst") -> Func:
    b = Builder()
    x = b.input("x", Type("src" if by == "dst" else "dst", dtype, (size,)))
    w = b.input("w", Type("edge", dtype))
    m = b.mul(b.reshape(w, (1,)), b.gather(x, "src" if by == "dst" else "dst"))
    return sweep_func([x, w], [b.cast(b.fold("sum", m, to=by), dtype)])


@pytest.mark.parametrize("size", SIZES)
def test_spmm_of_every_size(size: int) -> None:
    check(spmm(size), "dst")


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
@pytest.mark.parametrize("size", [1, 7, 33, 300])
def test_spmm_of_every_dtype(size: int, dtype: DType) -> None:
    check(spmm(size, dtype), "dst", tol=TOLERANCE[dtype.name], bits=512)


@pytest.mark.parametrize("bits", [128, 512])
@pytest.mark.parametrize("index_dtype", [I32, I64], ids=str)
def test_spmm_by_src(index_dtype: DType, bits: int) -> None:
    check(spmm(40, by="src"), "src", index_dtype=index_dtype, bits=bits)


def gatv2(heads: int, channels: int, dtype: DType = F32, square: bool = False) -> Func:
    b = Builder(square=square)
    side = ("node", "node") if square else ("src", "dst")
    xs, xd = b.input("xs", Type(side[0], dtype, (heads, channels))), b.input("xd", Type(side[1], dtype, (heads, channels)))
    att = b.input("att", Type("param", dtype, (heads, channels)))
    j = b.gather(xs, "src")
    score = b.sum(b.mul(att, b.op("leaky_relu", b.add(j, b.gather(xd, "dst")), slope=0.2)))
    column = b.reshape(score, (heads, 1))
    out = b.fold("softmax_sum", column, j)
    lse = b.fold("softmax_sum", column, j, part="lse")
    return sweep_func([xs, xd, att], [b.cast(out, dtype), b.reshape(lse, (heads,))], square=square)


@pytest.mark.parametrize("bits", [128, 256, 512])
@pytest.mark.parametrize("dims", [(8, 8), (1, 16), (4, 32), (3, 5), (2, 33), (1, 1), (6, 1), (16, 100), (300, 2), (40, 16)], ids=str)
def test_gatv2(dims: tuple[int, int], bits: int) -> None:
    check(gatv2(*dims), "dst", bits=bits)


@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
def test_gatv2_of_every_dtype(dtype: DType) -> None:
    check(gatv2(4, 6, dtype), "dst", tol=TOLERANCE[dtype.name])


def test_gatv2_on_one_node_space() -> None:
    check(gatv2(2, 8, square=True), "dst")


@pytest.mark.parametrize("index_dtype", [I32, I64], ids=str)
@pytest.mark.parametrize("size", [1, 5, 16, 300])
def test_max_with_its_argument(size: int, index_dtype: DType) -> None:
    b = Builder(index_dtype=index_dtype)
    x = b.input("x", Type("src", F32, (size,)))
    m = b.gather(x, "src")
    func = sweep_func([x], [b.fold(k, m, part=p) for k in ("max", "min") for p in ("value", "arg")])
    check(func, "dst", index_dtype=index_dtype)


def test_ties_and_nan_of_a_maximum_follow_the_edge_order() -> None:
    b = Builder()
    w = b.input("w", Type("edge", F32, (3,)))
    func = sweep_func([w], [b.fold("max", w), b.fold("max", w, part="arg"), b.fold("maxonly", w)])
    graph = random_graph(3, 9, 5, 40, hub=40)
    values = np.random.default_rng(0).integers(-2, 2, (80, 3)).astype(np.float64)
    values[7, 1] = values[50, 1] = np.nan
    kernel = compile_sweep(func, "dst")
    want = interpret(func, graph, {"w": values})
    got = kernel(graph, {"w": values})
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[2], want[2])
    assert np.isnan(got[0]).any()


@pytest.mark.parametrize("size", [1, 6, 33, 400])
def test_many_folds_of_one_message(size: int) -> None:
    b = Builder()
    x, e = b.input("x", Type("src", F32, (size,))), b.input("e", Type("edge", F32, (size,)))
    m = b.op("relu", b.add(b.gather(x, "src"), e))
    parts = [b.fold(k, m) for k in ("sum", "mean", "max", "min", "prod", "logsumexp")]
    parts += [b.fold("moments", m, part=p) for p in ("mean", "var", "std")]
    kernel = check(sweep_func([x, e], [b.op("concat", *parts, axis=-1)]), "dst", tol=2e-4)
    assert "state.mean.sum" not in kernel.text.text, "mean and sum add the same messages: one state"
    assert kernel.text.text.count("%state.sum.sum = alloca") == 2


def test_equal_messages_have_no_variance() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (5,)))
    func = sweep_func([x], [b.fold("moments", b.gather(x, "src"), part="std")])
    graph = random_graph(0, 20, 17, 60, hub=40)
    out = compile_sweep(func, "dst")(graph, {"x": np.broadcast_to(np.float64(0.1), (20, 5))})
    assert (out[0] == 0).all()


def test_edge_outputs_are_in_the_users_order() -> None:
    b = Builder()
    x, y = b.input("x", Type("src", BF16, (6,))), b.input("y", Type("dst", F32, (6,)))
    w = b.input("w", Type("edge", F32, (6,)))
    dot = b.sum(b.mul(b.gather(x, "src"), b.gather(y, "dst")))
    scaled = b.mul(w, b.reshape(dot, (1,)))
    func = sweep_func([x, y, w], [dot, b.cast(scaled, F16), b.fold("sum", scaled), b.op("gt", w, b.const(0.0)), b.op("edge_id")])
    check(func, "dst", tol=2e-3)
    check(func, "dst", tol=2e-3, seed=5)


@pytest.mark.parametrize("dims", [(4,), (3, 5), (33,), (20, 30)], ids=str)
def test_carries_of_edges_and_rows(dims: tuple[int, ...]) -> None:
    b = Builder()
    x, y = b.input("x", Type("src", F32, dims)), b.input("y", Type("dst", F32, (*dims[:-1], 7)))
    w = b.input("w", Type("edge", F32, dims))
    m = b.mul(b.gather(x, "src"), w)
    total = b.fold("sum", m)
    results = [
        b.op("reduce_rows", m),
        b.op("contract_rows", m, b.gather(y, "dst")),
        b.cast(b.op("reduce_rows", b.mul(total, total)), BF16),
        b.op("contract_rows", b.op("tanh", total), y),
        total,
        b.op("reduce_rows", y),
    ]
    check(sweep_func([x, y, w], results), "dst", tol=1.6e-2)


def test_maps_over_rows_and_params() -> None:
    b = Builder()
    x, p = b.input("x", Type("dst", F32, (5, 4))), b.input("p", Type("param", F32, (4,)))
    y = b.add(x, b.op("exp", p))
    rows = sweep_func([x, p], [y, b.op("reduce_rows", b.sum(y)), b.op("contract_rows", x, y), b.mul(p, p)])
    check(rows, None, "dst", tol=1e-4)
    b = Builder()
    p, q = b.input("p", Type("param", F32, (4, 3))), b.input("q", Type("param", F64, (3,)))
    params = sweep_func([p, q], [b.add(p, q), b.op("transpose", p), b.op("reduce_rows", q), b.op("matmul", p, b.op("transpose", p))])
    check(params, None, "param")


def test_integer_edge_types_select_weights() -> None:
    b = Builder()
    kind, x = b.input("kind", Type("edge", I64)), b.input("x", Type("src", F32, (6,)))
    w = b.input("w", Type("param", F32, (3, 6)))
    j = b.gather(x, "src")
    out = []
    for n in range(3):
        row = b.reshape(b.op("slice", w, axis=-2, start=n, stop=n + 1), (6,))
        on = b.reshape(b.op("eq", kind, b.const(n, I64)), (1,))
        out.append(b.fold("sum", b.where(on, b.mul(j, row), b.const(0.0))))
    check(sweep_func([kind, x, w], [out[0], b.add(out[1], out[2])]), "dst")


@pytest.mark.parametrize("dtype", [I8, U8, I32, I64], ids=str)
def test_folds_of_integers(dtype: DType) -> None:
    b = Builder()
    m = b.input("m", Type("edge", dtype, (3,)))
    func = sweep_func([m], [b.fold("sum", m), b.fold("max", m), b.op("reduce_max", m, axis=-1), b.sum(m), b.op("neg", m)])
    check(func, "dst")


@pytest.mark.parametrize("size", [5, 64, 90])
def test_matmul_concat_slice_and_reshape_on_edges(size: int) -> None:
    b = Builder()
    x, y = b.input("x", Type("src", F32, (size,))), b.input("y", Type("dst", BF16, (size,)))
    w, bias = b.input("w", Type("param", F32, (2 * size, 12))), b.input("bias", Type("param", F32, (12,)))
    both = b.op("concat", b.gather(x, "src"), b.gather(y, "dst"), axis=-1)
    hidden = b.op("silu", b.add(b.op("matmul", both, w), bias))
    back = b.op("matmul", hidden, b.op("transpose", w))
    part = b.op("slice", b.reshape(hidden, (3, 4)), axis=-1, start=1, stop=3)
    func = sweep_func([x, y, w, bias], [b.fold("sum", hidden), b.fold("sum", b.reshape(part, (6,))), b.fold("max", back)])
    check(func, "dst", tol=1e-3)


def test_degrees_and_row_values_before_the_edges() -> None:
    b = Builder()
    x, d = b.input("x", Type("src", F32, (5,))), b.input("d", Type("dst", F32, (5,)))
    scale = b.op("rsqrt", b.op("maximum", b.degree("dst"), b.const(1.0)))
    m = b.mul(b.gather(x, "src"), b.gather(b.mul(b.op("exp", d), b.reshape(scale, (1,))), "dst"))
    wide = b.degree("dst", F64)
    check(sweep_func([x, d], [b.fold("mean", m), b.mul(d, b.reshape(wide, (1,))), scale]), "dst")


def _stored(kernel: Kernel, seed: int, task_edges: int, grain: int) -> list[bytes]:
    graph = random_graph(seed, 20, 17, 60, hub=40)
    return [a.tobytes() for a in kernel(graph, random_args(kernel.spec.func, graph), task_edges, grain)]


def test_results_do_not_depend_on_calls_but_rows_may_split_anywhere() -> None:
    b = Builder()
    x, w = b.input("x", Type("src", F32, (9,))), b.input("w", Type("edge", F32))
    m = b.mul(b.gather(x, "src"), b.reshape(w, (1,)))
    kernel = compile_sweep(sweep_func([x, w], [b.fold("sum", m), b.op("reduce_rows", m)]), "dst")
    whole = _stored(kernel, 0, 7, 1000)
    assert _stored(kernel, 0, 7, 1) == whole
    assert _stored(kernel, 0, 7, 3) == whole
    other = _stored(kernel, 0, 5, 1000)
    assert other != whole
    np.testing.assert_allclose(np.frombuffer(other[0]), np.frombuffer(whole[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("edges", [0, 1])
def test_graphs_with_no_rows_or_no_edges(edges: int) -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (3,)))
    m = b.gather(x, "src")
    func = sweep_func([x], [b.fold("sum", m), b.fold("logsumexp", m), b.op("reduce_rows", m)])
    kernel = compile_sweep(func, "dst")
    for rows in (0, 4):
        graph = random_graph(0, 3, rows, edges if rows else 0)
        args = random_args(func, graph)
        for want, got in zip(interpret(func, graph, args), kernel(graph, args), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_monoid_of_the_users_own() -> None:
    from gnnc.ir.monoid import Component, make_monoid

    # First component is read by the second's step after it changed: new values must not clobber old ones.
    def step(b: Builder, last: Value, jumps: Value, m: Value) -> list[Value]:
        return [m, b.add(jumps, b.op("abs", b.sub(m, last)))]

    def combine(b: Builder, last: Value, jumps: Value, last2: Value, jumps2: Value) -> list[Value]:
        return [last2, b.add(jumps, jumps2)]

    monoid = make_monoid(
        "jumps", [Component("last", 0.0), Component("jumps", 0.0)], step, combine, {"value": lambda b, a, j, d: b.add(a, j)}
    )
    for size in (1, 12, 500):
        b = Builder(monoids=(monoid,))
        x = b.input("x", Type("src", F32, (size,)))
        func = sweep_func([x], [b.fold("jumps", b.gather(x, "src"))], monoids=(monoid,))
        graph = random_graph(0, 20, 17, 60, hub=40)
        args = random_args(func, graph)
        got = compile_sweep(func, "dst", task_edges=1000)(graph, args)
        np.testing.assert_allclose(got[0], interpret(func, graph, args)[0], rtol=1e-5, atol=1e-5)


def test_states_that_broadcast_into_each_other() -> None:
    """The wide component's step reads the narrow one's old value: it must still be there."""
    from gnnc.ir.monoid import Component, make_monoid

    def step(b: Builder, count: Value, acc: Value, s: Value, m: Value) -> list[Value]:
        return [b.add(count, s), b.add(acc, b.mul(count, m))]

    monoid = make_monoid(
        "staggered",
        [Component("count", 1.0), Component("acc", 0.0, like=(0, 1))],
        step,
        lambda b, n, a, n2, a2: [b.add(n, n2), b.add(a, a2)],
        {"value": lambda b, n, a, d: a, "count": lambda b, n, a, d: n},
        arity=2,
    )
    for heads, channels in ((3, 4), (8, 8), (40, 20)):
        b = Builder(monoids=(monoid,))
        x, s = b.input("x", Type("src", F32, (heads, channels))), b.input("s", Type("edge", F32, (heads, 1)))
        m = b.gather(x, "src")
        func = sweep_func([x, s], [b.fold("staggered", s, m, part=p) for p in ("value", "count")], monoids=(monoid,))
        graph = random_graph(0, 20, 17, 60, hub=40)
        args = random_args(func, graph)
        got = compile_sweep(func, "dst", task_edges=1000)(graph, args)
        for a, w in zip(got, interpret(func, graph, args), strict=True):
            np.testing.assert_allclose(a, w, rtol=1e-4, atol=1e-4)


def test_scratch_written_out_of_order_in_pieces_of_mixed_widths() -> None:
    """Reductions and concats fill scratch in pieces; one wide read of it once made LLVM use a register before it was defined."""
    b = Builder()
    x, y = b.input("x", Type("edge", F32, (6,))), b.input("y", Type("dst", F32, (6,)))
    early = b.fold("sum", x)
    late = b.op("tanh", b.add(early, y))
    joined = b.op("concat", late, early, b.neg(late), b.add(early, early), axis=-1)
    wide = b.mul(b.reshape(joined, (4, 6)), b.reshape(b.sum(b.reshape(joined, (4, 6)), -2), (1, 6)))
    check(sweep_func([x, y], [wide, b.op("reduce_rows", wide)]), "dst", bits=512, tol=1e-4)
