"""Task lists: every row and slot once, sizes, hubs, fixed by the graph alone."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc_runtime.graph import Graph
from gnnc_runtime.tasks import MAX_TASKS, Tasks, map_tasks, row_tasks
from tests.reference import cases


def offsets(degrees: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(degrees, dtype=torch.int64).cumsum(0).tolist()], dtype=torch.int64)


def check(indptr: torch.Tensor, task_edges: int, found: Tasks) -> None:
    ptr = indptr.tolist()
    rows = len(ptr) - 1
    size = max(task_edges, -(-(ptr[-1] + rows) // MAX_TASKS), 1)
    assert found.tasks.dtype == found.hubs.dtype == torch.int64
    assert found.tasks.is_contiguous() and found.hubs.is_contiguous()
    assert found.tasks.shape[1:] == (5,) and found.hubs.shape[1:] == (3,)
    covered: list[tuple[int, int]] = []  # whole rows, as (begin, end)
    parts: dict[int, tuple[int, int, int]] = {}
    for begin, end, first, last, partial in found.tasks.tolist():
        assert begin < end
        if partial < 0:
            assert partial == -1 and (first, last) == (ptr[begin], ptr[end])
            assert last - first + end - begin <= 2 * size + 1
            covered.append((begin, end))
        else:
            assert end == begin + 1 and 0 < last - first <= size and partial not in parts
            parts[partial] = (begin, first, last)
    assert sorted(parts) == list(range(found.num_partials))
    next_part = 0
    for row, first_part, end_part in found.hubs.tolist():
        assert first_part == next_part and end_part > first_part + 1
        assert ptr[row + 1] - ptr[row] > size
        at = ptr[row]
        for p in range(first_part, end_part):  # in slot order, without a gap
            assert parts[p][:2] == (row, at)
            at = parts[p][2]
        assert at == ptr[row + 1]
        covered.append((row, row + 1))
        next_part = end_part
    assert next_part == found.num_partials
    covered.sort()
    assert [b for b, _ in covered] == [0, *(e for _, e in covered)][: len(covered)]
    assert (covered[-1][1] if covered else 0) == rows
    assert len(found.tasks) <= 4 * MAX_TASKS


@pytest.mark.parametrize("task_edges", [1, 7, 64, 4096])
def test_every_graph(task_edges: int) -> None:
    for g in cases.all_graphs(big=True):
        mine = Graph.from_edge_index(g.edge_index, g.n_src, g.n_dst)
        for indptr in (mine.in_indptr, mine.out_indptr):
            check(indptr, task_edges, row_tasks(indptr, task_edges))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), max_size=40), st.integers(0, 30))
def test_random_degrees(degrees: list[int], task_edges: int) -> None:
    indptr = offsets(degrees)
    check(indptr, task_edges, row_tasks(indptr, task_edges))


def test_a_small_graph_by_hand() -> None:
    found = row_tasks(offsets([2, 1, 9, 0, 1]), 4)
    # Work before each row is 0 3 5 15 16 18: cuts at the multiples of 4, so row 4 begins a task.
    assert found.tasks.tolist() == [
        [2, 3, 3, 6, 0],
        [2, 3, 6, 9, 1],
        [2, 3, 9, 12, 2],
        [0, 2, 0, 3, -1],
        [3, 4, 12, 12, -1],
        [4, 5, 12, 13, -1],
    ]
    assert found.hubs.tolist() == [[2, 0, 3]] and found.num_partials == 3
    assert row_tasks(offsets([2, 1, 9, 0, 1]), 100).tasks.tolist() == [[0, 5, 0, 13, -1]]


def test_a_row_of_exactly_one_tasks_edges_is_whole() -> None:
    assert row_tasks(offsets([8]), 8).tasks.tolist() == [[0, 1, 0, 8, -1]]
    assert row_tasks(offsets([9]), 8).tasks.tolist() == [[0, 1, 0, 5, 0], [0, 1, 5, 9, 1]]


def test_parts_of_a_hub_are_even() -> None:
    t = row_tasks(offsets([4097]), 4096).tasks
    assert (t[:, 3] - t[:, 2]).tolist() == [2049, 2048]


def test_no_rows() -> None:
    for indptr in (torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)):
        found = row_tasks(indptr, 4096)
        assert (found.tasks.shape, found.hubs.shape, found.num_partials) == ((0, 5), (0, 3), 0)


def test_threads_change_nothing() -> None:
    g = cases.power_law()
    indptr = Graph.from_edge_index(g.edge_index, g.n_src).in_indptr
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(row_tasks(indptr, 64))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].tasks, found[1].tasks) and torch.equal(found[0].hubs, found[1].hubs)


def test_a_million_rows_take_no_loop() -> None:
    indptr = torch.arange(0, 8_000_001, 8)
    start = time.perf_counter()
    found = row_tasks(indptr, 4096)
    assert time.perf_counter() - start < 1.0  # about 20 ms; a Python loop takes seconds
    assert MAX_TASKS // 2 <= len(found.tasks) <= MAX_TASKS


@pytest.mark.parametrize(("rows", "per_task"), [(0, 5), (1, 5), (5, 5), (6, 5), (7, 0), (10_000, 3), (1_000_001, 4096)])
def test_maps(rows: int, per_task: int) -> None:
    found = map_tasks(rows, per_task)
    assert found.hubs.shape == (0, 3) and found.num_partials == 0 and len(found.tasks) <= MAX_TASKS
    at = 0
    for begin, end, *rest in found.tasks.tolist():
        assert begin == at and end > begin and rest == [0, 0, -1]
        assert end - begin <= max(per_task, -(-rows // MAX_TASKS), 1)
        at = end
    assert at == rows
