"""One or more small uses of every operation, with what they must compute: read by `test_ops.py`.

A `Case` builds one value from inputs. ``want`` is an independent numpy or torch formulation on arrays ``[rows, *dims]`` (a param
``[*dims]``); None where `test_interpreter.py` or `test_folds.py` states the values. ``draw`` makes inputs that stay away from points
without a slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnc.ir.builder import Builder
from gnnc.ir.core import Value
from gnnc.ir.monoid import builtin_monoids
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.types import BOOL, F64, I32, Type

# dst 1 and src 4 have no edge; edge 1 -> 0 is there twice.
GRAPH = GraphArrays(np.array([0, 1, 1, 3, 3, 0, 2]), np.array([0, 0, 0, 2, 2, 3, 3]), 5, 4)
SQUARE = GraphArrays(np.array([0, 1, 1, 3, 3, 0, 2]), np.array([0, 0, 0, 2, 2, 3, 3]), 5, 5)
SRC, DST, E = GRAPH.src, GRAPH.dst, GRAPH.num_edges

Build = Callable[..., Value]
Want = Callable[..., Any] | None


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.normal(size=shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.abs(rng.normal(size=shape)) + 0.5


def away(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Nowhere near 0 or +-1."""
    x = rng.normal(size=shape)
    x = np.where(np.abs(x) < 0.2, 0.3, x)
    return np.where(np.abs(np.abs(x) - 1) < 0.1, 1.3 * np.sign(x), x)


def with_zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(rng.random(size=shape) < 0.3, 0.0, rng.normal(size=shape))


@dataclass(frozen=True)
class Case:
    types: tuple[Type, ...]
    build: Build
    want: Want = None
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array] = normal
    differentiable: bool = True


def edge(*dims: int) -> Type:
    return Type("edge", F64, dims)


def dst(*dims: int) -> Type:
    return Type("dst", F64, dims)


def src(*dims: int) -> Type:
    return Type("src", F64, dims)


def param(*dims: int) -> Type:
    return Type("param", F64, dims)


def _op(name: str, **attrs: Any) -> Build:
    return lambda b, *x: b.op(name, *x, **attrs)


def _torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: fn(*map(torch.as_tensor, arrays)).numpy()


def _binary(name: str, fn: Callable[..., Any], draw: Any = normal, differentiable: bool = True) -> list[Case]:
    """Same dims, broadcast dims, a param on either side, one value twice."""
    build = _op(name)
    pairs = [(edge(2, 3), edge(2, 3)), (edge(2, 1), edge(3)), (param(3), dst(2, 3)), (src(3), param(2, 1)), (param(2), param(3, 1))]
    out = [Case(p, build, lambda x, y, p=p: _aligned(fn, p, x, y), draw, differentiable) for p in pairs]
    return [
        *out,
        Case((edge(3),), lambda b, x: b.op(name, x, x), lambda x: fn(torch.as_tensor(x), torch.as_tensor(x)).numpy(), draw, False),
    ]


def _aligned(fn: Callable[..., Any], types: tuple[Type, ...], *arrays: Array) -> Array:
    rank = max(len(t.dims) for t in types)
    out = []
    for t, a in zip(types, arrays, strict=True):
        rows = () if t.space == "param" else a.shape[:1]
        out.append(torch.as_tensor(a.reshape(rows + (1,) * (rank - len(t.dims)) + t.dims)))
    result: Array = fn(*out).numpy()
    return result


def _unary(name: str, fn: Callable[..., Any], draw: Any = normal, differentiable: bool = True, **attrs: Any) -> list[Case]:
    types = [edge(2, 3), dst(), param(3)]
    return [Case((t,), _op(name, **attrs), _torch(fn), draw, differentiable) for t in types]


def _compare(name: str, fn: Callable[..., Any]) -> list[Case]:
    return [*_binary(name, fn, normal, False), *_binary(name, fn, with_zeros, False)]


def _logic(name: str, fn: Callable[..., Any], arity: int) -> list[Case]:
    def build(b: Builder, *x: Value) -> Value:
        zero = b.const(0.0, F64)
        return b.op(name, *(b.op("gt", v, zero) for v in x))

    return [Case((edge(3),) * arity, build, lambda *x: fn(*(torch.as_tensor(a > 0) for a in x)).numpy(), normal, False)]


def _where(b: Builder, c: Value, x: Value, y: Value) -> Value:
    return b.where(b.op("gt", c, b.const(0.0, F64)), x, y)


def _folds() -> list[Case]:
    out = []
    for m in builtin_monoids().values():
        for part, _ in m.parts:
            for to in ("dst", "src"):
                types = (edge(2, 1), edge(2, 3)) if m.arity == 2 else (edge(2, 3),)
                has = m.name not in ("softmax_sum", "maxonly", "minonly") and part not in ("arg", "nonzero", "zeros")
                draw = with_zeros if m.name == "prod" else normal
                out.append(Case(types, _fold(m.name, to, part), None, draw, has))
    return out


def _fold(monoid: str, to: str, part: str) -> Build:
    return lambda b, *m: b.fold(monoid, *m, to=to, part=part)


def _softmax(index: Array, rows: int) -> Callable[[Array], Array]:
    def want(s: Array) -> Array:
        out = np.zeros_like(s)
        for r in range(rows):
            out[index == r] = torch.softmax(torch.as_tensor(s[index == r]), 0).numpy()
        return out

    return want


LEAF = edge(2)  # a case needs an input; leaves ignore it

CASES: dict[str, list[Case]] = {
    # leaves
    "input": [Case((edge(2, 3),), lambda b, x: x, lambda x: x)],
    "const": [
        Case((LEAF,), lambda b, x: b.const(-1.5, F64), lambda x: np.array(-1.5)),
        Case((LEAF,), lambda b, x: b.const(7, I32), lambda x: np.array(7), differentiable=False),
        Case((LEAF,), lambda b, x: b.const(True, BOOL), lambda x: np.array(True), differentiable=False),
    ],
    "degree": [
        Case((LEAF,), lambda b, x: b.degree("dst", F64), lambda x: np.array([3.0, 0, 2, 2])),
        Case((LEAF,), lambda b, x: b.degree("src", F64), lambda x: np.array([2.0, 2, 1, 2, 0])),
    ],
    "edge_id": [Case((LEAF,), lambda b, x: b.op("edge_id"), lambda x: np.arange(7), differentiable=False)],
    "iota": [
        Case((LEAF,), lambda b, x: b.op("iota", size=3), lambda x: np.array([0, 1, 2]), differentiable=False),
        Case((LEAF,), lambda b, x: b.op("iota", size=2, rank=2), lambda x: np.array([[0], [1]]), differentiable=False),
    ],
    # elementwise
    "add": _binary("add", torch.add),
    "sub": _binary("sub", torch.sub),
    "mul": _binary("mul", torch.mul),
    "div": _binary("div", torch.div, away),
    "pow": [
        *_binary("pow", torch.pow, positive),
        Case((edge(3),), lambda b, x: b.op("pow", x, b.const(2.0, F64)), lambda x: x**2, normal),
        Case((edge(3),), lambda b, x: b.op("pow", x, b.const(3, I32)), lambda x: x**3, away),
    ],
    "maximum": _binary("maximum", torch.maximum),
    "minimum": _binary("minimum", torch.minimum),
    "neg": _unary("neg", torch.neg),
    "abs": _unary("abs", torch.abs, away),
    "sign": _unary("sign", torch.sign, away),
    "exp": _unary("exp", torch.exp),
    "log": _unary("log", torch.log, positive),
    "sqrt": _unary("sqrt", torch.sqrt, positive),
    "rsqrt": _unary("rsqrt", torch.rsqrt, positive),
    "tanh": _unary("tanh", torch.tanh),
    "sigmoid": _unary("sigmoid", torch.sigmoid),
    "erf": _unary("erf", torch.erf),
    "relu": _unary("relu", torch.relu, away),
    "leaky_relu": _unary("leaky_relu", lambda x: torch.nn.functional.leaky_relu(x, 0.2), away, slope=0.2),
    "elu": _unary("elu", lambda x: torch.nn.functional.elu(x, 1.5), away, alpha=1.5),
    "gelu": _unary("gelu", torch.nn.functional.gelu),
    "silu": _unary("silu", torch.nn.functional.silu),
    "clamp": [
        *_unary("clamp", lambda x: torch.clamp(x, -1.0, 1.0), away, min=-1.0, max=1.0),
        *_unary("clamp", lambda x: torch.clamp(x, min=0.0), away, min=0.0),
        *_unary("clamp", lambda x: torch.clamp(x, max=0.0), away, max=0.0),
    ],
    "eq": _compare("eq", torch.eq),
    "ne": _compare("ne", torch.ne),
    "lt": _compare("lt", torch.lt),
    "le": _compare("le", torch.le),
    "gt": _compare("gt", torch.gt),
    "ge": _compare("ge", torch.ge),
    "and": _logic("and", torch.logical_and, 2),
    "or": _logic("or", torch.logical_or, 2),
    "not": _logic("not", torch.logical_not, 1),
    "where": [
        Case((edge(2, 3), edge(2, 3), edge(2, 3)), _where, lambda c, x, y: np.where(c > 0, x, y), away),
        Case((edge(1), param(3), edge(2, 1)), _where, lambda c, x, y: np.where(c[:, None] > 0, x, y), away),
        Case((param(2, 1), dst(3), param()), _where, lambda c, x, y: np.where(c > 0, x[:, None], y), away),
    ],
    "cast": [
        Case((edge(3),), _op("cast", dtype="f64"), lambda x: x),
        Case((edge(3),), _op("cast", dtype="f32"), lambda x: x),
        Case((edge(3),), _op("cast", dtype="i32"), lambda x: np.trunc(x), away, False),
        Case((edge(3),), _op("cast", dtype="bool"), lambda x: x != 0, with_zeros, False),
    ],
    # feature
    "reduce_sum": [
        Case((edge(2, 3),), _op("reduce_sum", axis=-1), lambda x: x.sum(-1)),
        Case((param(2, 3),), _op("reduce_sum", axis=-2, keepdim=True), lambda x: x.sum(-2, keepdims=True)),
        Case((dst(0),), _op("reduce_sum", axis=-1), lambda x: np.zeros(4)),
    ],
    "reduce_max": [
        Case((edge(2, 3),), _op("reduce_max", axis=-1), lambda x: x.max(-1)),
        Case((param(2, 3),), _op("reduce_max", axis=-2, keepdim=True), lambda x: x.max(-2, keepdims=True)),
    ],
    "argmax": [
        Case((edge(2, 3),), _op("argmax", axis=-2), lambda x: x.argmax(-2)[:, None], normal, False),
        Case((edge(3),), _op("argmax", axis=-1), lambda x: x.argmax(-1)[:, None], with_zeros, False),
    ],
    "reshape": [
        Case((edge(2, 3),), _op("reshape", dims=(3, 2)), lambda x: x.reshape(-1, 3, 2)),
        Case((param(2, 3),), _op("reshape", dims=(6,)), lambda x: x.reshape(6)),
        Case((dst(),), _op("reshape", dims=(1, 1)), lambda x: x[:, None, None]),
    ],
    "broadcast": [
        Case((edge(2, 1),), _op("broadcast", dims=(2, 3)), lambda x: np.repeat(x, 3, -1)),
        Case((dst(),), _op("broadcast", dims=(2, 2)), lambda x: np.broadcast_to(x[:, None, None], (4, 2, 2))),
        Case((param(3),), _op("broadcast", dims=(2, 3)), lambda x: np.stack([x, x])),
    ],
    "slice": [
        Case((edge(4, 2),), _op("slice", axis=-2, start=1, stop=3), lambda x: x[:, 1:3]),
        Case((param(4),), _op("slice", axis=-1, start=4, stop=4), lambda x: x[4:]),
    ],
    "pad": [
        Case((edge(2, 2),), _op("pad", axis=-1, before=1, after=2), lambda x: np.pad(x, [(0, 0), (0, 0), (1, 2)])),
        Case((param(2),), _op("pad", axis=-1, before=0, after=1), lambda x: np.append(x, 0)),
    ],
    "concat": [
        Case((edge(2, 3), edge(2, 1)), _op("concat", axis=-1), lambda x, y: np.concatenate([x, y], -1)),
        Case((param(1, 2), dst(2, 2)), _op("concat", axis=-2), lambda x, y: np.concatenate([np.broadcast_to(x, (4, 1, 2)), y], 1)),
        Case((param(1), param(2)), _op("concat", axis=-1), lambda x, y: np.concatenate([x, y])),
        Case((edge(2),), lambda b, x: b.op("concat", x, x, axis=-1), lambda x: np.concatenate([x, x], -1)),
    ],
    "transpose": [
        Case((edge(2, 3),), _op("transpose"), lambda x: x.swapaxes(1, 2)),
        Case((param(4, 2, 3),), _op("transpose"), lambda x: x.swapaxes(1, 2)),
    ],
    # dense
    "matmul": [
        Case((edge(3), param(3, 2)), _op("matmul"), lambda x, w: x @ w),
        Case((dst(2, 3), param(3, 2)), _op("matmul"), lambda x, w: x @ w),
        Case((param(2, 3), param(3, 2)), _op("matmul"), lambda x, w: x @ w),
        Case((src(0), param(0, 2)), _op("matmul"), lambda x, w: np.zeros((5, 2))),
    ],
    "contract_rows": [
        Case((edge(3), edge(2)), _op("contract_rows"), lambda x, y: x.T @ y),
        Case((dst(2, 3), dst(2, 4)), _op("contract_rows"), lambda x, y: np.einsum("rhk,rhf->kf", x, y)),
        Case((param(3), dst(2)), _op("contract_rows"), lambda x, y: np.outer(x, y.sum(0))),
        Case((dst(0), dst(2)), _op("contract_rows"), lambda x, y: np.zeros((0, 2))),
    ],
    # graph
    "gather": [
        Case((src(2, 3),), _op("gather", end="src"), lambda x: x[SRC]),
        Case((dst(),), _op("gather", end="dst"), lambda x: x[DST]),
    ],
    "fold": _folds(),
    "softmax": [
        Case((edge(2, 3),), _op("softmax"), _softmax(DST, 4)),
        Case((edge(),), _op("softmax", over="src"), _softmax(SRC, 5)),
    ],
    "reduce_rows": [
        Case((edge(2, 3),), _op("reduce_rows"), lambda x: x.sum(0)),
        Case((dst(),), _op("reduce_rows"), lambda x: x.sum()),
        Case((param(2),), _op("reduce_rows"), lambda x: x),
    ],
    "spread": [
        Case((param(2),), _op("spread", space="src"), lambda x: np.broadcast_to(x, (5, 2))),
        Case((param(),), _op("spread", space="edge"), lambda x: np.full(7, x)),
    ],
}
