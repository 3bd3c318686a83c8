"""LLVM IR as text: functions, blocks, loops and SSA names.

Nothing here knows a sweep. Names come from hints and per-function counters, so the same program always gives the same text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INVARIANT = ", !invariant.load !0"


def vector_type(width: int, scalar: str) -> str:
    """``<width x scalar>``; a width of 1 is the scalar itself."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


def suffix(width: int, scalar: str) -> str:
    """How intrinsics spell a type: ``v8f32``, ``f64``, ``v4i32``."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(scalar, scalar)
    return short if width == 1 else f"v{width}{short}"


def constant(value: float | int | bool, scalar: str) -> str:
    """A literal of a scalar type, exact. Floats that are not small whole numbers are written as the bits of a double."""
    if scalar == "i1":
        return "true" if value else "false"
    if scalar in ("float", "double"):
        v = float(value)
        if scalar == "float":
            v = round_to_f32(v)
        if v == v and abs(v) < 1e6 and v == int(v) and not (v == 0 and str(v)[0] == "-"):
            return f"{v:.1f}"
        return "0x" + struct.pack(">d", v).hex().upper()
    bits = int(scalar[1:])
    v = int(value) & ((1 << bits) - 1)
    return str(v - (1 << bits) if v >> (bits - 1) else v)


def round_to_f32(value: float) -> float:
    """The nearest f32, inf beyond its range."""
    if value != value:
        return float("nan")
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def splat(width: int, value: float | int | bool, scalar: str) -> str:
    """A literal with the same value in every lane."""
    text = constant(value, scalar)
    return text if width == 1 else f"splat ({scalar} {text})"


def identifier(text: str) -> str:
    """``text`` made fit for an LLVM name."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", text) or "v"


@dataclass
class ModuleText:
    """A module under construction: declarations, internal helpers and constants, each once, and the functions in order."""

    declarations: dict[str, None] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)

    def declare(self, signature: str) -> None:
        """Notes an external function such as ``float @erff(float)``."""
        self.declarations[signature] = None

    def text(self, header: str) -> str:
        parts = [header.rstrip()]
        if self.constants:
            parts.append("\n".join(self.constants[k] for k in sorted(self.constants)))
        parts += self.functions
        parts += [self.helpers[k] for k in sorted(self.helpers)]
        if self.declarations:
            parts.append("\n".join(f"declare {d}" for d in sorted(self.declarations)))
        parts.append("!0 = !{}")
        return "\n\n".join(parts) + "\n"


class FunctionText:
    """One function under construction. `let` emits an instruction with a result; allocas go to the entry block."""

    def __init__(self, module: ModuleText, head: str, entry: str = "entry") -> None:
        self.module, self.head = module, head
        self._names: dict[str, int] = {}
        self._allocas: list[str] = []
        self._lines: list[str] = []
        self._entry = entry
        self.block = self.fresh(entry)

    def fresh(self, hint: str) -> str:
        """A name nobody has in this function, without its ``%``."""
        base = identifier(hint)
        n = self._names.get(base, 0)
        self._names[base] = n + 1
        return base if n == 0 else f"{base}.{n}"

    def emit(self, line: str) -> None:
        self._lines.append(f"  {line}")

    def comment(self, text: str) -> None:
        self._lines.append(f"  ; {text}")

    def let(self, hint: str, rhs: str) -> str:
        name = "%" + self.fresh(hint)
        self._lines.append(f"  {name} = {rhs}")
        return name

    def alloca(self, hint: str, elements: int, scalar: str, width: int = 1) -> str:
        """Stack memory for ``elements`` values, 64-byte aligned, made once at function entry."""
        name = "%" + self.fresh(hint)
        count = "" if elements == 1 else f"[{max(elements, 1)} x {vector_type(width, scalar)}]"
        self._allocas.append(f"  {name} = alloca {count or vector_type(width, scalar)}, align 64")
        return name

    def place(self, label: str) -> None:
        """Starts the block ``label``."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch_if(self, cond: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {cond}, label %{yes}, label %{no}")

    @contextmanager
    def loop(self, hint: str, start: str, stop: str, step: int = 1) -> Iterator[str]:
        """``for (i64 i = start; i < stop; i += step)``; yields the counter."""
        head, body, latch, end = (self.fresh(f"{hint}.{part}") for part in ("head", "body", "latch", "end"))
        i, following = self.fresh(hint), self.fresh(f"{hint}.next")
        before = self.block
        self.branch(head)
        self.place(head)
        self.emit(f"%{i} = phi i64 [ {start}, %{before} ], [ %{following}, %{latch} ]")
        more = self.let(f"{hint}.more", f"icmp slt i64 %{i}, {stop}")
        self.branch_if(more, body, end)
        self.place(body)
        yield f"%{i}"
        self.branch(latch)
        self.place(latch)
        self.emit(f"%{following} = add nsw i64 %{i}, {step}")
        self.branch(head)
        self.place(end)

    def load_pointer(self, hint: str, array: str, index: int) -> str:
        """Element ``index`` of an array of pointers."""
        at = self.let(f"{hint}.at", f"getelementptr inbounds ptr, ptr {array}, i64 {index}")
        return self.let(hint, f"load ptr, ptr {at}, align 8{INVARIANT}")

    def finish(self) -> str:
        lines = [f"{self.head} {{", f"{self._entry}:", *self._allocas, *self._lines, "}"]
        return "\n".join(lines)
