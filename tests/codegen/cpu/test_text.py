"""The emitted text: deterministic, with the source line over its code, scratch in registers, helpers left to the target."""

from __future__ import annotations

import re

from gnnc.codegen.cpu.emit_text import FunctionText, ModuleText, constant, round_to_f32, splat
from gnnc.codegen.cpu.jit import emit_assembly
from gnnc.codegen.cpu.sweep import KernelText, emit_llvm
from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Loc
from gnnc.ir.sweep import Schedule, SweepSpec
from gnnc.ir.types import BF16, F16, F32, I32, I64, Type

from .kernels import sweep_func
from .test_sweep import gatv2, spmm


def text_of(func: Func, bits: int = 256, name: str = "k") -> KernelText:
    return emit_llvm(SweepSpec("s", func, "dst", "dst", "spmm", schedule=Schedule(vector_bits=bits)), I32, name)


def test_two_emissions_are_one_text() -> None:
    for make in (lambda: spmm(33), lambda: gatv2(3, 7)):
        assert text_of(make()).text == text_of(make()).text


def test_the_kernels_interface() -> None:
    kernel = text_of(gatv2(2, 8), name="layer_0")
    assert kernel.args == ("xs", "xd", "att", "out0", "out1")
    assert kernel.num_read == 3
    assert (kernel.state_bytes, kernel.carry_bytes) == (128, 0)  # max [2], z [2], acc [2, 8] in f32
    assert "define void @layer_0_run(ptr %ptrs, ptr %tasks, i64 %first, i64 %last, ptr %states, ptr %carries)" in kernel.text
    assert "define void @layer_0_finish(ptr %ptrs, ptr %hubs, i64 %num_hubs, ptr %states, ptr %carries, i64 %num_tasks)" in kernel.text
    assert kernel.text.startswith("; layer_0: sweep s, grouped by dst, spmm\n")


def test_only_components_that_a_part_needs_are_kept() -> None:
    b = Builder()
    m = b.gather(b.input("x", Type("src", F32, (4,))), "src")
    value = text_of(sweep_func([m.operands[0]], [b.fold("moments", m, part="mean")]))
    both = text_of(sweep_func([m.operands[0]], [b.fold("moments", m, part="var")]))
    assert "state.moments.m2" not in value.text
    assert "state.moments.m2" in both.text
    assert value.state_bytes == both.state_bytes == 64


def test_a_sum_of_rows_has_a_carry_image_and_a_plain_sweep_none() -> None:
    b = Builder()
    x = b.input("x", Type("dst", F32, (20,)))
    assert text_of(sweep_func([x], [b.op("reduce_rows", x)])).carry_bytes == 128
    assert text_of(sweep_func([x], [b.neg(x)])).carry_bytes == 0
    p = b.input("p", Type("param", F32, (20,)))
    assert text_of(sweep_func([p], [b.neg(p)])).carry_bytes == 64  # `finish` stores it


def test_the_source_line_stands_over_its_code() -> None:
    b = Builder()
    x = b.input("x", Type("src", F32, (4,)))
    loc = Loc("layer.py", 12, 4, 12, 30, "    return g.sum(g.src(x) * 2.0)")
    with b.at(loc):
        out = b.fold("sum", b.mul(b.gather(x, "src"), b.const(2.0)))
    text = text_of(sweep_func([x], [out])).text
    comment = "; layer.py:12  return g.sum(g.src(x) * 2.0)"
    assert re.search(re.escape(comment) + r"\n  %s = load .*\n  %x.1 = load <4 x float>", text)
    assert text.count(comment) >= 2  # the loop and the merge of split rows
    assert "layer.py" not in text_of(spmm(4)).text


def test_spmm_is_one_load_and_one_multiply_add_a_register() -> None:
    """The inner loop of 64 features: 8 registers of 8 lanes, nothing else that touches vectors."""
    edge = text_of(spmm(64)).text.split("slot.body:")[1].split("slot.latch:")[0]
    assert len(re.findall(r"fmul contract <8 x float>", edge)) == 8
    assert len(re.findall(r"load <8 x float>, ptr %at.*invariant", edge)) + len(re.findall(r"load <8 x float>, ptr %x\.", edge)) == 8
    assert "<1 x" not in edge


def test_helpers_that_differ_by_target_are_declared_only() -> None:
    text = text_of(spmm(8, F16)).text
    assert "declare <8 x float> @gnnc.f16_to_f32.v8(<8 x i16>)" in text
    assert "fpext" not in text
    assert "bfloat" not in text_of(spmm(8, BF16)).text
    assert "call" not in emit_assembly(text), "every helper is inlined on this machine"


def test_index_dtypes_differ_in_the_index_loads_only() -> None:
    spec = SweepSpec("s", spmm(4), "dst", "dst", schedule=Schedule())
    narrow, wide = (emit_llvm(spec, d, "k").text for d in (I32, I64))
    assert "load i32, ptr %other.at" in narrow
    assert "load i64, ptr %other.at" in wide
    assert "load i32" not in wide


def test_literals() -> None:
    assert constant(1.0, "float") == "1.0"
    assert constant(0.1, "float") == "0x3FB99999A0000000"
    assert constant(0.1, "double") == "0x3FB999999999999A"
    assert constant(-0.0, "float") == "0x8000000000000000"
    assert constant(float("inf"), "float") == "0x7FF0000000000000"
    assert constant(255, "i8") == "-1"
    assert constant(True, "i1") == "true"
    assert splat(4, 2, "i32") == "splat (i32 2)"
    assert splat(1, 2, "i32") == "2"
    assert round_to_f32(1e300) == float("inf")


def test_names_are_unique_and_count_from_their_hint() -> None:
    fn = FunctionText(ModuleText(), "define void @f()")
    assert [fn.fresh("x"), fn.fresh("x"), fn.fresh("a b"), fn.fresh("")] == ["x", "x.1", "a_b", "v"]
