"""What a cubin says about its kernels: registers, stack, shared memory, read from the ELF sections without any tool.

``.nv.info`` is a list of attributes (format byte, attribute byte, 16-bit size, payload): EIATTR_REGCOUNT 0x2f and EIATTR_FRAME_SIZE 0x11
hold (symbol, value) pairs; a kernel's static shared memory is the size of ``.nv.shared.<kernel>``. Spills are not in the file: they come
from ptxas' own log (`parse_ptxas_log`).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

REGCOUNT, FRAME_SIZE = 0x2F, 0x11


@dataclass(frozen=True)
class Usage:
    """Resources of one kernel: registers a thread, bytes of stack a thread, bytes of static shared memory a block, bytes of spill stores
    and loads in the code (None where ptxas did not say)."""

    registers: int
    stack: int
    shared: int
    spill_stores: int | None = None
    spill_loads: int | None = None


def read_usage(cubin: bytes) -> dict[str, Usage]:
    """Kernel name -> usage, without spills. ValueError if this is no 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a cubin: no 64-bit ELF header")
    (shoff,) = struct.unpack_from("<Q", cubin, 0x28)
    shentsize, shnum, shstrndx = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, shoff + i * shentsize) for i in range(shnum)]

    def text(table: int, at: int) -> str:
        start = heads[table][4] + at
        return cubin[start : cubin.index(b"\0", start)].decode()

    names = [text(shstrndx, h[0]) for h in heads]
    symbols: dict[int, str] = {}
    for h in heads:
        if h[1] == 2:  # SHT_SYMTAB
            for i in range(h[5] // 24):
                (name,) = struct.unpack_from("<I", cubin, h[4] + 24 * i)
                symbols[i] = text(h[6], name)
    registers: dict[str, int] = {}
    stack: dict[str, int] = {}
    for name, h in zip(names, heads, strict=True):
        if name == ".nv.info":
            for attribute, payload in _attributes(cubin[h[4] : h[4] + h[5]]):
                if attribute in (REGCOUNT, FRAME_SIZE):
                    symbol, value = struct.unpack("<II", payload[:8])
                    (registers if attribute == REGCOUNT else stack)[symbols[symbol]] = value
    shared = {n.removeprefix(".nv.shared."): h[5] for n, h in zip(names, heads, strict=True) if n.startswith(".nv.shared.")}
    kernels = [n.removeprefix(".text.") for n in names if n.startswith(".text.")]
    return {k: Usage(registers.get(k, 0), stack.get(k, 0), shared.get(k, 0)) for k in sorted(kernels)}


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    out, at = [], 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:  # a payload of `size` bytes; the other formats keep their value in `size`
            out.append((attribute, data[at : at + size]))
            at += size
    return out


def parse_ptxas_log(log: str) -> dict[str, tuple[int, int]]:
    """Kernel name -> bytes of (spill stores, spill loads), from ``ptxas -v``."""
    out: dict[str, tuple[int, int]] = {}
    name = ""
    for line in log.splitlines():
        if m := re.search(r"Function properties for (\S+)", line):
            name = m.group(1)
        elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            out[name] = (int(m.group(1)), int(m.group(2)))
    return out
