"""Types of the IR: where a value lives (space), what it is stored as (dtype), its feature dims.

``edge<f32, 8, 32>`` is one ``[8, 32]`` float block for every edge: in memory ``[E, 8, 32]``, row-major. The row axis
(edges, nodes) is never part of ``dims``, and node and edge counts are never compiled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Loc

Dims = tuple[int, ...]


class TypeRuleError(Exception):
    """An operation was given operands its type rule refuses.

    ``code`` names the rule (stable, lower-case, hyphenated), ``message`` says what was found and ``hint`` the mend.
    The front end adds the user's own line; passes report it as a broken pass.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message} ({hint})")
        self.code, self.message, self.hint = code, message, hint
        self.loc: Loc | None = None  # of the operation, where whoever raised it knows one


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type: ``name`` as printed, ``bits`` in memory, ``kind`` one of ``float``, ``int``, ``uint``, ``bool``."""

    name: str
    bits: int
    kind: str

    def __str__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def acc(self) -> DType:
        """The dtype that arithmetic and fold states use: f64 for f64, f32 for every other float, itself otherwise."""
        if not self.is_float:
            return self
        return F64 if self is F64 else F32


F16 = DType("f16", 16, "float")
BF16 = DType("bf16", 16, "float")
F32 = DType("f32", 32, "float")
F64 = DType("f64", 64, "float")
I8 = DType("i8", 8, "int")
U8 = DType("u8", 8, "uint")
I16 = DType("i16", 16, "int")
I32 = DType("i32", 32, "int")
I64 = DType("i64", 64, "int")
BOOL = DType("bool", 8, "bool")

DTYPES: dict[str, DType] = {d.name: d for d in (F16, BF16, F32, F64, I8, U8, I16, I32, I64, BOOL)}


def promote(a: DType, b: DType) -> DType:
    """The dtype of ``a op b``, as torch promotes two tensors (f16 with bf16 gives f32; int with float gives the float)."""
    if a is b:
        return a
    if a.is_float or b.is_float:
        if not a.is_float:
            return b
        if not b.is_float:
            return a
        if a.bits == b.bits:  # f16 with bf16
            return F32
        return a if a.bits > b.bits else b
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.bits == b.bits:  # u8 with i8
        return I16
    wide, narrow = (a, b) if a.bits > b.bits else (b, a)
    return I16 if wide.kind == "uint" and narrow.kind == "int" else wide


SPACES = ("src", "dst", "node", "edge", "param")
NODE_SPACES = ("src", "dst", "node")


@dataclass(frozen=True, slots=True)
class Type:
    """Space + dtype + feature dims. ``node`` is the one space of both ends in a function that needs a square graph."""

    space: str
    dtype: DType
    dims: Dims = ()

    def __post_init__(self) -> None:
        assert self.space in SPACES, self.space
        assert all(isinstance(d, int) and d >= 0 for d in self.dims), self.dims

    def __str__(self) -> str:
        return f"{self.space}<{', '.join([self.dtype.name, *map(str, self.dims)])}>"

    @property
    def size(self) -> int:
        """Elements in one row."""
        return prod(self.dims)

    @property
    def row_bytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def is_node(self) -> bool:
        return self.space in NODE_SPACES

    def with_dims(self, dims: Dims) -> Type:
        return Type(self.space, self.dtype, tuple(dims))

    def with_dtype(self, dtype: DType) -> Type:
        return Type(self.space, dtype, self.dims)

    def with_space(self, space: str) -> Type:
        return Type(space, self.dtype, self.dims)


def broadcast_dims(shapes: list[Dims]) -> Dims:
    """Feature dims of an elementwise operation: aligned at the right, a 1 stretches (numpy's rule).

    Raises TypeRuleError ``shape-mismatch``.
    """
    rank = max((len(s) for s in shapes), default=0)
    out = []
    for axis in range(-rank, 0):
        sizes = {s[axis] for s in shapes if -axis <= len(s)}
        wide = sizes - {1}
        if len(wide) > 1:
            text = " and ".join(f"[{', '.join(map(str, s))}]" for s in shapes)
            raise TypeRuleError(
                "shape-mismatch",
                f"feature dims {text} do not broadcast: axis {axis} has sizes {sorted(sizes)}",
                "dims align at the right and a 1 stretches; add an axis with v[..., None]",
            )
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def join_space(spaces: list[str]) -> str:
    """Space of an operation over these operands: params join anything, other spaces must agree.

    Raises TypeRuleError ``space-mismatch``.
    """
    rows = sorted({s for s in spaces if s != "param"})
    if len(rows) > 1:
        raise TypeRuleError("space-mismatch", f"operands live in different spaces: {' and '.join(rows)}", space_hint(rows))
    return rows[0] if rows else "param"


def space_hint(rows: list[str]) -> str:
    """The mend for a space mismatch."""
    if "edge" in rows and any(s in NODE_SPACES for s in rows):
        side = next(s for s in rows if s != "edge")
        if side == "node":
            return "bring the node value to the edges with g.src(v) or g.dst(v)"
        return f"bring the {side} value to the edges with g.{side}(v)"
    if set(rows) == {"src", "dst"}:
        return "bring both to the edges with g.src(v) and g.dst(v), or annotate with Node if both ends are the same nodes"
    return "bring both to one space"
