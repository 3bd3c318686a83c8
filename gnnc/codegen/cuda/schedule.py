"""How a sweep maps to threads: the lanes of a group, vectors, edges in flight, slices. Rules of thumb that a tuner may override."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARED_LIMIT = 48 * 1024
"""Dynamic shared memory that every launch gets without asking."""

REGISTER_BUDGET = 200
"""Registers of a lane that held and loaded values may take: above it a program is cut into slices, or goes the general path."""


def pow2_ceil(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


@dataclass(frozen=True)
class CudaSchedule:
    """Wishes of the caller; 0 or None: the emitter's choice.

    ``path``: "fragment" or "general". ``vec``: elements of a load (a power of two that divides the channels). ``lanes``: of a group, a
    power of two up to 32. ``unroll``: edges in flight a group. ``slices``: passes over the edges, each over a part of the heads (of the
    row, where no value is reduced over features). ``group_rows``: a row a group instead of a row a warp, for tiny degrees. ``prefetch``:
    the next batch's neighbours are loaded early. ``fence``: keeps a batch's loads together. ``block``: threads of a block. ``min_blocks``:
    resident blocks that registers are capped for.
    """

    path: str = ""
    vec: int = 0
    lanes: int = 0
    unroll: int = 0
    slices: int = 0
    group_rows: bool | None = None
    prefetch: bool = False
    fence: bool = False
    block: int = 256
    min_blocks: int = 1


@dataclass(frozen=True)
class Layout:
    """``Layout<H, C, kVec, kLanes, kSlices>`` of fragment.cuh; heads and chans are those of one slice."""

    heads: int
    chans: int
    vec: int
    lanes: int
    slices: int = 1

    @property
    def text(self) -> str:
        return f"Layout<{self.heads}, {self.chans}, {self.vec}, {self.lanes}, {self.slices}>"

    @property
    def groups(self) -> int:
        return 32 // self.lanes

    @property
    def head_lanes(self) -> int:
        return min(pow2_ceil(-(-self.chans // self.vec)), self.lanes)

    @property
    def heads_per_lane(self) -> int:
        return -(-self.heads // (self.lanes // self.head_lanes))

    @property
    def vectors(self) -> int:
        """Vectors of a head in one lane."""
        return -(-(self.chans // self.vec) // self.head_lanes)

    def elements(self, flags: tuple[bool, bool]) -> int:
        """Elements of a value of this shape in one lane."""
        return (self.heads_per_lane if flags[0] else 1) * (self.vectors * self.vec if flags[1] else 1)


def choose_layout(heads: int, chans: int, item: int, wish: CudaSchedule, slices: int = 1, steps: Sequence[int] = ()) -> Layout:
    """``heads`` and ``chans`` of one slice; ``item`` the bytes of the narrowest gathered element. 16-byte loads where the channels allow
    them, and just as many lanes as the row needs. ``steps``: distances that vectors must divide too, where views of wider rows are read."""
    vec = wish.vec or min(8, 16 // item)
    while chans % vec or any(s % vec for s in steps):
        vec //= 2
    lanes = wish.lanes or min(32, pow2_ceil(heads) * pow2_ceil(chans // vec))
    return Layout(heads, chans, vec, lanes, slices)


def choose_unroll(raw: int, held: int, reductions: int) -> int:
    """Edges in flight a group: a power of two, 1 to 8. ``raw``: registers of one edge in flight; ``held``: registers of the values with
    channels kept along a row; ``reductions``: feature reductions an edge. Measured rules: occupancy beats loads in flight."""
    budget = 32 if held <= 16 else 16
    most = max(1, 8 >> reductions)
    u = 1
    while 2 * u <= most and 2 * u * raw <= budget:
        u *= 2
    return u


def block_for(block: int, bytes_per_warp: int) -> int:
    """The largest block, halved down from ``block``, whose warps' images fit in shared memory."""
    while block > 32 and bytes_per_warp * (block // 32) > SHARED_LIMIT:
        block //= 2
    return block
