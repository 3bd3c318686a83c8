"""Cuts a sweep into tasks for a CPU: fixed by the graph alone, so that results have the same bits for any number of threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MAX_TASKS = 512


@dataclass(frozen=True)
class Tasks:
    """``tasks`` int64 [T, 5]: (row_begin, row_end, slot_begin, slot_end, partial). partial -1: the rows are done whole. Otherwise slots
    [slot_begin, slot_end) of row row_begin give partial state number ``partial``. ``hubs`` int64 [H, 3]: (row, first_partial,
    end_partial), the rows that were split. ``num_partials``: states of split rows."""

    tasks: Tensor
    hubs: Tensor
    num_partials: int


def row_tasks(indptr: Tensor, task_edges: int) -> Tasks:
    """Tasks over rows with these offsets (int64 [rows + 1], CPU), each about ``task_edges`` edges + rows; at most about MAX_TASKS of
    them plus one a split row."""
    ptr = indptr.numpy()
    rows = len(ptr) - 1
    if rows <= 0:
        return _tasks(np.zeros((0, 5), np.int64), np.zeros((0, 3), np.int64))
    work = ptr + np.arange(rows + 1)  # edges + rows before each row
    size = max(task_edges, int(work[-1]) // MAX_TASKS, 1)
    degree = np.diff(ptr)
    hub = np.flatnonzero(degree > size)
    # Hubs cut the rows into runs; each run is cut where its work passes a multiple of `size`.
    cuts = np.searchsorted(work, np.arange(0, int(work[-1]) + size, size), side="left").clip(0, rows)
    bounds = np.unique(np.concatenate([[0, rows], cuts, hub, hub + 1]))
    begin, end = bounds[:-1], bounds[1:]
    light = ~np.isin(begin, hub)
    whole = np.stack([begin, end, ptr[begin], ptr[end], np.full_like(begin, -1)], 1)[light]
    pieces = -(-degree[hub] // size)
    first = np.concatenate([[0], np.cumsum(pieces)])
    row = np.repeat(hub, pieces)
    nth = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    slot = ptr[row] + nth * size
    split = np.stack([row, row + 1, slot, np.minimum(slot + size, ptr[row + 1]), np.arange(first[-1])], 1)
    hubs = np.stack([hub, first[:-1], first[1:]], 1)
    # Split rows first: they are the longest to run.
    return _tasks(np.concatenate([split, whole]).astype(np.int64), hubs.astype(np.int64), int(first[-1]))


def map_tasks(num_rows: int, rows_per_task: int) -> Tasks:
    """Tasks over rows without edges."""
    size = max(rows_per_task, num_rows // MAX_TASKS, 1)
    begin = np.arange(0, num_rows, size, dtype=np.int64)
    zero = np.zeros_like(begin)
    table = np.stack([begin, np.minimum(begin + size, num_rows), zero, zero, zero - 1], 1)
    return _tasks(table, np.zeros((0, 3), np.int64))


def _tasks(tasks: np.ndarray, hubs: np.ndarray, partials: int = 0) -> Tasks:  # type: ignore[type-arg]
    return Tasks(torch.from_numpy(np.ascontiguousarray(tasks)), torch.from_numpy(np.ascontiguousarray(hubs)), partials)
