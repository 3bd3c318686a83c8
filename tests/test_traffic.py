"""Bytes by hand for small programs."""

from __future__ import annotations

from gnnc.explain import human
from gnnc.passes.fuse import fuse
from gnnc.passes.lower_softmax import LowerSoftmax
from gnnc.traffic import Sizes, edge_tensor_bytes, op_by_op_bytes, plan_bytes
from tests.passes import programs

N = Sizes(num_src=10, num_dst=20, num_edges=100)


def test_spmm_by_hand():
    f = programs.func(programs.SPMM)
    plan = fuse(LowerSoftmax().run(f))
    row = 4 * 8
    # x gathered once an edge, w read, out written, indices, offsets, edge ids (w is in the caller's order)
    assert plan_bytes(plan, N) == 100 * row + 100 * 8 + 20 * row + 100 * 4 + 21 * 8 + 100 * 4
    # gather (read + write + its index), product (w, message, result), fold (message, index, result)
    gather = 2 * 100 * row + 100 * 8
    assert op_by_op_bytes(f, N) == gather + 100 * (8 + 2 * row) + (100 * row + 20 * row + 100 * 8)
    assert edge_tensor_bytes(plan, N) == 0


def test_human_units():
    assert [human(n) for n in (0, 999, 1000, 1.5e6, 2e9, 3e12)] == ["0 B", "999 B", "1.00 kB", "1.50 MB", "2.00 GB", "3000.00 GB"]
