"""Gradients of user-defined folds against finite differences, and the error where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.interpreter import interpret
from gnnc.ir.monoid import Component, Monoid, make_func, make_monoid
from gnnc.ir.monoid_derive import combine_kind
from gnnc.ir.ops import GraphArrays
from gnnc.ir.types import F32, F64, DType, Type, TypeRuleError
from gnnc.ir.verifier import verify
from gnnc.passes.differentiate import Differentiate
from gnnc.passes.simplify import Simplify

NAN, INF = float("nan"), float("inf")
# Row 3 has no edge; row 0 has duplicates.
GRAPH = GraphArrays(np.array([0, 1, 2, 0, 2, 0, 1]), np.array([0, 0, 1, 2, 1, 0, 4]), 3, 5)


def user(
    name: str,
    init: Sequence[float],
    step: Callable[..., Sequence[Value]],
    combine: Callable[..., Sequence[Value]],
    finish: Callable[..., Value],
    *,
    arity: int = 1,
    like: Sequence[tuple[int, ...]] = (),
    grad: Callable[..., Sequence[Value]] | None = None,
) -> Monoid:
    """A monoid as the front end makes them: parts ``value`` and one called after each component, no vjp."""
    n = len(init)
    likes = like or [(0,)] * n
    components = [Component(f"s{i}", x, like=k) for i, (x, k) in enumerate(zip(init, likes, strict=True))]
    parts: dict[str, Callable[..., Value]] = {"value": finish}
    for i in range(n):
        parts[f"s{i}"] = lambda b, *a, i=i: a[i]
    made = make_monoid(name, components, step, combine, parts, arity=arity)
    scalar = Type("edge", F32)
    return replace(made, vjp=None, grad=None if grad is None else make_func("grad", [scalar] * (arity + 2 * n), grad))


def num(b: Builder, x: float) -> Value:
    return b.const(x)


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    top = b.op("maximum", x, y)
    low = b.op("minimum", x, y)
    some = b.op("gt", low, num(b, -INF))
    gap = b.where(some, b.sub(low, top), num(b, -INF))
    return b.add(top, b.op("log", b.add(num(b, 1.0), b.op("exp", gap))))


def guarded(b: Builder, degree: Value, x: Value) -> Value:
    return b.where(b.op("gt", degree, num(b, 0.0)), x, num(b, 0.0))


def larger(b: Builder, x: Value, y: Value) -> Value:
    return b.op("maximum", x, y)


RMS = user(
    "rms",
    [0.0, 0.0],
    lambda b, n, q, m: [b.add(n, num(b, 1.0)), b.add(q, b.mul(m, m))],
    lambda b, n, q, n2, q2: [b.add(n2, n), b.add(q, q2)],
    lambda b, n, q, deg: b.op("sqrt", b.add(b.div(q, larger(b, n, num(b, 1.0))), num(b, 0.01))),
    like=[(), (0,)],
)
MAX_AND_SUM = user(
    "max_and_sum",
    [-INF, 0.0],
    lambda b, t, s, m: [larger(b, t, m), b.add(s, m)],
    lambda b, t, s, t2, s2: [b.where(b.op("lt", t, t2), t2, t), b.add(s, s2)],
    lambda b, t, s, deg: guarded(b, deg, b.mul(t, s)),
)
LOW = user(
    "low",
    [INF],
    lambda b, t, m: [b.op("minimum", t, b.mul(m, m))],
    lambda b, t, o: [b.where(b.op("ge", t, o), o, t)],
    lambda b, t, deg: guarded(b, deg, t),
)
GEOMETRIC = user(
    "geometric",
    [1.0],
    lambda b, p, m: [b.mul(p, b.add(b.mul(m, m), num(b, 0.5)))],
    lambda b, p, q: [b.mul(p, q)],
    lambda b, p, deg: b.op("pow", p, b.div(num(b, 1.0), larger(b, deg, num(b, 1.0)))),
)
PRODUCT = user("product", [1.0], lambda b, p, m: [b.mul(p, m)], lambda b, p, q: [b.mul(p, q)], lambda b, p, deg: p)
LOGADDEXP = user(
    "lae",
    [-INF],
    lambda b, s, m: [logaddexp(b, s, b.mul(m, num(b, 2.0)))],
    lambda b, s, t: [logaddexp(b, s, t)],
    lambda b, s, deg: guarded(b, deg, s),
)


def _welford_step(b: Builder, n: Value, mean: Value, m2: Value, m: Value) -> list[Value]:
    n1 = b.add(n, num(b, 1.0))
    d = b.sub(m, mean)
    mean1 = b.add(mean, b.div(d, n1))
    return [n1, mean1, b.add(m2, b.mul(d, b.sub(m, mean1)))]


def _welford_combine(b: Builder, n: Value, mean: Value, m2: Value, k: Value, mean2: Value, other: Value) -> list[Value]:
    total = b.add(n, k)
    r = b.div(k, larger(b, total, num(b, 1.0)))
    d = b.sub(mean2, mean)
    return [total, b.add(mean, b.mul(d, r)), b.add(b.add(m2, other), b.mul(b.mul(d, d), b.mul(n, r)))]


def _welford_grad(b: Builder, m: Value, n: Value, mean: Value, m2: Value, dn: Value, dmean: Value, dm2: Value) -> list[Value]:
    # mean = sum m / n, m2 = sum (m - mean)^2, both of the final row.
    return [b.add(b.div(dmean, n), b.mul(dm2, b.mul(num(b, 2.0), b.sub(m, mean))))]


def _spread(b: Builder, n: Value, mean: Value, m2: Value, deg: Value) -> Value:
    return b.add(b.op("tanh", mean), b.div(m2, larger(b, n, num(b, 1.0))))


WELFORD = user("welford", [0.0, 0.0, 0.0], _welford_step, _welford_combine, _spread, like=[(), (0,), (0,)], grad=_welford_grad)
WELFORD_WITHOUT = user("welford", [0.0, 0.0, 0.0], _welford_step, _welford_combine, _spread, like=[(), (0,), (0,)])
WEIGHTED = user(
    "weighted",
    [0.0, 0.0],
    lambda b, s, z, m, w: [b.add(s, b.mul(m, w)), b.add(z, b.op("exp", w))],
    lambda b, s, z, s2, z2: [b.add(s, s2), b.add(z, z2)],
    lambda b, s, z, deg: b.div(s, b.add(z, num(b, 1.0))),
    arity=2,
    like=[(0, 1), (1,)],
)
ALL = [RMS, MAX_AND_SUM, LOW, GEOMETRIC, PRODUCT, LOGADDEXP, WELFORD]


def layer(monoid: Monoid, messages: Callable[[Builder, Value, Value], list[Value]], dtype: DType = F64, to: str = "dst") -> Func:
    """A fold of messages computed from edge inputs x [3] and w []."""
    b = Builder(monoids=(monoid,))
    x, w = b.input("x", Type("edge", dtype, (3,))), b.input("w", Type("edge", dtype))
    return Func("layer", (x, w), (b.fold(monoid.name, *messages(b, x, w), to=to),), monoids=(monoid,))


def check(func: Func, x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    """Differentiates, compares with finite differences, also behind simplify; gives the gradients."""
    joint = Differentiate().run(func)
    verify(joint)
    rng = np.random.default_rng(5)
    (out,) = interpret(func, GRAPH, [x, w])
    g = rng.normal(size=out.shape)

    def loss(*args: np.ndarray) -> float:
        return float((interpret(func, GRAPH, list(args))[0] * g).sum())

    grads = interpret(joint, GRAPH, [x, w, g])[1:]
    for i, got in enumerate(grads):
        want = np.zeros_like(got)
        for at in np.ndindex(*got.shape):
            args = [x.copy(), w.copy()], [x.copy(), w.copy()]
            args[0][i][at] += 1e-6
            args[1][i][at] -= 1e-6
            want[at] = (loss(*args[0]) - loss(*args[1])) / 2e-6
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7, err_msg=func.params[i].name)
    for got, again in zip(grads, interpret(Simplify().run(joint), GRAPH, [x, w, g])[1:], strict=True):
        np.testing.assert_allclose(again, got, rtol=1e-9, atol=1e-12)
    return grads


def values(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(7, 3)), rng.normal(size=7)


@pytest.mark.parametrize("monoid", ALL, ids=lambda m: m.name)
@pytest.mark.parametrize("to", ["dst", "src"])
def test_against_finite_differences(monoid: Monoid, to: str) -> None:
    check(layer(monoid, lambda b, x, w: [b.mul(x, b.reshape(w, (1,)))], to=to), *values())


def test_two_messages_of_other_dims() -> None:
    check(layer(WEIGHTED, lambda b, x, w: [x, b.reshape(w, (1,))]), *values())


def test_a_message_computed_from_another_counts_once() -> None:
    check(layer(WEIGHTED, lambda b, x, w: [b.op("tanh", x), x]), *values())


def test_one_value_as_both_messages() -> None:
    check(layer(WEIGHTED, lambda b, x, w: [x, x]), *values())


def test_a_product_has_the_true_gradient_beside_zeros() -> None:
    x, w = values()
    x[0], x[2, 0], x[4, 0] = 0.0, 0.0, 0.0  # one zero in a row, two in another
    check(layer(PRODUCT, lambda b, x, w: [x]), x, w)


def test_a_tied_maximum_gives_its_gradient_to_the_first_edge() -> None:
    x, w = np.ones((7, 3)), np.ones(7)
    top = user("top", [-INF], lambda b, t, m: [larger(b, t, m)], lambda b, t, o: [larger(b, t, o)], lambda b, t, d: guarded(b, d, t))
    joint = Differentiate(("x",)).run(layer(top, lambda b, x, w: [x]))
    dx = interpret(joint, GRAPH, [x, w, np.ones((5, 3))])[1]
    np.testing.assert_array_equal(dx[:, 0], [1, 0, 1, 1, 0, 0, 1])


def test_a_part_of_the_state_has_a_gradient_too() -> None:
    b = Builder(monoids=(RMS,))
    x = b.input("x", Type("edge", F64, (3,)))
    func = Func("layer", (x,), (b.fold("rms", x, part="s1"),), monoids=(RMS,))
    dx = interpret(Differentiate().run(func), GRAPH, [values()[0], np.ones((5, 3))])[1]
    np.testing.assert_allclose(dx, 2 * values()[0])


def test_a_state_nobody_finishes_with_needs_no_rule() -> None:
    """combine of s1 is no reduction, but the value does not read it."""
    odd = replace(
        user(
            "odd",
            [0.0, 0.0],
            lambda b, s, t, m: [b.add(s, m), b.sub(m, t)],
            lambda b, s, t, s2, t2: [b.add(s, s2), b.sub(t2, t)],
            lambda b, s, t, deg: s,
        )
    )
    check(layer(odd, lambda b, x, w: [x]), *values())


@pytest.mark.parametrize("monoid", [RMS, GEOMETRIC, MAX_AND_SUM, WELFORD], ids=lambda m: m.name)
def test_half_messages_are_computed_in_f32(monoid: Monoid) -> None:
    from gnnc.ir.types import F16

    joint = Differentiate().run(layer(monoid, lambda b, x, w: [x], dtype=F16))
    verify(joint)
    assert [str(r.type) for r in joint.results] == ["dst<f32, 3>", "edge<f16, 3>", "edge<f16>"]


# ---- what combine is made of


@pytest.mark.parametrize(
    ("monoid", "kinds"),
    [
        (RMS, ["add", "add"]),
        (MAX_AND_SUM, ["max", "add"]),
        (LOW, ["min"]),
        (GEOMETRIC, ["mul"]),
        (LOGADDEXP, ["logaddexp"]),
        (WELFORD, ["add", None, None]),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_kinds(monoid: Monoid, kinds: list[str | None]) -> None:
    assert [combine_kind(monoid, i) for i in range(len(kinds))] == kinds


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        (lambda b, x, y: b.op("log", b.add(b.op("exp", x), b.op("exp", y))), "logaddexp"),
        (lambda b, x, y: b.op("log", b.add(b.op("exp", x), b.mul(num(b, 2.0), b.op("exp", y)))), None),
        (lambda b, x, y: b.where(b.op("gt", x, y), x, y), "max"),
        (lambda b, x, y: b.where(b.op("gt", x, y), y, x), "min"),
        (lambda b, x, y: b.where(b.op("le", y, x), y, x), "min"),
        (lambda b, x, y: b.where(b.op("gt", x, num(b, 0.0)), x, y), None),
        (lambda b, x, y: b.sub(x, y), None),
        (lambda b, x, y: b.add(x, x), None),
        (lambda b, x, y: b.op("minimum", b.add(x, y), num(b, 9.0)), None),
    ],
)
def test_spellings(spelling: Callable[[Builder, Value, Value], Value], kind: str | None) -> None:
    m = user("m", [0.0], lambda b, s, m: [b.add(s, m)], lambda b, x, y: [spelling(b, x, y)], lambda b, s, deg: s)
    assert combine_kind(m, 0) == kind


# ---- none


@pytest.mark.parametrize("monoid", [WELFORD_WITHOUT, replace(RMS, name="bare", parts=RMS.parts[:1])], ids=["combine", "parts"])
def test_no_gradient(monoid: Monoid) -> None:
    func = layer(monoid, lambda b, x, w: [x])
    with pytest.raises(TypeRuleError) as caught:
        Differentiate().run(func)
    assert caught.value.code == "no-gradient"
    assert str(caught.value) == (
        f"the fold {monoid.name!r} has no gradient "
        "(give the monoid a grad(m, state, dstate), or a combine made of +, *, max, min or log-add-exp only)"
    )
