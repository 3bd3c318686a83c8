"""Errors that are the user's to mend: each has a code, a message, the user's own line with a caret, and a hint.

One class an error. The message template and the mend stand on the class, the base renders them with the location; every class is
also the natural Python exception, so ``except ValueError`` catches a shape mismatch. Codes are stable:

* GN1xx: the layer's definition (raised at decoration);
* GN2xx: a call's arguments (the location is the parameter in the ``def``);
* GN3xx: an operation inside the layer;
* GN4xx: the layer's result;
* GN5xx: values captured from outside.
"""

from __future__ import annotations

from typing import Any, ClassVar
from unicodedata import east_asian_width

from gnnc.ir.core import Loc
from gnnc.ir.types import TypeRuleError
from gnnc_runtime.errors import GnncError


def render_location(loc: Loc | None) -> str:
    """The location block: ``file:line``, and the source line with a caret under the columns where the text is known."""
    if loc is None:
        return ""
    lines = [f"  {loc.file}:{loc.line}"]
    text = loc.text.rstrip()
    source = text.lstrip()
    if source:
        indent = len(text) - len(source)
        lines.append(f"    {source}")
        start = max(loc.col, indent)
        end = len(text) if loc.end_line > loc.line else min(loc.end_col, len(text))
        if loc.end_line and start < end:
            lines.append("    " + _blank(text[indent:start]) + _width(text[start:end]) * "^")
    return "\n".join(lines)


def _columns(c: str) -> int:
    return 2 if east_asian_width(c) in "WF" else 1


def _width(text: str) -> int:
    return sum(map(_columns, text))


def _blank(text: str) -> str:
    """As wide as `text` on a terminal: tabs stay tabs."""
    return "".join("\t" if c == "\t" else " " * _columns(c) for c in text)


class UserError(GnncError):
    """An error located in the user's source.

    ``loc`` is None only when no frame of the user's is on the stack. ``message`` and ``hint`` are the parts of ``str(error)``.
    A subclass sets ``code``, the ``template`` of its message and its ``mend`` (both formatted with the keyword arguments; `hint`
    replaces the mend).
    """

    code: ClassVar[str] = "GN000"
    template: ClassVar[str] = "{message}"
    mend: ClassVar[str] = ""

    def __init__(self, loc: Loc | None = None, *, hint: str | None = None, **fields: Any) -> None:
        self.loc, self.fields = loc, fields
        self.message = self.template.format(**fields)
        self.hint = self.mend.format(**fields) if hint is None else hint
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.message}", render_location(self.loc)]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(line for line in lines if line)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.loc, self.hint, self.fields)


def _rebuild(cls: type[UserError], loc: Loc | None, hint: str, fields: dict[str, Any]) -> UserError:
    return cls(loc, hint=hint, **fields)


# ---- GN1xx: definitions


class NotALayerFunction(UserError, TypeError):
    code, template = "GN101", "a layer is a plain function, not {what}"
    mend = "write `@gnnc.layer` above `def name(g, x: Src[...], ...)`"


class BadSignature(UserError, TypeError):
    code, template = "GN102", "{message}"


class BadAnnotation(UserError, TypeError):
    code, template = "GN103", "{message}"
    mend = 'a dim is a name such as "F", a size such as 32, or () alone for one scalar a row'


class UnresolvedAnnotation(UserError, NameError):
    code, template = "GN104", "the annotation {annotation} of {name} cannot be read: {reason}"
    mend = "import the names it uses (from gnnc.lang import Src, Dst, Edge, Node, Param) where the layer is defined"


# ---- GN2xx: calls


class ArgumentCount(UserError, TypeError):
    code, template = "GN201", "{message}"


class BadStatic(UserError, TypeError):
    code, template = "GN202", "{message}"
    mend = "static arguments are bool, int, float, str, None or tuples of them; pass what changes every step as Param[()]"


class NotATensor(UserError, TypeError):
    code, template = "GN203", "{name} must be a torch tensor, not {what}"


class BadTensorDtype(UserError, TypeError):
    code, template = "GN204", "{name} has {what}, which gnnc does not compute with"
    mend = "convert it to float32, float64, float16, bfloat16, an integer dtype or bool, in the dense (strided) layout"


class DeviceMismatch(UserError, ValueError):
    code, template = "GN205", "{name} is on {device}, but {other} is on {other_device}"
    mend = "move one of them: tensor.to(device), graph.to(device)"


class RowCountMismatch(UserError, ValueError):
    code, template = "GN206", "{name} has {rows} rows, but {other}"


class FeatureShapeMismatch(UserError, ValueError):
    code, template = "GN207", "{message}"


class BipartiteNode(UserError, ValueError):
    code, template = "GN208", "{name} is annotated with Node, but the graph has {num_src} source and {num_dst} destination nodes"
    mend = "Node needs num_src == num_dst; use Src and Dst for a graph with two node sets"


class UnknownNodeCount(UserError, ValueError):
    code, template = "GN209", "the number of nodes is unknown: a plain edge_index carries no count and {name} takes no node tensor"
    mend = "pass gnnc.Graph.from_edge_index(edge_index, num_src=..., num_dst=...)"


# ---- GN3xx: operations. The first group is one class a type rule of the IR.


class SpaceMismatch(UserError, TypeError):
    code = "GN301"


class ShapeMismatch(UserError, ValueError):
    code = "GN302"


class DtypeRule(UserError, TypeError):
    code = "GN303"


class AxisRule(UserError, ValueError):
    code = "GN304"


class NotGathered(UserError, TypeError):
    code = "GN305"


class MatmulRule(UserError, ValueError):
    code = "GN306"


class UnknownOperation(UserError, AttributeError):
    code = "GN307"


class BadOperationArgument(UserError, ValueError):
    code = "GN308"


class OperandCount(UserError, TypeError):
    code = "GN309"


class NoGradient(UserError, RuntimeError):
    code = "GN310"


class OtherRule(UserError, TypeError):
    code = "GN311"


class ConcreteValueNeeded(UserError, TypeError):
    code, template = "GN320", "{what} of {type}: it has no value yet, the layer is traced once with symbols"


class ForeignFunction(UserError, TypeError):
    code, template = "GN321", "{function} was given {type}: it does not know the values of a layer"


class ForeignOperand(UserError, TypeError):
    code, template = "GN322", "{what} cannot be combined with a value of the layer"
    mend = "pass it as an argument: annotate a parameter with Src, Dst, Edge, Node or Param"


class BadIndex(UserError, IndexError):
    code, template = "GN323", "{message}"
    mend = "indices come after `...` and see feature dims only: v[..., None], v[..., i], v[..., a:b]"


class AssignedTo(UserError, TypeError):
    code, template = "GN324", "{type} cannot be assigned to: values of a layer are immutable"
    mend = "make a new value with where(cond, a, b) or concat([a, b], -1)"


class OtherTrace(UserError, RuntimeError):
    code, template = "GN325", "{type} belongs to another call of a layer"
    mend = "values live while their layer is traced: return them, do not keep them in variables outside"


# ---- GN4xx: results


class BadResult(UserError, TypeError):
    code, template = "GN401", "{name} returned {what}"
    mend = "a layer returns one value or a tuple of values computed from its arguments"


class NestedResult(UserError, TypeError):
    code, template = "GN402", "{name} returned {what} inside its result tuple"
    mend = "return one flat tuple of values: `return a, b`"


class ParamResult(UserError, TypeError):
    code, template = "GN403", "{name} returned {type}, which has no row for a node or an edge"
    mend = "a result lives on nodes or edges; compute what depends on parameters alone outside of the layer"


# ---- GN5xx: captured values


class CapturedValue(UserError, TypeError):
    code, template = "GN501", "{name} reads {variable}, {what}, from outside"
    mend = "pass it as an argument; only numbers, strings, None, tuples of them, functions and modules are part of a layer's identity"


_RULES: dict[str, type[UserError]] = {
    "space-mismatch": SpaceMismatch,
    "shape-mismatch": ShapeMismatch,
    "dtype": DtypeRule,
    "axis": AxisRule,
    "not-gathered": NotGathered,
    "matmul": MatmulRule,
    "unknown-op": UnknownOperation,
    "attribute": BadOperationArgument,
    "arity": OperandCount,
    "no-gradient": NoGradient,
}


def from_type_rule(error: TypeRuleError, loc: Loc | None) -> UserError:
    """The located error for a refusal of the IR's type rules."""
    return _RULES.get(error.code, OtherRule)(loc, message=error.message, hint=error.hint)


def described(x: object) -> str:
    """A value in the words of an error: ``a float``, ``an ndarray``, ``None``."""
    if x is None:
        return "None"
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
