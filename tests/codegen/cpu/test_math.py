"""The polynomials against numpy in float64 (mpmath where that is not enough), over all exponents, in ulp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from gnnc.codegen.cpu import math as polynomials
from gnnc.codegen.cpu.elementwise import from_memory, to_memory
from gnnc.codegen.cpu.emit_text import FunctionText, ModuleText, vector_type
from gnnc.codegen.cpu.jit import LoadedObject, Target, compile_llvm, host_target
from gnnc.codegen.cpu.lanes import Lanes, Reg
from gnnc.ir.ops import Array
from gnnc.ir.types import BF16, F16

from .kernels import from_storage, to_storage

Emit = Callable[[Lanes, "list[Reg]"], Reg]


def plain_target() -> Target:
    """This machine without AVX, FMA and F16C."""
    host = host_target()
    off = ",".join(f"-{f}" for f in ("avx", "avx2", "avx512f", "fma", "f16c", "avx512fp16"))
    return Target("x86-64", off, host.triple) if host.triple.startswith("x86_64") else host


def run(emit: Emit, args: list[Array], out: type[Any], width: int = 8, target: Target | None = None) -> Array:
    """``emit`` over arrays, ``width`` lanes at a time."""
    names = {np.dtype("float32"): "float", np.dtype("float64"): "double", np.dtype("uint16"): "i16", np.dtype("int32"): "i32"}
    count = len(args[0])
    pad = -count % width
    args = [np.ascontiguousarray(np.concatenate([a, a[-1:].repeat(pad)])) for a in args]
    module = ModuleText()
    fn = FunctionText(module, f"define void @f(ptr %out, i64 %n, {', '.join(f'ptr %a{i}' for i in range(len(args)))})")
    with fn.loop("i", "0", "%n", width) as i:
        k = Lanes(fn, width)
        regs = []
        for n, a in enumerate(args):
            s = names[a.dtype]
            at = fn.let("at", f"getelementptr {s}, ptr %a{n}, i64 {i}")
            regs.append(Reg(fn.let("x", f"load {vector_type(width, s)}, ptr {at}, align {a.dtype.itemsize}"), s))
        x = emit(k, regs)
        s = names[np.dtype(out)]
        at = fn.let("at", f"getelementptr {s}, ptr %out, i64 {i}")
        fn.emit(f"store {vector_type(width, s)} {x.text}, ptr {at}, align {np.dtype(out).itemsize}")
    fn.emit("ret void")
    module.functions.append(fn.finish())
    loaded = LoadedObject(compile_llvm(module.text("; test"), target))
    result = np.empty(count + pad, out)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * len(args))(loaded.address("f"))
    call(result.ctypes.data, count + pad, *[a.ctypes.data for a in args])
    return result[:count]


def all_floats(step: int = 4001) -> Array:
    """f32 values of every exponent and sign: a strided walk through the bit patterns, with the special ones."""
    bits = np.arange(0, 1 << 32, step, dtype=np.uint32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.7228, 88.73, -87.34, -103.97, -104.1, 1e-45, 0.625, 5e-324], np.float32
    )
    near = np.linspace(-110, 92, 400_001, dtype=np.float32)
    return np.concatenate([bits.view(np.float32), special, near, np.linspace(-1.5, 1.5, 100_001, dtype=np.float32)])


def ulps(got: Array, want: Array) -> Array:
    """Distance in units of the last place of ``got``'s dtype; 0 where both are NaN or the same infinity."""
    rounded = want.astype(got.dtype)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    with np.errstate(all="ignore"):
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), np.finfo(got.dtype).smallest_subnormal)
        off = np.abs(got.astype(np.float64) - want) / unit
    return np.where(same, 0.0, np.where(np.isfinite(off), off, np.inf))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x >= 0, 1.0, e) / (1 + e))


def _erf(x: Array) -> Array:
    from math import erf

    return np.array([erf(v) for v in x.tolist()])


F32_CASES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "expm1": np.expm1,
}


@pytest.mark.parametrize("plain", [False, True], ids=["host", "plain"])
@pytest.mark.parametrize("name", sorted(F32_CASES))
def test_f32_within_two_ulp(name: str, plain: bool) -> None:
    x = all_floats()
    if name == "expm1":
        x = x[(x <= 0) | np.isnan(x)]
    got = run(lambda k, a: polynomials.call(k, name, a[0]), [x], np.float32, 4 if plain else 8, plain_target() if plain else None)
    with np.errstate(all="ignore"):
        want = F32_CASES[name](x.astype(np.float64))
    off = ulps(got, want)
    worst = int(np.argmax(off))
    assert off[worst] <= (2.1 if plain and name == "sigmoid" else 2), (name, x[worst], got[worst], want[worst], off[worst])
    assert np.isnan(got[np.isnan(x)]).all()


def test_limits() -> None:
    x = np.array([-np.inf, np.inf, -200.0, 200.0, 0.0, -0.0, -1.0], np.float32)
    exp = run(lambda k, a: polynomials.call(k, "exp", a[0]), [x], np.float32)
    np.testing.assert_array_equal(exp[:6], np.array([0, np.inf, 0, np.inf, 1, 1], np.float32))
    log = run(lambda k, a: polynomials.call(k, "log", a[0]), [x], np.float32)
    np.testing.assert_array_equal(log[1:2], [np.inf])
    np.testing.assert_array_equal(log[4:6], [-np.inf, -np.inf])
    assert np.isnan(log[[0, 2, 6]]).all()


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "expm1"])
def test_f64_within_two_ulp(name: str, width: int) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.uniform(-746, 711, 800), rng.uniform(-2, 2, 800), np.exp(rng.uniform(-740, 700, 800)), -np.exp(rng.uniform(-30, 6, 300))]
    )
    if name == "expm1":
        x = -np.abs(x)
    got = run(lambda k, a: polynomials.call(k, name, a[0]), [x], np.float64, width)
    functions: dict[str, Any] = {"sigmoid": lambda v: 1 / (1 + mpmath.exp(-v))}
    with mpmath.workdps(40):
        f = functions.get(name, getattr(mpmath, name, None))
        exact = [f(mpmath.mpf(v)) if not (name == "log" and v <= 0) else mpmath.nan for v in x.tolist()]
        for v, g, want in zip(x, got, exact, strict=True):
            if mpmath.isnan(want):
                assert np.isnan(g)
                continue
            unit = max(np.spacing(abs(float(want))), 5e-324) if abs(want) < 1.7e308 else None
            if unit is None:
                assert np.isinf(g) or abs(want) < 1.8e308, (v, g)
            else:
                assert abs(mpmath.mpf(float(g)) - want) / unit <= 2, (name, v, g, want)
    special = np.array([np.nan, -np.inf])
    out = run(lambda k, a: polynomials.call(k, name, a[0]), [special], np.float64, width)
    assert np.isnan(out[0])
    np.testing.assert_array_equal(out[1], {"exp": 0, "log": np.nan, "tanh": -1, "sigmoid": 0, "erf": -1, "expm1": -1}[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pow(dtype: type[Any]) -> None:
    rng = np.random.default_rng(0)
    odd = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0, -3.0, np.inf, -np.inf, np.nan, 1e-40, 7.5])
    x, y = (a.ravel() for a in np.meshgrid(odd, odd))
    x = np.concatenate([x, np.exp(rng.uniform(-20, 20, 5000)), rng.uniform(-3, 3, 5000)]).astype(dtype)
    y = np.concatenate([y, rng.uniform(-4, 4, 5000), np.round(rng.uniform(-9, 9, 5000))]).astype(dtype)
    got = run(lambda k, a: polynomials.call(k, "pow", a[0], a[1]), [x, y], dtype)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        off = ulps(got, want)
    worst = int(np.argmax(off))
    assert off[worst] <= 2, (x[worst], y[worst], got[worst], want[worst])
    zero = want == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("plain", [False, True], ids=["host", "plain"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_half_conversions_are_exact(dtype: Any, plain: bool) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    target, width = (plain_target(), 4) if plain else (None, 8)
    got = run(lambda k, a: from_memory(k, a[0], dtype), [every], np.float32, width, target)
    want = from_storage(every.view(np.float16) if dtype is F16 else every, dtype).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    x = all_floats(50021)
    x = np.concatenate([x, want, want + np.abs(want) * np.float32(2**-9), want * np.float32(1 + 2**-11), want * np.float32(1 + 2**-12)])
    bits = run(lambda k, a: to_memory(k, a[0], dtype), [x], np.uint16, width, target)
    with np.errstate(all="ignore"):
        expect = to_storage(x, dtype).view(np.uint16)
    nan = np.isnan(x)
    np.testing.assert_array_equal(bits[~nan], expect[~nan])
    back = run(lambda k, a: from_memory(k, a[0], dtype), [bits[nan]], np.float32, width, target)
    assert np.isnan(back).all()
