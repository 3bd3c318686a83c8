"""Runs passes in order, verifies behind each, names the one that broke its function, and knows every pass by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from importlib import import_module
from typing import Any, Protocol

from gnnc.ir.core import Func
from gnnc.ir.printer import print_func
from gnnc.ir.types import TypeRuleError
from gnnc.ir.verifier import VerifyError, verify

OnStage = Callable[[str, Func, Func], None]


class Pass(Protocol):
    """A frozen dataclass: its fields are the pass's options, `name` (a class attribute) its name in pipelines."""

    @property
    def name(self) -> str: ...

    def run(self, func: Func) -> Func:
        """A new function; `func` is left as it is. TypeRuleError ``no-gradient`` is the user's; anything else is the pass's fault."""
        ...


class BrokenPassError(Exception):
    """A pass failed or made IR that the verifier refuses: a fault of the compiler. ``pass_name``, ``before`` and ``after`` (texts;
    ``after`` is "" when there is none) and ``why``."""

    def __init__(self, pass_name: str, why: str, before: str, after: str) -> None:
        self.pass_name, self.why, self.before, self.after = pass_name, why, before, after
        shown = f"--- before\n{before}" + (f"--- after\n{after}" if after else "")
        super().__init__(f"internal error, please report: the pass {pass_name} is broken: {why}\n{shown}")


def run_pass(pass_: Pass, func: Func) -> Func:
    """`func` after one pass, verified. Raises BrokenPassError; TypeRuleError ``no-gradient`` passes through, it is the user's."""
    try:
        out = pass_.run(func)
    except TypeRuleError as e:
        if e.code == "no-gradient":
            raise
        raise BrokenPassError(pass_.name, f"TypeRuleError: {e}", print_func(func), "") from e
    except Exception as e:
        raise BrokenPassError(pass_.name, f"{type(e).__name__}: {e}", print_func(func), "") from e
    try:
        verify(out, where=f"after {pass_.name}")
    except VerifyError as e:
        raise BrokenPassError(pass_.name, str(e), print_func(func), print_func(out)) from e
    return out


@dataclass(frozen=True)
class PassManager:
    """Passes in order. ``on_stage(name, before, after)`` sees every step, for dumps and explain."""

    passes: tuple[Pass, ...]
    on_stage: OnStage | None = None

    def __init__(self, passes: Sequence[Pass], on_stage: OnStage | None = None) -> None:
        object.__setattr__(self, "passes", tuple(passes))
        object.__setattr__(self, "on_stage", on_stage)

    def run(self, func: Func) -> Func:
        """`func` after all passes. Raises VerifyError when `func` itself is illegal, else as `run_pass`."""
        verify(func)
        for p in self.passes:
            out = run_pass(p, func)
            if self.on_stage is not None:
                self.on_stage(p.name, func, out)
            func = out
        return func


# ---- passes by name


def _lazy(module: str, cls: str) -> Callable[[], type[Any]]:
    """The class, imported when a pipeline first names it."""

    def load() -> type[Any]:
        found: type[Any] = getattr(import_module(module), cls)
        return found

    return load


PASSES: dict[str, Callable[[], type[Any]]] = {
    "simplify": _lazy("gnnc.passes.simplify", "Simplify"),
    "differentiate": _lazy("gnnc.passes.differentiate", "Differentiate"),
    "lower_softmax": _lazy("gnnc.passes.lower_softmax", "LowerSoftmax"),
}


def parse_pipeline(text: str) -> list[Pass]:
    """Passes from ``simplify,differentiate{wrt=x;att},lower_softmax``: commas between passes, in braces options separated by spaces,
    ``;`` between the items of a tuple. Raises ValueError that says what is wrong."""
    out: list[Pass] = []
    rest = text.strip()
    while rest:
        m = re.match(r"\s*([A-Za-z_]\w*)\s*(?:\{([^{}]*)\})?\s*(,|\Z)", rest)
        if m is None:
            raise ValueError(f"cannot read the pipeline {text!r} at {rest!r}")
        out.append(_make(m[1], m[2] or ""))
        rest = rest[m.end() :]
        if m[3] and not rest.strip():
            raise ValueError(f"the pipeline {text!r} ends with a comma")
    return out


def _make(name: str, options: str) -> Pass:
    if name not in PASSES:
        raise ValueError(f"unknown pass {name!r}, one of {', '.join(PASSES)}")
    cls = PASSES[name]()
    known = {f.name: f for f in fields(cls)}
    given = {}
    for item in options.split():
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"pass {name}: {item!r} is no option, write key=value")
        if key not in known:
            has = f"one of {', '.join(known)}" if known else "it has none"
            raise ValueError(f"pass {name} has no option {key!r}, {has}")
        given[key] = _option(name, known[key], value)
    made: Pass = cls(**given)
    return made


def _option(name: str, field: Field[Any], text: str) -> object:
    """An option's value, of the type of the field's default."""
    default = field.default
    if isinstance(default, tuple):
        return tuple(part for part in text.split(";") if part)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"pass {name}: {field.name} is true or false, not {text!r}")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"pass {name}: {field.name} is an integer, not {text!r}") from None
    return text
