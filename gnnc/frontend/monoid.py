"""``@gnnc.monoid``: a fold of the user's own, traced into the data that every back end reads.

    @gnnc.monoid
    class Rms:
        def init():
            return 0.0
        def step(state, m):
            return state + m * m
        def combine(a, b):
            return a + b
        def finish(state, degree):
            return sqrt(state / maximum(degree, 1.0))

A state is a number or a tuple of numbers, each with the message's dims. The functions see one element at a time, so they are written
with the vocabulary of `gnnc.lang` and plain arithmetic. The laws that splitting a row rests on are tried on samples when the class
is decorated: a violated one is an error there, not a wrong result later.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Loc, Value, topological
from gnnc.ir.interpreter import run_scalar
from gnnc.ir.monoid import Component, Monoid
from gnnc.ir.ops import Array
from gnnc.ir.printer import print_func
from gnnc.ir.structure import monoid_funcs
from gnnc.ir.types import F32, Type

from .captured import Identity
from .errors import UserError, described
from .source import source_line
from .tracing import TracedValue, Tracer, as_number

METHODS = ("init", "step", "combine", "finish")
SCALAR = Type("edge", F32)


class BadMonoid(UserError, TypeError):
    code, template = "GN105", "{message}"
    mend = "a monoid is a class with init() -> state, step(state, m) -> state, combine(a, b) -> state and finish(state, degree) -> value"


class BrokenMonoidLaw(UserError, ValueError):
    code, template = "GN106", "{message}"


def monoid(cls: type) -> UserMonoid:
    """Makes a fold of a class (see the module's docstring); pass it to ``g.fold``.

    ``grad(m, state, dstate) -> dm`` is optional: the message's cotangent from the row's final state and its cotangent. Without it the
    gradient is derived where each component of `combine` is +, *, max, min or log-add-exp; else the layer is forward only. Several
    messages an edge: ``step(state, m, w)``, and ``grad(m, w, state, dstate)`` returns one cotangent each.

    Raises BadMonoid (GN105) for a class of another shape, BrokenMonoidLaw (GN106) when `combine` contradicts `step`.
    """
    if not inspect.isclass(cls):
        raise BadMonoid(None, message=f"a monoid is a class, not {described(cls)}")
    made = UserMonoid(cls)
    with suppress(NameError):  # a helper defined further down: tried again at the first use
        made.to_ir()
    return made


class UserMonoid:
    """A decorated class. `to_ir` is its data; what its methods read from outside is part of it."""

    def __init__(self, cls: type) -> None:
        self.cls, self.__name__, self.__doc__ = cls, cls.__name__, inspect.getdoc(cls)
        self.__module__, self.__qualname__ = cls.__module__, cls.__qualname__
        self._methods = _methods(cls)
        self._identity = Identity(cls)
        self._seen = ""
        self._ir: Monoid | None = None
        self._digest: tuple[Monoid, str] | None = None

    def __repr__(self) -> str:
        return f"<gnnc.monoid {self.__name__}>"

    def to_ir(self) -> Monoid:
        """The fold as data. Traced again when a value that its methods read from outside has changed."""
        seen = self._identity.digest()
        if self._ir is None or seen != self._seen:
            ir = _trace(self)
            check_laws(self, ir)
            self._ir, self._seen = ir, seen
        return self._ir

    def fingerprint(self) -> str:
        """sha256 (hex) of the fold's data: equal for equal folds, in every process."""
        ir = self.to_ir()
        if self._digest is None or self._digest[0] is not ir:
            self._digest = ir, _digest(ir)
        return self._digest[1]

    def loc(self, method: str) -> Loc | None:
        """Where a method is defined."""
        return _loc(self._methods[method]) if method in self._methods else None


def _digest(ir: Monoid) -> str:
    fields = [ir.name, str(ir.arity), repr(ir.components), *(f"{role}\n{print_func(f)}" for role, f in monoid_funcs(ir))]
    out = hashlib.sha256()
    for text in fields:
        data = text.encode()
        out.update(len(data).to_bytes(8, "little") + data)
    return out.hexdigest()


def _loc(f: Callable[..., Any]) -> Loc:
    code = inspect.unwrap(f).__code__
    text = source_line(code.co_filename, code.co_firstlineno)
    start = len(text) - len(text.lstrip())
    return Loc(code.co_filename, code.co_firstlineno, start, code.co_firstlineno, len(text), text)


def _methods(cls: type) -> dict[str, Callable[..., Any]]:
    """The class's functions by name, bound to one instance where they have a ``self``."""
    found: dict[str, Callable[..., Any]] = {}
    instance: object = None
    for name in (*METHODS, "grad"):
        raw = inspect.getattr_static(cls, name, None)
        if raw is None:
            continue
        f = raw.__func__ if isinstance(raw, staticmethod) else raw
        if not inspect.isfunction(f):
            raise BadMonoid(None, message=f"{cls.__name__}.{name} is {described(raw)}, not a function")
        if next(iter(inspect.signature(f).parameters), None) == "self":
            instance = cls() if instance is None else instance
            f = f.__get__(instance, cls)
        found[name] = f
    missing = [m for m in METHODS if m not in found]
    if missing:
        known = next(iter(found.values()), None)
        raise BadMonoid(None if known is None else _loc(known), message=f"the monoid {cls.__name__} has no {missing[0]}")
    return found


# ---- tracing


def _numbers(owner: UserMonoid, state: object) -> tuple[tuple[float, ...], bool]:
    """The initial state as floats, and whether it is a tuple."""
    items = state if isinstance(state, tuple) else (state,)
    out = []
    for x in items:
        number = as_number(x)
        if number is None:
            raise BadMonoid(
                owner.loc("init"),
                message=f"{owner.__name__}.init returned {described(x)}",
                hint="a state is a number or a tuple of numbers",
            )
        out.append(float(number))
    if not out:
        raise BadMonoid(
            owner.loc("init"), message=f"{owner.__name__}.init returned an empty tuple", hint="a state is a number or a tuple of numbers"
        )
    return tuple(out), isinstance(state, tuple)


class _Shapes:
    """How states and messages are handed to the user's functions."""

    def __init__(self, owner: UserMonoid, size: int, is_tuple: bool) -> None:
        self.owner, self.size, self.is_tuple = owner, size, is_tuple

    def state(self, values: Sequence[TracedValue]) -> object:
        return tuple(values) if self.is_tuple else values[0]

    def func(self, method: str, inputs: int, call: Callable[..., object], results: int) -> Func:
        """One method traced over ``inputs`` scalars."""
        b = Builder()
        tracer = Tracer(b, F32)
        args = [b.input(f"a{i}", SCALAR) for i in range(inputs)]
        out = call(*(TracedValue(tracer, a) for a in args))
        items = out if isinstance(out, tuple) else (out,)
        if len(items) != results or ((results > 1) != isinstance(out, tuple) and not (results == 1 and self.is_tuple)):
            want = f"a tuple of {results}" if results > 1 else "one value"
            got = (
                f"a tuple of {len(items)}"
                if isinstance(out, tuple)
                else described(out)
                if not isinstance(out, TracedValue)
                else "one value"
            )
            raise BadMonoid(
                self.owner.loc(method),
                message=f"{self.owner.__name__}.{method} returned {got}, not {want}",
                hint="states have one shape: what init returns",
            )
        return Func(method, tuple(args), tuple(self._scalar(tracer, method, x) for x in items), stage="scalar")

    def _scalar(self, tracer: Tracer, method: str, x: object) -> Value:
        if not isinstance(x, TracedValue) and as_number(x) is None:
            what = f"{self.owner.__name__}.{method} returned {described(x)}"
            raise BadMonoid(self.owner.loc(method), message=what, hint="it returns values and numbers, alone or in one flat tuple")
        b = tracer.builder
        v = tracer.lift(x, F32)
        if v.type.dtype.kind == "bool":
            v = b.where(v, b.const(1.0), b.const(0.0))
        return v if v.type.dtype is F32 else b.cast(v, F32)


def _arity(owner: UserMonoid, method: str, most: int | None, least: int) -> int:
    """How many positional arguments a method takes."""
    parameters = inspect.signature(owner._methods[method]).parameters.values()
    n = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
    if n < least or (most is not None and n > most):
        want = str(least) if most == least else f"{least} or more"
        raise BadMonoid(owner.loc(method), message=f"{owner.__name__}.{method} takes {n} argument{'s' * (n != 1)}, not {want}")
    return n


def _trace(owner: UserMonoid) -> Monoid:
    _arity(owner, "init", 0, 0)
    arity = _arity(owner, "step", None, 2) - 1
    _arity(owner, "combine", 2, 2)
    _arity(owner, "finish", 2, 2)
    f = owner._methods
    init, is_tuple = _numbers(owner, f["init"]())
    n = len(init)
    shapes = _Shapes(owner, n, is_tuple)
    step = shapes.func("step", n + arity, lambda *a: f["step"](shapes.state(a[:n]), *a[n:]), n)
    combine = shapes.func("combine", 2 * n, lambda *a: f["combine"](shapes.state(a[:n]), shapes.state(a[n:])), n)
    finish = shapes.func("finish", n + 1, lambda *a: f["finish"](shapes.state(a[:n]), a[n]), 1)
    grad = None
    if "grad" in f:
        _arity(owner, "grad", arity + 2, arity + 2)
        k = arity
        grad = shapes.func("grad", k + 2 * n, lambda *a: f["grad"](*a[:k], shapes.state(a[k : k + n]), shapes.state(a[k + n :])), k)
    names = [f"s{i}" for i in range(n)]
    parts = [("value", replace(finish, name="value"))]
    for i, name in enumerate(names):
        parts.append((name, shapes.func(name, n + 1, lambda *a, i=i: a[i], 1)))
    likes = _messages_of(step, combine, n, arity)
    components = tuple(Component(name, x, like=like) for name, x, like in zip(names, init, likes, strict=True))
    return Monoid(owner.__name__, arity, components, step, combine, tuple(parts), grad=grad, doc=owner.__doc__ or "")


def _messages_of(step: Func, combine: Func, n: int, arity: int) -> list[tuple[int, ...]]:
    """The messages whose dims each component has: those it is computed from, perhaps through other components."""
    reach = [{v for v in topological([r]) if v.op == "input"} for r in step.results]
    other = [{v for v in topological([r]) if v.op == "input"} for r in combine.results]
    found = [{j for j in range(arity) if step.params[n + j] in reach[i]} for i in range(n)]
    for _ in range(n):
        for i in range(n):
            for k in range(n):
                if step.params[k] in reach[i] or combine.params[k] in other[i] or combine.params[n + k] in other[i]:
                    found[i] |= found[k]
    return [tuple(sorted(s)) for s in found]


# ---- laws

SAMPLES, LENGTH = 48, 5


def check_laws(owner: UserMonoid, ir: Monoid) -> None:
    """Tries on samples that `combine` continues a row where `step` left it. Raises BrokenMonoidLaw with the messages that show it.

    What is compared is the finished value: two states that finish alike are as good as one.
    """
    n = len(ir.components)
    rng = np.random.default_rng(7)
    messages = np.round(rng.normal(0.5, 1.2, (LENGTH, ir.arity, SAMPLES)), 1)
    messages[:, :, ::3] = np.abs(messages[:, :, ::3]) + 0.1  # some rows of positive messages: logarithms, roots
    init = [np.full(SAMPLES, c.init) for c in ir.components]

    def step(state: list[Array], t: int) -> list[Array]:
        return run_scalar(ir.step, [*state, *messages[t]])

    def fold(start: int, stop: int) -> list[Array]:
        state = init
        for t in range(start, stop):
            state = step(state, t)
        return state

    def combine(a: list[Array], b: list[Array]) -> list[Array]:
        return run_scalar(ir.combine, [*a, *b])

    def finish(state: list[Array], degree: int) -> Array:
        return np.broadcast_to(run_scalar(ir.part("value"), [*state, np.full(SAMPLES, float(degree))])[0], (SAMPLES,))

    def same(law: str, got: list[Array], want: list[Array], count: int) -> None:
        x, y = finish(got, count), finish(want, count)
        ok = np.isclose(x, y, rtol=1e-6, atol=1e-6, equal_nan=True) | ~np.isfinite(y)
        if not ok.all():
            i = int(np.argmin(ok))
            text = ", ".join(" and ".join(f"{m:g}" for m in messages[t, :, i]) for t in range(count))
            raise BrokenMonoidLaw(
                owner.loc("combine"), message=f"{law}: it finishes as {x[i]:g}, not {y[i]:g}, for the messages {text}", hint=_HINT
            )

    assert n == len(init)
    name = f"{owner.__name__}.combine"
    whole = fold(0, LENGTH)
    same(f"{name} of the initial state and a state changes the state", combine(init, whole), whole, LENGTH)
    same(f"{name} of a state and the initial state changes the state", combine(whole, init), whole, LENGTH)
    for t in range(1, LENGTH):
        ahead = combine(fold(0, t), step(init, t))
        same(f"{name} of a state and one message is not {owner.__name__}.step", ahead, fold(0, t + 1), t + 1)
    for cut in range(1, LENGTH):
        same(f"{name} of two parts of a row is not the fold of the whole row", combine(fold(0, cut), fold(cut, LENGTH)), whole, LENGTH)
    a, b, c = fold(0, 2), fold(2, 3), fold(3, LENGTH)
    same(f"{name} is not associative", combine(combine(a, b), c), combine(a, combine(b, c)), LENGTH)


_HINT = "combine(a, b) gives the state after a's messages and then b's; with init() on one side it gives the other side back"
