"""The names of values at some place of the generated struct, and the lines that give them names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...ir.core import Value
from ...ir.types import DType
from ..cpu.program import Base
from .ops import as_dtype, const_of, expression, literal, reduced_dtype, register_dtype
from .text import Writer
from .values import KINDS, FragmentValues

ALIASES = ("reshape", "broadcast")
"""Operations that change nothing but dims."""


class Scope:
    """Values that have a name at some place of the text."""

    def __init__(self, owner: FragmentValues, w: Writer, leaf: Callable[[Base, Value], str], outer: Scope | None = None) -> None:
        self.owner, self.w, self.leaf = owner, w, leaf
        self.names: dict[Value, str] = dict(outer.names) if outer else {}
        self.count: list[int] = outer.count if outer else [0]

    def text(self, v: Value) -> str:
        c = const_of(v)
        if v not in self.names and c is not None:
            return literal(c.attr("value"), register_dtype(c.type.dtype))
        return self.names[v]

    def fragment(self, v: Value) -> str:
        """The value as a fragment, also where it is a constant."""
        return f"unit<L>({self.text(v)})" if v not in self.names else self.names[v]

    def demand(self, roots: Iterable[Value]) -> None:
        """Emits what the roots need, one line a value, operands first."""
        for v in self.owner.order(roots, self.names):
            self._emit(v)

    def _emit(self, v: Value) -> None:
        leaves = self.owner.leaves
        if v in leaves:
            leaf = self.leaf(leaves[v], v)
            if leaf.isidentifier() or "(" not in leaf:
                self.names[v] = leaf
                return
            self._line(v, leaf)
            return
        if v.op in ALIASES or (v.op == "cast" and self._same(v)) or (v.op.startswith("reduce") and self._squeezes(v)):
            (o,) = v.operands
            mine, theirs = register_dtype(v.type.dtype), register_dtype(o.type.dtype)
            self.names[v] = self.text(o) if mine is theirs else f"convert<{mine}>({self.fragment(o)})"
            return
        self._line(v, self._expression(v))

    def _same(self, v: Value) -> bool:
        """A cast that leaves the register as it is."""
        o = v.operands[0].type.dtype
        return o is v.type.dtype or (
            o.is_float and o.bits == 16 and register_dtype(v.type.dtype) is register_dtype(o) and v.type.dtype.bits == 32
        )

    def _squeezes(self, v: Value) -> bool:
        return v.operands[0].type.size == v.type.size

    def _line(self, v: Value, text: str) -> None:
        name = f"v{self.count[0]}"
        self.count[0] += 1
        shape = {"Wide": "[H, C]", "Head": "[H]", "Chan": "[C]", "Unit": "[]"}[KINDS[self.owner.cflags(v)]]
        self.w.line(f"const auto {name} = {text};".ljust(66) + f" // {v.op} {shape}", v.loc)
        self.names[v] = name

    def _expression(self, v: Value) -> str:
        kind, args = self.owner.form(v)
        d = register_dtype(v.type.dtype)
        if kind == "fma":
            a, b, c = (as_dtype(o, d, self.text) for o in args)
            if all(const_of(o) is not None for o in args):
                return f"unit<L>(fma({a}, {b}, {c}))"
            return f"fma({a}, {b}, {c})"
        if kind == "dot":
            a, b = (self._typed(o, d) for o in args)
            return f"dot_{self._axis(v)}(lane, {a}, {b})"
        if v.op in ("reduce_sum", "reduce_max"):
            return f"{v.op.removeprefix('reduce_')}_{self._axis(v)}(lane, {self._typed(v.operands[0], reduced_dtype(v))})"
        if v.op == "iota":
            flags = self.owner.fit.of(v)
            return {(True, True): "iota_flat(lane)", (True, False): "iota_h(lane)", (False, True): "iota_c(lane)"}.get(
                flags, "unit<L>(i32(0))"
            )
        text = expression(v, self.text)
        return f"unit<L>({text})" if all(o not in self.names for o in v.operands) else text

    def _typed(self, o: Value, d: DType) -> str:
        return self.fragment(o) if register_dtype(o.type.dtype) is d else f"convert<{d}>({self.fragment(o)})"

    def _axis(self, v: Value) -> str:
        return self.owner.axis(v)
