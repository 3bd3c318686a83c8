"""Derived forms against their definition, and that grouping is stable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc_runtime.forms import Form, group, row_offsets
from gnnc_runtime.graph import Graph
from tests.reference import cases


def check(form: Form, rows: torch.Tensor, far: torch.Tensor, num_rows: int, dtype: torch.dtype) -> None:
    """Each row's slots are its edges in the caller's order."""
    assert (form.indptr.dtype, form.indices.dtype, form.edge_ids.dtype) == (torch.int64, dtype, dtype)
    assert all(t.is_contiguous() for t in (form.indptr, form.indices, form.edge_ids))
    want = [(r, e) for e, r in enumerate(rows.tolist())]
    want.sort()
    assert form.edge_ids.tolist() == [e for _, e in want]
    assert form.indices.tolist() == far[form.edge_ids.long()].tolist()
    assert form.indptr.tolist() == [0, *torch.bincount(rows, minlength=num_rows).cumsum(0).tolist()]


@pytest.mark.parametrize("g", [*cases.all_graphs(), cases.many_nodes()], ids=lambda g: g.name)
def test_forms_of_every_graph(g: cases.Graph) -> None:
    mine = Graph.from_edge_index(g.edge_index, g.n_src, g.n_dst)
    src, dst = g.edge_index
    check(mine.in_form(), dst, src, g.n_dst, torch.int32)
    check(mine.out_form(), src, dst, g.n_src, torch.int32)
    assert torch.equal(mine.in_degree(torch.int64), torch.bincount(dst, minlength=g.n_dst))
    assert torch.equal(mine.out_degree(torch.int64), torch.bincount(src, minlength=g.n_src))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=25))
def test_forms_of_random_graphs(num_src: int, num_dst: int, pairs: list[tuple[int, int]]) -> None:
    ei = torch.tensor([(u % num_src, v % num_dst) for u, v in pairs], dtype=torch.int64).reshape(-1, 2).t()
    g = Graph.from_edge_index(ei, num_src, num_dst)
    check(g.in_form(), ei[1], ei[0], num_dst, torch.int32)
    check(g.out_form(), ei[0], ei[1], num_src, torch.int32)


def test_names_are_the_forms_tensors() -> None:
    g = Graph.from_edge_index(torch.tensor([[0, 2, 1], [1, 0, 1]]), 3)
    into, out = g.in_form(), g.out_form()
    assert g.in_form() is into and g.out_form() is out
    assert g.in_indptr is into.indptr and g.in_indices is into.indices and g.in_edge_ids is into.edge_ids
    assert g.out_indptr is out.indptr and g.out_indices is out.indices and g.out_edge_ids is out.edge_ids


def test_sorted_rows_are_not_sorted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    g = cases.sorted_by_src()
    mine = Graph.from_edge_index(g.edge_index, g.n_src)
    monkeypatch.setattr(torch, "sort", None)
    check(mine.out_form(), *g.edge_index, g.n_src, torch.int32)
    with pytest.raises(TypeError):
        mine.in_form()


def test_rows_sorted_but_for_one_edge() -> None:
    g = cases.almost_sorted()
    check(Graph.from_edge_index(g.edge_index, g.n_src).in_form(), *g.edge_index.flip(0), g.n_dst, torch.int32)


@pytest.mark.parametrize(("count", "dtype"), [(2**31 - 1, torch.int32), (2**31, torch.int64), (2**40, torch.int64)])
def test_wide_indices_where_a_count_needs_them(count: int, dtype: torch.dtype) -> None:
    # Grouped by the small side only: an indptr of the other would not fit in memory.
    g = Graph.from_edge_index(torch.tensor([[count - 1, 0, count - 1], [1, 1, 0]]), count, 2)
    assert g.index_dtype == dtype
    check(g.in_form(), g.edge_index[1], g.edge_index[0], 2, dtype)


def test_wide_rows() -> None:
    rows, far = torch.tensor([3, 1, 3, 0]), torch.tensor([2**40, 5, 6, 7])
    check(group(row_offsets(rows, 5), rows, far), rows, far, 5, torch.int64)
