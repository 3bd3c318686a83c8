"""Arithmetic on lanes at compile time: reductions by labels, loads by offsets, views by strides; random cases against numpy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc.codegen.cpu.emit_text import FunctionText, ModuleText
from gnnc.codegen.cpu.fold_lanes import Labelled, fold_lanes
from gnnc.codegen.cpu.jit import compile_llvm, load_in_process
from gnnc.codegen.cpu.lanes import Lanes, Reg
from gnnc.codegen.cpu.memory import Registers, load_lanes, powers, store_lanes
from gnnc.codegen.cpu.nests import chunks
from gnnc.codegen.cpu.program import contiguous
from gnnc.codegen.cpu.views import axes_of, boundaries, refine, reshape_strides, strides_over
from gnnc.ir.types import F32


def run(fn: FunctionText, module: ModuleText, source: np.ndarray, size: int) -> np.ndarray:
    """Calls ``void f(ptr out, ptr in)``."""
    fn.emit("ret void")
    module.functions.append(fn.finish())
    loaded = load_in_process(compile_llvm(module.text("; test")))
    out = np.full(size, -1, np.float32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("f"))(out.ctypes.data, source.ctypes.data)
    return out


def new_function() -> tuple[ModuleText, FunctionText]:
    module = ModuleText()
    return module, FunctionText(module, "define void @f(ptr %out, ptr %in)")


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=6))
def test_lanes_of_one_label_are_added_whatever_their_pattern(registers: list[tuple[int, int, int]]) -> None:
    module, fn = new_function()
    source = np.arange(1, 200, dtype=np.float32)
    items, want, at = [], np.zeros(16), 0
    for width, pattern, shift in registers:
        lanes = {0: lambda i: 0, 1: lambda i: i, 2: lambda i: i // 2, 3: lambda i: i % 4, 4: lambda i: i // 3}[pattern]
        labels = tuple((lanes(i) + shift) % 16 for i in range(width))
        x = load_lanes(fn, "%in", F32, None, tuple(range(at, at + width)), True, "x")
        items.append(Labelled(x.text, labels))
        np.add.at(want, list(labels), source[at : at + width])
        at += width
    done = fold_lanes(fn, "float", items, lambda k, a, b: k.add(a, b))
    seen = [label for item in done for label in item.labels]
    assert len(seen) == len(set(seen)), "every label once"
    for item in done:
        store_lanes(fn, "%out", F32, None, item.labels, Reg(item.text, "float"))
    got = run(fn, module, source, 16)
    for label in range(16):
        assert got[label] == (want[label] if label in seen else -1)


def test_eight_rows_of_eight_lanes_cost_seven_additions() -> None:
    module, fn = new_function()
    items = [Labelled(load_lanes(fn, "%in", F32, None, tuple(range(8 * r, 8 * r + 8)), True, "x").text, (r,) * 8) for r in range(8)]
    done = fold_lanes(fn, "float", items, lambda k, a, b: k.add(a, b))
    assert len(done) == 1
    assert fn.finish().count("fadd") == 7


@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=8, max_size=8), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_loads_and_registers_find_any_pattern(offsets: list[int], width: int, held: bool) -> None:
    module, fn = new_function()
    source = np.arange(100, 164, dtype=np.float32)
    registers = Registers()
    for start, n in chunks(41, 8):
        span = tuple(range(start, start + n))
        registers.note(("temp", 0), span, load_lanes(fn, "%in", F32, None, span, True, "x"))
    lanes = tuple(offsets[:width])
    if held:
        x = registers.read(fn, ("temp", 0), lanes, "x")
        assert x is not None
        assert registers.read(fn, ("temp", 0), (41,), "x") is None
        assert registers.read(fn, ("temp", 1), (0,), "x") is None
    else:
        x = load_lanes(fn, "%in", F32, None, lanes, True, "x")
    store_lanes(fn, "%out", F32, None, tuple(range(width)), x)
    np.testing.assert_array_equal(run(fn, module, source, 8)[:width], source[list(lanes)])


@settings(max_examples=15)
@given(st.permutations(range(8)))
def test_stores_to_any_distinct_offsets(offsets: list[int]) -> None:
    module, fn = new_function()
    source = np.arange(8, dtype=np.float32)
    x = load_lanes(fn, "%in", F32, None, tuple(range(8)), True, "x")
    store_lanes(fn, "%out", F32, None, tuple(2 * o for o in offsets), x)
    got = run(fn, module, source, 16)
    np.testing.assert_array_equal(got[[2 * o for o in offsets]], source)
    assert (got[1::2] == -1).all()


def test_registers_cover_a_run() -> None:
    assert chunks(21, 8) == [(0, 8), (8, 8), (16, 4), (20, 1)]
    assert chunks(12, 8, cut=6) == [(0, 4), (4, 2), (6, 4), (10, 2)]
    assert chunks(0, 8) == []
    assert powers(13) == [(0, 8), (8, 4), (12, 1)]
    assert powers(0) == []


@pytest.mark.parametrize(
    ("dims", "strides", "new", "want"),
    [
        ((4, 6), (6, 1), (24,), (1,)),
        ((4, 6), (6, 1), (2, 2, 6), (12, 6, 1)),
        ((4, 6), (6, 1), (8, 3), (3, 1)),
        ((4, 6), (1, 4), (24,), None),  # a transposed block cannot be walked as one axis
        ((4, 6), (1, 4), (4, 2, 3), (1, 12, 4)),
        ((4, 1), (1, 0), (1, 4), (0, 1)),
        ((4, 6), (0, 0), (24,), (0,)),  # a broadcast scalar
        ((4, 6), (1, 0), (24,), None),
    ],
)
def test_reshapes_of_strided_memory(dims: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...], want: object) -> None:
    assert reshape_strides(dims, strides, new) == want


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3), st.randoms(use_true_random=False))
def test_reshapes_agree_with_numpy(dims: list[int], rng: object) -> None:
    size = int(np.prod(dims, dtype=int))
    for new in [(size,), (1, size), *((d, size // d) for d in (2, 3, 4, 6) if size % d == 0)]:
        strides = reshape_strides(tuple(dims), contiguous(dims), new)
        assert strides is not None
        index = sum(
            np.arange(d).reshape([-1 if i == n else 1 for i in range(len(new))]) * s
            for n, (d, s) in enumerate(zip(new, strides, strict=True))
        )
        np.testing.assert_array_equal(np.broadcast_to(index, new).ravel(), np.arange(size))


def test_axes_are_refined_until_every_shape_fits() -> None:
    assert refine([(4, 6), (24,)]) == [4, 6]
    assert refine([(4, 6), (2, 12), (8, 3)]) == [2, 2, 2, 3]
    assert refine([(4, 6), (6, 4)]) is None
    assert refine([(), (1,)]) == []
    assert boundaries((2, 1, 3)) == [2, 6]
    assert axes_of((8, 1, 3), [2, 2, 2, 3]) == [[0, 1, 2], [], [3]]
    assert strides_over([2, 2, 2, 3], [[0, 1, 2], [3]], (8, 1), (1, 1)) == (4, 2, 1, 0)


def test_lanes_emit_scalars_at_width_one() -> None:
    _module, fn = new_function()
    k = Lanes(fn, 1)
    assert k.add(k.const(1.0, "float"), k.const(2.0, "float")).scalar == "float"
    assert "fadd contract float 1.0, 2.0" in fn.finish()
