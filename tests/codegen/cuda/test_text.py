"""The generated text itself: readable snapshots, names, the line map, what depends on what."""

from __future__ import annotations

import subprocess
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from gnnc.codegen.cuda import CudaSchedule, emit_cuda
from gnnc.codegen.cuda.ops import unique_identifiers
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Loc
from gnnc.ir.sweep import SweepSpec
from gnnc.ir.types import BF16, F32, I32, I64, DType, Type
from tests.codegen.cpu.kernels import sweep_func
from tests.codegen.cpu.test_sweep import gatv2, spmm

from .checks import dot_attention
from .test_fragment import gradient_like
from .test_general import edge_mlp

LINES = ["score = (att * leaky_relu(g.src(x) + g.dst(y), 0.2)).sum(-1)", "return g.sum(g.softmax(score)[..., None] * g.src(x))"]


def located_gatv2(heads: int = 8, channels: int = 32, dtype: DType = F32) -> Func:
    b = Builder()
    x, y = b.input("x", Type("src", dtype, (heads, channels))), b.input("y", Type("dst", dtype, (heads, channels)))
    att = b.input("att", Type("param", dtype, (heads, channels)))
    with b.at(Loc("/somewhere/layer.py", 4, text=f"    {LINES[0]}")):
        j = b.gather(x, "src")
        score = b.sum(b.mul(att, b.op("leaky_relu", b.add(j, b.gather(y, "dst")), slope=0.2)))
    with b.at(Loc("/somewhere/layer.py", 5, text=f"    {LINES[1]}")):
        column = b.reshape(score, (heads, 1))
        out = b.cast(b.fold("softmax_sum", column, j), dtype)
        lse = b.reshape(b.fold("softmax_sum", column, j, part="lse"), (heads,))
    return sweep_func([x, y, att], [out, lse])


def emit(func: Func, index: DType = I32, **schedule: object) -> str:
    return emit_cuda(SweepSpec("s", func, "dst", "dst", "attention"), index, "layer_0", CudaSchedule(**schedule)).program  # type: ignore[arg-type]


def test_attention_reads_like_a_kernel_one_would_write(snapshot: SnapshotAssertion) -> None:
    assert emit(located_gatv2()) == snapshot


def test_sums_over_edges_and_rows(snapshot: SnapshotAssertion) -> None:
    assert emit(gradient_like()) == snapshot


def test_general_path(snapshot: SnapshotAssertion) -> None:
    assert emit(edge_mlp()) == snapshot


def test_the_struct_depends_on_the_program_alone() -> None:
    """Sizes, dtypes, index width and schedule enter through aliases and the layout, outside the struct."""

    def struct(text: str) -> str:
        start = text.index("template <class S> struct Program")
        return text[start : text.index("using P = ")]

    base = struct(emit(located_gatv2()))
    assert struct(emit(located_gatv2(3, 20), unroll=1)) == base
    assert struct(emit(located_gatv2(), group_rows=True)) == base
    assert struct(emit(located_gatv2(8, 32, BF16), I64)) == base
    assert struct(emit(gatv2(8, 32))) != base


def test_every_line_of_the_map_shows_its_dsl_line() -> None:
    text = emit_cuda(SweepSpec("s", located_gatv2(), "dst", "dst"), I32, "k")
    lines = text.text.splitlines()
    assert {loc.line for loc in text.lines.values()} == {4, 5}
    number = next(n for n, line in enumerate(lines, 1) if "leaky_relu(v" in line and "const auto" in line)
    assert text.lines[number].line == 4
    assert f"// layer.py:4: {LINES[0]}" in text.program
    assert "/somewhere" not in text.text


def test_text_is_the_same_in_another_process() -> None:
    code = (
        "import hashlib\n"
        "from tests.codegen.cuda.test_text import emit\n"
        "from tests.codegen.cuda.test_general import edge_mlp\n"
        "from tests.codegen.cuda.test_fragment import gradient_like\n"
        "print(hashlib.sha256((emit(gradient_like()) + emit(edge_mlp())).encode()).hexdigest())\n"
    )
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1
    assert len(runs.pop().strip()) == 64


def test_buffer_names_become_identifiers() -> None:
    names = ("x", "$in_degree:f64", "float", "v3", "a b", "a_b", "2nd", "x_t", "list")
    assert unique_identifiers(names) == ["x", "in_degree_f64", "float_", "v3_", "a_b", "a_b_2", "b2nd", "x_t_", "list_"]


@pytest.mark.parametrize(
    ("func", "path", "reason"),
    [
        (spmm(4), "fragment", "values of one size, no feature reduction"),
        (dot_attention(2, 4), "fragment", "every value is [H, C], [H], [C] or scalar"),
        (edge_mlp(), "general", "concat of feature dims [10]"),
        (spmm(100_003), "general", "a lane would hold 12504 registers of 1 x 100003 values"),
    ],
    ids=["flat", "attention", "concat", "huge"],
)
def test_the_path_comes_with_a_reason(func: Func, path: str, reason: str) -> None:
    text = emit_cuda(SweepSpec("s", func, "dst", "dst"), I32, "k")
    assert (text.path, text.reason) == (path, reason)


def test_images_and_entries() -> None:
    text = emit_cuda(SweepSpec("s", gradient_like(), "dst", "dst"), I32, "k")
    assert (text.args, text.num_read) == (("x", "y", "a", "lse", "out0", "out1", "out2", "out3", "out4"), 4)
    assert [e.name for e in text.entries] == ["k", "k_merge", "k_carry"]
    assert text.run.persistent
    assert text.run.images_per_block == 1
    plain = emit_cuda(SweepSpec("s", spmm(64), "dst", "dst"), I32, "k", CudaSchedule(group_rows=True))
    assert (plain.state_words, plain.carry_words, plain.carry) == (64, 0, None)
    assert (plain.groups, plain.run.items_per_block) == (2, 16)
    sliced = emit_cuda(SweepSpec("s", spmm(64), "dst", "dst"), I32, "k", CudaSchedule(slices=2))
    assert (sliced.state_words, sliced.run.slices) == (64, 2)
