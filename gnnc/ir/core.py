"""The IR itself: immutable SSA values in a DAG, and functions over them.

A `Value` is one operation with one result. Values are interned by the `Builder` that makes them (`builder.py`), so two equal
operations of one builder are one object: common subexpressions and dead code do not exist. A `Func` is its parameters and its
results; the body is whatever the results reach, in a fixed topological order. Every IR level of gnnc is this one structure; a
stage (`verifier.py`) says which operations are legal and what their operands may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .types import Type

if TYPE_CHECKING:
    from .monoid import Monoid

Attr = bool | int | float | str | None | tuple[Any, ...]
Attrs = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True)
class Loc:
    """A stretch of the user's source: 1-based lines, 0-based columns, end exclusive; ``text`` is the first line."""

    file: str
    line: int
    col: int = 0
    end_line: int = 0
    end_col: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Value:
    """One operation and its result. Immutable; compared by identity (equal values of one builder are identical)."""

    __slots__ = ("attrs", "loc", "op", "operands", "type")

    op: str
    operands: tuple[Value, ...]
    attrs: Attrs
    type: Type
    loc: Loc | None

    def __init__(self, op: str, operands: tuple[Value, ...], attrs: Attrs, type: Type, loc: Loc | None) -> None:
        for name, v in (("op", op), ("operands", operands), ("attrs", attrs), ("type", type), ("loc", loc)):
            object.__setattr__(self, name, v)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("IR values are immutable")

    def __repr__(self) -> str:
        return f"<{self.op} : {self.type}>"

    def attr(self, name: str) -> Any:
        """The attribute ``name``; KeyError if the operation has none."""
        for k, v in self.attrs:
            if k == name:
                return v
        raise KeyError(f"{self.op} has no attribute {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute ``name`` or ``default``."""
        for k, v in self.attrs:
            if k == name:
                return v
        return default

    @property
    def name(self) -> str:
        """Name of an ``input``."""
        assert self.op == "input", self
        return str(self.attr("name"))


def topological(results: Iterable[Value]) -> list[Value]:
    """Every value the results reach, operands first, in an order that depends on the structure alone. No recursion: a
    thousand-operation chain is fine."""
    order: list[Value] = []
    seen: set[Value] = set()
    for root in results:
        stack: list[tuple[Value, int]] = [(root, 0)]
        while stack:
            v, i = stack.pop()
            if i == 0:
                if v in seen:
                    continue
                seen.add(v)
            if i < len(v.operands):
                stack.append((v, i + 1))
                if v.operands[i] not in seen:
                    stack.append((v.operands[i], 0))
            else:
                order.append(v)
    return order


@dataclass(frozen=True)
class Func:
    """A function of the IR.

    ``params`` are ``input`` values, in calling order (a parameter nobody reads stays). ``results`` may repeat.
    ``square`` functions need ``num_src == num_dst`` and have the one node space ``node``. ``stage`` is the verifier's name for
    what is legal here. ``monoids`` are the user-defined ones that folds name.
    """

    name: str
    params: tuple[Value, ...]
    results: tuple[Value, ...]
    square: bool = False
    stage: str = "layer"
    result_names: tuple[str, ...] = ()
    monoids: tuple[Monoid, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.result_names:
            object.__setattr__(self, "result_names", tuple(f"out{i}" for i in range(len(self.results))))
        assert len(self.result_names) == len(self.results)

    @property
    def body(self) -> list[Value]:
        """All values but the inputs, in topological order."""
        return [v for v in topological(self.results) if v.op != "input"]

    def values(self) -> list[Value]:
        """Parameters first, then the body."""
        return [*self.params, *self.body]

    def users(self) -> dict[Value, list[Value]]:
        """Value -> the values that read it (once for each operand slot). Results do not count as users."""
        out: dict[Value, list[Value]] = {v: [] for v in self.values()}
        for v in self.body:
            for o in v.operands:
                out.setdefault(o, []).append(v)
        return out

    def with_stage(self, stage: str) -> Func:
        return replace(self, stage=stage)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.body)

    def __str__(self) -> str:
        from .printer import print_func

        return print_func(self)
