"""The gradient of a fold from its data: a given ``grad``, or what ``combine`` is made of.

Let S be a row's final state and dS its cotangent, from the pullback of the finishing function. With ``grad`` a message's cotangent is
``grad(m, S, dS)`` at the edge. Without, every component that dS reaches must be combined by itself, by +, *, max, min or
log-add-exp; then S_i is that reduction of the lifted messages ``step(init, m)_i``, whose cotangent is known, and goes through the lift.
"""

from __future__ import annotations

import numpy as np

from .adjoint import pullback
from .builder import Builder
from .core import Func, Value, topological
from .interpreter import run_scalar
from .monoid import Monoid, find_monoid, no_gradient

# (comparison, what is taken where it holds: the left or the right side) -> kind
_CHOICES = {
    ("gt", "left"): "max",
    ("ge", "left"): "max",
    ("lt", "right"): "max",
    ("le", "right"): "max",
    ("lt", "left"): "min",
    ("le", "left"): "min",
    ("gt", "right"): "min",
    ("ge", "right"): "min",
}


def combine_kind(monoid: Monoid, i: int) -> str | None:
    """How ``combine`` makes component `i` of the two sides' component `i` alone: ``add``, ``mul``, ``max``, ``min`` or ``logaddexp``; None
    when it is something else or reads other components."""
    n = len(monoid.components)
    a, b = monoid.combine.params[i], monoid.combine.params[n + i]
    r = monoid.combine.results[i]
    if {v for v in topological([r]) if v.op == "input"} != {a, b}:
        return None
    pair = {a, b}
    if len(r.operands) == 2 and set(r.operands) == pair:
        return {"add": "add", "mul": "mul", "maximum": "max", "minimum": "min"}.get(r.op)
    if r.op == "where":
        test, x, y = r.operands
        if {x, y} == pair == set(test.operands):
            return _CHOICES.get((test.op, "left" if x is test.operands[0] else "right"))
    return "logaddexp" if _is_logaddexp(r, a, b) else None


def _is_logaddexp(r: Value, a: Value, b: Value) -> bool:
    """Whether `r` is log(e^a + e^b), in whatever stable spelling: it uses exp and log and agrees everywhere on a grid."""
    if not {"exp", "log"} <= {v.op for v in topological([r])}:
        return False
    line = np.array([-80.0, -7.5, -1.0, -0.3, 0.0, 0.4, 1.0, 3.25, 9.0, 80.0])
    x, y = (g.reshape(-1) for g in np.meshgrid(line, line))
    got = run_scalar(Func("r", (a, b), (r,), stage="scalar"), [x, y])[0]
    return bool(np.allclose(got, np.logaddexp(x, y), rtol=1e-9, atol=1e-12))


def derived_vjp(monoid: Monoid, b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    """The messages' cotangents from the cotangent `g` of the fold `v` of a monoid with a part called after each component.

    Raises TypeRuleError ``no-gradient`` when the monoid gives no `grad` and its `combine` is none that can be derived.
    """
    end, messages = v.attr("to"), v.operands
    names = [c.name for c in monoid.components]
    if not set(names) <= {k for k, _ in monoid.parts}:
        return no_gradient(v)
    state = [b.fold(monoid.name, *messages, to=end, part=k) for k in names]
    acc = next((s.type.dtype for s in state if s.type.dtype.is_float), g.type.dtype.acc)
    if v.attr("part") in names:
        value = state[names.index(v.attr("part"))]
    else:
        value = b.inline(monoid.part(v.attr("part")), [*state, b.degree(end, acc)])[0]
    dstate = pullback(b, [(value, g)], state)
    if monoid.grad is not None:
        cotangents = _given(monoid, b, messages, state, dstate, end)
    else:
        cotangents = _derived(monoid, b, v, state, dstate)
    # A value that is several messages at once has one cotangent: their sum stands at its first place.
    out: list[Value | None] = []
    for i, m in enumerate(messages):
        found = [c for c, other in zip(cotangents, messages, strict=True) if other is m and c is not None]
        total: Value | None = None
        for c in found if messages.index(m) == i else []:
            total = c if total is None else b.add(total, c)
        out.append(total)
    return tuple(out)


def _given(
    monoid: Monoid, b: Builder, messages: tuple[Value, ...], state: list[Value], dstate: list[Value | None], end: str
) -> list[Value | None]:
    assert monoid.grad is not None
    at_edge = [b.gather(s, end) for s in state]
    ds = [b.const_like(s, 0.0) if d is None else b.gather(d, end) for s, d in zip(state, dstate, strict=True)]
    return list(b.inline(monoid.grad, [*messages, *at_edge, *ds]))


def _derived(monoid: Monoid, b: Builder, v: Value, state: list[Value], dstate: list[Value | None]) -> list[Value | None]:
    kinds = {i: combine_kind(monoid, i) for i, d in enumerate(dstate) if d is not None}
    if monoid.uses_edge_id or None in kinds.values():
        no_gradient(v)
    # Lifts and their pullback stand in a function of the messages alone: one message may be computed from another.
    inner = Builder(b.square, b.index_dtype)
    ms = [inner.input(f"m{j}", m.type) for j, m in enumerate(v.operands)]
    init = [inner.const_like(s, c.init) for s, c in zip(state, monoid.components, strict=True)]
    lifts = inner.inline(monoid.step, [*init, *ms])
    used = [i for i in kinds if set(topological([lifts[i]])) & set(ms)]
    lift_func = Func("lift", tuple(ms), tuple(lifts[i] for i in used), b.square, "scalar")
    lifted = dict(zip(used, b.inline(lift_func, list(v.operands)), strict=True))
    seeds, cotangents = [], []
    for i in used:
        d = dstate[i]
        assert d is not None
        cotangents.append(_reduction(b, str(kinds[i]), lifted[i], state[i], d, v.attr("to")))
        seeds.append((lifts[i], inner.input(f"d{i}", lifts[i].type)))
    found = pullback(inner, seeds, ms)
    have = [j for j, f in enumerate(found) if f is not None]
    back = Func("back", (*ms, *(s for _, s in seeds)), tuple(f for f in found if f is not None), b.square, "scalar")
    fitted = [b.broadcast(c, lifted[i].type.dims) for i, c in zip(used, cotangents, strict=True)]
    values = dict(zip(have, b.inline(back, [*v.operands, *fitted]), strict=True))
    return [values.get(j) for j in range(len(ms))]


def _reduction(b: Builder, kind: str, lifted: Value, total: Value, d: Value, end: str) -> Value:
    """Cotangent of the lifted message of a reduction with the result `total` and its cotangent `d`."""
    if kind == "add":
        return b.gather(d, end)
    if kind == "logaddexp":
        return b.mul(b.gather(d, end), b.op("exp", b.sub(lifted, b.gather(total, end))))
    name = {"mul": "prod", "max": "max", "min": "min"}[kind]
    vjp = find_monoid(name).vjp
    assert vjp is not None
    (out,) = vjp(b, b.fold(name, lifted, to=end), d)
    assert out is not None
    return out
