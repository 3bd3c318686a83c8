"""Feature operations: they move or reduce the feature dims of one row and never look at another row; the dense ones are here too.

``axis`` attributes are negative and count feature dims from the right (-1 is the last one).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .ops import REQUIRED, Array, EvalContext, OpDef, RuleContext, register
from .types import BOOL, F32, I32, Type, TypeRuleError, join_space, promote

if TYPE_CHECKING:
    from .builder import Builder
    from .core import Value


def _axis(t: Type, axis: Any) -> int:
    if not isinstance(axis, int) or isinstance(axis, bool) or axis >= 0 or -axis > len(t.dims):
        dims = f"[{', '.join(map(str, t.dims))}]"
        if axis == 0 or (isinstance(axis, int) and axis > 0):
            raise TypeRuleError(
                "axis",
                f"axis {axis} of a value with feature dims {dims}",
                "axes see feature dims only and are negative: -1 is the last one; to reduce over edges use a fold such as g.sum(v)",
            )
        raise TypeRuleError("axis", f"axis {axis} of a value with feature dims {dims}", f"one of {list(range(-len(t.dims), 0))}")
    return axis


def _swap(dims: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    i = len(dims) + axis
    return (*dims[:i], size, *dims[i + 1 :])


# ---- reductions


def _infer_reduce(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t = types[0]
    axis = _axis(t, attrs["axis"])
    i = len(t.dims) + axis
    if t.dtype is BOOL:
        raise TypeRuleError("dtype", "a sum or maximum of bool values", "convert with v.to('f32')")
    dims = _swap(t.dims, axis, 1) if attrs["keepdim"] else (*t.dims[:i], *t.dims[i + 1 :])
    return Type(t.space, t.dtype.acc, dims)


def _infer_amax(types: list[Type], attrs: dict[str, Any], c: RuleContext) -> Type:
    out = _infer_reduce(types, attrs, c)
    if types[0].dims[attrs["axis"]] == 0:
        raise TypeRuleError("shape-mismatch", "max over an axis of size 0 has no value")
    return out


def _eval_sum(args: list[Array], v: Value, _c: EvalContext) -> Array:
    return np.asarray(args[0].sum(axis=v.attr("axis"), keepdims=v.attr("keepdim")))


def _keep(b: Builder, v: Value, g: Value) -> Value:
    """``g`` with the reduced axis back as a 1."""
    if v.attr("keepdim"):
        return g
    return b.reshape(g, _swap(v.operands[0].type.dims, v.attr("axis"), 1))


def _d_sum(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    return (b.broadcast(_keep(b, v, g), v.operands[0].type.dims),)


def _d_amax(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, axis = v.operands[0], v.attr("axis")
    hit = b.op("argmax", x, axis=axis)
    iota = b.op("iota", size=x.type.dims[axis], rank=-axis)
    return (b.where(b.op("eq", iota, hit), _keep(b, v, g), b.const_like(g, 0.0)),)


register(
    OpDef(
        "reduce_sum",
        "feature",
        1,
        _infer_reduce,
        _eval_sum,
        _d_sum,
        (("axis", REQUIRED), ("keepdim", False)),
        "sum over one feature axis",
    )
)
register(
    OpDef(
        "reduce_max",
        "feature",
        1,
        _infer_amax,
        lambda args, v, c: np.asarray(args[0].max(axis=v.attr("axis"), keepdims=v.attr("keepdim"))),
        _d_amax,
        (("axis", REQUIRED), ("keepdim", False)),
        "maximum over one feature axis; NaN wins; a tie's gradient goes to the first, whole",
    )
)
register(
    OpDef(
        "argmax",
        "feature",
        1,
        lambda t, a, c: _infer_amax(t, {**a, "keepdim": True}, c).with_dtype(I32),
        lambda args, v, c: np.expand_dims(np.argmax(args[0], axis=v.attr("axis")), v.attr("axis")).astype(np.int32),
        lambda b, v, g: (None,),
        (("axis", REQUIRED),),
        "position of the first maximum (the first NaN, if any) along an axis, kept as a 1",
    )
)


# ---- shape


def _infer_reshape(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t, dims = types[0], tuple(attrs["dims"])
    if prod(dims) != t.size:
        raise TypeRuleError("shape-mismatch", f"cannot reshape feature dims {list(t.dims)} ({t.size} elements) to {list(dims)}")
    return t.with_dims(dims)


def _infer_broadcast(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t, dims = types[0], tuple(attrs["dims"])
    pad = (1,) * (len(dims) - len(t.dims)) + t.dims
    if len(pad) != len(dims) or any(a not in (1, d) for a, d in zip(pad, dims, strict=True)):
        raise TypeRuleError("shape-mismatch", f"cannot broadcast feature dims {list(t.dims)} to {list(dims)}")
    return t.with_dims(dims)


def _eval_broadcast(args: list[Array], v: Value, _c: EvalContext) -> Array:
    a, dims = args[0], v.attr("dims")
    a = a.reshape(a.shape[:1] + (1,) * (len(dims) - (a.ndim - 1)) + a.shape[1:])
    return np.broadcast_to(a, a.shape[:1] + tuple(dims))


register(
    OpDef(
        "reshape",
        "feature",
        1,
        _infer_reshape,
        lambda args, v, c: args[0].reshape(args[0].shape[:1] + tuple(v.attr("dims"))),
        lambda b, v, g: (b.reshape(g, v.operands[0].type.dims),),
        (("dims", REQUIRED),),
        "the same elements, in row-major order, under other feature dims",
    )
)
register(
    OpDef(
        "broadcast",
        "feature",
        1,
        _infer_broadcast,
        _eval_broadcast,
        lambda b, v, g: (g,),
        (("dims", REQUIRED),),
        "1s (and missing leading dims) stretched to these feature dims",
    )
)


def _infer_slice(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t = types[0]
    axis = _axis(t, attrs["axis"])
    start, stop, size = attrs["start"], attrs["stop"], t.dims[axis]
    if not 0 <= start <= stop <= size:
        raise TypeRuleError("shape-mismatch", f"slice {start}:{stop} of an axis of size {size}")
    return t.with_dims(_swap(t.dims, axis, stop - start))


def _eval_slice(args: list[Array], v: Value, _c: EvalContext) -> Array:
    index: list[Any] = [slice(None)] * args[0].ndim
    index[v.attr("axis")] = slice(v.attr("start"), v.attr("stop"))
    return np.asarray(args[0][tuple(index)])


def _d_slice(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    size = v.operands[0].type.dims[v.attr("axis")]
    return (b.op("pad", g, axis=v.attr("axis"), before=v.attr("start"), after=size - v.attr("stop")),)


def _infer_pad(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t = types[0]
    axis = _axis(t, attrs["axis"])
    return t.with_dims(_swap(t.dims, axis, attrs["before"] + t.dims[axis] + attrs["after"]))


def _eval_pad(args: list[Array], v: Value, _c: EvalContext) -> Array:
    width = [(0, 0)] * args[0].ndim
    width[v.attr("axis")] = (v.attr("before"), v.attr("after"))
    return np.pad(args[0], width)


def _d_pad(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    n = v.operands[0].type.dims[v.attr("axis")]
    return (b.op("slice", g, axis=v.attr("axis"), start=v.attr("before"), stop=v.attr("before") + n),)


register(
    OpDef(
        "slice",
        "feature",
        1,
        _infer_slice,
        _eval_slice,
        _d_slice,
        (("axis", REQUIRED), ("start", REQUIRED), ("stop", REQUIRED)),
        "elements start:stop of one feature axis",
    )
)
register(
    OpDef(
        "pad",
        "feature",
        1,
        _infer_pad,
        _eval_pad,
        _d_pad,
        (("axis", REQUIRED), ("before", REQUIRED), ("after", REQUIRED)),
        "zeros before and after along one feature axis (the adjoint of slice)",
    )
)


def _infer_concat(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    if not types:
        raise TypeRuleError("arity", "concat of nothing")
    axis = _axis(types[0], attrs["axis"])
    dtype = types[0].dtype
    for t in types[1:]:
        dtype = promote(dtype, t.dtype)
        if len(t.dims) != len(types[0].dims) or _swap(t.dims, axis, 0) != _swap(types[0].dims, axis, 0):
            raise TypeRuleError("shape-mismatch", f"concat of feature dims {list(types[0].dims)} and {list(t.dims)} along axis {axis}")
    dims = _swap(types[0].dims, axis, sum(t.dims[axis] for t in types))
    return Type(join_space([t.space for t in types]), dtype, dims)


def _eval_concat(args: list[Array], v: Value, _c: EvalContext) -> Array:
    rows = next((a.shape[0] for a, o in zip(args, v.operands, strict=True) if o.type.space != "param"), 1)
    return np.concatenate([np.broadcast_to(a, (rows, *a.shape[1:])) for a in args], axis=v.attr("axis"))


def _d_concat(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    axis, at, out = v.attr("axis"), 0, []
    for o in v.operands:
        n = o.type.dims[axis]
        out.append(b.op("slice", g, axis=axis, start=at, stop=at + n))
        at += n
    return tuple(out)


register(
    OpDef("concat", "feature", None, _infer_concat, _eval_concat, _d_concat, (("axis", REQUIRED),), "values side by side along an axis")
)


def _infer_transpose(types: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    t = types[0]
    if len(t.dims) < 2:
        raise TypeRuleError("shape-mismatch", f"transpose needs two feature dims, not {list(t.dims)}")
    return t.with_dims((*t.dims[:-2], t.dims[-1], t.dims[-2]))


register(
    OpDef(
        "transpose",
        "feature",
        1,
        _infer_transpose,
        lambda args, v, c: np.swapaxes(args[0], -1, -2),
        lambda b, v, g: (b.op("transpose", g),),
        (),
        "the last two feature dims exchanged",
    )
)


def _infer_iota(_t: list[Type], attrs: dict[str, Any], _c: RuleContext) -> Type:
    return Type("param", I32, (attrs["size"],) + (1,) * (attrs["rank"] - 1))


register(
    OpDef(
        "iota",
        "leaf",
        0,
        _infer_iota,
        lambda args, v, c: np.arange(v.attr("size"), dtype=np.int32).reshape((1, -1) + (1,) * (v.attr("rank") - 1)),
        lambda b, v, g: (),
        (("size", REQUIRED), ("rank", 1)),
        "0, 1, ... along the first of ``rank`` feature dims, the others 1",
    )
)


# ---- dense


def _infer_matmul(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    v, w = types
    if w.space != "param" or len(w.dims) != 2:
        raise TypeRuleError(
            "matmul",
            f"the right side of @ is {w}",
            'it must be a parameter of two dims, Param["K", "F"]; write (a * b).sum(-1) for a dot product',
        )
    if not v.dims or v.dims[-1] != w.dims[0]:
        raise TypeRuleError(
            "shape-mismatch", f"cannot multiply feature dims {list(v.dims)} by {list(w.dims)}: the last dim must be {w.dims[0]}"
        )
    dtype = promote(v.dtype, w.dtype).acc
    if not dtype.is_float:
        raise TypeRuleError("dtype", "matmul of integer values", "convert with v.to('f32')")
    return Type(v.space, dtype, (*v.dims[:-1], w.dims[1]))


def _d_matmul(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, w = v.operands
    return b.op("matmul", g, b.op("transpose", w)), b.op("contract_rows", x, g)


def _infer_contract(types: list[Type], _a: dict[str, Any], _c: RuleContext) -> Type:
    x, g = types
    join_space([x.space, g.space])
    if not x.dims or not g.dims or x.dims[:-1] != g.dims[:-1]:
        raise TypeRuleError("shape-mismatch", f"contract_rows of feature dims {list(x.dims)} and {list(g.dims)}")
    dtype = promote(x.dtype, g.dtype).acc
    return Type("param", dtype if dtype.is_float else F32, (x.dims[-1], g.dims[-1]))


def _eval_contract(args: list[Array], v: Value, c: EvalContext) -> Array:
    x, g = args
    space = join_space([o.type.space for o in v.operands])
    rows = c.graph.rows(space)
    x, g = (np.broadcast_to(a, (rows, *a.shape[1:])) for a in (x, g))
    lead = prod(x.shape[:-1])
    return np.asarray(np.einsum("rk,rf->kf", x.reshape(lead, x.shape[-1]), g.reshape(lead, g.shape[-1]))[None])


def _d_contract(b: Builder, v: Value, g: Value) -> tuple[Value | None, ...]:
    x, y = v.operands
    return b.op("matmul", y, b.op("transpose", g)), b.op("matmul", x, g)


register(
    OpDef(
        "matmul",
        "dense",
        2,
        _infer_matmul,
        lambda args, v, c: args[0] @ args[1][0],
        _d_matmul,
        (),
        "every row's [..., K] block times a parameter [K, F]",
    )
)
register(
    OpDef(
        "contract_rows",
        "dense",
        2,
        _infer_contract,
        _eval_contract,
        _d_contract,
        (),
        "sum over rows (and leading dims) of x[..., k] * y[..., f]: the gradient of matmul's parameter",
    )
)
