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
        whole, lanes = _whole_block(fn, [read(low + at, n) for at, n in powers(span)], span, hint)
        return Reg(shuffle(fn, whole.text, "poison", whole.scalar, lanes, [o - low for o in offsets], hint), whole.scalar)
    distinct = sorted(set(offsets))
    parts = {o: read(o, 1) for o in distinct}
    scalar = parts[low].scalar
    t = vector_type(width, scalar)
    out = "poison"
    for lane, o in enumerate(offsets):
        out = fn.let(hint, f"insertelement {t} {out}, {scalar} {parts[o].text}, i64 {lane}")
    return Reg(out, scalar)


def powers(count: int) -> list[tuple[int, int]]:
    """(start, size) of the powers of two that make up ``count``, largest first. LLVM's selection is only sound and quick for those."""
    out, at = [], 0
    for bit in reversed(range(count.bit_length())):
        if count >> bit & 1:
            out.append((at, 1 << bit))
            at += 1 << bit
    return out


def _whole_block(fn: FunctionText, parts: list[Reg], span: int, hint: str) -> tuple[Reg, int]:
    """Consecutive registers of the sizes of `powers` as one register of a power of two lanes, and its width."""
    if len(parts) == 1:
        return parts[0], span
    lanes = 1 << span.bit_length()
    scalar = parts[0].scalar
    merged, filled = "", 0
    for (at, n), part in zip(powers(span), parts, strict=True):
        wide = shuffle(fn, part.text, "poison", scalar, n, [min(i, n - 1) for i in range(lanes)], hint)
        if merged:
            mask = [i if i < at else lanes + i - at if i < at + n else i for i in range(lanes)]
            wide = shuffle(fn, merged, wide, scalar, lanes, mask, hint)
        merged, filled = wide, at + n
    assert filled == span
    return Reg(merged, scalar), lanes


class Registers:
    """Scratch values that are still in registers: element by element, which lane of which register holds it.

    Loads of them are shuffles, made here and not left to LLVM: its pass that turns memory into registers (SROA of LLVM 22) merges
    stores of mixed widths in the order of their addresses and may then use a register before it is defined.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], dict[int, tuple[str, int, int]]] = {}
        self._scalars: dict[tuple[str, int], str] = {}

    def note(self, base: tuple[str, int], offsets: tuple[int, ...], x: Reg) -> None:
        """``x`` was stored to these elements of ``base``, at a place that every later reader comes after."""
        known = self._lanes.setdefault(base, {})
        self._scalars[base] = x.scalar
        for lane, o in enumerate(offsets):
            known[o] = (x.text, len(offsets), lane)

    def read(self, fn: FunctionText, base: tuple[str, int], offsets: tuple[int, ...], hint: str) -> Reg | None:
        """The elements ``offsets`` in one register; None unless all are known."""
        known = self._lanes.get(base)
        if known is None or any(o not in known for o in offsets):
            return None
        scalar, width = self._scalars[base], len(offsets)
        picks = [known[o] for o in offsets]
        sources = dict.fromkeys((text, lanes) for text, lanes, _lane in picks)
        merged = ""
        for text, lanes in sources:
            mine = [lane if (t, n) == (text, lanes) else -1 for t, n, lane in picks]
            first = next(lane for lane in mine if lane >= 0)
            if width == 1:
                return Reg(shuffle(fn, text, "poison", scalar, lanes, [first], hint), scalar)
            part = shuffle(fn, text, "poison", scalar, lanes, [lane if lane >= 0 else first for lane in mine], hint)
            if merged:
                mask = [i if lane < 0 else width + i for i, lane in enumerate(mine)]
                part = shuffle(fn, merged, part, scalar, width, mask, hint)
            merged = part
        return Reg(merged, scalar)


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
        for at, n in powers(stop - start):
            lanes = order[start + at : start + at + n]
            part = shuffle(fn, raw.text, "poison", mem, width, lanes, "run")
            address = element(fn, pointer, mem, dynamic, offsets[lanes[0]])
            fn.emit(f"store {vector_type(n, mem)} {part}, ptr {address}, align {d.bytes}")
        start = stop
