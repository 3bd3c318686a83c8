"""IR as text: what `parser.py` reads back to an equal function or plan.

The text is canonical: values are numbered in body order, attributes that have their default are left out (except the side of a
graph operation, which is always said), and nothing but the structure decides a character. Locations are comments, on request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

from .builder import attr_key
from .core import Attr, Func, Value
from .monoid import Monoid
from .ops import OPS
from .structure import index_dtype_of, monoid_funcs
from .sweep import PlanSpec, SweepSpec
from .types import I32, Type

WIDTH = 120  # a header longer than this has one parameter a line
SIDES = ("end", "to", "over")  # attributes that are printed even where they have their default
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
BUFFER = re.compile(r"\$[A-Za-z0-9_]+(:[A-Za-z0-9_]+)?\Z")


def print_func(func: Func, locs: bool = False) -> str:
    """The text of a function. `locs`: every operation's source line as a comment behind it."""
    return "\n".join(_func_lines(func, locs)) + "\n"


def print_plan(plan: PlanSpec) -> str:
    """The text of a plan: its steps in order, each with its program."""
    lines = _header(
        f"plan {symbol(plan.name)}",
        [f"{name_text(n)}: {t}" for n, t in plan.params],
        [f"{name_text(n)}: {t}" for n, t in plan.results],
        " square {" if plan.square else " {",
    )
    for step in plan.steps:
        if isinstance(step, SweepSpec):
            lines.append(f"  sweep {symbol(step.name)} by {step.grouped_by or 'none'} rows {step.rows} {{")
            lines.append(f"    family {_string(step.family)}")
            lines.append(f"    reason {_string(step.reason)}")
            schedule = ", ".join(f"{f.name} = {attr_text(getattr(step.schedule, f.name))}" for f in fields(step.schedule))
            lines.append(f"    schedule {{{schedule}}}")
        else:
            lines.append(f"  dense {symbol(step.name)} {{")
        lines += _indented(_func_lines(step.func, False), 4)
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


# ---- pieces, shared with error messages


def symbol(name: str) -> str:
    """A function's, plan's, step's or monoid's name."""
    return f"@{name}" if PLAIN.match(name) else f"@{_string(name)}"


def name_text(name: str) -> str:
    """A buffer's or result's name."""
    return name if PLAIN.match(name) or BUFFER.match(name) else _string(name)


def attr_text(value: Attr) -> str:
    """An attribute's value. Floats keep a point, an exponent, ``inf`` or ``nan``; integers have none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(attr_text(v) for v in value)}]"
    if isinstance(value, str):
        return _string(value)
    return repr(value)


def value_names(func: Func) -> dict[Value, str]:
    """``%name`` of every input, ``%number`` of every other value, in body order."""
    names = {p: f"%{name_text(p.name)}" for p in func.params if p.op == "input"}
    for i, v in enumerate(func.body):
        names[v] = f"%{i}"
        for o in v.operands:
            if o.op == "input":
                names.setdefault(o, f"%{name_text(o.name)}")
    for r in func.results:
        if r.op == "input":
            names.setdefault(r, f"%{name_text(r.name)}")
    return names


def op_text(v: Value, names: dict[Value, str]) -> str:
    """One operation's line."""
    defaults = dict(OPS[v.op].attrs) if v.op in OPS else {}
    shown = [f"{k} = {attr_text(a)}" for k, a in v.attrs if k in SIDES or k not in defaults or not _same_attr(defaults[k], a)]
    operands = " " + ", ".join(names.get(o, "%?") for o in v.operands) if v.operands else ""
    attrs = f" {{{', '.join(shown)}}}" if shown else ""
    return f"{names.get(v, '%?')} = {v.op}{operands}{attrs} : {v.type}"


# ---- functions


def _func_lines(func: Func, locs: bool) -> list[str]:
    names = value_names(func)
    index = index_dtype_of(func)
    modifiers = f" stage {func.stage}" + (" square" if func.square else "") + ("" if index is I32 else f" index {index}")
    lines = _header(
        f"func {symbol(func.name)}",
        [f"{names[p]}: {p.type}" for p in func.params],
        [_field(n, r.type) for n, r in zip(func.result_names, func.results, strict=True)],
        f"{modifiers} {{",
    )
    for m in func.monoids:
        lines += _indented(_monoid_lines(m), 2)
    for v in func.body:
        comment = f"  // {v.loc}: {v.loc.text.strip()}".rstrip(" :") if locs and v.loc is not None else ""
        lines.append(f"  {op_text(v, names)}{comment}")
    results = ", ".join(names[r] for r in func.results)
    return [*lines, f"  return {results}".rstrip(), "}"]


def _monoid_lines(m: Monoid) -> list[str]:
    lines = [f"monoid {symbol(m.name)} arity {m.arity}{' edge_id' if m.uses_edge_id else ''} {{"]
    if m.doc:
        lines.append(f"  doc {_string(m.doc)}")
    for c in m.components:
        lines.append(f"  component {name_text(c.name)} : {c.kind} = {attr_text(c.init)} like {attr_text(c.like)}")
    for role, func in monoid_funcs(m):
        word, _, part = role.partition(" ")
        body = _func_lines(func, False)
        lines += _indented([f"{word} {name_text(part)} {body[0]}" if part else f"{word} {body[0]}", *body[1:]], 2)
    return [*lines, "}"]


def _header(head: str, params: Sequence[str], results: Sequence[str], tail: str) -> list[str]:
    line = f"{head}({', '.join(params)}) -> ({', '.join(results)}){tail}"
    if len(line) <= WIDTH:
        return [line]
    out = [f"{head}("]
    out += [f"    {p}," for p in params[:-1]] + [f"    {p}" for p in params[-1:]]
    out.append(") -> (")
    out += [f"    {r}," for r in results[:-1]] + [f"    {r}" for r in results[-1:]]
    return [*out, f"){tail}"]


def _field(name: str, type: Type) -> str:
    return f"{name_text(name)}: {type}"


def _indented(lines: Iterable[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _same_attr(default: object, value: Attr) -> bool:
    simple = default is None or isinstance(default, bool | int | float | str | tuple)
    return simple and attr_key(default) == attr_key(value)  # type: ignore[arg-type]
