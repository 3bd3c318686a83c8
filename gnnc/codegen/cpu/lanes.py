"""Instructions over registers of a fixed number of lanes: the alphabet that elementwise operations and polynomials are written in.

A `Reg` is an SSA name (or literal) with its scalar type. Floating instructions carry ``contract`` and no other fast-math flag:
a fused multiply-add is welcome, but NaN, infinities, signs of zero and the order of additions are kept.
"""

from __future__ import annotations

from typing import NamedTuple

from .emit_text import FunctionText, splat, suffix, vector_type


class Reg(NamedTuple):
    """A register: ``text`` is an SSA name or a literal, ``scalar`` the LLVM type of one lane."""

    text: str
    scalar: str

    @property
    def is_float(self) -> bool:
        return self.scalar in ("float", "double")


class Lanes:
    """Emits instructions of ``width`` lanes into a function."""

    def __init__(self, fn: FunctionText, width: int) -> None:
        self.fn, self.width = fn, width

    def vt(self, scalar: str) -> str:
        return vector_type(self.width, scalar)

    def const(self, value: float | int | bool, scalar: str) -> Reg:
        return Reg(splat(self.width, value, scalar), scalar)

    def like(self, x: Reg, value: float | int) -> Reg:
        return self.const(value, x.scalar)

    def _binary(self, hint: str, op: str, x: Reg, y: Reg) -> Reg:
        assert x.scalar == y.scalar, (op, x, y)
        return Reg(self.fn.let(hint, f"{op} {self.vt(x.scalar)} {x.text}, {y.text}"), x.scalar)

    def arith(self, op: str, x: Reg, y: Reg, hint: str = "") -> Reg:
        """``add``, ``sub``, ``mul``, ``div`` of floats (contract) or integers (not div)."""
        name = f"f{op} contract" if x.is_float else op
        return self._binary(hint or op, name, x, y)

    def add(self, x: Reg, y: Reg) -> Reg:
        return self.arith("add", x, y)

    def sub(self, x: Reg, y: Reg) -> Reg:
        return self.arith("sub", x, y)

    def mul(self, x: Reg, y: Reg) -> Reg:
        return self.arith("mul", x, y)

    def div(self, x: Reg, y: Reg) -> Reg:
        return self.arith("div", x, y)

    def bits(self, op: str, x: Reg, y: Reg) -> Reg:
        """An integer or logical instruction: and, or, xor, shl, lshr, ashr."""
        return self._binary(op, op, x, y)

    def madd(self, x: Reg, y: Reg, z: Reg) -> Reg:
        """x * y + z, fused where the target can."""
        return self.add(self.mul(x, y), z)

    def poly(self, x: Reg, coefficients: list[float]) -> Reg:
        """Horner's rule, highest power first."""
        acc = self.like(x, coefficients[0])
        for c in coefficients[1:]:
            acc = self.madd(acc, x, self.like(x, c))
        return acc

    def neg(self, x: Reg) -> Reg:
        if x.is_float:
            return Reg(self.fn.let("neg", f"fneg {self.vt(x.scalar)} {x.text}"), x.scalar)
        return self.sub(self.like(x, 0), x)

    def compare(self, condition: str, x: Reg, y: Reg) -> Reg:
        """``condition`` is LLVM's word: olt, ogt, oeq, une, uno ... for floats, slt, ult, eq ... for integers."""
        op = "fcmp" if x.is_float else "icmp"
        return Reg(self.fn.let(condition, f"{op} {condition} {self.vt(x.scalar)} {x.text}, {y.text}"), "i1")

    def select(self, cond: Reg, x: Reg, y: Reg) -> Reg:
        assert x.scalar == y.scalar, (x, y)
        t = self.vt(x.scalar)
        return Reg(self.fn.let("select", f"select {self.vt('i1')} {cond.text}, {t} {x.text}, {t} {y.text}"), x.scalar)

    def convert(self, op: str, x: Reg, to: str) -> Reg:
        """A cast instruction: fpext, fptrunc, sitofp, uitofp, sext, zext, trunc, bitcast."""
        if x.scalar == to:
            return x
        return Reg(self.fn.let(op, f"{op} {self.vt(x.scalar)} {x.text} to {self.vt(to)}"), to)

    def intrinsic(self, name: str, x: Reg, *more: Reg) -> Reg:
        """An LLVM intrinsic overloaded on its first operand's type, with operands and result of that type."""
        t = self.vt(x.scalar)
        full = f"@llvm.{name}.{suffix(self.width, x.scalar)}"
        regs = [x, *more]
        self.fn.module.declare(f"{t} {full}({', '.join(t for _ in regs)})")
        return Reg(self.fn.let(name, f"call {t} {full}({', '.join(f'{t} {r.text}' for r in regs)})"), x.scalar)

    def call(self, name: str, result: str, *args: Reg) -> Reg:
        """A helper of this module (`math.py`), by its full name."""
        given = ", ".join(f"{self.vt(a.scalar)} {a.text}" for a in args)
        return Reg(self.fn.let(name.split(".")[1], f"call {self.vt(result)} @{name}({given})"), result)

    def each_lane(self, symbol: str, *args: Reg) -> Reg:
        """A C library function of scalars, called lane by lane."""
        s = args[0].scalar
        self.fn.module.declare(f"{s} @{symbol}({', '.join(a.scalar for a in args)})")
        if self.width == 1:
            given = ", ".join(f"{a.scalar} {a.text}" for a in args)
            return Reg(self.fn.let(symbol, f"call {s} @{symbol}({given})"), s)
        out = "poison"
        for lane in range(self.width):
            parts = [self.fn.let("lane", f"extractelement {self.vt(a.scalar)} {a.text}, i64 {lane}") for a in args]
            given = ", ".join(f"{s} {p}" for p in parts)
            one = self.fn.let(symbol, f"call {s} @{symbol}({given})")
            out = self.fn.let("lanes", f"insertelement {self.vt(s)} {out}, {s} {one}, i64 {lane}")
        return Reg(out, s)

    # ---- what several operations share

    def maximum(self, x: Reg, y: Reg) -> Reg:
        """The larger; a NaN of either side wins."""
        if not x.is_float:
            return self.intrinsic("smax", x, y)
        return self.select(self.compare("uno", x, x), x, self.select(self.compare("ogt", x, y), x, y))

    def minimum(self, x: Reg, y: Reg) -> Reg:
        if not x.is_float:
            return self.intrinsic("smin", x, y)
        return self.select(self.compare("uno", x, x), x, self.select(self.compare("olt", x, y), x, y))

    def fabs(self, x: Reg) -> Reg:
        return self.intrinsic("fabs", x)

    def shuffle(self, x: str, y: str, scalar: str, source_width: int, mask: list[int], hint: str = "shuffle") -> str:
        """Lanes of ``x`` then ``y`` (each ``source_width`` wide) picked by ``mask``; scalars in and out where a width is 1."""
        return shuffle(self.fn, x, y, scalar, source_width, mask, hint)


def shuffle(fn: FunctionText, x: str, y: str, scalar: str, source_width: int, mask: list[int], hint: str = "shuffle") -> str:
    """``shufflevector`` that also takes and gives scalars (width 1). ``y`` may be ``poison``."""
    if source_width == 1:
        if len(mask) == 1:
            return x if mask[0] == 0 else y
        t = vector_type(len(mask), scalar)
        if all(m == 0 for m in mask):
            one = fn.let(f"{hint}.in", f"insertelement {t} poison, {scalar} {x}, i64 0")
            zeros = f"<{len(mask)} x i32> zeroinitializer"
            return fn.let(hint, f"shufflevector {t} {one}, {t} poison, {zeros}")
        out = "poison"
        for lane, m in enumerate(mask):
            out = fn.let(hint, f"insertelement {t} {out}, {scalar} {x if m == 0 else y}, i64 {lane}")
        return out
    t = vector_type(source_width, scalar)
    if len(mask) == 1:
        source, lane = (x, mask[0]) if mask[0] < source_width else (y, mask[0] - source_width)
        return fn.let(hint, f"extractelement {t} {source}, i64 {lane}")
    if mask == list(range(source_width)):
        return x
    lanes = ", ".join(f"i32 {m}" for m in mask)
    return fn.let(hint, f"shufflevector {t} {x}, {t} {y}, <{len(mask)} x i32> <{lanes}>")
