"""Bytes a program moves, counted from types and a graph's sizes: the fused plan against one operation at a time.

Counting is the compulsory kind: every row that is read or written once a use, gathered rows once an edge, no cache. Index arrays
count where edges are walked.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnc.ir.core import Func, Value
from gnnc.ir.sweep import DenseSpec, PlanSpec, StepSpec
from gnnc.ir.types import Type


@dataclass(frozen=True)
class Sizes:
    """Row counts of one graph."""

    num_src: int
    num_dst: int
    num_edges: int
    index_bytes: int = 4

    def rows(self, space: str) -> int:
        return {"src": self.num_src, "dst": self.num_dst, "node": self.num_dst, "edge": self.num_edges, "param": 1}[space]

    def bytes_of(self, t: Type) -> int:
        return self.rows(t.space) * t.row_bytes


def step_bytes(step: StepSpec, n: Sizes) -> int:
    """Bytes one step of a plan reads and writes."""
    func = step.func
    total = sum(n.bytes_of(r.type) for r in func.results)
    if isinstance(step, DenseSpec):
        return total + sum(n.bytes_of(p.type) for p in func.params)
    users = func.users()
    far = {p for p in func.params for u in users[p] if u.op == "gather" and u.attr("end") != step.grouped_by}
    for p in func.params:
        if p in far:
            total += n.num_edges * p.type.row_bytes
        if p not in far or any(not (u.op == "gather" and u.attr("end") != step.grouped_by) for u in users[p]) or p in func.results:
            total += n.bytes_of(p.type)
    if step.grouped_by is not None:
        total += n.num_edges * n.index_bytes + (n.rows(step.rows) + 1) * 8
        by_id = any(v.op == "edge_id" for v in func.body) or any(v.type.space == "edge" for v in (*func.params, *func.results))
        total += n.num_edges * n.index_bytes if by_id else 0
    return total


def plan_bytes(plan: PlanSpec, n: Sizes) -> int:
    """Bytes the whole plan moves."""
    return sum(step_bytes(s, n) for s in plan.steps)


def op_by_op_bytes(func: Func, n: Sizes) -> int:
    """Bytes the same function moves when every operation is a kernel of its own that reads its operands and writes its result
    (views, numbers and broadcasts are free)."""
    return sum(_op_bytes(v, n) for v in func.body)


def _op_bytes(v: Value, n: Sizes) -> int:
    if v.op in ("const", "iota", "reshape", "broadcast", "spread", "slice", "transpose", "degree", "edge_id"):
        return 0
    moved = n.bytes_of(v.type)
    if v.op == "gather":
        return 2 * moved + n.num_edges * 2 * n.index_bytes
    moved += sum(n.bytes_of(o.type) for o in v.operands)
    if v.op in ("fold", "softmax"):
        moved += n.num_edges * 2 * n.index_bytes
    if v.op == "softmax":  # max, subtract, exp, sum, divide: as frameworks compute it
        moved += 6 * n.bytes_of(v.type)
    return moved


def edge_tensor_bytes(plan: PlanSpec, n: Sizes) -> int:
    """Bytes of edge-wise tensors the plan writes: 0 unless the layer returns one."""
    return sum(n.bytes_of(r.type) for s in plan.steps for r in s.func.results if r.type.space == "edge")
