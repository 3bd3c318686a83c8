"""Cuts a joint function into forward and backward: what to save, what to compute again.

A minimum cut over bytes (networkx) between the forward's inputs and the values the backward reads. A saved value costs one write
and one read, one that is live anyway (an input, a result) one read. Edge values have infinite capacity unless they are inputs
or results: the cut runs through node values, fold results and statistics, so memory stays O(N). Folds and dense products
are never computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import networkx as nx

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value, topological
from gnnc.ir.types import DType

from .storage import layer_storage, stored_dtype

# Nominal rows, for weighing only: real counts are not known when a layer is compiled.
ROWS = {"src": 1 << 16, "dst": 1 << 16, "node": 1 << 16, "edge": 1 << 20, "param": 1}
ONCE = ("fold", "reduce_rows", "contract_rows", "matmul")


@dataclass(frozen=True)
class Partition:
    """``forward`` returns the layer's results, then ``saved``; ``backward`` takes inputs, results and saved values by name, and
    ``grad_<result>``. ``reasons``: one line a saved value, for explain."""

    forward: Func
    backward: Func
    num_results: int
    saved: tuple[str, ...]
    reasons: tuple[str, ...]


def _depends_on(params: tuple[Value, ...], order: list[Value]) -> set[Value]:
    found = set(params)
    for v in order:
        if any(o in found for o in v.operands):
            found.add(v)
    return found


def _is_once(v: Value) -> bool:
    """Too expensive to compute again: a fold, a sum over rows, a dense product of nodes."""
    return v.op in ONCE and v.type.space != "edge"


def _live(func: Func, results: list[Value], storage: DType | None) -> dict[Value, str]:
    """Values that exist in memory anyway: name by value. A value whose stored form is a result counts as that result."""
    live = {p: p.name for p in func.params}
    for name, r in zip(func.result_names, results, strict=False):
        if r.op == "cast" and r.type.dtype is stored_dtype(r.operands[0], storage):
            live.setdefault(r.operands[0], name)
        live.setdefault(r, name)
    return live


def partition(joint: Func, num_results: int) -> Partition:
    """Splits `joint` (``lowered``, from Differentiate) whose first ``num_results`` results are the forward's."""
    order = topological(joint.results)
    grads = tuple(p for p in joint.params if p.name.startswith("grad_") and p.name[5:] in joint.result_names[:num_results])
    inputs = tuple(p for p in joint.params if p not in grads)
    backward = _depends_on(grads, order)
    results, wanted = list(joint.results[:num_results]), list(joint.results[num_results:])
    frontier = {o for v in topological(wanted) if v in backward for o in v.operands if o not in backward}
    frontier |= {w for w in wanted if w not in backward}
    storage = layer_storage(replace(joint, results=tuple(results), result_names=joint.result_names[:num_results]))
    live = _live(replace(joint, params=inputs), results, storage)

    cut = _minimum_cut(topological(sorted(frontier, key=order.index)), frontier, live, storage)
    names: dict[Value, str] = {}
    reasons = []
    for v in (v for v in order if v in cut):
        names[v] = live.get(v) or f"saved{len([n for n in names.values() if n.startswith('saved')])}"
        kind = "an input" if v.op == "input" else "a result" if v in live else "saved"
        reasons.append(f"{names[v]} : {v.type.with_dtype(stored_dtype(v, storage))} ({v.op}), {kind}")
    saved = [v for v in order if v in names and names[v] not in live.values()]
    return Partition(
        _forward(joint, inputs, results, num_results, saved, names, storage),
        _backward(joint, names, storage, wanted, num_results),
        num_results,
        tuple(names[v] for v in saved),
        tuple(reasons),
    )


def _minimum_cut(values: list[Value], frontier: set[Value], live: dict[Value, str], storage: DType | None) -> set[Value]:
    g = nx.DiGraph()
    index = {v: i for i, v in enumerate(values)}
    g.add_node("source")
    g.add_node("sink")
    for v, i in index.items():
        size = v.type.size * stored_dtype(v, storage).bytes * ROWS[v.type.space]
        cost = size if v in live else 2 * size
        free = v.op in ("const", "iota", "degree", "edge_id")  # graph data and numbers: made again at no cost
        if not free and (v.type.space != "edge" or v in live):
            g.add_edge((i, "in"), (i, "out"), capacity=max(cost, 1))
        else:
            g.add_edge((i, "in"), (i, "out"))
        if v.op == "input" or _is_once(v):
            g.add_edge("source", (i, "in"))
        for o in v.operands:
            g.add_edge((index[o], "out"), (i, "in"))
        if v in frontier:
            g.add_edge((i, "out"), "sink")
    _, (reach, _) = nx.minimum_cut(g, "source", "sink")
    return {v for v, i in index.items() if (i, "in") in reach and (i, "out") not in reach}


def _forward(
    joint: Func,
    inputs: tuple[Value, ...],
    results: list[Value],
    num_results: int,
    saved: list[Value],
    names: dict[Value, str],
    storage: DType | None,
) -> Func:
    b = Builder.like(joint)
    env: dict[Value, Value] = {p: b.input(p.name, p.type) for p in inputs}
    for v in topological([*results, *saved]):
        if v not in env:
            env[v] = b.copy(v, tuple(env[o] for o in v.operands))
    extra = [b.cast(env[v], stored_dtype(v, storage)) for v in saved]
    return replace(
        joint,
        params=tuple(env[p] for p in inputs),
        results=(*(env[r] for r in results), *extra),
        result_names=(*joint.result_names[:num_results], *(names[v] for v in saved)),
    )


def _backward(joint: Func, names: dict[Value, str], storage: DType | None, wanted: list[Value], num_results: int) -> Func:
    b = Builder.like(joint)
    env: dict[Value, Value] = {}
    params: list[Value] = []

    def bind(v: Value, name: str) -> None:
        stored = b.input(name, v.type if v.op == "input" else v.type.with_dtype(stored_dtype(v, storage)))
        params.append(stored)
        env[v] = b.cast(stored, v.type.dtype)

    stack = [(w, 0) for w in reversed(wanted)]
    while stack:
        v, i = stack.pop()
        if v in env:
            continue
        if v in names:
            bind(v, names[v])
        elif v.op == "input":
            bind(v, v.name)
        elif i < len(v.operands):
            stack.append((v, i + 1))
            stack.append((v.operands[i], 0))
        else:
            env[v] = b.copy(v, tuple(env[o] for o in v.operands))
    return replace(
        joint,
        name=f"{joint.name}_backward",
        params=tuple(sorted(params, key=lambda p: p.name)),
        results=tuple(env[w] for w in wanted),
        result_names=joint.result_names[num_results:],
    )
