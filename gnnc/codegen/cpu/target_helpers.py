"""Helpers whose best form depends on the target: f16 conversions and scaling by a power of two.

A module's text only declares them (``@gnnc.f16_to_f32.v8``, ``@gnnc.scale.v16f32``), so the text is the same for every target;
`define_helpers` writes the bodies for one.
"""

from __future__ import annotations

import re

from .emit_text import FunctionText, ModuleText, suffix, vector_type
from .lanes import Lanes, Reg

_DECLARED = re.compile(r"^declare .*@(gnnc\.(f16_to_f32|f32_to_f16|scale)\.(?:v(\d+))?(f32|f64)?[^(]*)\(.*$", re.MULTILINE)


def declare_from_half(k: Lanes, bits: Reg) -> Reg:
    """f16 bits (i16) -> f32."""
    full = f"gnnc.f16_to_f32.v{k.width}"
    k.fn.module.declare(f"{k.vt('float')} @{full}({k.vt('i16')})")
    return k.call(full, "float", bits)


def declare_to_half(k: Lanes, x: Reg) -> Reg:
    """f32 -> f16 bits (i16), to nearest even; NaN stays NaN."""
    full = f"gnnc.f32_to_f16.v{k.width}"
    k.fn.module.declare(f"{k.vt('i16')} @{full}({k.vt('float')})")
    return k.call(full, "i16", x)


def define_helpers(text: str, features: frozenset[str]) -> str:
    """``text`` with every declared helper defined for a target with these features."""
    module = ModuleText()
    found: list[tuple[str, str, int, str]] = [(m[1], m[2], int(m[3] or 1), m[4] or "f32") for m in _DECLARED.finditer(text)]
    text = _DECLARED.sub("", text)
    for full, kind, width, scalar in found:
        if kind == "scale":
            module.functions.append(_scale(module, full, width, "float" if scalar == "f32" else "double", "avx512f" in features))
        elif kind == "f16_to_f32":
            module.functions.append(_from_half(module, full, width, "f16c" in features))
        else:
            module.functions.append(_to_half(module, full, width, "f16c" in features))
    declared = [f"declare {d}" for d in module.declarations if f"declare {d}\n" not in text]
    return "\n\n".join([text.rstrip(), *module.functions, *declared]) + "\n"


def _open(module: ModuleText, full: str, width: int, result: str, *args: tuple[str, str]) -> tuple[FunctionText, Lanes]:
    given = ", ".join(f"{vector_type(width, t)} %{n}" for n, t in args)
    fn = FunctionText(module, f"define internal {vector_type(width, result)} @{full}({given}) alwaysinline nounwind")
    for n, _ in args:
        fn.fresh(n)
    return fn, Lanes(fn, width)


def _close(fn: FunctionText, k: Lanes, out: Reg) -> str:
    fn.emit(f"ret {k.vt(out.scalar)} {out.text}")
    return fn.finish()


def _scale(module: ModuleText, full: str, width: int, scalar: str, scalef: bool) -> str:
    i, bias, mantissa = ("i32", 127, 23) if scalar == "float" else ("i64", 1023, 52)
    fn, k = _open(module, full, width, scalar, ("x", scalar), ("n", i))
    x, n = Reg("%x", scalar), Reg("%n", i)
    if scalef:
        small = k.convert("trunc", n, "i32")
        name = f"@llvm.ldexp.{suffix(width, scalar)}.{suffix(width, 'i32')}"
        module.declare(f"{k.vt(scalar)} {name}({k.vt(scalar)}, {k.vt('i32')})")
        out = fn.let("scaled", f"call {k.vt(scalar)} {name}({k.vt(scalar)} %x, {k.vt('i32')} {small.text})")
        return _close(fn, k, Reg(out, scalar))
    # Two factors, so that 2^n itself need not be a normal number.
    first = k.bits("ashr", n, k.const(1, i))
    scaled = x
    for part in (first, k.sub(n, first)):
        bits = k.bits("shl", k.add(part, k.const(bias, i)), k.const(mantissa, i))
        scaled = k.mul(scaled, k.convert("bitcast", bits, scalar))
    return _close(fn, k, scaled)


def _from_half(module: ModuleText, full: str, width: int, f16c: bool) -> str:
    fn, k = _open(module, full, width, "float", ("h", "i16"))
    h = Reg("%h", "i16")
    if f16c:
        return _close(fn, k, k.convert("fpext", k.convert("bitcast", h, "half"), "float"))
    # Exponent and mantissa moved into place, then multiplied by 2^112: denormals come out right; inf and NaN are set apart.
    wide = k.convert("zext", h, "i32")
    body = k.bits("shl", k.bits("and", wide, k.const(0x7FFF, "i32")), k.const(13, "i32"))
    sign = k.bits("shl", k.bits("and", wide, k.const(0x8000, "i32")), k.const(16, "i32"))
    scaled = k.mul(k.convert("bitcast", body, "float"), k.const(2.0**112, "float"))
    special = k.bits("or", body, k.const(0x7F800000, "i32"))
    is_special = k.compare("ugt", body, k.const(0x0F7FE000, "i32"))
    bits = k.select(is_special, special, k.convert("bitcast", scaled, "i32"))
    return _close(fn, k, k.convert("bitcast", k.bits("or", bits, sign), "float"))


def _to_half(module: ModuleText, full: str, width: int, f16c: bool) -> str:
    fn, k = _open(module, full, width, "i16", ("x", "float"))
    x = Reg("%x", "float")
    if f16c:
        return _close(fn, k, k.convert("bitcast", k.convert("fptrunc", x, "half"), "i16"))
    i = "i32"
    bits = k.convert("bitcast", x, i)
    body = k.bits("and", bits, k.const(0x7FFFFFFF, i))
    sign = k.bits("lshr", k.bits("and", bits, k.const(0x80000000, i)), k.const(16, i))
    # Normal results: re-bias and round to nearest even by addition.
    odd = k.bits("and", k.bits("lshr", body, k.const(13, i)), k.const(1, i))
    normal = k.bits("lshr", k.add(k.add(k.sub(body, k.const(112 << 23, i)), k.const(0xFFF, i)), odd), k.const(13, i))
    # Denormal results: adding 0.5 lets the float adder round to multiples of 2^-24.
    half = k.const(0.5, "float")
    denormal = k.sub(k.convert("bitcast", k.add(k.convert("bitcast", body, "float"), half), i), k.const(0x3F000000, i))
    out = k.select(k.compare("ult", body, k.const(113 << 23, i)), denormal, normal)
    out = k.select(k.compare("uge", body, k.const(0x477FF000, i)), k.const(0x7C00, i), out)
    out = k.select(k.compare("ugt", body, k.const(0x7F800000, i)), k.const(0x7E00, i), out)
    return _close(fn, k, k.convert("trunc", k.bits("or", out, sign), "i16"))
