"""What is known of a value without running it: its sign, and what it is in a row without edges."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

import numpy as np

from gnnc.ir.core import Value, topological
from gnnc.ir.ops import EvalContext, GraphArrays, RuleContext, get_op

_EMPTY = {
    "sum": {"value": 0.0},
    "mean": {"value": 0.0},
    "max": {"value": 0.0, "arg": -1.0},
    "min": {"value": 0.0, "arg": -1.0},
    "prod": {"value": 1.0, "nonzero": 1.0, "zeros": 0.0},
    "moments": {"mean": 0.0, "var": 0.0, "std": 0.0},
    "logsumexp": {"value": -inf, "lse": -inf},
}
_CONTEXT = EvalContext(GraphArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0), RuleContext())
_VIEWS = ("reshape", "broadcast", "slice", "transpose", "cast", "spread", "reduce_max")


def empty_row(v: Value, end: str) -> Any:
    """The number that every element of the node value `v` is in a row without edges at `end`; None when that depends on data."""
    known: dict[Value, Any] = {}
    for u in topological([v]):
        known[u] = _in_empty_row(u, end, [known[o] for o in u.operands])
    return known[v]


def _in_empty_row(u: Value, end: str, operands: list[Any]) -> Any:
    if u.op == "const":
        return u.attr("value")
    if u.op == "degree":
        return 0.0 if u.attr("end") == end else None
    if u.op == "fold":
        return _EMPTY.get(u.attr("monoid"), {}).get(u.attr("part")) if u.attr("to") == end else None
    if u.op == "where" and operands[0] is not None:
        return operands[1] if operands[0] else operands[2]
    if any(o is None for o in operands) or not operands:
        return None
    if u.op in _VIEWS:
        return operands[0]
    if get_op(u.op).kind == "elementwise":
        return get_op(u.op).evaluate([np.asarray([o]) for o in operands], u, _CONTEXT)[0]
    return None


def harmless_when_empty(v: Value, end: str) -> bool:
    """Whether 0 times `v` is 0 in a row without edges."""
    value = empty_row(v, end)
    return value is not None and isfinite(value)


def is_positive(v: Value) -> bool:
    """Whether every number that `v` can be is above 0 (NaN aside, and but for underflow), on rows and edges that exist."""
    known: dict[Value, bool] = {}
    for u in topological([v]):
        known[u] = _positive(u, [known[o] for o in u.operands])
    return known[v]


def _positive(u: Value, operands: list[bool]) -> bool:
    match u.op:
        case "const":
            return bool(u.attr("value") > 0)
        case "exp" | "sigmoid" | "softmax":
            return True
        case "maximum":
            return any(operands)
        case "clamp":
            return u.attr("min") is not None and u.attr("min") > 0
        case "minimum" | "mul" | "div" | "add":
            return all(operands)
        case "where":
            return all(operands[1:])
        case (
            "sqrt" | "rsqrt" | "reshape" | "broadcast" | "slice" | "transpose" | "cast" | "spread" | "gather" | "reduce_sum" | "reduce_max"
        ):
            return operands[0]
        case "pow":
            return operands[0]
        case _:
            return False
