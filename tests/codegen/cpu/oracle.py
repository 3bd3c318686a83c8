"""A small float64 evaluator of sweeps from the op table, fold by fold along each row in edge order: what kernels are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnc.ir.core import Func, Value
from gnnc.ir.monoid import find_monoid
from gnnc.ir.ops import OPS, Array, EvalContext, GraphArrays, RuleContext
from gnnc.ir.types import I32, DType


def interpret(func: Func, graph: GraphArrays, args: dict[str, Array], index_dtype: DType = I32) -> list[Array]:
    """Results of ``func``; every array has a leading row axis."""
    ctx = EvalContext(graph, RuleContext(func.square, index_dtype, func.monoids))
    env: dict[Value, Array] = {}
    for v in func.values():
        if v.op == "input":
            a = args[v.name]
            env[v] = a.astype(np.float64) if v.type.dtype.is_float else a
        elif v.op == "fold":
            env[v] = _fold(v, [env[o] for o in v.operands], ctx)
        else:
            env[v] = OPS[v.op].evaluate([env[o] for o in v.operands], v, ctx)
    return [np.broadcast_to(env[r], (graph.rows(r.type.space), *env[r].shape[1:])) for r in func.results]


def _call(func: Func, args: list[Array], ctx: EvalContext) -> list[Array]:
    env = dict(zip(func.params, args, strict=True))
    for v in func.body:
        env[v] = OPS[v.op].evaluate([env[o] for o in v.operands], v, ctx)
    return [env[r] for r in func.results]


def _fold(v: Value, messages: list[Array], ctx: EvalContext) -> Array:
    monoid, end = find_monoid(v.attr("monoid"), ctx.rule.monoids), v.attr("to")
    types = monoid.state_types([o.type for o in v.operands], ctx.rule)
    rows, index = ctx.graph.count(end), ctx.graph.index(end)
    messages = [np.broadcast_to(m, (ctx.graph.num_edges, *m.shape[1:])) for m in messages]
    out: list[Any] = []
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(rows + 1))
    for r in range(rows):
        edges = order[starts[r] : starts[r + 1]]
        state = [
            np.full((1, *t.dims), c.init, dtype=np.int64 if c.kind == "index" else np.float64)
            for c, t in zip(monoid.components, types, strict=True)
        ]
        for e in edges:
            given = [m[e : e + 1] for m in messages] + ([np.array([e])] if monoid.uses_edge_id else [])
            state = _call(monoid.step, [*state, *given], ctx)
            state = [np.broadcast_to(s, (1, *t.dims)) for s, t in zip(state, types, strict=True)]
        out.append(_call(monoid.part(v.attr("part")), [*state, np.array([float(len(edges))])], ctx)[0])
    if not out:
        return np.zeros((0, *v.type.dims))
    return np.concatenate([np.broadcast_to(o, (1, *v.type.dims)) for o in out])
