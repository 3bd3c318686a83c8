"""Static arguments: which values may be compiled in, how they are normalised, and how two of them are told apart."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import numpy as np

# Equal for equal values of one kind only: True, 1 and 1.0 differ, so do 0.0 and -0.0; nan equals nan.
from gnnc.ir.builder import attr_key as static_key

from .errors import described

__all__ = ["NotStatic", "fit", "is_static_annotation", "normalise", "static_key"]

_PLAIN = (bool, int, float, str, types.NoneType)


class NotStatic(Exception):
    """``args[0]`` says what the value is."""


def is_static_annotation(annotation: Any) -> bool:
    """Whether an annotation names static kinds only: plain types, tuples, unions and literals of them."""
    if annotation is None or annotation in (*_PLAIN, tuple, object, Any):
        return True
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return all(isinstance(a, _PLAIN) for a in args)
    if origin in (tuple, typing.Union, types.UnionType):
        return all(a is Ellipsis or is_static_annotation(a) for a in args)
    return False


def normalise(value: object) -> Any:
    """The value in plain Python types (numpy scalars and subclasses of them become plain). Raises NotStatic."""
    if isinstance(value, enum.Enum):
        raise NotStatic(f"{described(value)} (an enum)")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        if type(value) is not tuple and hasattr(value, "_fields"):
            raise NotStatic(f"{described(value)} (a named tuple)")
        return tuple(normalise(v) for v in value)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise NotStatic(described(value))


def fit(annotation: Any, value: Any) -> tuple[bool, Any]:
    """Whether a normalised value is what its annotation says, and the value as that (an int for ``float`` becomes a float)."""
    if annotation in (None, types.NoneType):
        return value is None, value
    if annotation is float:
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        return ok, float(value) if ok else value
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if annotation in (bool, str, tuple):
        return isinstance(value, annotation), value
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return any(static_key(a) == static_key(value) for a in args), value
    if origin in (typing.Union, types.UnionType):
        exact = [a for a in args if isinstance(a, type) and type(value) is a]
        for a in [*exact, *args]:
            ok, fitted = fit(a, value)
            if ok:
                return True, fitted
        return False, value
    if origin is tuple:
        return _fit_tuple(args, value)
    return True, value  # object, Any, none given


def _fit_tuple(args: tuple[Any, ...], value: Any) -> tuple[bool, Any]:
    if not isinstance(value, tuple):
        return False, value
    wanted = args[:1] * len(value) if len(args) == 2 and args[1] is Ellipsis else args
    if len(wanted) != len(value):
        return False, value
    fitted = [fit(a, v) for a, v in zip(wanted, value, strict=True)]
    return all(ok for ok, _ in fitted), tuple(v for _, v in fitted)
