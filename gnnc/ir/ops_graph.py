"""Graph operations: what moves values between spaces. Gather and fold-by-sum are each other's adjoints, so the set is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .ops import REQUIRED, Array, EvalContext, OpDef, RuleContext, register
from .types import BOOL, DTYPES, SPACES, Type, TypeRuleError

if TYPE_CHECKING:
    from .builder import Builder
    from .core import Value

# ---- leaves


def _no_eval(_args: list[Array], v: Value, _c: EvalContext) -> Array:
    raise AssertionError(f"{v.op} is bound by the interpreter, not computed")


def _infer_const(_t: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    value, dtype = attrs["value"], DTYPES[attrs["dtype"]]
    kind = "float" if dtype.is_float else "bool" if dtype is BOOL else "int"
    if type(value).__name__ != kind:
        raise TypeRuleError("dtype", f"a {dtype} constant needs a Python {kind}, not {value!r}")
    if kind == "int":
        low, high = (0, 1 << dtype.bits) if dtype.kind == "uint" else (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
        if not low <= value < high:
            raise TypeRuleError("dtype", f"the constant {value} does not fit {dtype}")
    return Type("param", dtype)


def _eval_const(_args: list[Array], v: Value, _c: EvalContext) -> Array:
    from .interpreter import numpy_dtype

    return np.full((1,), v.attr("value"), dtype=numpy_dtype(v.type.dtype))


def _infer_input(_t: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    raise AssertionError("inputs carry their type; make them with Builder.input")


def _end(attrs: dict[str, Any], name: str) -> str:
    if attrs[name] not in ("src", "dst"):
        raise TypeRuleError("attribute", f"{name}={attrs[name]!r}: an end is 'src' or 'dst'")
    return str(attrs[name])


def _infer_degree(_t: list[Type], attrs: dict[str, Any], c: RuleContext) -> Type:
    return Type(c.side(_end(attrs, "end")), DTYPES[attrs["dtype"]])


register(OpDef("input", "leaf", 0, _infer_input, _no_eval, None, (("name", REQUIRED),), "a parameter of the function"))
register(OpDef("const", "leaf", 0, _infer_const, _eval_const, lambda b, v, g: (), (("value", REQUIRED), ("dtype", "f32")), "a number"))
register(
    OpDef(
        "degree",
        "leaf",
        0,
        _infer_degree,
        lambda args, v, c: c.graph.degree(v.attr("end")),
        lambda b, v, g: (),
        (("end", "dst"), ("dtype", "f32")),
        "how many edges enter (end=dst) or leave (end=src) a node",
    )
)
register(
    OpDef(
        "edge_id",
        "leaf",
        0,
        lambda t, a, c: Type("edge", c.index_dtype),
        lambda args, v, c: np.arange(c.graph.num_edges, dtype=np.int64),
        lambda b, v, g: (),
        (),
        "an edge's position in the user's edge order",
    )
)

# ---- between spaces


def _infer_gather(types: list[Type], attrs: dict[str, Any], c: RuleContext) -> Type:
    t, end = types[0], _end(attrs, "end")
    want = c.side(end)
    if t.space != want:
        if t.space == "edge":
            raise TypeRuleError("space-mismatch", f"g.{end} of an edge value: it is on the edges already", "use the value as it is")
        if t.space == "param":
            raise TypeRuleError(
                "space-mismatch", f"g.{end} of a parameter: parameters reach every edge as they are", "use the value as it is"
            )
        raise TypeRuleError(
            "space-mismatch",
            f"g.{end} of a {t.space} value",
            f"write g.{t.space}(v); to gather one value at both ends annotate it (or another input) with "
            'Node["F"], for graphs whose ends are the same nodes',
        )
    return t.with_space("edge")


def _d_gather(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (b.fold("sum", g, to=v.attr("end")),)


register(
    OpDef(
        "gather",
        "graph",
        1,
        _infer_gather,
        lambda args, v, c: args[0][c.graph.index(v.attr("end"))],
        _d_gather,
        (("end", REQUIRED),),
        "a node value read at one end of every edge",
    )
)


def _infer_fold(types: list[Type], attrs: dict[str, Any], c: RuleContext) -> Type:
    from .monoid import find_monoid

    end = _end(attrs, "to")
    for t in types:
        if t.space != "edge":
            mend = (
                "gather it first: g.src(v) or g.dst(v)"
                if t.space == "node"
                else f"gather it first: g.{t.space}(v)"
                if t.space in ("src", "dst")
                else "a parameter has no edges; multiply it with an edge value or use g.in_degree()"
            )
            raise TypeRuleError("not-gathered", f"a fold reads edge values, this is a {t.space} value", mend)
    monoid = find_monoid(attrs["monoid"], c.monoids)
    return Type(c.side(end), *monoid.part_type(attrs["part"], types, c))


def _eval_fold(args: list[Array], v: Value, c: EvalContext) -> Array:
    from .interpreter import evaluate_fold

    return evaluate_fold(args, v, c)


def _d_fold(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    from .monoid import find_monoid

    monoid = find_monoid(v.attr("monoid"), b.monoids)
    if monoid.vjp is not None:
        return monoid.vjp(b, v, g)
    from .monoid_derive import derived_vjp

    return derived_vjp(monoid, b, v, g)


register(
    OpDef(
        "fold",
        "graph",
        None,
        _infer_fold,
        _eval_fold,
        _d_fold,
        (("monoid", REQUIRED), ("to", "dst"), ("part", "value")),
        "reduction of a row's edge values by a monoid; `part` picks one of the results it can finish with",
    )
)


def _infer_softmax(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t = types[0]
    _end(attrs, "over")
    if t.space != "edge":
        raise TypeRuleError(
            "not-gathered", f"a softmax reads edge values, this is a {t.space} value", "gather it first: g.src(v) or g.dst(v)"
        )
    if not t.dtype.is_float:
        raise TypeRuleError("dtype", f"softmax of {t.dtype} scores", "convert with v.to('f32')")
    return t.with_dtype(t.dtype.acc)


def _eval_softmax(args: list[Array], v: Value, c: EvalContext) -> Array:
    end = v.attr("over")
    index, s = c.graph.index(end), args[0]
    top = np.full((c.graph.count(end), *s.shape[1:]), -np.inf)
    with np.errstate(all="ignore"):
        np.maximum.at(top, index, s)
        e = np.exp(s - top[index])
        z = np.zeros_like(top)
        np.add.at(z, index, e)
        return np.asarray(e / z[index])


def _d_softmax(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    end = v.attr("over")
    weighted = b.mul(v, g)
    return (b.sub(weighted, b.mul(v, b.gather(b.fold("sum", weighted, to=end), end))),)


register(
    OpDef(
        "softmax",
        "graph",
        1,
        _infer_softmax,
        _eval_softmax,
        _d_softmax,
        (("over", "dst"),),
        "softmax over the edges of a row, element by element; shifted by the row's maximum, no epsilon",
    )
)


def _infer_spread(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    if types[0].space != "param" or attrs["space"] not in SPACES:
        raise TypeRuleError("space-mismatch", f"spread of {types[0]} to {attrs['space']!r}")
    return types[0].with_space(attrs["space"])


register(
    OpDef(
        "reduce_rows",
        "graph",
        1,
        lambda t, a, c: Type("param", t[0].dtype.acc, t[0].dims),
        lambda args, v, c: args[0].sum(axis=0, keepdims=True),
        lambda b, v, g: (b.op("spread", g, space=v.operands[0].type.space),),
        (),
        "sum over all rows: the gradient of a parameter",
    )
)
register(
    OpDef(
        "spread",
        "graph",
        1,
        _infer_spread,
        lambda args, v, c: np.broadcast_to(args[0], (c.graph.rows(v.type.space), *args[0].shape[1:])),
        lambda b, v, g: (b.op("reduce_rows", g),),
        (("space", REQUIRED),),
        "a parameter repeated for every row of a space (the adjoint of reduce_rows)",
    )
)
