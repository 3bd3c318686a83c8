"""Cuts a sweep into tasks for a CPU: fixed by the graph alone, so that results have the same bits for any number of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAX_TASKS = 512  # about as many as it takes to keep a large machine's threads busy

Table: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True)
class Tasks:
    """``tasks`` int64 [T, 5]: (row_begin, row_end, slot_begin, slot_end, partial). partial -1: the rows are done whole. Otherwise slots
    [slot_begin, slot_end) of row row_begin give partial state number ``partial``. ``hubs`` int64 [H, 3]: (row, first_partial,
    end_partial), the rows that were split, in row order. ``num_partials``: states of split rows."""

    tasks: Tensor
    hubs: Tensor
    num_partials: int


def row_tasks(indptr: Tensor, task_edges: int) -> Tasks:
    """Tasks over the rows of a form with these offsets (int64 [rows + 1]), on the CPU.

    A task has work (edges + rows) of about ``task_edges``, less than twice that; more in a graph so large that it would have over
    MAX_TASKS of them. A row of more edges than one task's work is a hub: split into equal parts. Every row and slot is in one task.
    """
    ptr = indptr.cpu().numpy()
    rows = len(ptr) - 1
    if rows <= 0:
        return _tasks(np.zeros((0, 5), np.int64), np.zeros((0, 3), np.int64), 0)
    work = ptr + np.arange(rows + 1)  # edges + rows before each row
    total = int(work[-1])
    size = max(task_edges, -(-total // MAX_TASKS), 1)
    degree = np.diff(ptr)
    hub = np.flatnonzero(degree > size)
    # Rows are cut where the work before them passes a multiple of `size`, and around every hub.
    cuts = np.searchsorted(work, np.arange(0, total, size))
    bounds = np.unique(np.concatenate([cuts, hub, hub + 1, [rows]]))
    begin, end = bounds[:-1], bounds[1:]
    light = degree[begin] <= size  # a hub is alone between its bounds
    whole = np.stack([begin, end, ptr[begin], ptr[end], np.full_like(begin, -1)], 1)[light]
    parts = -(-degree[hub] // size)
    first = np.concatenate([[0], np.cumsum(parts)])
    num_partials = int(first[-1])
    of_hub = np.repeat(np.arange(len(hub)), parts)
    row, nth, length = hub[of_hub], np.arange(num_partials) - first[of_hub], -(-degree[hub] // np.maximum(parts, 1))[of_hub]
    split_begin = ptr[row] + np.minimum(nth * length, degree[row])
    split_end = ptr[row] + np.minimum((nth + 1) * length, degree[row])
    split = np.stack([row, row + 1, split_begin, split_end, np.arange(num_partials)], 1)
    # Parts of hubs first: they are the longest to run.
    return _tasks(np.concatenate([split, whole]), np.stack([hub, first[:-1], first[1:]], 1), num_partials)


def map_tasks(num_rows: int, rows_per_task: int) -> Tasks:
    """Tasks over rows without edges: ``rows_per_task`` rows each, more where there would be over MAX_TASKS of them."""
    size = max(rows_per_task, -(-num_rows // MAX_TASKS), 1)
    begin = np.arange(0, num_rows, size, dtype=np.int64)
    zero = np.zeros_like(begin)
    table = np.stack([begin, np.minimum(begin + size, num_rows), zero, zero, zero - 1], 1)
    return _tasks(table, np.zeros((0, 3), np.int64), 0)


def _tasks(tasks: Table, hubs: Table, num_partials: int) -> Tasks:
    as_stored = [torch.from_numpy(np.ascontiguousarray(t, np.int64)) for t in (tasks, hubs)]
    return Tasks(as_stored[0], as_stored[1], num_partials)
