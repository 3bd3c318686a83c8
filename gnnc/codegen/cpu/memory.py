"""Loads and stores of registers whose lanes lie at offsets known at compile time, in whatever pattern."""

from __future__ import annotations

from ...ir.types import DType
from .elementwise import from_memory, memory_type, to_memory
from .emit_text import INVARIANT, FunctionText, vector_type
from .lanes import Lanes, Reg, shuffle


def element(fn: FunctionText, pointer: str, scalar: str, dynamic: str | None, offset: int) -> str:
    """Address of element ``dynamic + offset``."""
    if dynamic is not None:
        pointer = fn.let("at", f"getelementptr inbounds {scalar}, ptr {pointer}, i64 {dynamic}")
    if offset:
        pointer = fn.let("at", f"getelementptr inbounds {scalar}, ptr {pointer}, i64 {offset}")
    return pointer


def load_lanes(fn: FunctionText, pointer: str, d: DType, dynamic: str | None, offsets: tuple[int, ...], invariant: bool, hint: str) -> Reg:
    """A register of ``len(offsets)`` lanes, lane i from element ``dynamic + offsets[i]``: one load where they are contiguous, a splat
    where they are one, else one load and a shuffle where they lie close together, else lane by lane."""
    width, low, high = len(offsets), min(offsets), max(offsets)
    span = high - low + 1
    mem = memory_type(d)
    tail = f", align {d.bytes}{INVARIANT if invariant else ''}"

    def read(at: int, lanes: int) -> Reg:
        address = element(fn, pointer, mem, dynamic, at)
        k = Lanes(fn, lanes)
        return from_memory(k, Reg(fn.let(hint, f"load {k.vt(mem)}, ptr {address}{tail}"), mem), d)

    if span == width and offsets == tuple(range(low, high + 1)):
        return read(low, width)
    if span <= 2 * width:
        block = read(low, span)
        return Reg(shuffle(fn, block.text, "poison", block.scalar, span, [o - low for o in offsets], hint), block.scalar)
    distinct = sorted(set(offsets))
    parts = {o: read(o, 1) for o in distinct}
    scalar = parts[low].scalar
    t = vector_type(width, scalar)
    out = "poison"
    for lane, o in enumerate(offsets):
        out = fn.let(hint, f"insertelement {t} {out}, {scalar} {parts[o].text}, i64 {lane}")
    return Reg(out, scalar)


def store_lanes(fn: FunctionText, pointer: str, d: DType, dynamic: str | None, offsets: tuple[int, ...], x: Reg) -> None:
    """Stores lane i of ``x`` (a register of dtype ``d``) to element ``dynamic + offsets[i]``; offsets are distinct."""
    width, mem = len(offsets), memory_type(d)
    raw = to_memory(Lanes(fn, width), x, d)
    order = sorted(range(width), key=lambda i: offsets[i])
    start = 0
    while start < width:
        stop = start + 1
        while stop < width and offsets[order[stop]] == offsets[order[stop - 1]] + 1:
            stop += 1
        lanes = order[start:stop]
        part = shuffle(fn, raw.text, "poison", mem, width, lanes, "run")
        address = element(fn, pointer, mem, dynamic, offsets[lanes[0]])
        fn.emit(f"store {vector_type(len(lanes), mem)} {part}, ptr {address}, align {d.bytes}")
        start = stop
