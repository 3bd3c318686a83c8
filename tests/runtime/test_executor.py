"""Plans on graphs: buffers, tasks, dense products, argument errors, lifetimes."""

from __future__ import annotations

import gc
import itertools
import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnnc_runtime.executor import Executable, graph_tasks
from gnnc_runtime.graph import Graph
from gnnc_runtime.kernels import load_shared
from gnnc_runtime.plan import BufferSpec, DenseStep, Plan, Step, SweepStep
from tests.runtime import scaled
from tests.runtime.python_kernels import PythonKernel


def dense_plan(a: BufferSpec, b: BufferSpec, out: BufferSpec, **step: object) -> Executable:
    plan = Plan("dense", ("a", "b"), ("out",), (a, b, out), (DenseStep(a="a", b="b", out="out", **step),))  # type: ignore[arg-type]
    return Executable(plan, {})


# ---- sweeps


@pytest.mark.parametrize("task_edges", [1, 4, 16, 10**6])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_split_rows_carries_and_threads(task_edges: int, threads: int) -> None:
    g = scaled.a_graph()
    x, w, s = (t.requires_grad_() for t in scaled.inputs(g))
    want, degree = scaled.eager(g, x, w, s)
    up = torch.randn(want.shape)
    want_grads = torch.autograd.grad(want, (x, w, s), up)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out, deg, h = scaled.forward(task_edges).run(g, (x, w, s))
        grads = scaled.backward(task_edges).run(g, (up, x, w, s, h))
    finally:
        torch.set_num_threads(before)
    assert not out.requires_grad
    torch.testing.assert_close(out, want.detach())
    assert torch.equal(deg, degree)
    for got, expected in zip(grads, want_grads, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("num_src", "num_dst", "num_edges"), [(0, 0, 0), (3, 0, 0), (0, 4, 0), (3, 4, 0), (1, 1, 1)])
def test_no_rows_or_edges(num_src: int, num_dst: int, num_edges: int) -> None:
    g = scaled.a_graph(num_src, num_dst, num_edges)
    x, w, s = scaled.inputs(g)
    torch.full((1000,), 1e30)  # dirty the allocator
    out, deg, h = scaled.forward().run(g, (x, w, s))
    assert out.shape == (num_dst, scaled.F)
    d_x, d_w, d_s = scaled.backward().run(g, (torch.ones_like(out), x, w, s, h))
    if num_edges == 0:
        assert out.eq(0).all() and deg.eq(0).all() and d_x.eq(0).all() and d_s.eq(0).all()
    assert d_x.shape == x.shape and d_w.shape == w.shape


def test_layouts_give_the_same_answer() -> None:
    g = scaled.a_graph()
    x, w, s = scaled.inputs(g)
    run = scaled.forward().run
    want = run(g, (x, w, s))[0]
    for other in (x.t().contiguous().t(), torch.cat([x, x], 1)[:, :3], torch.stack([x, x], 2)[..., 1], torch.cat([x[:1], x])[1:]):
        assert torch.equal(run(g, (other, w, s))[0], want)
    assert torch.equal(run(g, (x, torch.ones(1).expand(g.num_edges), s))[0], run(g, (x, torch.ones(g.num_edges), s))[0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, w, s: (x.double(), w, s), "scaled: x must be [7, 3] of float32 on cpu, not [7, 3] of float64 on cpu"),
        (lambda x, w, s: (x[:6], w, s), "scaled: x must be [7, 3] of float32 on cpu, not [6, 3] of float32 on cpu"),
        (lambda x, w, s: (x, w[:, None], s), "scaled: w must be [40] of float32 on cpu, not [40, 1] of float32 on cpu"),
        (lambda x, w, s: (x, w, s.to("meta")), "scaled: s must be [3] of float32 on cpu, not [3] of float32 on meta"),
        (lambda x, w, s: (x, w), "scaled takes 3 tensors, not 2"),
    ],
)
def test_wrong_inputs_are_refused(change: object, text: str) -> None:
    g = scaled.a_graph()
    with pytest.raises(ValueError) as e:
        scaled.forward().run(g, change(*scaled.inputs(g)))  # type: ignore[operator]
    assert str(e.value) == text


def test_index_dtype_must_be_the_compiled_one() -> None:
    g = scaled.a_graph()
    plan = Plan(
        "wide", ("x",), ("y",), (BufferSpec("x", "src", "f32", (), "input"), BufferSpec("y", "dst", "f32", (), "output")),
        (SweepStep("k", "dst", "dst", ("x", "y"), 1),), index_dtype="i64",
    )  # fmt: skip
    exe = Executable(plan, {"k": PythonKernel([]).kernel()})
    with pytest.raises(ValueError) as e:
        exe.run(g, (torch.zeros(7),))
    assert str(e.value) == "wide was compiled for int64 graph forms on cpu, not int32 on cpu"


def test_square_plan_needs_a_square_graph() -> None:
    plan = Plan("sq", ("a",), ("a",), (BufferSpec("a", "node", "f32", (), "input"),), (), square=True)
    exe = Executable(plan, {})
    a = torch.ones(5)
    (out,) = exe.run(scaled.a_graph(5, 5), (a,))
    assert torch.equal(out, a) and out.data_ptr() != a.data_ptr()  # a result never aliases an input
    with pytest.raises(ValueError) as e:
        exe.run(scaled.a_graph(), (a,))
    assert str(e.value) == "sq needs as many sources as destinations, not 7 and 5"


def test_degrees_and_maps() -> None:
    g = scaled.a_graph()
    double = PythonKernel([("f64", ()), ("f64", ())], store=lambda v, row, _: scaled.put(v, 1, row, 2 * v.a[0][row]))
    plan = Plan(
        "deg", (), ("twice", "$in_degree"),
        (
            BufferSpec("$out_degree:f64", "src", "f64", (), "graph"),
            BufferSpec("$in_degree", "dst", "f32", (), "graph"),
            BufferSpec("twice", "src", "f64", (), "output"),
        ),
        (SweepStep("double", None, "src", ("$out_degree:f64", "twice"), 1, task_edges=2),),
    )  # fmt: skip
    exe = Executable(plan, {"double": double.kernel()})
    assert exe.sides == ("dst", "src")
    twice, degree = exe.run(g, ())
    assert torch.equal(twice, 2 * torch.bincount(g.edge_index[0], minlength=7).double())
    assert torch.equal(degree, torch.bincount(g.edge_index[1], minlength=5).float())
    degree.zero_()
    assert g.in_degree().sum() == 40  # the graph's own is untouched
    assert sorted(n for first, last in double.calls for n in range(first, last)) == [0, 1, 2, 3]


def test_param_map_has_one_row() -> None:
    square = PythonKernel([("f32", (2,)), ("f32", (2,))], store=lambda v, row, _: scaled.put(v, 1, row, v.a[0][row] ** 2))
    plan = Plan(
        "p", ("w",), ("y",), (BufferSpec("w", "param", "f32", (2,), "input"), BufferSpec("y", "param", "f32", (2,), "output")),
        (SweepStep("k", None, "param", ("w", "y"), 1),),
    )  # fmt: skip
    (y,) = Executable(plan, {"k": square.kernel()}).run(scaled.a_graph(0, 0, 0), (torch.tensor([2.0, 3.0]),))
    assert y.tolist() == [4.0, 9.0]


# ---- dense steps


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_matmul(dtype: str, transpose_b: bool, rows: int) -> None:
    exe = dense_plan(
        BufferSpec("a", "src", dtype, (2, 4), "input"),
        BufferSpec("b", "param", dtype, (3, 4) if transpose_b else (4, 3), "input"),
        BufferSpec("out", "src", dtype, (2, 3), "output"),
        op="matmul",
        transpose_b=transpose_b,
    )
    t = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    a, b = torch.randn(rows, 2, 4).to(t), torch.randn((3, 4) if transpose_b else (4, 3)).to(t)
    (out,) = exe.run(scaled.a_graph(rows, 5, 0), (a, b))
    want = a.double() @ (b.double().t() if transpose_b else b.double())
    assert out.dtype == t
    torch.testing.assert_close(out, want.to(t))


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype", "out_dtype"), [("f32", "f32", "f32"), ("f16", "f16", "f16"), ("bf16", "f32", "f32"), ("bf16", "bf16", "f32")]
)
@pytest.mark.parametrize("rows", [0, 6])
def test_contract_rows(a_dtype: str, b_dtype: str, out_dtype: str, rows: int) -> None:
    from gnnc_runtime.executor import TORCH_DTYPES as T

    exe = dense_plan(
        BufferSpec("a", "dst", a_dtype, (2, 4), "input"),
        BufferSpec("b", "dst", b_dtype, (2, 3), "input"),
        BufferSpec("out", "param", out_dtype, (4, 3), "output"),
        op="contract_rows",
    )
    a, b = torch.randn(rows, 2, 4).to(T[a_dtype]), torch.randn(rows, 2, 3).to(T[b_dtype])
    (out,) = exe.run(scaled.a_graph(5, rows, 0), (a, b))
    want = torch.einsum("rik,rif->kf", a.double(), b.double())
    assert out.dtype == T[out_dtype] and out.shape == (4, 3)
    torch.testing.assert_close(out, want.to(T[out_dtype]))


def test_half_products_are_rounded_once() -> None:
    exe = dense_plan(
        BufferSpec("a", "dst", "f16", (1,), "input"),
        BufferSpec("b", "dst", "f16", (1,), "input"),
        BufferSpec("out", "param", "f16", (1, 1), "output"),
        op="contract_rows",
    )
    ones = torch.ones(4096, 1, dtype=torch.float16)
    assert exe.run(scaled.a_graph(1, 4096, 0), (ones, ones))[0].item() == 4096.0  # a running f16 sum sticks at 2048


def test_contraction_has_the_same_bits_for_any_number_of_threads() -> None:
    exe = dense_plan(
        BufferSpec("a", "dst", "f32", (16,), "input"),
        BufferSpec("b", "dst", "f32", (24,), "input"),
        BufferSpec("out", "param", "f32", (16, 24), "output"),
        op="contract_rows",
    )
    g = scaled.a_graph(1, 20_001, 0)
    a, b = torch.randn(20_001, 16), torch.randn(20_001, 24)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(exe.run(g, (a, b))[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_unknown_dense_operation_is_refused() -> None:
    spec = [BufferSpec(n, "src", "f32", (2,), r) for n, r in (("a", "input"), ("b", "input"), ("out", "output"))]
    with pytest.raises(ValueError) as e:
        dense_plan(*spec, op="inverse").run(scaled.a_graph(), (torch.ones(7, 2), torch.ones(7, 2)))
    assert str(e.value) == "unknown dense operation 'inverse'"


# ---- buffers and lifetimes


def chain(steps: int) -> Executable:
    """x -> t0 -> t1 ... -> y by maps that add one."""
    names = ["x", *(f"t{i}" for i in range(steps - 1)), "y"]
    roles = ["input", *["temp"] * (steps - 1), "output"]
    buffers = tuple(BufferSpec(n, "src", "f32", (), r) for n, r in zip(names, roles, strict=True))
    kernel = PythonKernel([("f32", ()), ("f32", ())], store=lambda v, row, _: scaled.put(v, 1, row, v.a[0][row] + 1)).kernel()
    plan_steps: tuple[Step, ...] = tuple(SweepStep("k", None, "src", (a, b), 1) for a, b in itertools.pairwise(names))
    return Executable(Plan("chain", ("x",), ("y",), buffers, plan_steps), {"k": kernel})


def test_temporaries_are_freed_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Tensor]] = []
    most = 0
    empty = torch.empty

    def watched(*args: object, **kwargs: object) -> Tensor:
        nonlocal most
        t: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        alive.append(weakref.ref(t))
        most = max(most, sum(r() is not None for r in alive))
        return t

    exe, g = chain(6), scaled.a_graph()
    monkeypatch.setattr(torch, "empty", watched)
    (y,) = exe.run(g, (torch.zeros(7),))
    monkeypatch.undo()
    assert y.tolist() == [6.0] * 7
    assert len(alive) == 6 and most == 2


def test_a_plan_that_never_writes_an_output_is_refused() -> None:
    with pytest.raises(ValueError) as e:
        Executable(Plan("p", (), ("y",), (BufferSpec("y", "src", "f32", (), "output"),), ()), {})
    assert str(e.value) == "plan p: no step writes y"


def test_a_missing_kernel_is_refused() -> None:
    plan = Plan("p", (), (), (), (SweepStep("absent", None, "src", (), 0),))
    with pytest.raises(KeyError, match="absent"):
        Executable(plan, {})


def test_nothing_keeps_a_graph_alive() -> None:
    exe = scaled.forward()
    g = scaled.a_graph()
    exe.run(g, scaled.inputs(g))
    assert len(exe._launches) == 1
    gone = weakref.ref(g)
    del g
    gc.collect()
    assert gone() is None and len(exe._launches) == 0


def test_another_graph_of_the_same_size_is_another_graph() -> None:
    """R21: edges, not shapes, decide."""
    exe = scaled.forward()
    x = torch.tensor([[1.0] * 3, [10.0] * 3, [100.0] * 3])
    ones = torch.ones(2), torch.ones(3)
    a = Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    b = Graph.from_edge_index(torch.tensor([[2, 0], [0, 1]]), 3)
    assert exe.run(a, (x, *ones))[0][:, 0].tolist() == [0, 1, 10]
    assert exe.run(b, (x, *ones))[0][:, 0].tolist() == [100, 1, 0]


def test_tasks_are_shared_by_plans() -> None:
    g = scaled.a_graph()
    assert graph_tasks(g, "dst", 4) is graph_tasks(g, "dst", 4)
    assert graph_tasks(g, "dst", 4) is not graph_tasks(g, "src", 4)


# ---- shared libraries

SOURCE = """
#include <stdint.h>
void twice_run(void** p, const int64_t* tasks, int64_t first, int64_t last, char* states, char* carries) {
  const float* x = p[3]; float* y = p[4];
  for (int64_t t = first; t < last; t++)
    for (int64_t r = tasks[5 * t]; r < tasks[5 * t + 1]; r++) y[r] = 2 * x[r];
}
void twice_finish(void** p, const int64_t* hubs, int64_t n, char* states, char* carries, int64_t tasks) {}
"""


def test_load_shared(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text(SOURCE)
    library = tmp_path / "k.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "k.c"], check=True)
    plan = Plan(
        "p", ("x",), ("y",), (BufferSpec("x", "src", "f32", (), "input"), BufferSpec("y", "src", "f32", (), "output")),
        (SweepStep("twice", None, "src", ("x", "y"), 1, task_edges=3),),
    )  # fmt: skip
    exe = Executable(plan, load_shared(library, ["twice"]))
    assert exe.run(scaled.a_graph(), (torch.arange(7.0),))[0].tolist() == [0, 2, 4, 6, 8, 10, 12]
    with pytest.raises(ValueError) as e:
        load_shared(library, ["thrice"])
    assert str(e.value) == f"{library} has no function thrice_run"
    with pytest.raises(OSError):
        load_shared(tmp_path / "absent.so", ["twice"])
