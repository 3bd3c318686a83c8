"""Symbolic values: what the layer's function computes with while it runs once.

A `TracedValue` stands for one value of the IR. Every operation on it asks the `Tracer` for an IR operation at the user's current
line; a type rule that refuses becomes a located error there, in one place. Python numbers become constants in the precision that
their partner is computed in, so they never change a dtype.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.types import BOOL, DTYPES, I64, Dims, DType, TypeRuleError, promote

from .dtypes import dtype_named
from .errors import (
    AssignedTo,
    BadOperationArgument,
    ConcreteValueNeeded,
    ForeignFunction,
    ForeignOperand,
    OtherTrace,
    UnknownOperation,
    described,
    from_type_rule,
)
from .indexing import index_value
from .source import user_loc

Number = bool | int | float


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    return (0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)


class Tracer:
    """One function being traced. ``acc`` is the accumulation dtype of the whole function: numbers without a floating partner,
    degrees and folds of integers take it. ``user_monoids`` maps a user's monoid object to the name it has in this function."""

    def __init__(self, builder: Builder, acc: DType) -> None:
        self.builder, self.acc = builder, acc
        self.user_monoids: list[tuple[object, str]] = []

    def op(self, name: str, *operands: Value, **attrs: Any) -> TracedValue:
        """One IR operation at the user's line. Raises the located error for what a type rule refuses."""
        loc = user_loc()
        with self.builder.at(loc):
            try:
                return TracedValue(self, self.builder.op(name, *operands, **attrs))
            except TypeRuleError as error:
                raise from_type_rule(error, loc) from None

    def value_of(self, x: object) -> Value:
        """The IR value of a traced value of this tracer; a located error for everything else."""
        if not isinstance(x, TracedValue):
            refuse_operand(x)
        if x._tracer is not self:
            raise OtherTrace(user_loc(), type=x._ir.type)
        return x._ir

    def lift(self, x: object, partner: DType | None = None) -> Value:
        """The IR value of an operand: a traced value, or a number as a constant for arithmetic with `partner`."""
        if isinstance(x, TracedValue):
            return self.value_of(x)
        number = as_number(x)
        if number is None:
            refuse_operand(x)
        dtype = self._number_dtype(number, partner)
        with self.builder.at(user_loc()):
            if dtype.is_float:
                return self.builder.const(float(number), dtype)
            return self.builder.const(bool(number) if dtype is BOOL else int(number), dtype)

    def _number_dtype(self, x: Number, partner: DType | None) -> DType:
        if partner is not None and partner.is_float:
            return partner.acc
        if isinstance(x, float):
            return self.acc
        if isinstance(x, bool) and partner in (None, BOOL):
            return BOOL
        if partner is None or partner is BOOL:
            return I64
        low, high = integer_range(partner)
        return partner if low <= x <= high else I64

    def operands(self, *xs: object) -> list[Value]:
        """Several operands of one arithmetic operation: numbers take the precision of the traced ones together."""
        partner: DType | None = None
        for x in xs:
            if isinstance(x, TracedValue):
                d = self.value_of(x).type.dtype
                partner = d if partner is None else promote(partner, d)
        if partner is None:  # numbers only: one float makes them all float
            partner = self.acc if any(isinstance(as_number(x), float) for x in xs) else None
        return [self.lift(x, partner) for x in xs]

    def cast(self, v: Value, dtype: DType) -> Value:
        return v if v.type.dtype is dtype else self.op("cast", v, dtype=dtype.name)._ir


def as_number(x: object) -> Number | None:
    """`x` as a Python number (numpy scalars too); None when it is none."""
    if isinstance(x, np.generic):
        x = x.item()
    return x if isinstance(x, bool | int | float) else None


def refuse_operand(x: object) -> NoReturn:
    if isinstance(x, torch.Tensor):
        raise ForeignOperand(user_loc(), what=f"a tensor of shape {list(x.shape)}")
    if isinstance(x, np.ndarray):
        raise ForeignOperand(user_loc(), what=f"an array of shape {list(x.shape)}")
    raise ForeignOperand(user_loc(), what=described(x), hint="operands are values of the layer and Python numbers")


def tracer_of(*xs: object) -> Tracer | None:
    """The tracer of the first traced value; None when there is none."""
    return next((x._tracer for x in xs if isinstance(x, TracedValue)), None)


# What people write on tensors, and how it is said here.
_MENDS = {
    "unsqueeze": "write v[..., None]",
    "squeeze": "write v[..., 0] or v.reshape(dims)",
    "view": "write v.reshape(dims)",
    "flatten": "write v.reshape(-1)",
    "min": "write -(-v).max(-1)",
    "size": "write v.dims",
    "dim": "write len(v.dims)",
    "ndim": "write len(v.dims)",
    "float": "write v.to('f32')",
    "double": "write v.to('f64')",
    "half": "write v.to('f16')",
    "bfloat16": "write v.to('bf16')",
    "int": "write v.to('i32')",
    "long": "write v.to('i64')",
    "bool": "write v != 0",
    "softmax": "over edges it is g.softmax(v)",
    "item": "values are symbols while the layer is traced; use where(cond, a, b) to choose by value",
    "detach": "compute what needs no gradient outside of the layer",
    "T": "values have no transpose; write (a[..., :, None] * b).sum(-2) for a product with it",
}


class TracedValue:
    """A value of a layer: feature dims for every row of a space. Immutable.

    ``dims`` (also ``shape``) are the feature dims as ints, ``dtype`` the dtype's name ("f32"), ``space`` where it lives.
    Operators broadcast feature dims as numpy does, aligned at the right.
    """

    __slots__ = ("_explicit", "_ir", "_tracer")

    def __init__(self, tracer: Tracer, ir: Value, explicit: bool = False) -> None:
        self._tracer, self._ir = tracer, ir
        self._explicit = explicit  # made by .to(): a result keeps this dtype

    # ---- what it is

    @property
    def dims(self) -> Dims:
        return self._ir.type.dims

    shape = dims

    @property
    def dtype(self) -> str:
        return self._ir.type.dtype.name

    @property
    def space(self) -> str:
        return self._ir.type.space

    def __repr__(self) -> str:
        return f"<{self._ir.type} value of a layer>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        from . import lang

        if name in _MENDS:
            hint = _MENDS[name]
        elif name in lang.__all__:
            hint = f"it is a function: `from gnnc.lang import {name}`, then {name}(v)"
        else:
            near = difflib.get_close_matches(name, ["sum", "mean", "max", "reshape", "to", "dims", "shape", "dtype", "space"], 1)
            hint = (
                f"did you mean .{near[0]}?"
                if near
                else "functions such as exp, relu, where are in gnnc.lang, folds are on the graph: g.sum(v)"
            )
        raise UnknownOperation(user_loc(), message=f"unknown operation .{name} of {self._a()}", hint=hint)

    def _a(self) -> str:
        t = self._ir.type
        return f"{'an' if t.space == 'edge' else 'a'} {t.space} value of dims [{', '.join(map(str, t.dims))}]"

    # ---- arithmetic

    def _binary(self, name: str, other: object, swap: bool = False) -> TracedValue:
        a, b = self._tracer.operands(self, other)
        return self._tracer.op(name, b, a) if swap else self._tracer.op(name, a, b)

    def __add__(self, other: object) -> TracedValue:
        return self._binary("add", other)

    def __radd__(self, other: object) -> TracedValue:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: object) -> TracedValue:
        return self._binary("sub", other)

    def __rsub__(self, other: object) -> TracedValue:
        return self._binary("sub", other, swap=True)

    def __mul__(self, other: object) -> TracedValue:
        return self._binary("mul", other)

    def __rmul__(self, other: object) -> TracedValue:
        return self._binary("mul", other, swap=True)

    def __truediv__(self, other: object) -> TracedValue:
        return self._binary("div", other)

    def __rtruediv__(self, other: object) -> TracedValue:
        return self._binary("div", other, swap=True)

    def __pow__(self, other: object) -> TracedValue:
        exponent = as_number(other)
        # As torch does: these powers have exact and cheaper forms.
        if exponent == 2:
            return self * self
        if exponent == 3:
            return self * self * self
        if exponent == 1:
            return TracedValue(self._tracer, self._ir)
        if exponent == -1:
            return 1.0 / self
        if exponent == 0.5:
            return self._tracer.op("sqrt", self._ir)
        return self._binary("pow", other)

    def __rpow__(self, other: object) -> TracedValue:
        return self._binary("pow", other, swap=True)

    def __matmul__(self, other: object) -> TracedValue:
        return self._tracer.op("matmul", self._ir, self._tracer.value_of(other))

    def __rmatmul__(self, other: object) -> NoReturn:
        refuse_operand(other)

    def __neg__(self) -> TracedValue:
        return self._tracer.op("neg", self._ir)

    def __pos__(self) -> TracedValue:
        return TracedValue(self._tracer, self._ir)

    def __abs__(self) -> TracedValue:
        return self._tracer.op("abs", self._ir)

    # ---- comparison and logic

    def __eq__(self, other: object) -> TracedValue:  # type: ignore[override]
        return self._binary("eq", other)

    def __ne__(self, other: object) -> TracedValue:  # type: ignore[override]
        return self._binary("ne", other)

    def __lt__(self, other: object) -> TracedValue:
        return self._binary("lt", other)

    def __le__(self, other: object) -> TracedValue:
        return self._binary("le", other)

    def __gt__(self, other: object) -> TracedValue:
        return self._binary("gt", other)

    def __ge__(self, other: object) -> TracedValue:
        return self._binary("ge", other)

    __hash__ = object.__hash__

    def __and__(self, other: object) -> TracedValue:
        return self._binary("and", other)

    def __rand__(self, other: object) -> TracedValue:
        return self._binary("and", other, swap=True)

    def __or__(self, other: object) -> TracedValue:
        return self._binary("or", other)

    def __ror__(self, other: object) -> TracedValue:
        return self._binary("or", other, swap=True)

    def __invert__(self) -> TracedValue:
        return self._tracer.op("not", self._ir)

    # ---- feature dims

    def __getitem__(self, index: object) -> TracedValue:
        return index_value(self, index)

    def _reduce(self, name: str, axis: object, keepdim: bool, v: Value) -> TracedValue:
        axes = axis if isinstance(axis, tuple) else (axis,)
        if axis is None or not axes:
            short = name.removeprefix("reduce_")
            raise BadOperationArgument(user_loc(), message=f"{short} needs an axis", hint=f"{short}(-1) reduces the last feature dim")
        if len(axes) == 1:
            return self._tracer.op(name, v, axis=axes[0], keepdim=keepdim)
        out = v
        for a in axes:
            out = self._tracer.op(name, out, axis=a, keepdim=True)._ir
        drop = {len(v.type.dims) + a for a in axes}
        if len(drop) != len(axes):
            raise BadOperationArgument(user_loc(), message=f"axes {axes} name one feature dim twice", hint="give each axis once")
        if keepdim:
            return TracedValue(self._tracer, out)
        return self._tracer.op("reshape", out, dims=tuple(d for i, d in enumerate(v.type.dims) if i not in drop))

    def _number_like(self) -> Value:
        """The IR value, integers widened as torch's sum does."""
        d = self._ir.type.dtype
        return self._ir if d.is_float else self._tracer.cast(self._ir, I64)

    def sum(self, axis: int | tuple[int, ...] | None = None, keepdim: bool = False) -> TracedValue:
        """Sum over feature axes (negative; a tuple for several); integers are summed in i64."""
        return self._reduce("reduce_sum", axis, keepdim, self._number_like())

    def mean(self, axis: int | tuple[int, ...] | None = None, keepdim: bool = False) -> TracedValue:
        """Mean over feature axes, floating."""
        d = self._ir.type.dtype
        v = self._ir if d.is_float else self._tracer.cast(self._ir, self._tracer.acc)
        total = self._reduce("reduce_sum", axis, keepdim, v)
        count = 1
        for a in axis if isinstance(axis, tuple) else (axis,):
            count *= self.dims[a]  # type: ignore[index]  # the reduction has checked it
        return total / float(count)

    def max(self, axis: int | tuple[int, ...] | None = None, keepdim: bool = False) -> TracedValue:
        """Maximum over feature axes; NaN wins; a tie's gradient goes to the first."""
        return self._reduce("reduce_max", axis, keepdim, self._ir)

    def reshape(self, *dims: int | Sequence[int]) -> TracedValue:
        """The same elements of every row under other feature dims; one of them may be -1."""
        given = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
        for d in given:
            if isinstance(d, bool) or not isinstance(d, int):
                raise BadOperationArgument(
                    user_loc(), message=f"reshape to {given!r}: {described(d)} is not a size", hint="dims are ints: v.reshape(4, -1)"
                )
        sizes: list[int] = list(given)  # type: ignore[arg-type]
        if sizes.count(-1) > 1 or any(d < -1 for d in sizes):
            raise BadOperationArgument(user_loc(), message=f"reshape to {sizes}", hint="sizes are not negative; one of them may be -1")
        if -1 in sizes:
            known = 1
            for d in sizes:
                known *= d if d != -1 else 1
            if known and self._ir.type.size % known == 0:
                sizes[sizes.index(-1)] = self._ir.type.size // known
            else:
                text = f"cannot reshape feature dims {list(self.dims)} ({self._ir.type.size} elements) to {sizes}"
                raise from_type_rule(TypeRuleError("shape-mismatch", text), user_loc())
        if tuple(sizes) == self.dims:
            return TracedValue(self._tracer, self._ir)
        return self._tracer.op("reshape", self._ir, dims=tuple(sizes))

    def to(self, dtype: object) -> TracedValue:
        """Converted to a dtype ("f32", torch.float16, another value's ``.dtype``). A result that ends with it keeps that dtype."""
        found = dtype_named(dtype)
        if found is None:
            raise BadOperationArgument(user_loc(), message=f"unknown dtype {dtype!r}", hint=f"one of {', '.join(DTYPES)}")
        return TracedValue(self._tracer, self._tracer.cast(self._ir, found), explicit=True)

    # ---- what symbols cannot do

    def _concrete(self, what: str, hint: str) -> NoReturn:
        raise ConcreteValueNeeded(user_loc(), what=what, type=self._a(), hint=hint)

    def __bool__(self) -> bool:
        self._concrete("the truth value", "use where(cond, a, b) for if; &, | and ~ for and, or and not; (a < b) & (b < c) for a < b < c")

    def __float__(self) -> float:
        self._concrete("the number", "use the functions of gnnc.lang instead of math's")

    def __int__(self) -> int:
        self._concrete("the number", "use v.to('i32') to convert, where(cond, a, b) to choose by value")

    __index__ = __int__

    def __complex__(self) -> complex:
        self._concrete("the number", "there is no complex arithmetic in a layer")

    def __round__(self, digits: object = None) -> NoReturn:
        self._concrete("the number", "use v.to('i32').to('f32') to cut the fraction off")

    __floor__ = __ceil__ = __trunc__ = __round__

    def __iter__(self) -> NoReturn:
        self._concrete("the elements", "loop over heads with `for h in range(v.dims[-1])` and v[..., h]")

    def __len__(self) -> int:
        self._concrete("the length", "v.dims are the feature dims; the number of rows is not known while tracing")

    def __contains__(self, item: object) -> bool:
        self._concrete("the elements", "use (v == item), a bool value")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise AssignedTo(user_loc(), type=self._a())

    def __delitem__(self, index: object) -> NoReturn:
        raise AssignedTo(user_loc(), type=self._a())

    # ---- foreign libraries

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        self._foreign("numpy", "")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **kwargs: object) -> Any:
        # np.float32(2) * v arrives here: a scalar is a number like any other.
        python = _SCALAR_UFUNCS.get(ufunc.__name__)
        if python is not None and method == "__call__" and not kwargs:
            if all(isinstance(x, TracedValue) or as_number(x) is not None for x in inputs):
                return python(*(x if isinstance(x, TracedValue) else as_number(x) for x in inputs))
            for x in inputs:
                if isinstance(x, np.ndarray):
                    refuse_operand(x)
        return self._foreign(f"numpy.{ufunc.__name__}", ufunc.__name__)

    def __array_function__(self, func: Any, types: object, args: object, kwargs: object) -> NoReturn:
        self._foreign(f"numpy.{func.__name__}", func.__name__)

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Sequence[object] = (), kwargs: object = None) -> NoReturn:
        for x in args:
            if isinstance(x, torch.Tensor):
                refuse_operand(x)
        name = getattr(func, "__name__", str(func))
        inner = [y for x in args for y in (x if isinstance(x, list | tuple) else (x,))]
        traced = next(x for x in inner if isinstance(x, TracedValue))
        traced._foreign(f"torch.{name}", name)

    def _foreign(self, function: str, name: str) -> NoReturn:
        from . import lang

        name = _FOREIGN_NAMES.get(name, name)
        hint = f"use {name} from gnnc.lang" if name in lang.__all__ else "use the functions of gnnc.lang and the folds of g"
        raise ForeignFunction(user_loc(), function=function, type=self._a(), hint=hint)


_FOREIGN_NAMES = {"absolute": "abs", "fabs": "abs", "cat": "concat", "concatenate": "concat", "clip": "clamp", "mm": "matmul"}

_SCALAR_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "true_divide": lambda a, b: a / b,
    "power": lambda a, b: a**b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}


def _unsupported(symbol: str, hint: str) -> Callable[[TracedValue, object], TracedValue]:
    def method(self: TracedValue, other: object) -> TracedValue:
        raise UnknownOperation(user_loc(), message=f"unknown operation {symbol} of {self._a()}", hint=hint)

    return method


for _names, _symbol, _hint in (
    (("floordiv", "rfloordiv"), "//", "write (a / b).to('i32')"),
    (("mod", "rmod"), "%", "write a - (a / b).to('i32') * b"),
    (("divmod", "rdivmod"), "divmod", "write (a / b).to('i32')"),
    (("xor", "rxor"), "^", "powers are **; for bool values write a != b"),
    (("lshift", "rlshift"), "<<", "multiply by a power of two"),
    (("rshift", "rrshift"), ">>", "divide by a power of two"),
):
    for _name in _names:
        setattr(TracedValue, f"__{_name}__", _unsupported(_symbol, _hint))
