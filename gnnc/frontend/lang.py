"""The vocabulary of a layer (`gnnc.lang`): elementwise functions, choice, concatenation and products.

Every function takes values of a layer; the elementwise ones also take Python numbers (and then give one), so helpers can be
shared between layers and plain code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gnnc.ir.types import promote

from .annotations import Dst, Edge, Node, Param, Src
from .errors import BadOperationArgument, described
from .source import user_loc
from .tracing import Number, TracedValue, as_number, refuse_operand, tracer_of

__all__ = [
    "Dst",
    "Edge",
    "Node",
    "Param",
    "Src",
    "abs",
    "clamp",
    "concat",
    "elu",
    "exp",
    "gelu",
    "leaky_relu",
    "log",
    "matmul",
    "maximum",
    "minimum",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "where",
]

V = TypeVar("V", TracedValue, float)


def _unary(name: str, v: Any, plain: Callable[[float], float], **attrs: Any) -> Any:
    if isinstance(v, TracedValue):
        return v._tracer.op(name, v._ir, **attrs)
    number = as_number(v)
    return refuse_operand(v) if number is None else plain(number)


def exp(v: V) -> V:
    """e^v."""
    return _unary("exp", v, math.exp)  # type: ignore[no-any-return]


def log(v: V) -> V:
    """Natural logarithm."""
    return _unary("log", v, math.log)  # type: ignore[no-any-return]


def sqrt(v: V) -> V:
    """Square root."""
    return _unary("sqrt", v, math.sqrt)  # type: ignore[no-any-return]


def rsqrt(v: V) -> V:
    """1 / sqrt(v)."""
    return _unary("rsqrt", v, lambda x: 1 / math.sqrt(x))  # type: ignore[no-any-return]


def tanh(v: V) -> V:
    """Hyperbolic tangent."""
    return _unary("tanh", v, math.tanh)  # type: ignore[no-any-return]


def _sigmoid(x: float) -> float:
    e = math.exp(-math.fabs(x))
    return (1.0 if x >= 0 else e) / (1 + e)


def sigmoid(v: V) -> V:
    """1 / (1 + e^-v)."""
    return _unary("sigmoid", v, _sigmoid)  # type: ignore[no-any-return]


def relu(v: V) -> V:
    """max(v, 0); slope 0 at 0."""
    return _unary("relu", v, lambda x: x if x > 0 or math.isnan(x) else type(x)(0))  # type: ignore[no-any-return]


def abs(v: V) -> V:
    """The magnitude; slope 0 at 0."""
    return _unary("abs", v, lambda x: x.__abs__())  # type: ignore[no-any-return]


def leaky_relu(v: V, slope: float | TracedValue = 0.01) -> V:
    """v where v > 0, slope * v elsewhere. The slope may be a value (`Param[()]`) too."""
    if isinstance(slope, TracedValue):
        return where(v > 0, v, v * slope)  # type: ignore[no-any-return]
    slope = _float_argument("leaky_relu's slope", slope)
    return _unary("leaky_relu", v, lambda x: x if x > 0 else x * slope, slope=slope)  # type: ignore[no-any-return]


def elu(v: V, alpha: float | TracedValue = 1.0) -> V:
    """v where v > 0, alpha * (e^v - 1) elsewhere. Alpha may be a value (`Param[()]`) too."""
    if isinstance(alpha, TracedValue):
        return where(v > 0, v, alpha * elu(minimum(v, 0)))  # type: ignore[no-any-return]
    alpha = _float_argument("elu's alpha", alpha)
    return _unary("elu", v, lambda x: x if x > 0 else alpha * math.expm1(x), alpha=alpha)  # type: ignore[no-any-return]


def gelu(v: V) -> V:
    """v * Phi(v), exact (by erf)."""
    return _unary("gelu", v, lambda x: 0.5 * x * (1 + math.erf(x * math.sqrt(0.5))))  # type: ignore[no-any-return]


def silu(v: V) -> V:
    """v * sigmoid(v)."""
    return _unary("silu", v, lambda x: x * _sigmoid(x))  # type: ignore[no-any-return]


def _float_argument(what: str, x: object) -> float:
    number = as_number(x)
    if number is None:
        raise BadOperationArgument(user_loc(), message=f"{what} is {described(x)}", hint="it is a number or a value of the layer")
    return float(number)


def _extremum(name: str, a: Any, b: Any, larger: bool) -> Any:
    tracer = tracer_of(a, b)
    if tracer is not None:
        return tracer.op(name, *tracer.operands(a, b))
    x, y = as_number(a), as_number(b)
    if x is None or y is None:
        refuse_operand(a if x is None else b)
    if math.isnan(x) or math.isnan(y):
        return math.nan
    return max(x, y) if larger else min(x, y)


def maximum(a: TracedValue | float, b: TracedValue | float) -> Any:
    """The larger of two, element by element; NaN wins; a tie shares the gradient evenly."""
    return _extremum("maximum", a, b, True)


def minimum(a: TracedValue | float, b: TracedValue | float) -> Any:
    """The smaller of two, element by element; NaN wins; a tie shares the gradient evenly."""
    return _extremum("minimum", a, b, False)


def clamp(v: V, min: float | TracedValue | None = None, max: float | TracedValue | None = None) -> V:
    """v held between min and max (None: no bound); slope 1 on a bound that is a number. A bound may be a value too."""
    if min is None and max is None:
        raise BadOperationArgument(user_loc(), message="clamp without a bound", hint="give min=, max= or both")
    if isinstance(v, TracedValue) and not isinstance(min, TracedValue) and not isinstance(max, TracedValue):
        low = None if min is None else _bound("min", min)
        high = None if max is None else _bound("max", max)
        ir = v._ir
        if not ir.type.dtype.is_float and any(isinstance(x, float) for x in (low, high)):
            ir = v._tracer.cast(ir, v._tracer.acc)
        if ir.type.dtype.is_float:
            low, high = None if low is None else float(low), None if high is None else float(high)
        return v._tracer.op("clamp", ir, min=low, max=high)
    out: Any = v
    if min is not None:
        out = maximum(out, min)
    return out if max is None else minimum(out, max)  # type: ignore[no-any-return]


def _bound(name: str, x: object) -> Number:
    number = as_number(x)
    if number is None:
        raise BadOperationArgument(user_loc(), message=f"clamp's {name} is {described(x)}", hint="it is a number or a value of the layer")
    return number


def where(cond: TracedValue | bool, a: TracedValue | float, b: TracedValue | float) -> Any:
    """a where cond holds, b elsewhere; the branch not taken gets gradient 0. A Python bool chooses while tracing."""
    if not isinstance(cond, TracedValue):
        if not isinstance(cond, bool):
            refuse_operand(cond)
        return a if cond else b
    tracer = cond._tracer
    return tracer.op("where", tracer.value_of(cond), *tracer.operands(a, b))


def concat(vs: Sequence[TracedValue], axis: int = -1) -> TracedValue:
    """Values side by side along a feature axis (negative), all in one space; parameters join any."""
    if not isinstance(vs, list | tuple) or not vs:
        raise BadOperationArgument(
            user_loc(), message=f"concat of {described(vs)}", hint="its first argument is a list of values: concat([a, b], -1)"
        )
    tracer = tracer_of(*vs)
    if tracer is None:
        refuse_operand(vs[0])
    values = [tracer.value_of(v) for v in vs]
    dtype = values[0].type.dtype
    for v in values[1:]:
        dtype = promote(dtype, v.type.dtype)
    return tracer.op("concat", *(tracer.cast(v, dtype) for v in values), axis=axis)


def matmul(v: TracedValue, w: TracedValue) -> TracedValue:
    """Every row's [..., K] block times a parameter [K, F]; the same as ``v @ w``."""
    tracer = tracer_of(v, w)
    if tracer is None:
        refuse_operand(v)
    return tracer.op("matmul", tracer.value_of(v), tracer.value_of(w))
