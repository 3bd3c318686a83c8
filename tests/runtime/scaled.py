"""A layer by hand for the tests: ``out = s * sum(w * x[src])`` with its in-degree as a second, integer result.

Forward: one sweep by dst that also saves ``h = sum(w * x[src])``. Backward: a sweep by dst (``d_w``, and ``d_s`` as a sum over rows) and
one by src (``d_x``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnc_runtime.executor import Executable
from gnnc_runtime.graph import Graph
from gnnc_runtime.plan import BufferSpec, Plan, SweepStep
from tests.runtime.python_kernels import PythonKernel, image

F = 3


def rows(slots: range) -> slice:
    return slice(slots.start, slots.stop)


def fwd_fold(v: Any, row: int, slots: range) -> Any:
    x, w = v.a[:2]
    s = rows(slots)
    return np.append((w[v.ids[s]][:, None] * x[v.indices[s]]).sum(0, dtype=np.float64), len(slots))


def fwd_store(v: Any, row: int, state: Any) -> None:
    v.a[3][row] = v.a[2][0] * state[:F]
    v.a[4][row] = state[F]
    v.a[5][row] = state[:F]


def bwd_dst_fold(v: Any, row: int, slots: range) -> Any:
    s = rows(slots)
    v.a[4][v.ids[s]] = v.a[1][v.indices[s]] @ (v.a[2][0] * v.a[0][row])
    return np.zeros(0)


def bwd_src_fold(v: Any, row: int, slots: range) -> Any:
    s = rows(slots)
    return (v.a[1][v.ids[s]][:, None] * v.a[0][v.indices[s]]).sum(0, dtype=np.float64) * v.a[2][0]


def put(v: Any, at: int, row: int, value: Any) -> None:
    v.a[at][row] = value


X, W, S = (
    BufferSpec("x", "src", "f32", (F,), "input"),
    BufferSpec("w", "edge", "f32", (), "input"),
    BufferSpec("s", "param", "f32", (F,), "input"),
)
FORWARD = PythonKernel(
    [("f32", (F,)), ("f32", ()), ("f32", (F,)), ("f32", (F,)), ("i64", ()), ("f32", (F,))], fwd_fold, fwd_store, state=F + 1
)
BACKWARD_DST = PythonKernel(
    [("f32", (F,)), ("f32", (F,)), ("f32", (F,)), ("f32", (F,)), ("f32", ()), ("f32", (F,))],
    bwd_dst_fold,
    carry=lambda v, row, state: v.a[0][row] * v.a[3][row].astype(np.float64),
    store_carry=lambda v, total: put(v, 5, 0, total),
    carries=F,
)
BACKWARD_SRC = PythonKernel(
    [("f32", (F,)), ("f32", ()), ("f32", (F,)), ("f32", (F,))], bwd_src_fold, lambda v, row, state: put(v, 3, row, state), state=F
)


def forward(task_edges: int = 4) -> Executable:
    plan = Plan(
        "scaled",
        ("x", "w", "s"),
        ("out", "deg", "saved0"),
        (
            X,
            W,
            S,
            BufferSpec("out", "dst", "f32", (F,), "output"),
            BufferSpec("deg", "dst", "i64", (), "output"),
            BufferSpec("saved0", "dst", "f32", (F,), "output"),
        ),
        (SweepStep("fwd", "dst", "dst", ("x", "w", "s", "out", "deg", "saved0"), 3, image(F + 1), 0, task_edges),),
    )
    return Executable(plan, {"fwd": FORWARD.kernel()})


def backward(task_edges: int = 4) -> Executable:
    """d_x, d_w and d_s."""
    plan = Plan(
        "scaled_backward",
        ("grad_out", "x", "w", "s", "saved0"),
        ("d_x", "d_w", "d_s"),
        (
            BufferSpec("grad_out", "dst", "f32", (F,), "input"),
            X,
            W,
            S,
            BufferSpec("saved0", "dst", "f32", (F,), "input"),
            BufferSpec("d_x", "src", "f32", (F,), "output"),
            BufferSpec("d_w", "edge", "f32", (), "output"),
            BufferSpec("d_s", "param", "f32", (F,), "output"),
        ),
        (
            SweepStep("bwd_dst", "dst", "dst", ("grad_out", "x", "s", "saved0", "d_w", "d_s"), 4, 0, image(F), task_edges),
            SweepStep("bwd_src", "src", "src", ("grad_out", "w", "s", "d_x"), 3, image(F), 0, task_edges),
        ),
    )
    return Executable(plan, {"bwd_dst": BACKWARD_DST.kernel(), "bwd_src": BACKWARD_SRC.kernel()})


def eager(graph: Graph, x: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The layer in plain torch."""
    src, dst = graph.edge_index
    h = torch.zeros(graph.num_dst, F, dtype=x.dtype).index_add(0, dst, w[:, None] * x[src])
    return s * h, torch.bincount(dst, minlength=graph.num_dst)


def inputs(graph: Graph, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(graph.num_src, F, generator=g), torch.randn(graph.num_edges, generator=g), torch.randn(F, generator=g)


def a_graph(num_src: int = 7, num_dst: int = 5, num_edges: int = 40, seed: int = 0) -> Graph:
    """A random bipartite graph whose destination 0 has many edges."""
    g = torch.Generator().manual_seed(seed)
    src = torch.randint(0, max(num_src, 1), (num_edges,), generator=g)
    dst = torch.randint(0, max(num_dst, 1), (num_edges,), generator=g)
    dst[: num_edges // 3] = 0
    return Graph.from_edge_index(torch.stack([src, dst]), num_src, num_dst)
