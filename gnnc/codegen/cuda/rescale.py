"""Finds folds that keep a running maximum and rescale what they have summed when it moves (online softmax, log-sum-exp, and whatever a
user writes like that). A batch of edges then needs one maximum and one rescale instead of one an edge.

The pattern, on the steps of components ``top`` and ``c`` (others of the sweep do not matter)::

    top' = maximum(top, score)
    c'   = c * exp(top - shift) + exp(score - shift) [* value]

where ``shift`` is top' itself, or top' with -inf replaced by 0, and score and value do not hang on any state. ``top`` starts at -inf.
Because combine is associative the edges of a batch may be stepped with the batch's maximum at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ...ir.core import Value, topological
from ..cpu.program import Component, Program
from .ops import const_of


@dataclass(frozen=True)
class Term:
    """A component that is rescaled: its number, and the factor of its weight (None: 1)."""

    number: int
    value: Value | None


@dataclass(frozen=True)
class Rescale:
    """``top``: number of the running maximum; ``score``: what it runs over; ``guarded``: a maximum of -inf is shifted by 0."""

    top: int
    score: Value
    guarded: bool
    terms: tuple[Term, ...]

    @property
    def numbers(self) -> set[int]:
        return {self.top, *(t.number for t in self.terms)}


def bare(v: Value) -> Value:
    """``v`` without reshapes, broadcasts and casts that change nothing but dims."""
    while v.op in ("reshape", "broadcast") or (v.op == "cast" and v.operands[0].type.dtype is v.type.dtype):
        v = v.operands[0]
    return v


def find_rescales(p: Program) -> list[Rescale]:
    """Every running maximum of the program whose dependents all follow the pattern."""
    olds = {c.old for c in p.components}
    reads = [{o for o in olds if o in set(topological([c.step]))} for c in p.components]
    out = []
    for n, c in enumerate(p.components):
        if c.init != -inf or reads[n] != {c.old}:
            continue
        step = bare(c.step)
        if step.op != "maximum":
            continue
        x, y = step.operands
        score = y if bare(x) is c.old else x if bare(y) is c.old else None
        if score is None or not olds.isdisjoint(topological([score])):
            continue
        terms: list[Term] = []
        guarded: set[bool] = set()
        others = [k for k in range(len(p.components)) if k != n and c.old in reads[k]]
        for k in others:
            found = _term(p.components[k], c.old, step, score, olds)
            if found is None:
                break
            terms.append(Term(k, found[0]))
            guarded.add(found[1])
        if terms and len(terms) == len(others) and len(guarded) == 1:
            out.append(Rescale(n, score, guarded.pop(), tuple(terms)))
    return out


def _term(c: Component, top: Value, new: Value, score: Value, olds: set[Value]) -> tuple[Value | None, bool] | None:
    """(value, guarded) of a component that follows the pattern."""
    step = bare(c.step)
    if step.op != "add":
        return None
    for kept, added in (step.operands, step.operands[::-1]):
        kept, added = bare(kept), bare(added)
        if kept.op != "mul":
            continue
        decay = next((bare(b) for a, b in (kept.operands, kept.operands[::-1]) if bare(a) is c.old), None)
        guard = None if decay is None else _weight_of(decay, top, new)
        if guard is None:
            continue
        if _weight_of(added, score, new) is guard:
            return None, guard
        if added.op == "mul":
            for p, value in (added.operands, added.operands[::-1]):
                if _weight_of(bare(p), score, new) is guard and olds.isdisjoint(topological([value])):
                    return value, guard
    return None


def _weight_of(v: Value, of: Value, new: Value) -> bool | None:
    """Whether ``v`` is exp(of - shift): None if not, else whether the shift is guarded."""
    if v.op != "exp":
        return None
    difference = bare(v.operands[0])
    if difference.op != "sub" or bare(difference.operands[0]) is not bare(of):
        return None
    shift = bare(difference.operands[1])
    if shift is new:
        return False
    if shift.op != "where":
        return None
    cond, zero, same = (bare(o) for o in shift.operands)
    is_zero = zero.op == "const" and zero.attr("value") == 0
    if not is_zero or same is not new or cond.op != "eq":
        return None
    a, b = (bare(o) for o in cond.operands)
    low = const_of(b)
    return True if a is new and low is not None and low.attr("value") == -inf else None
