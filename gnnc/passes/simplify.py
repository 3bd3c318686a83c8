"""Simplifies a function: algebra, edge work to the nodes, what is the same along a row out of its fold. To a fixpoint.

Common subexpressions and dead code do not exist in the IR, so this pass is about three things, one file each: identities of single
operations (`algebra.py`), one-sided edge work (`hoist.py`), and products (`products.py`). Every round rebuilds the function with
one interning builder, so nothing changed means the very same values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.structure import index_dtype_of

from .algebra import Algebra
from .hoist import Site, distribute, hoist
from .products import KnownSum, known_sums, pull, regroup, use_known_sum

MOST_ROUNDS = 32


@dataclass(frozen=True)
class Simplify:
    """Works on layer and lowered functions, forward and differentiated; the stage stays. Every result keeps its type."""

    name = "simplify"

    def run(self, func: Func) -> Func:
        a = Algebra(Builder.like(func, index_dtype_of(func)))
        for _ in range(MOST_ROUNDS):
            new = _round(a, func)
            if new.results == func.results:
                return new
            func = new
        return func


def _round(a: Algebra, func: Func) -> Func:
    site = Site(a, func)
    known = known_sums(site)
    for v in _ordered(func, known):
        if v not in site.env:
            with a.b.at(v.loc):
                site.env[v] = _rebuild(site, v, known)
    return replace(func, params=tuple(site.env[p] for p in func.params), results=tuple(site.env[r] for r in func.results))


def _rebuild(site: Site, v: Value, known: dict[Value, KnownSum]) -> Value:
    if v in known:
        return use_known_sum(site, v, known[v])
    for rule in (pull, regroup, hoist, distribute):
        new = rule(site, v)
        if new is not None:
            return site.a.conform(new, v.type)
    return site.a.copy(v, tuple(site.env[o] for o in v.operands))


def _ordered(func: Func, known: dict[Value, KnownSum]) -> list[Value]:
    """The body in topological order, a fold behind the partner it is computed from."""
    order: list[Value] = []
    seen: set[Value] = set(func.params)
    stack: list[tuple[Value, bool]] = [(r, False) for r in reversed(func.results)]
    while stack:
        v, done = stack.pop()
        if done:
            order.append(v)
        elif v not in seen:
            seen.add(v)
            stack.append((v, True))
            before = [*v.operands, known[v].partner] if v in known else list(v.operands)
            stack.extend((o, False) for o in reversed(before))
    return order
