"""Objects: linked or loaded in process, for this machine or a plainer one; what LLVM refuses is a CodegenError with the text."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from gnnc.codegen.cpu import jit
from gnnc.codegen.cpu.jit import CodegenError, Target, compile_llvm, emit_assembly, host_target, link_shared, load_in_process
from gnnc.ir.types import F16

from .kernels import compile_sweep, random_args, random_graph
from .oracle import interpret
from .test_math import plain_target
from .test_sweep import gatv2

ADD = "define i64 @add(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  ret i64 %c\n}\n"


def test_an_object_loads_in_process_and_as_a_library(tmp_path: Path) -> None:
    obj = compile_llvm(ADD)
    loaded = load_in_process(obj)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    assert call(loaded.address("add"))(2, 3) == 5
    with pytest.raises(KeyError, match="sub"):
        loaded.address("sub")
    library = tmp_path / "k.so"
    if shutil.which("ld"):
        assert link_shared(obj, library)
        assert call(("add", ctypes.CDLL(str(library))))(2, 3) == 5


def test_without_a_linker_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not link_shared(compile_llvm(ADD), tmp_path / "k.so")
    assert not (tmp_path / "k.so").exists()
    assert not list(tmp_path.iterdir())


def test_rubbish_for_an_object_is_no_library(tmp_path: Path) -> None:
    assert not link_shared(b"rubbish", tmp_path / "k.so")
    assert not (tmp_path / "k.so").exists()


def test_malformed_text_is_a_codegen_error_with_the_text() -> None:
    text = "define void @f() {\n  ret i64 %nowhere\n}\n"
    with pytest.raises(CodegenError, match="generated LLVM IR is malformed") as info:
        compile_llvm(text)
    assert info.value.text == text


def test_targets_are_data() -> None:
    host = host_target()
    assert host == Target(host.cpu, host.features, host.triple)
    assert Target("x", "+avx512f,-f16c", "t").enabled == {"avx512f"}
    assert [Target("x", f, "t").vector_bits for f in ("+avx512f,+avx", "+avx,-avx512f", "-avx")] == [512, 256, 128]
    assert emit_assembly(ADD, host) != ""


@pytest.mark.parametrize("bits", [128, 512])
def test_a_kernel_runs_on_a_plainer_target(bits: int) -> None:
    """No AVX, FMA or F16C: the same text, other instructions; registers wider than the machine's are split."""
    func = gatv2(2, 5, F16)
    graph = random_graph(0, 20, 17, 60, hub=40)
    kernel = compile_sweep(func, "dst", target=plain_target(), vector_bits=bits)
    args = random_args(func, graph)
    for want, got in zip(interpret(func, graph, args), kernel(graph, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=3e-3, atol=3e-3)


def test_equal_texts_give_equal_objects() -> None:
    assert compile_llvm(ADD) == compile_llvm(ADD)
    assert jit.host_target() is host_target()
