"""What a layer's ``def`` line says: the graph, tensor parameters with their spaces, static keyword-only arguments.

Read once, at decoration; everything that is not such a signature is an error there, located at the parameter.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnnc.ir.core import Loc

from .annotations import Space, SpaceAnnotation
from .errors import BadSignature, NotALayerFunction, UnresolvedAnnotation, UserError, described
from .source import make_loc, source_line, user_loc
from .statics import is_static_annotation

EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class TensorParam:
    """A tensor argument: its name and what it holds."""

    name: str
    annotation: SpaceAnnotation


@dataclass(frozen=True)
class StaticParam:
    """A keyword-only argument that is compiled in. ``annotation`` is EMPTY where none is given, so is ``default``."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class LayerSignature:
    """A layer's parameters. ``square``: some input is annotated with Node, so both ends are one node space."""

    name: str
    tensors: tuple[TensorParam, ...]
    statics: tuple[StaticParam, ...]
    square: bool
    source: DefinitionSource = field(compare=False)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.tensors)


class DefinitionSource:
    """Where a function's ``def`` and its parameters stand. The text is parsed when something asks."""

    def __init__(self, fn: types.FunctionType) -> None:
        self._fn = fn

    @functools.cached_property
    def _node(self) -> tuple[ast.FunctionDef, int] | None:
        """The ``def`` as syntax, and what to add to its line numbers; None where the text is unknown or is another function's."""
        code = self._fn.__code__
        try:
            lines, first = inspect.getsourcelines(code)
            indented = lines[0][:1].isspace()
            tree = ast.parse(("if 1:\n" if indented else "") + "".join(lines))
        except (OSError, TypeError, SyntaxError, IndexError, ValueError):
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                args = node.args
                if tuple(a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)) == names:
                    return node, first - 1 - indented
        return None

    def _loc(self, line: int, col: int | None, end_line: int | None, end_col: int | None) -> Loc:
        file = self._fn.__code__.co_filename
        return make_loc(file, line, col, end_line, end_col, source_line(file, line, self._fn.__globals__))

    def _of(self, node: ast.arg | ast.expr) -> Loc:
        assert self._node is not None
        add = self._node[1]
        return self._loc(node.lineno + add, node.col_offset, (node.end_lineno or node.lineno) + add, node.end_col_offset)

    def definition(self) -> Loc:
        """The ``def`` line, with the function's name underlined."""
        if self._node is None:
            return Loc(self._fn.__code__.co_filename, self._fn.__code__.co_firstlineno)
        node, add = self._node
        line = node.lineno + add
        text = source_line(self._fn.__code__.co_filename, line, self._fn.__globals__)
        col = text.find(node.name, node.col_offset + 3)
        return self._loc(line, len(text[:col].encode()), line, len(text[: col + len(node.name)].encode()))

    def param(self, name: str) -> Loc:
        """The parameter `name` in the ``def``, annotation included."""
        if self._node is not None:
            args = self._node[0].args
            for a in (*args.posonlyargs, *args.args, *args.kwonlyargs, *(x for x in (args.vararg, args.kwarg) if x)):
                if a.arg == name:
                    return self._of(a)
        return self.definition()

    def result(self) -> Loc:
        """The result expression, where there is one ``return``; else the ``def`` line."""
        if self._node is None:
            return self.definition()
        found: list[ast.expr] = []
        stack: list[ast.AST] = [*self._node[0].body]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Return) and node.value is not None:
                found.append(node.value)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                stack.extend(ast.iter_child_nodes(node))
        return self._of(found[0]) if len(found) == 1 else self.definition()


def read_signature(fn: object) -> tuple[LayerSignature, Callable[..., Any]]:
    """The signature of a layer and the function to call. Raises located errors of the GN1xx family."""
    fn = fn.__func__ if isinstance(fn, staticmethod) else fn
    inner = inspect.unwrap(fn) if callable(fn) else fn
    if not isinstance(fn, types.FunctionType) or not isinstance(inner, types.FunctionType):
        what = "a class" if isinstance(fn, type) else "a method bound to its object" if isinstance(fn, types.MethodType) else described(fn)
        raise NotALayerFunction(user_loc(), what=what)
    source = DefinitionSource(inner)
    for test, what in (
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.iscoroutinefunction, "a coroutine"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
    ):
        if test(inner):
            raise NotALayerFunction(source.definition(), what=what)
    params = list(inspect.signature(fn).parameters.values())
    names = _Names(inner)
    _check_graph(params, inner, source, names)
    tensors, statics = [], []
    for p in params[1:]:
        loc = functools.partial(source.param, p.name)
        annotation = names.resolve(p.name, p.annotation, loc)
        if p.kind is p.KEYWORD_ONLY:
            statics.append(_static(p, annotation, loc))
        else:
            tensors.append(_tensor(p, annotation, loc))
    square = any(t.annotation.space == "node" for t in tensors)
    name = inner.__name__ if inner.__name__.isidentifier() else "layer"
    return LayerSignature(name, tuple(tensors), tuple(statics), square, source), fn


def _check_graph(params: list[inspect.Parameter], fn: types.FunctionType, source: DefinitionSource, names: _Names) -> None:
    if not params or params[0].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise BadSignature(
            source.definition(),
            message=f"{fn.__name__} has no graph parameter",
            hint="the first parameter is the graph: def name(g, x: Src[...])",
        )
    first = params[0]
    if first.name in ("self", "cls"):
        raise BadSignature(
            source.param(first.name),
            message=f"{fn.__name__} is a method: its first parameter is {first.name}, not the graph",
            hint="make it a @staticmethod (above @gnnc.layer) or a function outside of the class; pass what it reads as arguments",
        )
    try:
        annotation = names.resolve(first.name, first.annotation, functools.partial(source.param, first.name))
    except UserError:  # whatever a type checker is told of the graph
        return
    if isinstance(annotation, SpaceAnnotation | Space):
        raise BadSignature(
            source.param(first.name),
            message=f"the first parameter {first.name} is the graph, but is annotated with {annotation}",
            hint=f"put the graph in front: def {fn.__name__}(g, {first.name}: {annotation}, ...)",
        )


def _tensor(p: inspect.Parameter, annotation: Any, loc: Callable[[], Loc]) -> TensorParam:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**"
        raise BadSignature(loc(), message=f"a layer cannot take {stars}{p.name}", hint="name every tensor and every static argument")
    if isinstance(annotation, Space):
        hint = f'say its feature dims: {annotation}["F"], {annotation}["H", "C"], or {annotation}[()] for one scalar a row'
        raise BadSignature(loc(), message=f"{p.name} is annotated with {annotation} alone", hint=hint)
    if not isinstance(annotation, SpaceAnnotation):
        if annotation is EMPTY:
            hint = 'say where it lives: Src["F"], Dst["F"], Edge["F"], Node["F"] or Param["F"]'
            raise BadSignature(loc(), message=f"{p.name} has no annotation", hint=hint)
        hint = f"tensors are annotated with Src, Dst, Edge, Node or Param; a static argument stands behind a `*`: (g, ..., *, {p.name})"
        raise BadSignature(loc(), message=f"{p.name} is annotated with {_shown(annotation)}, which is no space", hint=hint)
    if p.default is not EMPTY:
        raise BadSignature(
            loc(),
            message=f"the tensor {p.name} has a default",
            hint="every tensor is given at the call; write two layers or a static switch for an optional one",
        )
    return TensorParam(p.name, annotation)


def _static(p: inspect.Parameter, annotation: Any, loc: Callable[[], Loc]) -> StaticParam:
    if isinstance(annotation, SpaceAnnotation | Space):
        raise BadSignature(
            loc(),
            message=f"{p.name} is keyword-only, so it is static, but is annotated with {annotation}",
            hint="tensors stand in front of the `*`",
        )
    if annotation is not EMPTY and not is_static_annotation(annotation):
        raise BadSignature(
            loc(),
            message=f"the static argument {p.name} is annotated with {_shown(annotation)}",
            hint="static arguments are bool, int, float, str, None or tuples of them",
        )
    return StaticParam(p.name, annotation, p.default)


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)


class _Names:
    """Evaluates string annotations where the function was written: its globals, its closure, and the names of the block that
    contains it, as they are at decoration."""

    def __init__(self, fn: types.FunctionType) -> None:
        self._fn = fn

    @functools.cached_property
    def _locals(self) -> dict[str, Any]:
        out = dict(_enclosing_locals(self._fn.__code__))
        for name, cell in zip(self._fn.__code__.co_freevars, self._fn.__closure__ or (), strict=True):
            try:
                out[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        return out

    def resolve(self, name: str, annotation: Any, loc: Callable[[], Loc]) -> Any:
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        for _ in range(2):  # a quoted annotation under `from __future__ import annotations` is a string twice
            if not isinstance(annotation, str):
                break
            text = annotation
            try:
                annotation = eval(text, self._fn.__globals__, self._locals)
            except UserError as error:
                raise type(error)(loc(), hint=error.hint, **error.fields) from None
            except Exception as error:  # whatever the user's expression raises
                raise UnresolvedAnnotation(loc(), annotation=text, name=name, reason=f"{type(error).__name__}: {error}") from None
        return annotation


def _enclosing_locals(code: types.CodeType) -> dict[str, Any]:
    """Names of the frame that is running the block around the function: it holds the function's code as a constant."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if any(c is code for c in frame.f_code.co_consts):
            return frame.f_locals
        frame = frame.f_back
    return {}
