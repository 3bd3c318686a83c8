"""Cubins without a GPU: every architecture, registers and spills, and NVRTC's errors told with the DSL's lines."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from gnnc.codegen.cuda import compile as compile_module
from gnnc.codegen.cuda.compile import INSTALL, ToolchainError, compile_cuda, translated, without_register_cap
from gnnc.codegen.cuda.elf import parse_ptxas_log, read_usage
from gnnc.codegen.cuda.emit import emit_cuda
from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.codegen.cuda.text import CudaText
from gnnc.ir.core import Func, Loc
from gnnc.ir.sweep import SweepSpec
from gnnc.ir.types import BF16, F16, F32, F64, I32, I64, DType
from tests.codegen.cpu.test_sweep import gatv2, spmm

from .checks import dot_attention, extremum, weighted
from .test_fragment import gradient_like, last_message
from .test_general import edge_mlp, edge_sum

pytest.importorskip("cuda.core")
pytest.importorskip("cuda.bindings.nvrtc")


def emit(func: Func, index: DType = I32, schedule: CudaSchedule | None = None) -> CudaText:
    return emit_cuda(SweepSpec("kernel", func, "dst", "dst"), index, "kernel", schedule)


FAMILIES = {"spmm": weighted(8, 32), "reduction": extremum("max", 256), "attention": gatv2(8, 32)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_kernels_of_the_three_families_do_not_spill(family: str, arch: str) -> None:
    cubin = compile_cuda(emit(FAMILIES[family]), arch)
    assert sorted(cubin.usage) == ["kernel", "kernel_merge"]
    for usage in cubin.usage.values():
        assert (usage.stack, usage.spill_stores, usage.spill_loads) == (0, 0, 0)
        assert 16 <= usage.registers <= 96


OTHERS = {
    "bf16": emit(gatv2(4, 8, BF16)),
    "f16, a row a group": emit(spmm(16, F16), I64, CudaSchedule(group_rows=True)),
    "f64": emit(dot_attention(2, 4, F64, bias=True), I64),
    "carries, slices": emit(gradient_like(), I32, CudaSchedule(slices=3, prefetch=True, fence=True)),
    "a user's monoid": emit(last_message()),
    "general": emit(edge_mlp(F16), I64),
    "workspace": emit(edge_sum(7000)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_kind_of_text_compiles(name: str) -> None:
    text = OTHERS[name]
    assert sorted(compile_cuda(text, "sm_90").usage) == sorted(e.name for e in text.entries)


def test_an_error_is_told_with_the_line_of_the_layer() -> None:
    text = emit(spmm(4))
    number = next(n for n, line in enumerate(text.text.splitlines(), 1) if "fma(v0, v1, s.sum_0)" in line)
    lines = text.text.splitlines()
    lines[number - 1] = lines[number - 1].replace("fma(", "fmb(")
    broken = replace(text, text="\n".join(lines), lines={number: Loc("/home/me/layer.py", 7, text="    out = g.sum(w * g.src(x))")})
    with pytest.raises(ToolchainError) as e:
        compile_cuda(broken)
    assert str(e.value).splitlines()[:3] == [
        "NVRTC refused kernel kernel for sm_90 (a fault of gnnc, please report it)",
        f'  line {number}: identifier "fmb" is undefined',
        "    from layer.py:7: out = g.sum(w * g.src(x))",
    ]
    assert e.value.where == (Loc("/home/me/layer.py", 7, text="    out = g.sum(w * g.src(x))"),)


def test_a_log_without_lines_is_shown_whole() -> None:
    error = translated("nvrtc: out of memory\n", "k", "sm_90", {})
    assert str(error) == "NVRTC failed on kernel k for sm_90:\nnvrtc: out of memory"
    assert error.where == ()


def test_missing_wheels_are_named_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(ToolchainError) as e:
        compile_cuda(emit(spmm(4)))
    assert str(e.value) == f"cuda-core is not installed, so CUDA kernels cannot be compiled\n  hint: {INSTALL}"


def test_missing_headers_are_named_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import cuda.pathfinder

    compile_module.header_folder.cache_clear()
    monkeypatch.setattr(cuda.pathfinder, "locate_nvidia_header_directory", lambda name: None)
    with pytest.raises(ToolchainError) as e:
        compile_cuda(emit(spmm(4, F16)))
    assert str(e.value) == f"the CUDA headers (cuda_fp16.h, cuda_bf16.h) are not installed\n  hint: {INSTALL}"
    compile_module.header_folder.cache_clear()


def test_an_entry_that_spills_gets_more_registers() -> None:
    source = emit(spmm(4)).text
    again = without_register_cap(source, ["kernel_merge"])
    changed = [(a, b) for a, b in zip(source.splitlines(), again.splitlines(), strict=True) if a != b]
    assert changed == [('  extern "C" __global__ void __launch_bounds__(256)', '  extern "C" __global__ void __launch_bounds__(256, 1)')]
    assert without_register_cap(source, []) == source


def test_only_elf_files_are_read() -> None:
    with pytest.raises(ValueError) as e:
        read_usage(b"PTX text")
    assert str(e.value) == "not a cubin: no 64-bit ELF header"


def test_spills_are_read_from_the_log() -> None:
    log = "ptxas info : Function properties for k\nptxas . 48 bytes stack frame, 104 bytes spill stores, 96 bytes spill loads\n"
    assert parse_ptxas_log(log) == {"k": (104, 96)}
    assert parse_ptxas_log("nothing") == {}


def test_the_dtype_of_arithmetic_does_not_leak_into_f32() -> None:
    assert "f64" not in emit(gatv2(8, 32, F32)).program
