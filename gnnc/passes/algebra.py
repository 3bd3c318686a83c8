"""Local algebra: an operation over simplified operands as a simpler equal value.

`Algebra.op` makes values like `Builder.op`, but looks first for an identity that holds whatever reads the result. What the identities
keep: NaN and infinities of the values at hand (``x * 0`` stays), every rounding but that of a regrouped product. What they settle:

* views move towards the results: reshapes and broadcasts leave elementwise operations, gathers, folds and reductions, so that one
  gather serves every view of a table (``gather(reshape(x))`` is ``reshape(gather(x))``; a view of what is in memory costs nothing);
* signs and numbers move towards the results too; commutative operands have one order, by structure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np

from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.ops import EvalContext, GraphArrays, get_op
from gnnc.ir.types import Dims, DType, Type

Attrs = dict[str, Any]
Rule = Callable[["Algebra", tuple[Value, ...], Attrs], "Value | None"]

COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "eq", "ne", "and", "or"))
# Folds of one message that treat every element alike and give 0 for a row of zeros: views and padding move through them.
ELEMENTWISE_FOLDS = frozenset(("sum", "mean", "max", "min", "maxonly", "minonly", "prod", "logsumexp"))
LINEAR_FOLDS = frozenset(("sum", "mean"))

_NO_GRAPH = GraphArrays(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, 0)


def aligned(dims: Dims, rank: int) -> Dims:
    """`dims` with leading 1s up to `rank`."""
    return (1,) * (rank - len(dims)) + dims


def only_ones_moved(a: Dims, b: Dims) -> bool:
    """Whether a reshape from `a` to `b` only adds or removes axes of size 1."""
    return [d for d in a if d != 1] == [d for d in b if d != 1]


def axis_through_ones(dims: Dims, axis: int, other: Dims) -> int:
    """The axis of `other` that is `axis` of `dims`, where the two differ in 1s alone and the axis is no 1."""
    nth = sum(d != 1 for d in dims[axis:])
    at = [i - len(other) for i, d in enumerate(other) if d != 1]
    return at[-nth]


def number(v: Value) -> float | int | bool | None:
    """The number that every element of `v` is, if it is known."""
    while v.op in ("broadcast", "reshape", "spread"):
        v = v.operands[0]
    return v.attr("value") if v.op == "const" else None


def lossless(a: DType, b: DType) -> bool:
    """Whether every float of `a` is one of `b`."""
    return a.is_float and b.is_float and (a is b or (a.bits < b.bits and b.bits >= 32))


class Algebra:
    """Makes simplified values with one `Builder`. Interned like the builder: the same request gives the same object."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self._keys: dict[Value, tuple[bool, int, str, str, str]] = {}

    # ---- making values

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """The operation, simplified; its type is what the table gives the operation as it stands."""
        full = get_op(name).complete(attrs)
        if name in COMMUTATIVE:
            operands = tuple(sorted(operands, key=self.key))
        rule = _RULES.get(name)
        new = rule(self, operands, full) if rule is not None else None
        if new is None and get_op(name).kind == "elementwise":
            new = _elementwise(self, operands, full, name)
        if new is None:
            return self.b.op(name, *operands, **full)
        return self.conform(new, self.type_of(name, operands, full))

    def type_of(self, name: str, operands: tuple[Value, ...], attrs: Attrs) -> Type:
        return get_op(name).infer([o.type for o in operands], attrs, self.b.context)

    def copy(self, v: Value, operands: tuple[Value, ...]) -> Value:
        """`v` again over other operands, simplified."""
        if v.op == "input":
            return self.b.input(v.name, v.type)
        return self.op(v.op, *operands, **dict(v.attrs))

    def conform(self, v: Value, t: Type) -> Value:
        """`v` with exactly the type `t`: cast, broadcast and spread as needed; leading 1s too many are dropped."""
        extra = len(v.type.dims) - len(t.dims)
        if extra > 0:
            v = self.reshape(v, v.type.dims[extra:])
        v = self.broadcast(v, t.dims)
        if v.type.dtype is not t.dtype:
            v = self.op("cast", v, dtype=t.dtype.name)
        if v.type.space != t.space:
            v = self.op("spread", v, space=t.space)
        return v

    def key(self, v: Value) -> tuple[bool, int, str, str, str]:
        """Sort key by structure: numbers last, then small before large; equal keys only for equal values."""
        stack = [v]
        while stack:
            u = stack[-1]
            if u in self._keys:
                stack.pop()
            elif missing := [o for o in u.operands if o not in self._keys]:
                stack.extend(missing)
            else:
                below = [self._keys[o] for o in u.operands]
                text = repr([u.op, u.attrs, str(u.type), [k[4] for k in below]])
                height = 1 + max((k[1] for k in below), default=-1)
                self._keys[u] = (u.op == "const", height, u.op, repr(u.attrs), hashlib.sha256(text.encode()).hexdigest())
        return self._keys[v]

    def mul(self, x: Value, y: Value) -> Value:
        return self.op("mul", x, y)

    def add(self, x: Value, y: Value) -> Value:
        return self.op("add", x, y)

    def neg(self, x: Value) -> Value:
        return self.op("neg", x)

    def reshape(self, x: Value, dims: Dims) -> Value:
        return x if x.type.dims == tuple(dims) else self.op("reshape", x, dims=tuple(dims))

    def broadcast(self, x: Value, dims: Dims) -> Value:
        return x if x.type.dims == tuple(dims) else self.op("broadcast", x, dims=tuple(dims))

    def slice(self, x: Value, axis: int, start: int, stop: int) -> Value:
        return self.op("slice", x, axis=axis, start=start, stop=stop)

    def gather(self, x: Value, end: str) -> Value:
        """`x` of a node space at the edges; a parameter is spread."""
        return self.op("spread", x, space="edge") if x.type.space == "param" else self.op("gather", x, end=end)

    def zeros(self, t: Type) -> Value:
        return self.conform(self.b.const(0.0 if t.dtype.is_float else 0, t.dtype), t)

    def guard(self, x: Value, end: str) -> Value:
        """`x` where a row at `end` has edges, 0 elsewhere."""
        degree = self.b.degree(end, x.type.dtype.acc)
        some = self.b.op("gt", degree, self.b.const(0.0, degree.type.dtype))
        some = self.b.reshape(some, (1,) * len(x.type.dims)) if x.type.dims else some
        return self.op("where", some, x, self.b.const_like(x, 0.0))


# ---- rules for one kind of operation


def _fold_numbers(a: Algebra, operands: tuple[Value, ...], attrs: Attrs, name: str) -> Value | None:
    if not operands or any(o.op != "const" for o in operands):
        return None
    t = a.type_of(name, operands, attrs)
    plain = Value(name, operands, tuple(attrs.items()), t, None)
    ctx = EvalContext(_NO_GRAPH, a.b.context)
    args = [get_op("const").evaluate([], o, ctx) for o in operands]
    result = get_op(name).evaluate(args, plain, ctx).reshape(-1)[0]
    if t.dtype.kind == "bool":
        return a.b.const(bool(result), t.dtype)
    if t.dtype.is_float:
        return None if isnan(float(result)) or t.dtype.bits == 16 else a.b.const(float(result), t.dtype)
    low, high = (0 if t.dtype.kind == "uint" else -(1 << (t.dtype.bits - 1))), (1 << (t.dtype.bits - 1)) - 1
    return a.b.const(int(result), t.dtype) if low <= result <= high else None


def _views_out(a: Algebra, operands: tuple[Value, ...], attrs: Attrs, name: str) -> Value | None:
    """Broadcasts and reshapes of elementwise operands move behind the operation; a spread next to a row value is needless."""
    t = a.type_of(name, operands, attrs)
    if any(o.op == "broadcast" for o in operands):
        return a.op(name, *(o.operands[0] if o.op == "broadcast" else o for o in operands), **attrs)
    if any(o.op == "spread" for o in operands):
        return a.op(name, *(o.operands[0] if o.op == "spread" else o for o in operands), **attrs)
    wide = [o for o in operands if o.type.dims]
    views = [o for o in wide if o.op == "reshape"]
    if views and len(views) == len(wide):
        froms, tos = {o.operands[0].type.dims for o in views}, {o.type.dims for o in views}
        if len(froms) == len(tos) == 1 and tos == {t.dims}:
            return a.reshape(a.op(name, *(o.operands[0] if o.op == "reshape" else o for o in operands), **attrs), t.dims)
    return None


def _elementwise(a: Algebra, operands: tuple[Value, ...], attrs: Attrs, name: str) -> Value | None:
    new = _fold_numbers(a, operands, attrs, name)
    return new if new is not None else _views_out(a, operands, attrs, name)


def _spread_out(a: Algebra, operands: tuple[Value, ...], attrs: Attrs, name: str) -> Value | None:
    """A feature operation of a spread parameter is one of the parameter."""
    if len(operands) == 1 and operands[0].op == "spread":
        return a.op("spread", a.op(name, operands[0].operands[0], **attrs), space=operands[0].type.space)
    return None


# ---- rules for one operation


def _add(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, y = o
    if number(y) == 0:
        return x
    if number(x) == 0:
        return y
    if y.op == "neg":
        return a.op("sub", x, y.operands[0])
    if x.op == "neg":
        return a.op("sub", y, x.operands[0])
    return _add_pads(a, x, y)


def _add_pads(a: Algebra, x: Value, y: Value) -> Value | None:
    if x.op != "pad" or y.op != "pad" or x.attr("axis") != y.attr("axis") or x.type != y.type:
        return None
    first, second = (x, y) if x.attr("before") <= y.attr("before") else (y, x)
    axis = x.attr("axis")
    gap = second.attr("before") - first.attr("before") - first.operands[0].type.dims[axis]
    if gap < 0:
        return None
    middle = [a.op("pad", first.operands[0], axis=axis, before=0, after=gap)]
    whole = a.op("concat", *middle, second.operands[0], axis=axis)
    return a.op("pad", whole, axis=axis, before=first.attr("before"), after=second.attr("after"))


def _sub(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, y = o
    if number(y) == 0:
        return x
    if number(x) == 0:
        return a.neg(y)
    if y.op == "neg":
        return a.add(x, y.operands[0])
    return None


def _mul(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, y = o
    for one, other in ((y, x), (x, y)):
        if number(one) == 1:
            return other
        if number(one) == -1:
            return a.neg(other)
        if one.op == "neg":
            return a.neg(a.mul(one.operands[0], other))
    if y.op == "const" and x.op == "mul" and x.operands[1].op == "const":
        return a.mul(x.operands[0], a.mul(x.operands[1], y))
    return None


def _div(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, y = o
    if number(y) == 1:
        return x
    if number(y) == -1:
        return a.neg(x)
    if x.op == "neg":
        return a.neg(a.op("div", x.operands[0], y))
    if y.op == "neg":
        return a.neg(a.op("div", x, y.operands[0]))
    return None


def _neg(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    (x,) = o
    if x.op == "neg":
        return x.operands[0]
    if x.op == "sub":
        return a.op("sub", x.operands[1], x.operands[0])
    if x.op == "mul" and x.operands[1].op == "const":
        return a.mul(x.operands[0], a.neg(x.operands[1]))
    return None


def _pow(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, p = o
    if number(p) == 1:
        return x
    if number(p) == 2 and x.type.dtype.is_float:
        return a.mul(x, x)
    return None


def _same(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    return o[0] if o[0] is o[1] else None


def _abs(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x = o[0]
    if x.op == "neg":
        return a.op("abs", x.operands[0])
    return x if x.op in ("abs", "exp", "sigmoid", "sqrt", "relu") else None


def _relu(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    return o[0] if o[0].op in ("relu", "abs", "exp", "sigmoid", "softmax") else None


def _clamp(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    return o[0] if t["min"] is None and t["max"] is None else None


def _and_or(neutral: bool) -> Rule:
    def rule(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
        x, y = o
        if x is y:
            return x
        for n, other in ((number(x), y), (number(y), x)):
            if n is not None:
                return other if bool(n) is neutral else a.b.const(not neutral, other.type.dtype)
        return None

    return rule


def _not(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    return o[0].operands[0] if o[0].op == "not" else None


def _where(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    cond, x, y = o
    known = number(cond)
    if known is not None:
        return x if known else y
    if x is y:
        return x
    if cond.op == "not":
        return a.op("where", cond.operands[0], y, x)
    if x.op == "where" and x.operands[0] is cond:
        return a.op("where", cond, x.operands[1], y)
    if y.op == "where" and y.operands[0] is cond:
        return a.op("where", cond, x, y.operands[2])
    if any(u.op == "where" and u.operands[0] is cond for u in x.operands) and x.op in ("add", "sub", "mul", "div", "neg"):
        chosen = (a.conform(u.operands[1], u.type) if u.op == "where" and u.operands[0] is cond else u for u in x.operands)
        return a.op("where", cond, a.copy(x, tuple(chosen)), y)
    return None


def _cast(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,) = o
    if x.type.dtype.name == t["dtype"]:
        return x
    if x.op == "cast" and lossless(x.operands[0].type.dtype, x.type.dtype):
        return a.op("cast", x.operands[0], **t)
    return None


def _reshape(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,), dims = o, t["dims"]
    if x.type.dims == dims:
        return x
    if x.op == "reshape":
        return a.reshape(x.operands[0], dims)
    if x.op == "broadcast" and only_ones_moved(x.type.dims, dims):
        inner = x.operands[0]
        kept = [d for d, out in zip(aligned(inner.type.dims, len(x.type.dims)), x.type.dims, strict=True) if out != 1]
        narrow = tuple(1 if d == 1 else kept.pop(0) for d in dims)
        return a.broadcast(a.reshape(inner, narrow), dims)
    return _spread_out(a, o, t, "reshape")


def _broadcast(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,), dims = o, t["dims"]
    if x.type.dims == dims:
        return x
    if x.op == "broadcast":
        return a.broadcast(x.operands[0], dims)
    if x.type.size == 1 and x.type.dims:
        return a.broadcast(a.reshape(x, ()), dims)
    if x.type.dims and aligned(x.type.dims, len(dims)) == dims:
        return a.reshape(x, dims)
    return _spread_out(a, o, t, "broadcast")


def _slice(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,), axis, start, stop = o, t["axis"], t["start"], t["stop"]
    if (start, stop) == (0, x.type.dims[axis]):
        return x
    if x.op == "slice" and x.attr("axis") == axis:
        return a.slice(x.operands[0], axis, x.attr("start") + start, x.attr("start") + stop)
    if x.op == "concat" and x.attr("axis") == axis:
        parts, at = [], 0
        for p in x.operands:
            n = p.type.dims[axis]
            lo, hi = max(start - at, 0), min(stop - at, n)
            if lo < hi:
                parts.append(a.slice(p, axis, lo, hi))
            at += n
        return a.op("concat", *parts, axis=axis) if parts else None
    if x.op == "pad" and x.attr("axis") == axis:
        before, n = x.attr("before"), x.operands[0].type.dims[axis]
        lo, hi = min(max(start - before, 0), n), max(min(stop - before, n), 0)
        if lo >= hi:
            return a.zeros(a.type_of("slice", o, t))
        core = a.slice(x.operands[0], axis, lo, hi)
        return a.op("pad", core, axis=axis, before=max(before - start, 0), after=max(stop - before - n, 0))
    if x.op == "broadcast":
        inner, dims = x.operands[0], a.type_of("slice", o, t).dims
        if -axis > len(inner.type.dims) or inner.type.dims[axis] == 1:
            return a.broadcast(inner, dims)
        return a.broadcast(a.slice(inner, axis, start, stop), dims)
    return _spread_out(a, o, t, "slice")


def _pad(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,), axis = o, t["axis"]
    if t["before"] == t["after"] == 0:
        return x
    if x.op == "pad" and x.attr("axis") == axis:
        return a.op("pad", x.operands[0], axis=axis, before=t["before"] + x.attr("before"), after=t["after"] + x.attr("after"))
    if number(x) == 0:
        return a.zeros(a.type_of("pad", o, t))
    if x.op == "neg":
        return a.neg(a.op("pad", x.operands[0], **t))
    return _spread_out(a, o, t, "pad")


def _concat(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    axis = t["axis"]
    if len(o) == 1:
        return o[0]
    if any(p.type.dims[axis] == 0 for p in o) and any(p.type.dims[axis] for p in o):
        return a.op("concat", *(p for p in o if p.type.dims[axis]), axis=axis)
    if any(p.op == "concat" and p.attr("axis") == axis for p in o):
        flat: list[Value] = []
        for p in o:
            flat.extend(p.operands if p.op == "concat" and p.attr("axis") == axis else [p])
        return a.op("concat", *flat, axis=axis)
    for i, (p, q) in enumerate(pairwise(o)):
        if _are_neighbours(p, q, axis):
            whole = a.slice(p.operands[0], axis, p.attr("start"), q.attr("stop"))
            return a.op("concat", *o[:i], whole, *o[i + 2 :], axis=axis)
    return None


def _are_neighbours(p: Value, q: Value, axis: int) -> bool:
    """Whether two values are slices side by side of one value."""
    if not (p.op == q.op == "slice" and p.operands[0] is q.operands[0] and p.attr("axis") == q.attr("axis") == axis):
        return False
    return bool(p.attr("stop") == q.attr("start"))


def _transpose(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,) = o
    if x.op == "transpose":
        return x.operands[0]
    if 1 in x.type.dims[-2:]:
        return a.reshape(x, a.type_of("transpose", o, t).dims)
    return _spread_out(a, o, t, "transpose")


def _reduce(name: str) -> Rule:
    def rule(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
        (x,), axis = o, t["axis"]
        out = a.type_of(name, o, t)
        if t["keepdim"]:
            return a.reshape(a.op(name, x, axis=axis, keepdim=False), out.dims)
        if x.type.dims[axis] == 1:
            return a.reshape(x, out.dims)
        if x.op == "broadcast":
            return _reduce_broadcast(a, name, x, axis, out)
        if x.op == "reshape" and only_ones_moved(x.type.dims, x.operands[0].type.dims):
            inner = x.operands[0]
            return a.reshape(a.op(name, inner, axis=axis_through_ones(x.type.dims, axis, inner.type.dims)), out.dims)
        if name == "reduce_sum":
            return _reduce_factors(a, x, axis) or _spread_out(a, o, t, name)
        return _spread_out(a, o, t, name)

    return rule


def _reduce_broadcast(a: Algebra, name: str, x: Value, axis: int, out: Type) -> Value:
    inner, n = x.operands[0], x.type.dims[axis]
    dims = aligned(inner.type.dims, len(x.type.dims))
    if dims[axis] != 1:
        return a.broadcast(a.op(name, a.reshape(inner, dims), axis=axis), out.dims)
    i = len(dims) + axis
    one = a.broadcast(a.reshape(inner, (*dims[:i], *dims[i + 1 :])), out.dims)
    return one if name == "reduce_max" else a.mul(one, a.b.const_like(one, float(n)))


def _reduce_factors(a: Algebra, x: Value, axis: int) -> Value | None:
    """What is the same along the axis leaves the sum."""
    if x.op == "neg":
        return a.neg(a.op("reduce_sum", x.operands[0], axis=axis))
    if x.op not in ("mul", "div"):
        return None
    rank = len(x.type.dims)
    for i, u in enumerate(x.operands):
        dims = aligned(u.type.dims, rank)
        if dims[axis] == 1 and (x.op == "mul" or i == 1):
            rest = x.operands[1 - i]
            at = rank + axis
            scale = a.reshape(u, (*dims[:at], *dims[at + 1 :]))
            whole = a.reshape(rest, aligned(rest.type.dims, rank))
            return a.op(x.op, a.op("reduce_sum", whole, axis=axis), scale)
    return None


def _matmul(a: Algebra, o: tuple[Value, ...], _t: Attrs) -> Value | None:
    x, w = o
    if x.op == "neg":
        return a.neg(a.op("matmul", x.operands[0], w))
    if x.op in ("mul", "div"):
        for i, u in enumerate(x.operands):
            rest = x.operands[1 - i]
            if (x.op == "mul" or i == 1) and rest.type.dims and (not u.type.dims or (u.type.dims[-1] == 1 and x.type.dims[-1] != 1)):
                return a.op(x.op, a.op("matmul", rest, w), u)
    return None


def _gather(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,), end = o, t["end"]
    if x.op == "spread":
        return a.op("spread", x.operands[0], space="edge")
    in_memory = x.operands and x.operands[0].op in ("input", "matmul", "reshape", "slice", "transpose")
    view = x.op in ("reshape", "broadcast", "pad") or (x.op in ("slice", "transpose") and in_memory)
    if view or (x.op == "cast" and lossless(x.operands[0].type.dtype, x.type.dtype)):
        return a.op(x.op, a.gather(x.operands[0], end), **dict(x.attrs))
    if x.op == "where" and _has_edges(x.operands[0], end):
        return a.gather(a.conform(x.operands[1], x.type), end)  # a row without edges is not read
    return None


def _has_edges(cond: Value, end: str) -> bool:
    if cond.op == "reshape":
        cond = cond.operands[0]
    return cond.op == "gt" and cond.operands[0].op == "degree" and cond.operands[0].attr("end") == end and number(cond.operands[1]) == 0


def _fold(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    if len(o) != 1 or t["monoid"] not in ELEMENTWISE_FOLDS or any(m.name == t["monoid"] for m in a.b.monoids):
        return None
    x, linear = o[0], t["monoid"] in LINEAR_FOLDS
    if x.op in ("reshape", "broadcast"):
        return a.op(x.op, a.op("fold", x.operands[0], **t), **dict(x.attrs))
    if x.op == "cast" and lossless(x.operands[0].type.dtype, x.type.dtype) and x.operands[0].type.dtype.acc is x.type.dtype.acc:
        return a.op("fold", x.operands[0], **t)
    if linear and x.op == "neg":
        return a.neg(a.op("fold", x.operands[0], **t))
    if x.op == "neg" and t["monoid"] in ("max", "min"):
        other = a.op("fold", x.operands[0], **{**t, "monoid": "min" if t["monoid"] == "max" else "max"})
        return a.neg(other) if t["part"] == "value" else other
    if linear and x.op == "pad":
        return a.op("pad", a.op("fold", x.operands[0], **t), **dict(x.attrs))
    if linear and x.op == "spread":
        return _fold_spread(a, x.operands[0], t)
    return None


def _fold_spread(a: Algebra, p: Value, t: Attrs) -> Value:
    """A parameter on every edge of a row."""
    out = a.type_of("fold", (a.b.op("spread", p, space="edge"),), t)
    if number(p) == 0:
        return a.zeros(out)
    degree = a.b.degree(t["to"], out.dtype)
    if t["monoid"] == "sum":
        count = a.reshape(degree, (1,) * len(p.type.dims)) if p.type.dims else degree
        total = a.mul(count, p)
        return total if p.op == "const" else a.guard(total, t["to"])
    return a.guard(a.conform(p, out), t["to"])


def _softmax(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,) = o
    if x.op in ("reshape", "broadcast"):
        return a.op(x.op, a.op("softmax", x.operands[0], **t), **dict(x.attrs))
    return None


def _reduce_rows(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    (x,) = o
    if x.op in ("reshape", "broadcast"):
        return a.op(x.op, a.op("reduce_rows", x.operands[0]), **dict(x.attrs))
    if x.op == "neg":
        return a.neg(a.op("reduce_rows", x.operands[0]))
    if x.op == "mul" and x.operands[1].op == "const":
        return a.mul(a.op("reduce_rows", x.operands[0]), x.operands[1])
    return None


def _spread(a: Algebra, o: tuple[Value, ...], t: Attrs) -> Value | None:
    return o[0] if t["space"] == "param" else None


_RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "pow": _pow,
    "maximum": _same,
    "minimum": _same,
    "abs": _abs,
    "relu": _relu,
    "clamp": _clamp,
    "and": _and_or(True),
    "or": _and_or(False),
    "not": _not,
    "where": _where,
    "cast": _cast,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "transpose": _transpose,
    "reduce_sum": _reduce("reduce_sum"),
    "reduce_max": _reduce("reduce_max"),
    "matmul": _matmul,
    "gather": _gather,
    "fold": _fold,
    "softmax": _softmax,
    "reduce_rows": _reduce_rows,
    "spread": _spread,
}
