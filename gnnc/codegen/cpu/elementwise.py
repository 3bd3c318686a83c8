"""Elementwise operations of the IR as instructions, and what a dtype is in memory and in registers.

f16 and bf16 live in registers as f32 (a `cast` to them rounds), bool as ``i1``; integers as they are.
"""

from __future__ import annotations

from math import sqrt

from ...ir.core import Value
from ...ir.types import BF16, BOOL, DTYPES, F16, F32, DType, promote
from . import math as polynomials
from .lanes import Lanes, Reg
from .target_helpers import declare_from_half, declare_to_half

_REGISTER = {"f16": "float", "bf16": "float", "f32": "float", "f64": "double", "bool": "i1", "u8": "i8"}
_MEMORY = {"f16": "i16", "bf16": "i16", "f32": "float", "f64": "double", "bool": "i8", "u8": "i8"}


def register_type(d: DType) -> str:
    return _REGISTER.get(d.name, d.name)


def memory_type(d: DType) -> str:
    return _MEMORY.get(d.name, d.name)


def from_memory(k: Lanes, raw: Reg, d: DType) -> Reg:
    """A loaded value as a register value."""
    if d is BF16:
        wide = k.bits("shl", k.convert("zext", raw, "i32"), k.const(16, "i32"))
        return k.convert("bitcast", wide, "float")
    if d is F16:
        return declare_from_half(k, raw)
    if d is BOOL:
        return k.compare("ne", raw, k.const(0, "i8"))
    return raw


def to_memory(k: Lanes, x: Reg, d: DType) -> Reg:
    """A register value of dtype ``d`` as it is stored (halves round to nearest even, NaN kept)."""
    if d is BF16:
        return k.convert("trunc", k.bits("lshr", _rounded_bf16(k, x), k.const(16, "i32")), "i16")
    if d is F16:
        return declare_to_half(k, x)
    if d is BOOL:
        return k.convert("zext", x, "i8")
    return x


def _rounded_bf16(k: Lanes, x: Reg) -> Reg:
    """f32 bits whose upper half is the nearest bf16. By integers: a library call would be slow and an instruction flushes denormals."""
    bits = k.convert("bitcast", x, "i32")
    odd = k.bits("and", k.bits("lshr", bits, k.const(16, "i32")), k.const(1, "i32"))
    near = k.add(k.add(bits, k.const(0x7FFF, "i32")), odd)
    return k.select(k.compare("uno", x, x), k.bits("or", bits, k.const(0x400000, "i32")), near)


def convert(k: Lanes, x: Reg, source: DType, to: DType) -> Reg:
    """``x`` of dtype ``source`` as dtype ``to``: floats round to nearest even, float to integer truncates (saturating, NaN gives 0)."""
    if source is to:
        return x
    a, b = register_type(source), register_type(to)
    if to is BOOL:
        return k.compare("une" if x.is_float else "ne", x, k.like(x, 0))
    if source.is_float and to.is_float:
        if a != b:
            x = k.convert("fpext" if b == "double" else "fptrunc", x, b)
        if to is BF16 and promote(source, BF16) is not BF16:
            return k.convert("bitcast", k.bits("and", _rounded_bf16(k, x), k.const(0xFFFF0000, "i32")), "float")
        if to is F16 and promote(source, F16) is not F16:
            return declare_from_half(k, declare_to_half(k, x))
        return x
    if source.is_float:
        return _float_to_int(k, x, to, b)
    unsigned = source.kind in ("uint", "bool")
    if to.is_float:
        wide = k.convert("uitofp" if unsigned else "sitofp", x, b)
        return convert(k, wide, F32, to) if to in (F16, BF16) else wide
    bits_a, bits_b = 1 if source is BOOL else source.bits, to.bits
    if bits_a == bits_b:
        return x
    return k.convert("trunc" if bits_b < bits_a else "zext" if unsigned else "sext", x, b)


def _float_to_int(k: Lanes, x: Reg, to: DType, scalar: str) -> Reg:
    name = "fptoui" if to.kind == "uint" else "fptosi"
    from .emit_text import suffix

    full = f"@llvm.{name}.sat.{suffix(k.width, scalar)}.{suffix(k.width, x.scalar)}"
    k.fn.module.declare(f"{k.vt(scalar)} {full}({k.vt(x.scalar)})")
    return Reg(k.fn.let(name, f"call {k.vt(scalar)} {full}({k.vt(x.scalar)} {x.text})"), scalar)


_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
ELEMENTWISE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "maximum",
        "minimum",
        "neg",
        "abs",
        "sign",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "sigmoid",
        "erf",
        "relu",
        "leaky_relu",
        "elu",
        "gelu",
        "silu",
        "clamp",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "not",
        "where",
        "cast",
    ]
)


def emit_elementwise(k: Lanes, v: Value, args: list[Reg]) -> Reg:
    """The instructions of ``v`` on registers of its operands' dtypes; a register of ``v``'s dtype."""
    dtypes = [o.type.dtype for o in v.operands]
    out = v.type.dtype
    op = v.op
    if op == "cast":
        return convert(k, args[0], dtypes[0], out)
    if op in ("and", "or"):
        return k.bits(op, *args)
    if op == "not":
        return k.bits("xor", args[0], k.const(True, "i1"))
    given = list(zip(v.operands, args, strict=True))
    if op == "where":
        x, y = (_operand(k, o, a, out) for o, a in given[1:])
        return k.select(args[0], x, y)
    if op in _FLOAT_COMPARE:
        common = promote(*dtypes)
        common = common.acc if common is not BOOL else DTYPES["u8"]
        x, y = (_operand(k, o, a, common) for o, a in given)
        if common.is_float:
            return k.compare(_FLOAT_COMPARE[op], x, y)
        sign = "" if op in ("eq", "ne") else "u" if common.kind == "uint" else "s"
        return k.compare(f"{sign}{op}", x, y)
    x, *rest = (_operand(k, o, a, out) for o, a in given)
    if op in ("add", "sub", "mul", "div"):
        return k.arith(op, x, rest[0])
    if op in ("maximum", "minimum"):
        return extremum(k, op, x, rest[0], out)
    return _unary(k, v, op, x, rest, out)


def _operand(k: Lanes, o: Value, x: Reg, to: DType) -> Reg:
    """An operand in the dtype of the arithmetic; a constant keeps all its digits."""
    if o.op == "const" and to.is_float and o.type.dtype.is_float:
        return k.const(o.attr("value"), register_type(to))
    return convert(k, x, o.type.dtype, to)


def extremum(k: Lanes, op: str, x: Reg, y: Reg, d: DType) -> Reg:
    """maximum or minimum of two registers of dtype ``d``."""
    if d.kind == "uint":
        return k.intrinsic("umax" if op == "maximum" else "umin", x, y)
    return k.maximum(x, y) if op == "maximum" else k.minimum(x, y)


def _unary(k: Lanes, v: Value, op: str, x: Reg, rest: list[Reg], d: DType) -> Reg:
    zero, one = k.like(x, 0), k.like(x, 1)
    if op in ("exp", "log", "tanh", "sigmoid", "erf"):
        return polynomials.call(k, op, x)
    if op == "pow":
        p = v.operands[1]
        if p.op == "const" and p.attr("value") == 2:
            return k.mul(x, x)
        return polynomials.call(k, "pow", x, rest[0])
    if op == "neg":
        return k.neg(x)
    if op == "abs":
        if x.is_float:
            return k.fabs(x)
        return x if d.kind == "uint" else k.select(k.compare("slt", x, zero), k.neg(x), x)
    if op == "sign":
        if x.is_float:
            return k.select(k.compare("ogt", x, zero), one, k.select(k.compare("olt", x, zero), k.like(x, -1), x))
        negative = zero if d.kind == "uint" else k.select(k.compare("slt", x, zero), k.like(x, -1), zero)
        return k.select(k.compare("ugt" if d.kind == "uint" else "sgt", x, zero), one, negative)
    if op == "sqrt":
        return k.intrinsic("sqrt", x)
    if op == "rsqrt":
        return k.div(one, k.intrinsic("sqrt", x))
    if op == "relu":
        if x.is_float:
            return k.select(k.compare("ugt", x, zero), x, zero)
        return x if d.kind == "uint" else k.intrinsic("smax", x, zero)
    if op == "leaky_relu":
        slope = float(v.attr("slope"))
        scaled = k.mul(x, k.like(x, slope))
        if 0 < slope <= 1:  # the larger of the two: one instruction less
            return k.select(k.compare("ogt", x, scaled), x, scaled)
        return k.select(k.compare("ogt", x, zero), x, scaled)
    if op == "elu":
        low = k.mul(k.like(x, float(v.attr("alpha"))), polynomials.call(k, "expm1", x))
        return k.select(k.compare("ogt", x, zero), x, low)
    if op == "gelu":
        cdf = k.add(one, polynomials.call(k, "erf", k.mul(x, k.like(x, sqrt(0.5)))))
        return k.mul(k.mul(k.like(x, 0.5), x), cdf)
    if op == "silu":
        return k.mul(x, polynomials.call(k, "sigmoid", x))
    assert op == "clamp", op
    for name, f in (("min", "maximum"), ("max", "minimum")):
        bound = v.attr(name)
        if bound is not None:
            x = extremum(k, f, x, k.like(x, bound if d.is_float else int(bound)), d)
    return x
