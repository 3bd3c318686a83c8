"""Every golden layer, forward and gradients, against eager float64 PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.golden.harness import check
from tests.golden.layers import CASES
from tests.reference import cases

GRAPHS = {g.name: g for g in cases.all_graphs()}
# Graphs that between them hold empty rows, hubs, duplicates, loops, bipartite shapes; the rest run for a few layers below.
CORE = ("isolated", "duplicates", "bip_17to5", "bip_5to17", "dup_loops", "N1_E0", "src0_dst4")


def usable(case, g):
    return g.square or not case.square


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_core_graphs_in_float64(case):
    for name in CORE:
        if usable(case, GRAPHS[name]):
            check(case, GRAPHS[name])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes(case, dtype):
    check(case, GRAPHS["random"], dtype, seed=3)


EVERYWHERE = ("gcn", "weighted_max", "gatv2", "pna", "by_source", "gated_gcn", "cgconv")


@pytest.mark.parametrize("case", [c for c in CASES if c.name in EVERYWHERE], ids=lambda c: c.name)
def test_every_graph(case):
    for g in GRAPHS.values():
        if usable(case, g):
            check(case, g, seed=5)


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("spmm", "gatv2", "weighted_max", "gated_gcn")], ids=lambda c: c.name)
def test_any_subset_of_gradients(case):
    for i in range(len(case.inputs)):
        check(case, GRAPHS["random"], seed=7, wrt={i})
    check(case, GRAPHS["random"], seed=7, wrt=set())
