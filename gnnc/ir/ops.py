"""The op table: every operation's name, operands, type rule, interpreter function and adjoint.

An `OpDef` is the one place that knows an operation. The builder asks it for types, the verifier for legality, the interpreter
for values, ``differentiate`` for adjoints, the language reference for words. The entries stand in ``ops_elementwise.py``,
``ops_feature.py`` and ``ops_graph.py``; importing this module registers them all.

Conventions
-----------
* Array form: every value is a numpy array with a leading row axis (``[E, *dims]``, ``[N, *dims]``; a param has one row,
  ``[1, *dims]``). The interpreter computes floats in float64 whatever their dtype: it is the oracle, not a second back end.
* Arithmetic on half operands is done in f32 (``DType.acc``); only ``cast`` and stores round.
* An adjoint gets the builder, the operation's `Value` and the cotangent ``g`` of its result, and gives one cotangent an operand
  (None: no gradient). Cotangents of elementwise operations may still have the result's dims and space: ``fit`` in
  ``passes/differentiate.py`` sums them down to the operand's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .types import DTYPES, I32, DType, Type, TypeRuleError

if TYPE_CHECKING:
    from .builder import Builder
    from .core import Value
    from .monoid import Monoid

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RuleContext:
    """What a type rule may ask of the function it is in."""

    square: bool = False
    index_dtype: DType = I32
    monoids: tuple[Monoid, ...] = ()

    def side(self, end: str) -> str:
        """The node space at ``end`` ("src" or "dst")."""
        return "node" if self.square else end


@dataclass
class GraphArrays:
    """What the interpreter knows of a graph: ``src``, ``dst`` int64 ``[E]`` in the user's edge order, and the counts."""

    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    num_src: int
    num_dst: int

    @property
    def num_edges(self) -> int:
        return len(self.src)

    def index(self, end: str) -> npt.NDArray[np.int64]:
        return self.src if end == "src" else self.dst

    def count(self, end: str) -> int:
        return self.num_src if end == "src" else self.num_dst

    def rows(self, space: str) -> int:
        return {"src": self.num_src, "dst": self.num_dst, "node": self.num_dst, "edge": self.num_edges, "param": 1}[space]

    def degree(self, end: str) -> Array:
        return np.bincount(self.index(end), minlength=self.count(end)).astype(np.float64)


@dataclass
class EvalContext:
    """What an interpreter function may ask: the graph and the function's own monoids."""

    graph: GraphArrays
    rule: RuleContext


Infer = Callable[[list[Type], dict[str, Any], RuleContext], Type]
Evaluate = Callable[[list[Array], "Value", EvalContext], Array]
Adjoint = Callable[["Builder", "Value", "Value"], "tuple[Value | None, ...]"]


@dataclass(frozen=True)
class OpDef:
    """One operation. ``arity`` None: any number of operands. ``kind``: leaf, elementwise, feature, graph or dense.

    ``attrs`` maps attribute names to a default (``REQUIRED`` when there is none).
    """

    name: str
    kind: str
    arity: int | None
    infer: Infer
    evaluate: Evaluate
    adjoint: Adjoint | None
    attrs: tuple[tuple[str, Any], ...] = ()
    doc: str = ""

    def complete(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """``attrs`` with defaults filled in, in declared order; TypeRuleError ``attribute`` on an unknown or missing one."""
        out = {}
        for name, default in self.attrs:
            if name in attrs:
                out[name] = attrs[name]
            elif default is REQUIRED:
                raise TypeRuleError("attribute", f"{self.name} needs the attribute {name}")
            else:
                out[name] = default
        if extra := set(attrs) - set(out):
            raise TypeRuleError("attribute", f"{self.name} has no attribute {sorted(extra)[0]}")
        for name, value in out.items():
            kind, holds = ATTR_KINDS.get(name, ("anything", _anything))
            if not holds(value):
                raise TypeRuleError("attribute", f"{self.name} needs {name} to be {kind}, not {value!r}")
        return out


def _anything(_a: Any) -> bool:
    return True


def _is_int(a: Any) -> bool:
    return isinstance(a, int) and not isinstance(a, bool)


def _is_number(a: Any) -> bool:
    return isinstance(a, int | float) and not isinstance(a, bool)


def _is_count(a: Any) -> bool:
    return _is_int(a) and a >= 0


def _is_text(a: Any) -> bool:
    return isinstance(a, str)


# What an attribute may hold, by its name (one name means one thing in the whole table): (in words, test). `axis` and the sides are
# judged by the type rules, which say the mend.
ATTR_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("a string", _is_text),
    "value": ("a number or bool", lambda a: isinstance(a, int | float)),
    "dtype": (f"one of {', '.join(DTYPES)}", lambda a: isinstance(a, str) and a in DTYPES),
    "monoid": ("a string", _is_text),
    "part": ("a string", _is_text),
    "space": ("a string", _is_text),
    "slope": ("a number", _is_number),
    "alpha": ("a number", _is_number),
    "min": ("a number or None", lambda a: a is None or _is_number(a)),
    "max": ("a number or None", lambda a: a is None or _is_number(a)),
    "keepdim": ("a bool", lambda a: isinstance(a, bool)),
    "dims": ("a tuple of sizes", lambda a: isinstance(a, tuple) and all(_is_count(d) for d in a)),
    "start": ("a position", _is_count),
    "stop": ("a position", _is_count),
    "before": ("a count", _is_count),
    "after": ("a count", _is_count),
    "size": ("a count", _is_count),
    "rank": ("a positive count", lambda a: _is_count(a) and a > 0),
}


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
OPS: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    assert op.name not in OPS, op.name
    OPS[op.name] = op
    return op


def get_op(name: str) -> OpDef:
    """The table's entry; TypeRuleError ``unknown-op`` when there is none."""
    if name not in OPS:
        import difflib

        near = difflib.get_close_matches(name, OPS, 1)
        raise TypeRuleError("unknown-op", f"unknown operation {name!r}", f"did you mean {near[0]!r}?" if near else "")
    return OPS[name]


def align(arrays: list[Array]) -> list[Array]:
    """Right-aligns feature dims behind the row axis, so that numpy broadcasts them: ``[E]`` with ``[E, F]`` is ``[E, 1]``."""
    rank = max(a.ndim for a in arrays)
    return [a.reshape(a.shape[:1] + (1,) * (rank - a.ndim) + a.shape[1:]) for a in arrays]


from . import ops_elementwise, ops_feature, ops_graph  # noqa: E402,F401  (registration)
