"""Layers from source text: written to a file of their own, so that locations are as a user sees them."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gnnc.frontend.errors import UserError
from gnnc.frontend.layer_function import LayerFunction
from gnnc.ir.core import Func
from gnnc.ir.types import F32, DType, Type

HEADER = "from gnnc.lang import *\nfrom gnnc.frontend.layer_function import LayerFunction as layer\n"
_numbers = itertools.count()

SRC, DST = Type("src", F32, (4,)), Type("dst", F32, (4,))
EDGE, PARAM = Type("edge", F32, (4,)), Type("param", F32, (4, 2))
ARGUMENTS = 'x: Src["F"], y: Dst["F"], e: Edge["F"], w: Param["F", "G"]'


class Module:
    """The names of an executed source file."""

    def __init__(self, folder: Path, source: str, header: str = HEADER, newline: str = "\n") -> None:
        self.path = folder / f"layer{next(_numbers)}.py"
        self.path.write_bytes((header + textwrap.dedent(source).lstrip("\n")).replace("\n", newline).encode())
        self.names: dict[str, Any] = {"__name__": "user"}

    def run(self) -> Module:
        exec(compile(self.path.read_bytes(), str(self.path), "exec", dont_inherit=True), self.names)
        return self

    def __getattr__(self, name: str) -> Any:
        return self.names[name]

    def error(self, act: Callable[[Module], object], kind: type[Exception]) -> str:
        """The whole text of the located error that `act` raises, the file written as ``layer.py``; it must be a `kind` too."""
        with pytest.raises(UserError) as caught:
            act(self)
        assert isinstance(caught.value, kind), type(caught.value).__mro__
        return str(caught.value).replace(str(self.path), "layer.py")


def body_module(folder: Path, body: str, arguments: str = ARGUMENTS, before: str = "") -> Module:
    """A module with one layer ``f``; its body starts at line 5 (without `before`)."""
    text = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return Module(folder, f"{before}@layer\ndef f(g, {arguments}):\n{text}\n")


def trace_body(
    folder: Path,
    body: str,
    arguments: str = ARGUMENTS,
    types: Sequence[Type] = (SRC, DST, EDGE, PARAM),
    out: DType = F32,
    before: str = "",
    **statics: Any,
) -> Func:
    """A layer body traced for types."""
    f: LayerFunction = body_module(folder, body, arguments, before).run().f
    return f.trace_types(types, statics, out)


def body_error(
    folder: Path, body: str, kind: type[Exception], arguments: str = ARGUMENTS, types: Sequence[Type] = (SRC, DST, EDGE, PARAM)
) -> str:
    """The error of tracing a layer body, without its location's file."""
    module = body_module(folder, body, arguments).run()
    return module.error(lambda m: m.f.trace_types(types, {}, F32), kind)
