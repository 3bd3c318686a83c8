"""An IR operation as a C++ expression. The same text works on scalars and on fragments: the skeletons overload every function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from ...ir.core import Value
from ...ir.types import BOOL, DType, promote

_RENAMED = {"and": "both", "or": "either", "not": "negate"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def register_dtype(d: DType) -> DType:
    """What a value of dtype ``d`` is held as: halves are f32."""
    return d.acc if d.is_float else d


def literal(value: float | int | bool, d: DType) -> str:
    """A constant of register dtype ``d``, with all its digits."""
    if d is BOOL:
        return "true" if value else "false"
    if not d.is_float:
        if d.name == "i64":
            return f"i64({value}ll)" if value > -(1 << 63) else "i64(-9223372036854775807ll - 1)"
        return f"{d}({value})" if value != -(1 << 31) else "i32(-2147483647 - 1)"
    d = register_dtype(d)
    value = float(value)
    if math.isnan(value):
        return f"nan<{d}>()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}inf<{d}>()"
    return f"{d}({value!r})"


def const_of(v: Value) -> Value | None:
    """The constant that every element of ``v`` is."""
    while v.op in ("reshape", "broadcast", "slice", "transpose"):
        v = v.operands[0]
    return v if v.op == "const" else None


def identifier(name: str) -> str:
    """A buffer's name as a C++ identifier."""
    out = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "buffer"
    if out[0].isdigit():
        out = f"b{out}"
    return f"{out}_" if out in _TAKEN or _LOCAL.fullmatch(out) else out


_LOCAL = re.compile(r"[vi]\d+|.*_(t|row|other|edge)|(state|shadow|temp|image|carry)_\d+|(top|shift|decay|score|kept|weight)_\d+")
"""Names that the generated code gives to its own values."""


_TAKEN_WORDS = """
B Carry Edge F Index L P Program Row S State T U Work abs add alignas alignof and and_eq asm auto b batch begin bf16 bitand bitor bool
both break c carries carry carry_base case catch chunk char class column combine compl const const_cast constexpr continue convert count
decltype default degree delete div do double dynamic_cast each edge edge_ids either else elu end enum eq erf exp explicit export extern
f16 f32 f64 false far fetch fill first float fma for friend ge gelu get goto gt i i16 i32 i64 i8 id if image indptr inf init inline int
item k kCarry kDegree kFence kGroupRows kId kMap kOrdered kOther kPrefetch kept lane le leaky_relu linux list live load log long lowest
lt main map maximum merge minimum mul mutable namespace nan ne near neg negate neighbours new noexcept not not_eq nullptr o operator or
or_eq other part partial partials pow private public put r register reinterpret_cast relu restore return row rsqrt run s save scratch
set shared short sigmoid sign signed silu sizeof slot sqrt square state static static_assert static_cast step store struct sub sweep
switch tanh template this thread_local throw total true try typeid typename u u32 u64 u8 union unit unix unsigned using virtual void
volatile warp warps where while widen workspace xor xor_eq
"""

_TAKEN = frozenset(_TAKEN_WORDS.split())
"""Words of C++, and names that the skeletons and the generated code use themselves."""


def unique_identifiers(names: tuple[str, ...], taken: frozenset[str] = frozenset()) -> list[str]:
    """Identifiers for buffers, in order, all different."""
    out: list[str] = []
    for n in names:
        base = identifier(n)
        candidate, k = base, 2
        while candidate in out or candidate in taken:
            candidate, k = f"{base}_{k}", k + 1
        out.append(candidate)
    return out


def expression(v: Value, text: Callable[[Value], str]) -> str:
    """``v`` (elementwise) over its operands' texts, which have their register dtypes. The result has the register dtype of ``v``."""
    out, op = register_dtype(v.type.dtype), v.op
    if op == "cast":
        return _cast(v, text(v.operands[0]))
    if op in ("and", "or", "not"):
        return f"{_RENAMED[op]}({', '.join(text(o) for o in v.operands)})"
    if op == "where":
        c, x, y = v.operands
        return f"where({text(c)}, {as_dtype(x, out, text)}, {as_dtype(y, out, text)})"
    if op in ("eq", "ne", "lt", "le", "gt", "ge"):
        common = promote(v.operands[0].type.dtype, v.operands[1].type.dtype)
        left, right = (as_dtype(o, register_dtype(common), text) for o in v.operands)
        return f"{op}({left}, {right})"
    args = [as_dtype(o, out, text) for o in v.operands]
    if op in _SIGNS:
        return f"{args[0]} {_SIGNS[op]} {args[1]}" if out.is_float else f"{op}({args[0]}, {args[1]})"
    if op == "pow" and v.operands[1].op == "const" and v.operands[1].attr("value") == 2:
        return f"square({args[0]})"
    if op in ("leaky_relu", "elu"):
        return f"{op}({args[0]}, {literal(v.attr('slope' if op == 'leaky_relu' else 'alpha'), out)})"
    if op == "clamp":
        clamped = args[0]
        for name, f in (("min", "maximum"), ("max", "minimum")):
            if v.attr(name) is not None:
                bound = v.attr(name)
                clamped = f"{f}({clamped}, {literal(bound if out.is_float else int(bound), out)})"
        return clamped
    return f"{op}({', '.join(args)})"


def _cast(v: Value, x: str) -> str:
    source, target = register_dtype(v.operands[0].type.dtype), register_dtype(v.type.dtype)
    y = x if source is target else f"convert<{target}>({x})"
    half = v.type.dtype.is_float and v.type.dtype.bits == 16 and v.operands[0].type.dtype is not v.type.dtype
    return f"round_to<{v.type.dtype}>({y})" if half else y


def as_dtype(o: Value, d: DType, text: Callable[[Value], str]) -> str:
    """An operand in the register dtype ``d``; a constant keeps all its digits."""
    c = const_of(o)
    if c is not None and (d.is_float or not c.type.dtype.is_float) and d is not BOOL:
        value = c.attr("value")
        return literal(value if d.is_float else int(value), d)
    mine = register_dtype(o.type.dtype)
    return text(o) if mine is d else f"convert<{d}>({text(o)})"


def reduced_dtype(v: Value) -> DType:
    """Register dtype of a feature reduction's result."""
    return register_dtype(v.type.dtype) if v.type.dtype.is_float else v.type.dtype
