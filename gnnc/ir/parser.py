"""IR text back to IR: the lark grammar's tree, rebuilt through the `Builder`.

Every operation's type is inferred anew and compared with the written one, so text that parses is well typed. Operations whose
result nobody reads are accepted and vanish: a function is what its results reach.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from .builder import Builder
from .core import Attr, Func, Value
from .monoid import Component, Monoid
from .sweep import DenseSpec, PlanSpec, Schedule, StepSpec, SweepSpec
from .types import DTYPES, I32, SPACES, DType, Type, TypeRuleError

if TYPE_CHECKING:
    from lark import Lark

Node = Any  # a lark Tree or Token (or None for an absent part): lark does not type what a tree holds


class IRParseError(Exception):
    """Text that is no IR. ``message`` says why; ``file``, ``line``, ``column`` (both 1-based) and ``source`` (the line) say where."""

    def __init__(self, message: str, file: str, line: int, column: int, source: str) -> None:
        self.message, self.file, self.line, self.column, self.source = message, file, line, column, source
        caret = "".join("\t" if c == "\t" else " " for c in source[: column - 1].ljust(column - 1)) + "^"
        super().__init__(f"{file}:{line}:{column}: {message}\n  {source}\n  {caret}")


def parse_module(text: str, file: str = "<text>") -> list[Func]:
    """The functions of `text`, in order. Raises IRParseError."""
    reader = _Reader(text, file)
    out = []
    for item in reader.items():
        if item.data != "func":
            raise reader.error(item, "a plan where functions are expected")
        out.append(reader.func(item))
    return out


def parse_func(text: str, file: str = "<text>") -> Func:
    """The one function of `text`. Raises IRParseError."""
    reader = _Reader(text, file)
    return reader.func(reader.only("func", "function"))


def parse_plan(text: str, file: str = "<text>") -> PlanSpec:
    """The one plan of `text`. Raises IRParseError."""
    reader = _Reader(text, file)
    return reader.plan(reader.only("plan", "plan"))


@cache
def _lark() -> Lark:
    from lark import Lark

    grammar = resources.files("gnnc.ir").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", start="module", propagate_positions=True, maybe_placeholders=True)


READABLE = {
    "SYMBOL": "a @name",
    "VALUE": "a %value",
    "NAME": "a name",
    "STRING": "a string",
    "INT": "an integer",
    "FLOAT": "a number",
    "EDGE_ID": "'edge_id'",
    "SQUARE": "'square'",
    "$END": "the end",
}


class _Reader:
    """One text on its way to IR."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines = text.splitlines() or [""]
        self.tree = self._parse(text)

    # ---- errors

    def error(self, at: Node, message: str) -> IRParseError:
        """An error located at a token or at the first token of a tree."""
        where = at.meta if hasattr(at, "meta") else at
        return self._error(message, getattr(where, "line", None) or 1, getattr(where, "column", None) or 1)

    def _error(self, message: str, line: int, column: int) -> IRParseError:
        return IRParseError(message, self.file, line, column, self.lines[line - 1] if line <= len(self.lines) else "")

    def _parse(self, text: str) -> Node:
        from lark.exceptions import UnexpectedCharacters, UnexpectedToken

        try:
            return _lark().parse(text)
        except UnexpectedToken as e:
            wanted = self._readable(e.accepts or e.expected)
            if e.token.type == "$END":
                line = max((i for i, s in enumerate(self.lines, 1) if s.strip()), default=1)
                raise self._error(f"the text ends here, expected {wanted}", line, len(self.lines[line - 1]) + 1) from None
            raise self._error(f"unexpected {str(e.token)!r}, expected {wanted}", e.line, e.column) from None
        except UnexpectedCharacters as e:
            wanted = self._readable(e.allowed or set())
            raise self._error(f"unexpected {e.char!r}, expected {wanted}", e.line, e.column) from None

    @staticmethod
    def _readable(terminals: set[str]) -> str:
        patterns = {t.name: t.pattern.value for t in _lark().terminals}
        found = {READABLE.get(t) or f"'{patterns.get(t, t)}'" for t in terminals if t not in ("WS", "__IGNORE_0")}
        names = sorted(found, key=lambda n: (n.startswith("'"), n))
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

    # ---- top level

    def items(self) -> list[Node]:
        return [t for t in self.tree.children if not _is_token(t)]

    def only(self, kind: str, word: str) -> Node:
        found = self.items()
        if len(found) != 1 or found[0].data != kind:
            extra = found[1] if len(found) > 1 else found[0] if found else self.tree
            count = "nothing" if not found else f"{len(found)} items" if len(found) > 1 else f"a {'plan' if kind == 'func' else 'function'}"
            raise self.error(extra, f"expected one {word}, found {count}")
        return found[0]

    def func(self, tree: Node) -> Func:
        name, params, results, *rest = tree.children
        modifiers = {t.data: t for t in rest if t.data in ("stage", "square", "index")}
        stage = str(modifiers["stage"].children[0]) if "stage" in modifiers else "layer"
        index = self.dtype(modifiers["index"].children[0]) if "index" in modifiers else I32
        monoids = tuple(self.monoid(t) for t in rest if t.data == "monoid")
        b = Builder("square" in modifiers, index, monoids)
        env: dict[str, Value] = {}
        inputs = []
        for t in params.children if params is not None else ():
            token, type = t.children
            self.fresh(token, env)
            env[_key(token)] = b.input(_text(token), self.type(type))
            inputs.append(env[_key(token)])
        for t in rest:
            if t.data == "op":
                self.op(t, b, env)
        returned = self.operands(rest[-1].children[0], env)
        fields = self.fields(results)
        if len(fields) != len(returned):
            raise self.error(rest[-1], f"{len(returned)} values returned, {len(fields)} results declared")
        for (token, _, type), v in zip(fields, returned, strict=True):
            if v.type != type:
                raise self.error(token, f"the returned value is {v.type}, the result is declared {type}")
        return Func(_text(name), tuple(inputs), tuple(returned), "square" in modifiers, stage, tuple(n for _, n, _ in fields), monoids)

    def op(self, tree: Node, b: Builder, env: dict[str, Value]) -> None:
        target, name, operands, attrs, type = tree.children
        self.fresh(target, env)
        if name == "input":
            raise self.error(name, "an input is a parameter of the function, not an operation")
        args = self.operands(operands, env)
        given = self.attrs(attrs)
        written = self.type(type)
        if name == "const" and written.dtype.is_float and _is_int(given.get("value")):
            given["value"] = float(given["value"])  # `const {value = 1}` means 1.0 where the type says so
        try:
            v = b.op(str(name), *args, **given)
        except TypeRuleError as e:
            raise self.error(name, str(e)) from None
        if v.type != written:
            raise self.error(type, f"{name} gives {v.type}, the text says {written}")
        env[_key(target)] = v

    # ---- pieces

    def fresh(self, token: Node, env: dict[str, Value]) -> None:
        if _key(token) in env:
            raise self.error(token, f"{token} is defined twice")

    def operands(self, tree: Node, env: dict[str, Value]) -> list[Value]:
        out = []
        for token in tree.children if tree is not None else ():
            if _key(token) not in env:
                raise self.error(token, f"{token} is not defined before this line")
            out.append(env[_key(token)])
        return out

    def fields(self, tree: Node) -> list[tuple[Node, str, Type]]:
        out = []
        for t in tree.children if tree is not None else ():
            name, type = t.children
            token = name.children[0]
            out.append((token, _text(token), self.type(type)))
        return out

    def type(self, tree: Node) -> Type:
        space, dtype, *dims = tree.children
        if space not in SPACES:
            raise self.error(space, f"unknown space {str(space)!r}, one of {', '.join(SPACES)}")
        for d in dims:
            if int(d) < 0:
                raise self.error(d, f"a feature dim is 0 or more, not {d}")
        return Type(str(space), self.dtype(dtype), tuple(int(d) for d in dims))

    def dtype(self, token: Node) -> DType:
        if token not in DTYPES:
            raise self.error(token, f"unknown dtype {str(token)!r}, one of {', '.join(DTYPES)}")
        return DTYPES[token]

    def attrs(self, tree: Node) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for t in tree.children if tree is not None else ():
            if t is None:
                continue
            key, value = t.children
            if key in out:
                raise self.error(key, f"attribute {key} is given twice")
            out[str(key)] = self.literal(value)
        return out

    def literal(self, tree: Node) -> Attr:
        match tree.data:
            case "true":
                return True
            case "false":
                return False
            case "none":
                return None
            case "float":
                return float(tree.children[0])
            case "int":
                return int(tree.children[0])
            case "string":
                return _text(tree.children[0])
            case _:
                return tuple(self.literal(t) for t in tree.children if t is not None)

    # ---- monoids and plans

    def monoid(self, tree: Node) -> Monoid:
        name, arity, edge_id, doc, *rest = tree.children
        components = []
        roles: dict[str, list[tuple[str, Func]]] = {"step": [], "combine": [], "part": [], "grad": []}
        for t in rest:
            if t.data == "component":
                own, kind, init, like = t.children
                start, messages = self.literal(init), self.literal(like)
                if isinstance(start, bool) or not isinstance(start, int | float):
                    raise self.error(init, "a component starts with a number")
                if not isinstance(messages, tuple) or not all(_is_int(m) for m in messages):
                    raise self.error(like, "`like` is a list of message numbers")
                components.append(Component(_text(own.children[0]), start, str(kind), messages))
            elif t.data == "part":
                part, func = t.children
                roles["part"].append((_text(part.children[0]), self.func(func)))
            else:
                roles[t.data].append(("", self.func(t.children[0])))
        for role in ("step", "combine"):
            if len(roles[role]) != 1:
                raise self.error(tree, f"monoid {name} needs one {role}, found {len(roles[role])}")
        if len(roles["grad"]) > 1:
            raise self.error(tree, f"monoid {name} has {len(roles['grad'])} grads")
        grad = roles["grad"][0][1] if roles["grad"] else None
        return Monoid(
            _text(name),
            int(arity),
            tuple(components),
            roles["step"][0][1],
            roles["combine"][0][1],
            tuple(roles["part"]),
            edge_id is not None,
            grad,
            None,
            "" if doc is None else _text(doc.children[0]),
        )

    def plan(self, tree: Node) -> PlanSpec:
        name, params, results, square, *steps = tree.children
        ins, outs = (tuple((n, t) for _, n, t in self.fields(x)) for x in (params, results))
        return PlanSpec(_text(name), ins, outs, tuple(self.step(s) for s in steps), square is not None)

    def step(self, tree: Node) -> StepSpec:
        if tree.data == "dense":
            name, func = tree.children
            return DenseSpec(_text(name), self.func(func))
        name, by, rows, family, reason, schedule, func = tree.children
        if by not in ("dst", "src", "none"):
            raise self.error(by, f"a sweep is by dst, src or none, not {by}")
        given = self.attrs(schedule)
        if unknown := set(given) - {f.name for f in fields(Schedule)}:
            raise self.error(schedule, f"a schedule has no {sorted(unknown)[0]}")
        grouped = None if by == "none" else str(by)
        return SweepSpec(_text(name), self.func(func), grouped, str(rows), _text(family), _text(reason), Schedule(**given))


def _is_token(t: object) -> bool:
    return not hasattr(t, "data")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(token: Node) -> str:
    """The name a token spells: without its sigil, unquoted."""
    text = str(token)
    if token.type in ("VALUE", "SYMBOL"):
        text = text[1:]
    return str(json.loads(text)) if text.startswith('"') else text


def _key(token: Node) -> str:
    """Key of a value's name: ``%0`` is a number, ``%"0"`` a name."""
    text = str(token)
    return f"#{int(text[1:])}" if text[1:].isdigit() else f"%{_text(token)}"
