"""A row's ``[..., K]`` block times a parameter ``[K, F]``: columns in registers, one loop over K."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from .elementwise import convert, register_type
from .emit_text import FunctionText
from .lanes import Lanes, Reg
from .memory import load_lanes, store_lanes
from .plan_nests import RegionPlanner
from .program import Base, Sink

TILE = 8
"""Registers of columns accumulated at a time."""


def emit_matmul(fn: FunctionText, planner: RegionPlanner, pointer: Callable[[Base], str], vector_bits: int, sink: Sink) -> None:
    """``sink.value`` is a matmul whose operands are in memory; the result goes to the sink's contiguous target."""
    from .nests import READ_ONLY, chunks

    v = sink.value
    x, w = v.operands
    xv, wv, d = planner.in_memory(x), planner.in_memory(w), v.type.dtype
    scalar = register_type(d)
    lanes = vector_bits // max(d.bits, 32)
    depth, columns = w.type.dims

    def sum_into(
        parts: list[tuple[str | None, int]], tparts: list[tuple[str | None, int]], column: str | None, first: int, total: int
    ) -> None:
        """Columns first .. first+total (after the loop's ``column``) of one row of x."""
        tiles = chunks(total, lanes)
        memory = []
        for _start, width in tiles:
            k = Lanes(fn, width)
            at = fn.alloca("acc", 1, scalar, width)
            fn.emit(f"store {k.vt(scalar)} {k.const(0, scalar).text}, ptr {at}, align 4")
            memory.append(at)
        with fn.loop("k", "0", str(depth)) as step:
            one = Lanes(fn, 1)
            xd, xs = _total(fn, [*parts, (step, xv.strides[-1])])
            value = load_lanes(fn, pointer(xv.base), xv.dtype, xd, (xv.offset + xs,), xv.base[0] in READ_ONLY, "x")
            value = convert(one, value, x.type.dtype, d)
            wd, ws = _total(fn, [(step, wv.strides[0]), (column, wv.strides[1])])
            for (start, width), at in zip(tiles, memory, strict=True):
                k = Lanes(fn, width)
                offsets = tuple(wv.offset + ws + (first + start + i) * wv.strides[1] for i in range(width))
                block = load_lanes(fn, pointer(wv.base), wv.dtype, wd, offsets, wv.base[0] in READ_ONLY, "w")
                block = convert(k, block, w.type.dtype, d)
                spread = Reg(k.shuffle(value.text, "poison", scalar, 1, [0] * width, "spread"), scalar)
                old = Reg(fn.let("acc", f"load {k.vt(scalar)}, ptr {at}, align 4"), scalar)
                fn.emit(f"store {k.vt(scalar)} {k.madd(spread, block, old).text}, ptr {at}, align 4")
        td, ts = _total(fn, [*tparts, (column, 1)])
        for (start, width), at in zip(tiles, memory, strict=True):
            k = Lanes(fn, width)
            done = Reg(fn.let("acc", f"load {k.vt(scalar)}, ptr {at}, align 4"), scalar)
            offsets = tuple(sink.target.offset + ts + first + start + i for i in range(width))
            store_lanes(fn, pointer(sink.target.base), sink.target.dtype, td, offsets, done)

    if v.type.size == 0:
        return
    with ExitStack() as stack:
        parts: list[tuple[str | None, int]] = []
        tparts: list[tuple[str | None, int]] = []
        for n, size in enumerate(x.type.dims[:-1]):
            if size != 1:
                counter = stack.enter_context(fn.loop(f"r{n}", "0", str(size)))
                parts.append((counter, xv.strides[n]))
                tparts.append((counter, sink.target.strides[n]))
        tile = TILE * lanes
        if columns <= 2 * tile:
            sum_into(parts, tparts, None, 0, columns)
            return
        full = columns // tile * tile
        with fn.loop("column", "0", str(full), tile) as column:
            sum_into(parts, tparts, column, 0, tile)
        if columns > full:
            sum_into(parts, tparts, None, full, columns - full)


def _total(fn: FunctionText, parts: list[tuple[str | None, int]]) -> tuple[str | None, int]:
    """Sum of counter * step over the moving parts."""
    total: str | None = None
    for counter, step in parts:
        if counter is None or step == 0:
            continue
        term = counter if step == 1 else fn.let("off", f"mul nsw i64 {counter}, {step}")
        total = term if total is None else fn.let("off", f"add nsw i64 {total}, {term}")
    return total, 0
