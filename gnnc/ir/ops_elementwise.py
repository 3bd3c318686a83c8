"""Elementwise operations: one output element from the aligned elements of the operands.

Result dims broadcast as numpy does (aligned at the right); the result lives in the operands' common space, params join any.
Every gradient convention is torch's: ``maximum`` shares a tie evenly, ``relu`` and ``leaky_relu`` take the left branch's slope
at 0, ``abs`` has slope 0 at 0, ``clamp`` slope 1 on its bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from .ops import REQUIRED, Adjoint, Array, EvalContext, OpDef, RuleContext, align, register
from .types import BOOL, DTYPES, F32, DType, Type, TypeRuleError, broadcast_dims, join_space, promote

if TYPE_CHECKING:
    from .builder import Builder
    from .core import Value


def _joined(types: list[Type], dtype: DType) -> Type:
    return Type(join_space([t.space for t in types]), dtype, broadcast_dims([t.dims for t in types]))


def _promoted(types: list[Type]) -> DType:
    out = types[0].dtype
    for t in types[1:]:
        out = promote(out, t.dtype)
    return out.acc


def _infer_arith(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    dtype = _promoted(types)
    if dtype is BOOL:
        raise TypeRuleError("dtype", "arithmetic on bool values", "convert with v.to('f32') or use where(cond, a, b)")
    return _joined(types, dtype)


def _infer_float(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    dtype = _promoted(types)
    return _joined(types, dtype if dtype.is_float else F32)


def _infer_compare(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    _promoted(types)
    return _joined(types, BOOL)


def _infer_logic(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    if any(t.dtype is not BOOL for t in types):
        raise TypeRuleError("dtype", "a logical operation needs bool values", "compare first, as in (a > 0) & (b > 0)")
    return _joined(types, BOOL)


def _infer_where(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    if types[0].dtype is not BOOL:
        raise TypeRuleError("dtype", f"where's condition has dtype {types[0].dtype}", "compare first, as in where(x > 0, a, b)")
    return _joined(types, _promoted(types[1:]))


def _infer_clamp(types: list[Type], attrs: dict[str, Any], c: RuleContext) -> Type:
    out = _infer_arith(types, attrs, c)
    for bound in (attrs["min"], attrs["max"]):
        if not out.dtype.is_float and isinstance(bound, float):
            raise TypeRuleError("dtype", f"clamp of {out.dtype} values at {bound}", "convert with v.to('f32') or give an integer")
    return out


def _infer_cast(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    if attrs["dtype"] not in DTYPES:
        raise TypeRuleError("dtype", f"unknown dtype {attrs['dtype']!r}", f"one of {', '.join(DTYPES)}")
    return types[0].with_dtype(DTYPES[attrs["dtype"]])


def _op(
    name: str,
    arity: int,
    infer: Any,
    fn: Callable[..., Any],
    adjoint: Adjoint | None,
    doc: str,
    attrs: tuple[tuple[str, Any], ...] = (),
) -> None:
    def evaluate(args: list[Array], v: Value, _ctx: EvalContext) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*align(args), **dict(v.attrs)))

    register(OpDef(name, "elementwise", arity, infer, evaluate, adjoint, attrs, doc))


# ---- adjoints. `v` is the operation, `g` its cotangent.


def _none2(_b: Builder, _v: Value, _g: Value) -> tuple[Value | None, ...]:
    return (None, None)


def _d_add(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return g, g


def _d_sub(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return g, b.neg(g)


def _d_mul(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, y = v.operands
    return b.mul(g, y), b.mul(g, x)


def _d_div(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    _x, y = v.operands
    gx = b.div(g, y)
    return gx, b.neg(b.mul(gx, v))


def _d_pow(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, p = v.operands
    zero, one = b.const_like(v, 0.0), b.const_like(v, 1.0)
    # torch: the slope is 0 where the exponent is 0, also at x = 0; the exponent's is 0 where the base is 0 (and p >= 0).
    gx = b.where(b.op("eq", p, zero), zero, b.mul(g, b.mul(p, b.op("pow", x, b.sub(p, one)))))
    if p.op == "const":
        return gx, None
    flat = b.op("and", b.op("eq", x, zero), b.op("ge", p, zero))
    return gx, b.where(flat, zero, b.mul(g, b.mul(v, b.op("log", x))))


def _d_extremum(wins: str) -> Adjoint:
    def adjoint(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
        x, y = v.operands
        half, zero = b.mul(g, b.const_like(g, 0.5)), b.const_like(g, 0.0)
        tie = b.op("eq", x, y)
        gx = b.where(tie, half, b.where(b.op(wins, x, y), g, zero))
        gy = b.where(tie, half, b.where(b.op(wins, y, x), g, zero))
        return gx, gy

    return adjoint


def _unary(slope: Callable[[Builder, Value, Value], Value]) -> Adjoint:
    """An adjoint from the slope d out / d x, given (builder, x, out)."""

    def adjoint(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
        return (b.mul(g, slope(b, v.operands[0], v)),)

    return adjoint


def _c(b: Builder, like: Value, value: float) -> Value:
    return b.const_like(like, value)


def _gated(positive: Callable[[Builder, Value, Value], Value | None], rest: Callable[[Builder, Value, Value], Value | None]) -> Adjoint:
    """Slope ``positive`` where x > 0, ``rest`` elsewhere; None stands for 1 / 0 and costs no multiplication (inf * 0)."""

    def adjoint(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
        x = v.operands[0]
        p, r = positive(b, x, v), rest(b, x, v)
        hi = g if p is None else b.mul(g, p)
        lo = _c(b, g, 0.0) if r is None else b.mul(g, r)
        return (b.where(b.op("gt", x, _c(b, x, 0.0)), hi, lo),)

    return adjoint


def _d_where(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    zero = b.const_like(g, 0.0)
    return None, b.where(v.operands[0], g, zero), b.where(v.operands[0], zero, g)


def _d_clamp(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, lo, hi = v.operands[0], v.attr("min"), v.attr("max")
    out = g
    if lo is not None:
        out = b.where(b.op("ge", x, _c(b, x, lo)), out, _c(b, g, 0.0))
    if hi is not None:
        out = b.where(b.op("le", x, _c(b, x, hi)), out, _c(b, g, 0.0))
    return (out,)


def _d_cast(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (g if v.type.dtype.is_float and v.operands[0].type.dtype.is_float else None,)


def _gelu_slope(b: Builder, x: Value, _v: Value) -> Value:
    cdf = b.mul(_c(b, x, 0.5), b.add(_c(b, x, 1.0), b.op("erf", b.mul(x, _c(b, x, sqrt(0.5))))))
    pdf = b.mul(_c(b, x, 1 / sqrt(2 * pi)), b.op("exp", b.mul(_c(b, x, -0.5), b.mul(x, x))))
    return b.add(cdf, b.mul(x, pdf))


def _silu_slope(b: Builder, x: Value, _v: Value) -> Value:
    s = b.op("sigmoid", x)
    return b.mul(s, b.add(_c(b, x, 1.0), b.mul(x, b.sub(_c(b, x, 1.0), s))))


def _np_erf(x: Array) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x) if x.size else x.astype(np.float64)


def _np_sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)) + np.where(np.isnan(x), np.nan, 0.0)


def _np_clamp(x: Array, min: float | None, max: float | None) -> Array:
    out = x if min is None else np.maximum(x, min)
    return out if max is None else np.minimum(out, max)


def _np_cast(x: Array, dtype: str) -> Array:
    d = DTYPES[dtype]
    if d.is_float:
        return x.astype(np.float64)
    names = {"bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"}
    return x.astype(names[dtype])


_op("add", 2, _infer_arith, lambda x, y: x + y, _d_add, "x + y")
_op("sub", 2, _infer_arith, lambda x, y: x - y, _d_sub, "x - y")
_op("mul", 2, _infer_arith, lambda x, y: x * y, _d_mul, "x * y")
_op("div", 2, _infer_float, lambda x, y: np.true_divide(x, y), _d_div, "x / y")
_op("pow", 2, _infer_float, lambda x, y: np.power(np.asarray(x, np.float64), y), _d_pow, "x ** y")
_op("maximum", 2, _infer_arith, np.maximum, _d_extremum("gt"), "the larger; NaN wins; a tie shares the gradient evenly")
_op("minimum", 2, _infer_arith, np.minimum, _d_extremum("lt"), "the smaller; NaN wins; a tie shares the gradient evenly")
_op("neg", 1, _infer_arith, lambda x: -x, lambda b, v, g: (b.neg(g),), "-x")
_op("abs", 1, _infer_arith, np.abs, _unary(lambda b, x, v: b.op("sign", x)), "|x|; slope 0 at 0")
_op("sign", 1, _infer_arith, np.sign, lambda b, v, g: (None,), "-1, 0 or 1; NaN stays NaN")
_op("exp", 1, _infer_float, np.exp, _unary(lambda b, x, v: v), "e^x")
_op("log", 1, _infer_float, np.log, lambda b, v, g: (b.div(g, v.operands[0]),), "natural logarithm")
_op("sqrt", 1, _infer_float, np.sqrt, lambda b, v, g: (b.div(b.mul(_c(b, g, 0.5), g), v),), "square root")
_op(
    "rsqrt",
    1,
    _infer_float,
    lambda x: 1 / np.sqrt(x),
    _unary(lambda b, x, v: b.mul(_c(b, x, -0.5), b.mul(v, b.mul(v, v)))),
    "1 / sqrt(x)",
)
_op("tanh", 1, _infer_float, np.tanh, _unary(lambda b, x, v: b.sub(_c(b, x, 1.0), b.mul(v, v))), "hyperbolic tangent")
_op("sigmoid", 1, _infer_float, _np_sigmoid, _unary(lambda b, x, v: b.mul(v, b.sub(_c(b, x, 1.0), v))), "1 / (1 + e^-x)")
_op(
    "erf",
    1,
    _infer_float,
    _np_erf,
    _unary(lambda b, x, v: b.mul(_c(b, x, 2 / sqrt(pi)), b.op("exp", b.neg(b.mul(x, x))))),
    "error function",
)
_op(
    "relu",
    1,
    _infer_arith,
    lambda x: np.where(x > 0, x, np.where(np.isnan(x), x, np.zeros_like(x))),
    _gated(lambda b, x, v: None, lambda b, x, v: None),
    "max(x, 0)",
)
_op(
    "leaky_relu",
    1,
    _infer_float,
    lambda x, slope: np.where(x > 0, x, x * slope),
    _gated(lambda b, x, v: None, lambda b, x, v: _c(b, x, v.attr("slope"))),
    "x where x > 0, slope * x elsewhere",
    (("slope", 0.01),),
)
_op(
    "elu",
    1,
    _infer_float,
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    _gated(lambda b, x, v: None, lambda b, x, v: b.mul(_c(b, x, v.attr("alpha")), b.op("exp", x))),
    "x where x > 0, alpha * (e^x - 1) elsewhere",
    (("alpha", 1.0),),
)
_op("gelu", 1, _infer_float, lambda x: 0.5 * x * (1 + _np_erf(x * sqrt(0.5))), _unary(_gelu_slope), "x * Phi(x), exact (erf)")
_op("silu", 1, _infer_float, lambda x: x * _np_sigmoid(x), _unary(_silu_slope), "x * sigmoid(x)")
_op("clamp", 1, _infer_clamp, _np_clamp, _d_clamp, "x held between min and max; slope 1 on the bounds", (("min", None), ("max", None)))
_op("eq", 2, _infer_compare, lambda x, y: x == y, _none2, "x == y")
_op("ne", 2, _infer_compare, lambda x, y: x != y, _none2, "x != y")
_op("lt", 2, _infer_compare, lambda x, y: x < y, _none2, "x < y")
_op("le", 2, _infer_compare, lambda x, y: x <= y, _none2, "x <= y")
_op("gt", 2, _infer_compare, lambda x, y: x > y, _none2, "x > y")
_op("ge", 2, _infer_compare, lambda x, y: x >= y, _none2, "x >= y")
_op("and", 2, _infer_logic, np.logical_and, _none2, "x and y, of bool values")
_op("or", 2, _infer_logic, np.logical_or, _none2, "x or y, of bool values")
_op("not", 1, _infer_logic, np.logical_not, lambda b, v, g: (None,), "not x, of a bool value")
_op("where", 3, _infer_where, np.where, _d_where, "x where cond holds, y elsewhere; the branch not taken gets gradient 0")
_op("cast", 1, _infer_cast, _np_cast, _d_cast, "conversion to a dtype", (("dtype", REQUIRED),))
