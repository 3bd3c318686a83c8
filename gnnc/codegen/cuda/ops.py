"""An IR operation as a C++ expression. The same text works on scalars and on fragments: the skeletons overload every function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from ...ir.core import Value
from ...ir.types import BOOL, DType, promote

ELEMENTWISE = frozenset(
    "add sub mul div pow maximum minimum neg abs sign exp log sqrt rsqrt tanh sigmoid erf relu leaky_relu elu gelu silu clamp "
    "eq ne lt le gt ge and or not where cast".split()
)

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
    out = re.sub(r"\W", "_", name).strip("_") or "buffer"
    if out[0].isdigit():
        out = f"b{out}"
    return f"{out}_" if out in _TAKEN or _LOCAL.fullmatch(out) else out


_LOCAL = re.compile(r"v\d+|.*_(t|row|other|edge)|(state|shadow|temp|image|carry)_\d+|(top|shift|decay|score|kept|weight)_\d+")
"""Names that the generated code gives to its own values."""


_TAKEN = frozenset(
    "list count indptr neighbours edge_ids partials carries carry_base workspace lane row edge state carry batch b s u r c int float double char "
    "bool short long signed unsigned const auto for if else while do return struct class template typename using namespace new delete this true "
    "false static public private operator switch case default break continue void union enum goto inline extern register volatile sizeof and or "
    "not xor f16 bf16 f32 f64 i8 u8 i16 i32 i64 u32 u64 add sub mul div pow maximum minimum neg abs sign exp log sqrt rsqrt tanh sigmoid erf relu "
    "leaky_relu elu gelu silu eq ne lt le gt ge where both either negate square fma map set fill unit load fetch widen convert init combine each "
    "step store other id live L U S Index Row Edge State Carry Program Work main sweep save restore run merge scratch image slot degree inf nan "
    "P F B T o i slot item begin end partial part first kept total column warp warps lane scratch shared try catch throw export friend virtual explicit mutable near far".split()
)


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
        x, y = (as_dtype(o, register_dtype(common), text) for o in v.operands)
        return f"{op}({x}, {y})"
    args = [as_dtype(o, out, text) for o in v.operands]
    if op in _SIGNS:
        return f"{args[0]} {_SIGNS[op]} {args[1]}" if out.is_float else f"{op}({args[0]}, {args[1]})"
    if op == "pow" and v.operands[1].op == "const" and v.operands[1].attr("value") == 2:
        return f"square({args[0]})"
    if op in ("leaky_relu", "elu"):
        return f"{op}({args[0]}, {literal(v.attr('slope' if op == 'leaky_relu' else 'alpha'), out)})"
    if op == "clamp":
        x = args[0]
        for name, f in (("min", "maximum"), ("max", "minimum")):
            if v.attr(name) is not None:
                bound = v.attr(name)
                x = f"{f}({x}, {literal(bound if out.is_float else int(bound), out)})"
        return x
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

