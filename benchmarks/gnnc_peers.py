"""gnnc as a plugin of the peers' benchmark: ``peers(g, op, cfg, dtype, inputs)`` yields (name, forward, inputs that want gradients)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

import gnnc
from gnnc.lang import Dst, Edge, Param, Src, leaky_relu


@gnnc.layer
def spmm(g, x: Src["F"], w: Edge[()]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def largest(g, x: Src["F"]):
    return g.max(g.src(x))


@gnnc.layer
def mean(g, x: Src["F"]):
    return g.mean(g.src(x))


@gnnc.layer
def gat(g, a_src: Src["H"], a_dst: Dst["H"], h: Src["H", "C"]):
    alpha = g.softmax(leaky_relu(g.src(a_src) + g.dst(a_dst), 0.2))
    return g.sum(alpha[..., None] * g.src(h))


@gnnc.layer
def gatv2(g, x_l: Src["H", "C"], x_r: Dst["H", "C"], att: Param["H", "C"]):
    alpha = g.softmax((att * leaky_relu(g.src(x_l) + g.dst(x_r), 0.2)).sum(-1))
    return g.sum(alpha[..., None] * g.src(x_l))


@gnnc.layer
def gt(g, q: Dst["H", "C"], k: Src["H", "C"], v: Src["H", "C"]):
    alpha = g.softmax((g.dst(q) * g.src(k)).sum(-1) * (1 / math.sqrt(q.dims[-1])))
    return g.sum(alpha[..., None] * g.src(v))


LAYERS = {"spmm": spmm, "max": largest, "mean": mean, "gat": gat, "gatv2": gatv2, "gt": gt}
_last: list[Any] = [None, None]


def graph_of(g: Any) -> gnnc.Graph:
    """The benchmark's CSR (destinations by columns of sources) as a `gnnc.Graph`, made once."""
    if _last[0] is not g:
        _last[:] = [g, gnnc.Graph.from_csr(g.ptr64, g.col, grouped_by="dst", num_src=g.n, num_dst=g.n)]
    graph: gnnc.Graph = _last[1]
    return graph


def peers(g: Any, op: str, cfg: Any, dtype: Any, inputs: Any) -> Iterator[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    graph, layer = graph_of(g), LAYERS[op]
    # Gradients as the peers are asked for them: of the features alone for sums and extrema, of everything for attention.
    leaves = [t.detach().clone() for t in inputs]
    wanted = leaves[:1] if op in ("spmm", "max", "mean") else leaves
    for t in wanted:
        t.requires_grad_()
    yield "gnnc", lambda: layer(graph, *leaves), wanted
