"""Merges a softmax's two passes over a row into one: ``sum(exp(s - lse) * v)`` becomes the ``softmax_sum`` fold.

Also picks the cheaper extremum where nobody reads the argument. Both are rewrites of ``lowered`` functions, run by `fuse`.
"""

from __future__ import annotations

from dataclasses import replace

from gnnc.ir.builder import Builder, rewrite
from gnnc.ir.core import Func, Value, topological


def _is_weight(v: Value, end: str) -> Value | None:
    """The score s of ``exp(s - gather(logsumexp(s)))`` over the rows at `end`."""
    if v.op != "exp" or v.operands[0].op != "sub":
        return None
    s, stat = v.operands[0].operands
    if stat.op != "gather" or stat.attr("end") != end:
        return None
    lse = stat.operands[0]
    is_lse = lse.op == "fold" and (lse.attr("monoid"), lse.attr("part"), lse.attr("to")) == ("logsumexp", "lse", end)
    return s if is_lse and lse.operands[0] is s else None


def _split(b: Builder, v: Value, end: str) -> tuple[Value, Value | None] | None:
    """``v = weight(score) * rest`` as (score, rest), looking through products, divisions and reshapes that only add 1s."""
    s = _is_weight(v, end)
    if s is not None:
        return s, None
    if v.op == "reshape" and [d for d in v.type.dims if d != 1] == [d for d in v.operands[0].type.dims if d != 1]:
        inner = _split(b, v.operands[0], end)
        if inner is not None and inner[1] is None:
            return b.reshape(inner[0], v.type.dims), None
    if v.op in ("mul", "div"):
        x, y = v.operands
        left = _split(b, x, end)
        if left is not None:
            score, rest = left
            if v.op == "mul":
                return score, y if rest is None else b.mul(rest, y)
            return score, b.div(b.const_like(v, 1.0) if rest is None else rest, y)
        right = _split(b, y, end) if v.op == "mul" else None
        if right is not None:
            return right[0], x if right[1] is None else b.mul(x, right[1])
    return None


def merge_online_softmax(func: Func) -> Func:
    """`func` with every ``fold sum`` of a softmax-weighted message as one ``softmax_sum`` fold."""

    def merge(b: Builder, v: Value, operands: tuple[Value, ...]) -> Value | None:
        if v.op != "fold" or v.attr("monoid") != "sum":
            return None
        found = _split(b, operands[0], v.attr("to"))
        if found is None:
            return None
        score, value = found
        if value is None:
            return None
        out = b.fold("softmax_sum", score, value, to=v.attr("to"))
        return out if out.type == v.type else None

    merged = rewrite(func, merge)
    while (found := _shareable(merged)) is not None:
        merged = _share(merged, *found)
    return merged


def _shareable(func: Func) -> tuple[Value, Value] | None:
    """A log-sum-exp and a ``softmax_sum`` over the same score that does not hang on it."""
    twins = [v for v in func.body if v.op == "fold" and v.attr("monoid") == "softmax_sum"]
    for v in func.body:
        if v.op == "fold" and (v.attr("monoid"), v.attr("part")) == ("logsumexp", "lse"):
            for twin in twins:
                score = twin.operands[0]
                same = v.operands[0] in (score, score.operands[0] if score.op == "reshape" else score)
                if same and twin.attr("to") == v.attr("to") and v not in set(topological(twin.operands)):
                    return v, twin
    return None


def _share(func: Func, lse: Value, twin: Value) -> Func:
    """`func` with the statistic `lse` read from the state of `twin`."""
    b = Builder.like(func)
    env: dict[Value, Value] = {p: b.input(p.name, p.type) for p in func.params}
    for v in [*topological(twin.operands), *func.body]:
        if v in env:
            continue
        operands = tuple(env[o] for o in v.operands)
        if v is lse:
            part = b.fold("softmax_sum", *(env[o] for o in twin.operands), to=lse.attr("to"), part="lse")
            env[v] = b.reshape(part, lse.type.dims)
        else:
            env[v] = b.copy(v, operands)
    return replace(func, params=tuple(env[p] for p in func.params), results=tuple(env[r] for r in func.results))


def narrow_extrema(func: Func) -> Func:
    """`func` with ``max``/``min`` folds whose argument nobody reads as folds without one."""
    read = {(v.operands, v.attr("monoid"), v.attr("to")) for v in func.body if v.op == "fold" and v.attr("part") == "arg"}

    def rule(b: Builder, v: Value, operands: tuple[Value, ...]) -> Value | None:
        if v.op != "fold" or v.attr("monoid") not in ("max", "min") or (v.operands, v.attr("monoid"), v.attr("to")) in read:
            return None
        return b.fold(v.attr("monoid") + "only", *operands, to=v.attr("to"))

    return rewrite(func, rule)
