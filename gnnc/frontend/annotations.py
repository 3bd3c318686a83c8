"""The spaces as annotations: ``Src["H", "C"]``, ``Edge[()]``, ``Param[32]``.

A dim is a string (a symbol, one size within a call) or an int; ``()`` alone says one scalar a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadAnnotation
from .source import user_loc

Dim = str | int


@dataclass(frozen=True, slots=True)
class SpaceAnnotation:
    """What a tensor parameter is: ``space`` one of src, dst, edge, node, param; ``dims`` its feature dims."""

    space: str
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        inner = ", ".join(f'"{d}"' if isinstance(d, str) else str(d) for d in self.dims)
        return f"{self.space.capitalize()}[{inner or '()'}]"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Space:
    """One of the five names; index it with the feature dims.

    Raises BadAnnotation (a TypeError) for anything that is not a dim.
    """

    space: str

    def __str__(self) -> str:
        return self.space.capitalize()

    __repr__ = __str__

    def __getitem__(self, dims: Dim | tuple[Dim, ...]) -> SpaceAnnotation:
        given = dims if isinstance(dims, tuple) else (dims,)
        for d in given:
            if isinstance(d, str) and d.isidentifier():
                continue
            if isinstance(d, int) and not isinstance(d, bool) and d >= 0:
                continue
            raise BadAnnotation(user_loc(), message=f"{d!r} is not a feature dim of {self}")
        return SpaceAnnotation(self.space, given)


Src = Space("src")
Dst = Space("dst")
Edge = Space("edge")
Node = Space("node")
Param = Space("param")
