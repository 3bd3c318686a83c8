"""Shape operations as arithmetic on strides: what can be read in place without moving an element."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ...ir.core import Value
from ...ir.types import Dims
from .program import View

SHAPE_OPS = frozenset(("reshape", "broadcast", "slice", "transpose"))


def view_of(v: Value, operand: View) -> View | None:
    """``v`` (a shape operation) as a view of its operand's memory; None where the elements would have to move."""
    dims, strides = v.operands[0].type.dims, operand.strides
    if v.op == "reshape":
        new = reshape_strides(dims, strides, v.type.dims)
        return None if new is None else replace(operand, strides=new)
    if v.op == "broadcast":
        pad = len(v.type.dims) - len(dims)
        wide = zip((1,) * pad + dims, (0,) * pad + strides, v.type.dims, strict=True)
        return replace(operand, strides=tuple(0 if d == 1 and out != 1 else s for d, s, out in wide))
    if v.op == "slice":
        at = len(dims) + v.attr("axis")
        return replace(operand, offset=operand.offset + v.attr("start") * strides[at])
    assert v.op == "transpose", v.op
    return replace(operand, strides=(*strides[:-2], strides[-1], strides[-2]))


def reshape_strides(dims: Dims, strides: tuple[int, ...], new: Dims) -> tuple[int, ...] | None:
    """Strides under which ``new`` dims name the same elements in the same order, or None."""
    old = [(d, s) for d, s in zip(dims, strides, strict=True) if d != 1]
    if any(d == 0 for d in dims) or any(d == 0 for d in new):
        return tuple(0 for _ in new)
    out: list[int] = [0] * len(new)
    i = 0  # next old dim
    j = 0
    wanted = [n for n, d in enumerate(new) if d != 1]
    while j < len(wanted):
        # The smallest groups of old and new dims with the same product.
        group_old, group_new = [old[i]], [wanted[j]]
        a, b = old[i][0], new[wanted[j]]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= old[i][0]
                group_old.append(old[i])
                i += 1
            else:
                b *= new[wanted[j]]
                group_new.append(wanted[j])
                j += 1
        for (_d0, s0), (d1, s1) in pairwise(group_old):
            if s0 != d1 * s1:
                return None
        step = group_old[-1][1]
        for n in reversed(group_new):
            out[n] = step
            step *= new[n]
    return tuple(out)


def boundaries(dims: Dims) -> list[int]:
    """Products of the leading dims: where the row-major order of ``dims`` starts anew. Without 1s and the total."""
    out, total = [], 1
    for d in dims:
        total *= d
        if d != 1:
            out.append(total)
    return out


def refine(shapes: list[Dims]) -> list[int] | None:
    """Sizes of the coarsest axes that each of ``shapes`` (all of one element count > 0) is made of, by splitting in row-major
    order; None where they do not fit together ([4, 6] with [6, 4])."""
    marks = sorted({m for s in shapes for m in boundaries(s)})
    out, at = [], 1
    for m in marks:
        if m % at:
            return None
        out.append(m // at)
        at = m
    return out


def axes_of(dims: Dims, axes: list[int]) -> list[list[int]]:
    """For each of ``dims`` the indices of the refined ``axes`` it is made of (a 1 has none)."""
    out: list[list[int]] = []
    at = 0
    for d in dims:
        mine: list[int] = []
        size = 1
        while size < d:
            size *= axes[at]
            mine.append(at)
            at += 1
        out.append(mine)
    return out


def strides_over(axes: list[int], parts: list[list[int]], dims: Dims, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a view with ``dims`` over the refined axes of an iteration whose dims are made of ``parts``. The view aligns
    at the right; its 1s (and missing leading dims) do not move."""
    out = [0] * len(axes)
    skip = len(parts) - len(dims)
    for n, (d, s) in enumerate(zip(dims, strides, strict=True)):
        if d == 1:
            continue
        step = s
        for a in reversed(parts[skip + n]):
            out[a] = step
            step *= axes[a]
    return tuple(out)
