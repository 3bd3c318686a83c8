"""Folds as monoids: `init`, `step`, `combine`, `finish`, written once and used by every back end.

A `Monoid` is data: its state's components and small elementwise functions over them. A back end runs `step` along a row's
edges, `combine` where a row was split (threads, warps, blocks), and one finishing function for every *part* somebody reads
(the maximum and its argument, the mean and the variance). No back end knows what a softmax is; a user's monoid
(`@gnnc.monoid`) becomes the same data.

Order is part of the contract: edges of a row come in the user's order and ``combine(a, b)`` has ``a`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from .core import Func, Value, topological
from .types import F32, I32, DType, Type, TypeRuleError, broadcast_dims, promote

if TYPE_CHECKING:
    from .builder import Builder
    from .ops import RuleContext

Vjp = Callable[["Builder", Value, Value], "tuple[Value | None, ...]"]


@dataclass(frozen=True)
class Component:
    """One component of the state. ``kind``: ``acc`` (the accumulation dtype) or ``index`` (an edge id). Its dims are those of the
    messages in ``like``, broadcast together."""

    name: str
    init: float | int
    kind: str = "acc"
    like: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Monoid:
    """A fold.

    ``arity`` messages an edge (right-aligned dims, as everywhere). Functions over scalar ``edge`` values:

    * ``step(s..., m..., edge_id if uses_edge_id) -> s...``
    * ``combine(a..., b...) -> s...``, associative, ``a`` before ``b``
    * ``parts[name](s..., degree) -> value``; `finish` of the design is ``parts["value"]``; a part must give the empty row's value
      itself (degree 0).
    * ``grad(m..., s..., ds...) -> dm...``, optional: a message's cotangent from the row's final state and its cotangent.

    ``vjp(builder, fold, g)`` gives the messages' cotangents from the cotangent of ``fold`` (one of its parts), or raises
    TypeRuleError ``no-gradient``; None (every user-defined monoid): derived from ``grad`` or from ``combine``
    (`monoid_derive.py`), which needs a part called after each component.
    """

    name: str
    arity: int
    components: tuple[Component, ...]
    step: Func
    combine: Func
    parts: tuple[tuple[str, Func], ...]
    uses_edge_id: bool = False
    grad: Func | None = None
    vjp: Vjp | None = field(default=None, compare=False)
    doc: str = ""

    def part(self, name: str) -> Func:
        for k, f in self.parts:
            if k == name:
                return f
        raise TypeRuleError("attribute", f"fold {self.name} has no part {name!r}", f"one of {', '.join(k for k, _ in self.parts)}")

    def state_types(self, messages: Sequence[Type], c: RuleContext) -> list[Type]:
        """Types of the components (space ``edge``, for use in a row's state) for messages of these types."""
        acc = self._acc(messages)
        out = []
        for comp in self.components:
            dims = broadcast_dims([messages[i].dims for i in comp.like])
            out.append(Type("edge", c.index_dtype if comp.kind == "index" else acc, dims))
        return out

    def _acc(self, messages: Sequence[Type]) -> DType:
        if len(messages) != self.arity:
            raise TypeRuleError("arity", f"fold {self.name} takes {self.arity} messages, not {len(messages)}")
        dtype = messages[0].dtype
        for m in messages[1:]:
            dtype = promote(dtype, m.dtype)
        return dtype.acc if dtype.is_float else F32

    def part_type(self, part: str, messages: Sequence[Type], c: RuleContext) -> tuple[DType, tuple[int, ...]]:
        """dtype and dims of a part."""
        states = self.state_types(messages, c)
        t = infer_func(self.part(part), [*states, Type("edge", self._acc(messages))], c)[0]
        return t.dtype, t.dims

    def needed(self, parts: Sequence[str]) -> list[int]:
        """Indices of the components that these parts reach, through step and combine: the others need not be kept."""
        n = len(self.components)
        want: set[int] = set()
        for p in parts:
            f = self.part(p)
            want |= {i for i, q in enumerate(f.params[:n]) if q in set(topological(f.results))}
        while True:
            more = set(want)
            for f in (self.step, self.combine):
                reach = set(topological([f.results[i] for i in want]))
                more |= {i % n for i, q in enumerate(f.params[: n if f is self.step else 2 * n]) if q in reach}
            if more == want:
                return sorted(want)
            want = more


def infer_func(func: Func, args: list[Type], c: RuleContext) -> list[Type]:
    """Result types of an elementwise function on arguments of other dims and dtypes."""
    from .builder import Builder

    b = Builder(c.square, c.index_dtype)
    return [v.type for v in b.inline(func, [b.input(f"a{i}", t) for i, t in enumerate(args)])]


def no_gradient(v: Value) -> tuple[Value | None, ...]:
    raise TypeRuleError(
        "no-gradient",
        f"the fold {v.attr('monoid')!r} has no gradient",
        "give the monoid a grad(m, state, dstate), or a combine made of +, *, max, min or log-add-exp only",
    )


def make_func(name: str, types: Sequence[Type], body: Callable[..., Sequence[Value]]) -> Func:
    """An elementwise function for a monoid: ``body(builder, *values) -> values``."""
    from .builder import Builder

    b = Builder()
    args = [b.input(f"a{i}", t) for i, t in enumerate(types)]
    return Func(name, tuple(args), tuple(body(b, *args)), stage="scalar")


def make_monoid(
    name: str,
    components: Sequence[Component],
    step: Callable[..., Sequence[Value]],
    combine: Callable[..., Sequence[Value]],
    parts: dict[str, Callable[..., Value]],
    *,
    arity: int = 1,
    uses_edge_id: bool = False,
    vjp: Vjp | None = None,
    doc: str = "",
) -> Monoid:
    """A `Monoid` from Python functions: ``step(b, *state, *messages[, edge_id])``, ``combine(b, *a, *c)``, ``part(b, *state, degree)``."""
    acc, index = Type("edge", F32), Type("edge", I32)
    state = [index if c.kind == "index" else acc for c in components]
    extra = [index] if uses_edge_id else []
    return Monoid(
        name,
        arity,
        tuple(components),
        make_func("step", [*state, *[acc] * arity, *extra], step),
        make_func("combine", [*state, *state], combine),
        tuple((k, make_func(k, [*state, acc], lambda b, *a, f=f: [f(b, *a)])) for k, f in parts.items()),
        uses_edge_id,
        None,
        vjp or (lambda b, v, g: no_gradient(v)),
        doc,
    )


# ---- the built-in folds


def _zero_if_empty(b: Builder, degree: Value, v: Value) -> Value:
    return b.where(b.op("gt", degree, b.const(0.0)), v, b.const(0.0))


def _to_edge(b: Builder, fold: Value, v: Value) -> Value:
    return b.gather(v, fold.attr("to"))


def _safe_degree(b: Builder, fold: Value) -> Value:
    deg = b.degree(fold.attr("to"), fold.type.dtype)
    return b.op("maximum", deg, b.const_like(deg, 1.0))


def _part(b: Builder, fold: Value, part: str) -> Value:
    """Another part of the same fold."""
    return b.fold(fold.attr("monoid"), *fold.operands, to=fold.attr("to"), part=part)


def _vjp_sum(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (_to_edge(b, v, g),)


def _vjp_mean(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (_to_edge(b, v, b.div(g, _safe_degree(b, v))),)


def _vjp_extremum(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    if v.attr("part") == "arg":
        return (None,)
    chosen = b.op("eq", b.op("edge_id"), _to_edge(b, v, _part(b, v, "arg")))
    return (b.where(chosen, _to_edge(b, v, g), b.const_like(g, 0.0)),)


def _vjp_prod(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    # The product of the *others*: with no zero in the row it is value / m, with one zero only that edge has one, else 0.
    if v.attr("part") != "value":
        return no_gradient(v)
    m = v.operands[0]
    nonzero, zeros = (_to_edge(b, v, _part(b, v, p)) for p in ("nonzero", "zeros"))
    zero = b.const_like(g, 0.0)
    own = b.op("eq", m, zero)
    single = b.op("eq", zeros, b.const_like(g, 1.0))
    none = b.op("eq", zeros, zero)
    others = b.where(own, b.where(single, nonzero, zero), b.where(none, b.div(nonzero, m), zero))
    return (b.mul(_to_edge(b, v, g), others),)


def _vjp_moments(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    if v.attr("part") == "mean":
        return _vjp_mean(b, v, g)
    m = v.operands[0]
    centred = b.sub(m, _to_edge(b, v, _part(b, v, "mean")))
    scale = b.div(g, _safe_degree(b, v))
    if v.attr("part") == "var":
        return (b.mul(_to_edge(b, v, b.mul(b.const_like(g, 2.0), scale)), centred),)
    zero = b.const_like(g, 0.0)
    flat = b.op("eq", v, zero)  # equal messages: the value is exactly 0 and so is the gradient
    scale = b.where(flat, zero, b.div(scale, b.where(flat, b.const_like(g, 1.0), v)))
    return (b.mul(_to_edge(b, v, scale), centred),)


def _vjp_logsumexp(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (b.mul(_to_edge(b, v, g), b.op("exp", b.sub(v.operands[0], _to_edge(b, v, v)))),)


def _extremum(name: str, identity: float, beats: str) -> Monoid:
    # `arg` is -1 before the first edge. A NaN beats every number and nothing beats a NaN; equals leave the earlier edge.
    def step(b: Builder, best: Value, arg: Value, m: Value, e: Value) -> list[Value]:
        first = b.op("lt", arg, b.const(0, I32))
        is_nan, held = b.op("ne", m, m), b.op("eq", best, best)
        take = b.op("or", first, b.op("and", held, b.op("or", b.op(beats, m, best), is_nan)))
        return [b.where(take, m, best), b.where(take, e, arg)]

    def combine(b: Builder, best: Value, arg: Value, other: Value, other_arg: Value) -> list[Value]:
        # The other side's edges may lie between ours (strided groups): equals go to the lower edge id.
        none = b.const(0, I32)
        mine_empty, other_empty = b.op("lt", arg, none), b.op("lt", other_arg, none)
        nan_a, nan_b = b.op("ne", best, best), b.op("ne", other, other)
        tie = b.op("or", b.op("eq", best, other), b.op("and", nan_a, nan_b))
        wins = b.op("and", b.op("not", nan_a), b.op("or", nan_b, b.op(beats, other, best)))
        better = b.op("or", wins, b.op("and", tie, b.op("lt", other_arg, arg)))
        take = b.op("and", b.op("not", other_empty), b.op("or", mine_empty, better))
        return [b.where(take, other, best), b.where(take, other_arg, arg)]

    return make_monoid(
        name,
        [Component("best", identity), Component("arg", -1, "index")],
        step,
        combine,
        {
            "value": lambda b, best, arg, deg: _zero_if_empty(b, deg, best),
            "arg": lambda b, best, arg, deg: arg,
        },
        uses_edge_id=True,
        vjp=_vjp_extremum,
        doc=f"the {name}imum, 0 for an empty row; a NaN makes the row NaN; `arg` is the winning edge's id, -1 for an empty row",
    )


def _plain_extremum(name: str, identity: float, op: str) -> Monoid:
    return make_monoid(
        name,
        [Component("best", identity)],
        lambda b, best, m: [b.op(op, best, m)],
        lambda b, best, other: [b.op(op, best, other)],
        {"value": lambda b, best, deg: _zero_if_empty(b, deg, best)},
        vjp=lambda b, v, g: no_gradient(v),
        doc=f"the {op} alone, where nobody reads the argument (a choice of `fuse`)",
    )


def _moments() -> Monoid:
    # Welford's update and Chan's combination: equal messages give exactly 0.
    def step(b: Builder, n: Value, mean: Value, m2: Value, m: Value) -> list[Value]:
        n1 = b.add(n, b.const(1.0))
        d = b.sub(m, mean)
        mean1 = b.add(mean, b.div(d, n1))
        return [n1, mean1, b.add(m2, b.mul(d, b.sub(m, mean1)))]

    def combine(b: Builder, n: Value, mean: Value, m2: Value, k: Value, mean_k: Value, m2_k: Value) -> list[Value]:
        total = b.add(n, k)
        r = b.div(k, b.op("maximum", total, b.const(1.0)))
        d = b.sub(mean_k, mean)
        # d * n before anything is squared: merging with an empty side must not overflow to inf * 0
        shift = b.mul(d, r)
        return [total, b.add(mean, shift), b.add(b.add(m2, m2_k), b.mul(shift, b.mul(d, n)))]

    def var(b: Builder, n: Value, mean: Value, m2: Value, deg: Value) -> Value:
        return b.div(m2, b.op("maximum", n, b.const(1.0)))

    return make_monoid(
        "moments",
        [Component("count", 0.0, like=()), Component("mean", 0.0), Component("m2", 0.0)],
        step,
        combine,
        {
            "mean": lambda b, n, mean, m2, deg: mean,
            "var": var,
            "std": lambda b, *a: b.op("sqrt", var(b, *a)),
        },
        vjp=_vjp_moments,
        doc="mean, population variance and standard deviation in one pass; 0 for an empty row",
    )


def _shift(b: Builder, top: Value) -> Value:
    # exp(-inf - -inf) would be NaN before the first finite score: shift by 0 there, exp(-inf) = 0.
    return b.where(b.op("eq", top, b.const(float("-inf"))), b.const(0.0), top)


def _softmax_parts(b: Builder, top: Value, s: Value) -> tuple[Value, Value, Value, Value]:
    new = b.op("maximum", top, s)
    sh = _shift(b, new)
    return new, sh, b.op("exp", b.sub(top, sh)), b.op("exp", b.sub(s, sh))


def _logsumexp() -> Monoid:
    def step(b: Builder, top: Value, z: Value, s: Value) -> list[Value]:
        new, _sh, decay, p = _softmax_parts(b, top, s)
        return [new, b.add(b.mul(z, decay), p)]

    def combine(b: Builder, top: Value, z: Value, top2: Value, z2: Value) -> list[Value]:
        new, _sh, a, c = _softmax_parts(b, top, top2)
        return [new, b.add(b.mul(z, a), b.mul(z2, c))]

    return make_monoid(
        "logsumexp",
        [Component("max", float("-inf")), Component("z", 0.0)],
        step,
        combine,
        {
            "value": lambda b, top, z, deg: b.where(b.op("eq", top, b.const(float("inf"))), top, b.add(top, b.op("log", z))),
            "lse": lambda b, top, z, deg: b.add(top, b.op("log", z)),
        },
        vjp=_vjp_logsumexp,
        doc="log of the sum of exponentials, shifted by the running maximum; -inf for an empty row, inf for one that holds inf. "
        "`lse` is a softmax's statistic: NaN for a row that holds inf, so that its weights are NaN",
    )


def _softmax_sum() -> Monoid:
    # Online softmax: the numerator's accumulator is rescaled whenever the maximum moves.
    def step(b: Builder, top: Value, z: Value, acc: Value, s: Value, v: Value) -> list[Value]:
        new, _sh, decay, p = _softmax_parts(b, top, s)
        return [new, b.add(b.mul(z, decay), p), b.add(b.mul(acc, decay), b.mul(p, v))]

    def combine(b: Builder, top: Value, z: Value, acc: Value, top2: Value, z2: Value, acc2: Value) -> list[Value]:
        new, _sh, a, c = _softmax_parts(b, top, top2)
        return [new, b.add(b.mul(z, a), b.mul(z2, c)), b.add(b.mul(acc, a), b.mul(acc2, c))]

    return make_monoid(
        "softmax_sum",
        [Component("max", float("-inf")), Component("z", 0.0), Component("acc", 0.0, like=(0, 1))],
        step,
        combine,
        {
            "value": lambda b, top, z, acc, deg: _zero_if_empty(b, deg, b.div(acc, z)),
            "lse": lambda b, top, z, acc, deg: b.add(top, b.op("log", z)),
        },
        arity=2,
        doc="sum of softmax(score) * value over a row, in one pass; `lse` is the scores' log-sum-exp",
    )


def _sum() -> Monoid:
    return make_monoid(
        "sum",
        [Component("sum", 0.0)],
        lambda b, s, m: [b.add(s, m)],
        lambda b, s, o: [b.add(s, o)],
        {"value": lambda b, s, deg: s},
        vjp=_vjp_sum,
        doc="sum; 0 for an empty row",
    )


def _mean() -> Monoid:
    return make_monoid(
        "mean",
        [Component("sum", 0.0)],
        lambda b, s, m: [b.add(s, m)],
        lambda b, s, o: [b.add(s, o)],
        {"value": lambda b, s, deg: b.div(s, b.op("maximum", deg, b.const(1.0)))},
        vjp=_vjp_mean,
        doc="sum divided by the degree; 0 for an empty row",
    )


def _prod() -> Monoid:
    def step(b: Builder, nonzero: Value, zeros: Value, m: Value) -> list[Value]:
        zero, one = b.const(0.0), b.const(1.0)
        is_zero = b.op("eq", m, zero)
        return [b.mul(nonzero, b.where(is_zero, one, m)), b.add(zeros, b.where(is_zero, one, zero))]

    return make_monoid(
        "prod",
        [Component("nonzero", 1.0), Component("zeros", 0.0)],
        step,
        lambda b, p, z, p2, z2: [b.mul(p, p2), b.add(z, z2)],
        {
            "value": lambda b, p, z, deg: b.where(b.op("gt", z, b.const(0.0)), b.mul(b.const(0.0), p), p),
            "nonzero": lambda b, p, z, deg: p,
            "zeros": lambda b, p, z, deg: z,
        },
        vjp=_vjp_prod,
        doc="product, kept as the product of the non-zeros and the number of zeros; 1 for an empty row",
    )


@cache
def builtin_monoids() -> dict[str, Monoid]:
    """name -> fold, for every fold that gnnc brings."""
    inf = float("inf")
    all_of = [
        _sum(),
        _mean(),
        _extremum("max", -inf, "gt"),
        _extremum("min", inf, "lt"),
        _plain_extremum("maxonly", -inf, "maximum"),
        _plain_extremum("minonly", inf, "minimum"),
        _prod(),
        _moments(),
        _logsumexp(),
        _softmax_sum(),
    ]
    return {m.name: m for m in all_of}


def find_monoid(name: str, own: Sequence[Monoid] = ()) -> Monoid:
    """The fold called `name`; the function's own come first. TypeRuleError ``unknown-op`` when there is none."""
    for m in own:
        if m.name == name:
            return m
    table: dict[str, Any] = builtin_monoids()
    if name not in table:
        raise TypeRuleError("unknown-op", f"unknown fold {name!r}", f"one of {', '.join(table)}")
    monoid: Monoid = table[name]
    return monoid
