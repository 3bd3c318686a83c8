"""The sweep IR: what `fuse` makes and both back ends read.

A sweep is one pass over the edges grouped by one side (or a map over rows). Its program is an ordinary `Func` at stage
``sweep``, in the same text format and with the same interpreter; only its shape is restricted (the verifier checks it):

* params are buffers, as stored: node tables, edge inputs, parameters;
* ``gather`` at the *other* end reads a param only; ``gather`` at the grouped end reads a row value that does not hang on a fold;
* every ``fold`` is ``to`` the grouped side and no message hangs on a fold of this sweep; no ``softmax``;
* a result is a row value (a store once a row), an edge value (a store at the edge's id), or ``reduce_rows`` /
  ``contract_rows`` of an edge or row value (a *carry*: a sum over all rows), each possibly behind a ``cast``;
* a map (``grouped_by`` None) has row values, param values and carries only.

`Region` says when a value is computed; it follows from the operands, so nothing stores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from .core import Func, Value
from .types import Type


class Region(IntEnum):
    """When a value of a sweep is known: once (PARAM), once a row before its edges (ROW), for every edge (EDGE), once a row after
    its edges (POST), once after all rows (CARRY)."""

    PARAM = 0
    ROW = 1
    EDGE = 2
    POST = 3
    CARRY = 4


def regions(func: Func) -> dict[Value, Region]:
    """The region of every value of a sweep."""
    out: dict[Value, Region] = {}
    for v in func.values():
        if v.op == "fold":
            r = Region.POST
        elif v.op in ("reduce_rows", "contract_rows"):
            r = Region.CARRY
        elif v.type.space == "edge":
            r = Region.EDGE
        elif v.type.space == "param":
            r = max([Region.PARAM, *(out[o] for o in v.operands)])
        else:
            r = max([Region.ROW, *(out[o] for o in v.operands)])
        out[v] = Region(r)
    return out


@dataclass(frozen=True)
class Schedule:
    """How a sweep maps to a CPU. ``task_edges``: edges (plus rows) of one task; a row with more is split and its parts are
    merged with ``combine`` in order. ``vector_bits``: register width the code is written for. ``reason`` says why."""

    task_edges: int = 4096
    vector_bits: int = 256
    reason: str = ""


@dataclass(frozen=True)
class SweepSpec:
    """One sweep of a plan. ``rows`` is the space of its rows. ``family`` (spmm, reduction, attention, map, edgewise) has a
    ``reason``. ``func`` params and results carry the plan's buffer names."""

    name: str
    func: Func
    grouped_by: str | None
    rows: str
    family: str = ""
    reason: str = ""
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True)
class DenseSpec:
    """A dense product done by torch: ``func`` is one ``matmul`` (perhaps of a ``transpose``) or ``contract_rows``, a cast behind it."""

    name: str
    func: Func


StepSpec = SweepSpec | DenseSpec


@dataclass(frozen=True)
class PlanSpec:
    """The fused program: steps in order over named buffers. ``params`` and ``results`` are (name, type) in calling order; every
    step's params are params or results of earlier steps, by name."""

    name: str
    params: tuple[tuple[str, Type], ...]
    results: tuple[tuple[str, Type], ...]
    steps: tuple[StepSpec, ...]
    square: bool = False

    @property
    def sweeps(self) -> list[SweepSpec]:
        return [s for s in self.steps if isinstance(s, SweepSpec)]
