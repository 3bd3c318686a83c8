"""Trains a 2-layer GCN and a 2-layer GATv2, both written in the DSL below, beside the same models in eager PyTorch.

    python examples/quickstart.py

Prints test accuracy, time per epoch and per layer call (forward + backward) of both, and what the compiler made of the layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import citation
import torch
from torch import Tensor, nn

import gnnc
from gnnc.lang import Dst, Edge, Node, Param, Src, leaky_relu, maximum, rsqrt, where

EPOCHS, HIDDEN, HEADS = 100, 16, 8


# ---- the layers, in the DSL


@gnnc.layer
def gcn(g, x: Node["F"], w: Edge[()]):
    deg = g.sum(w)
    d = where(deg > 0, rsqrt(maximum(deg, 1e-12)), 0.0)
    return g.sum((g.src(d) * w * g.dst(d))[..., None] * g.src(x))


@gnnc.layer
def gatv2(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2):
    score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), slope)).sum(-1)
    alpha = g.softmax(score)
    return g.sum(alpha[..., None] * g.src(x_src))


# ---- the same layers in eager PyTorch, one kernel an operation


def eager_gcn(graph: gnnc.Graph, x: Tensor, w: Tensor) -> Tensor:
    src, dst = graph.edge_index
    deg = torch.zeros(graph.num_dst).index_add(0, dst, w)
    d = torch.where(deg > 0, deg.clamp(min=1e-12).rsqrt(), torch.zeros_like(deg))
    message = (d[src] * w * d[dst])[:, None] * x[src]
    return torch.zeros(graph.num_dst, x.shape[1]).index_add(0, dst, message)


def eager_gatv2(graph: gnnc.Graph, x_src: Tensor, x_dst: Tensor, att: Tensor, *, slope: float = 0.2) -> Tensor:
    src, dst = graph.edge_index
    rows = (graph.num_dst, att.shape[0])
    value = x_src[src]
    score = (att * nn.functional.leaky_relu(value + x_dst[dst], slope)).sum(-1)
    index = dst[:, None].expand_as(score)
    top = torch.full(rows, float("-inf")).scatter_reduce(0, index, score.detach(), "amax")
    weight = (score - top[dst]).exp()
    alpha = weight / torch.zeros(rows).index_add(0, dst, weight)[dst]
    return torch.zeros(*rows, att.shape[1]).index_add(0, dst, alpha[..., None] * value)


# ---- models: the layer is a parameter, everything else is ordinary torch


class GCN(nn.Module):
    def __init__(self, layer: Callable[..., Tensor], features: int, classes: int) -> None:
        super().__init__()
        self.layer = layer
        self.lin1, self.lin2 = nn.Linear(features, HIDDEN, bias=False), nn.Linear(HIDDEN, classes, bias=False)
        self.b1, self.b2 = nn.Parameter(torch.zeros(HIDDEN)), nn.Parameter(torch.zeros(classes))

    def forward(self, graph: gnnc.Graph, x: Tensor, w: Tensor) -> Tensor:
        x = nn.functional.dropout(x, 0.6, self.training)
        x = (self.layer(graph, self.lin1(x), w) + self.b1).relu()
        x = nn.functional.dropout(x, 0.6, self.training)
        return self.layer(graph, self.lin2(x), w) + self.b2


class GATv2(nn.Module):
    def __init__(self, layer: Callable[..., Tensor], features: int, classes: int) -> None:
        super().__init__()
        self.layer, self.classes = layer, classes
        self.l1, self.r1 = nn.Linear(features, HEADS * 8), nn.Linear(features, HEADS * 8)
        self.l2, self.r2 = nn.Linear(HEADS * 8, classes), nn.Linear(HEADS * 8, classes)
        self.a1, self.a2 = nn.Parameter(torch.empty(HEADS, 8)), nn.Parameter(torch.empty(1, classes))
        for p in (self.a1, self.a2, self.l1.weight, self.r1.weight, self.l2.weight, self.r2.weight):
            nn.init.xavier_uniform_(p)

    def forward(self, graph: gnnc.Graph, x: Tensor, w: Tensor) -> Tensor:
        x = nn.functional.dropout(x, 0.6, self.training)
        h = self.layer(graph, self.l1(x).view(-1, HEADS, 8), self.r1(x).view(-1, HEADS, 8), self.a1)
        x = nn.functional.dropout(nn.functional.elu(h.flatten(1)), 0.6, self.training)
        return self.layer(graph, self.l2(x).unsqueeze(1), self.r2(x).unsqueeze(1), self.a2).squeeze(1)


def wait() -> None:
    """Until the device has done what it was asked."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train(make: Callable[[], nn.Module], graph: gnnc.Graph, w: Tensor, data: citation.Dataset) -> tuple[float, float]:
    """(test accuracy, median seconds an epoch) after EPOCHS epochs from one seed."""
    torch.manual_seed(0)
    model = make()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    times = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        opt.zero_grad()
        out = model(graph, data.x, w)
        nn.functional.cross_entropy(out[data.train], data.y[data.train]).backward()
        opt.step()
        wait()
        times.append(time.perf_counter() - start)
    model.eval()
    with torch.no_grad():
        right = model(graph, data.x, w)[data.test].argmax(1) == data.y[data.test]
    return float(right.float().mean()), sorted(times)[len(times) // 2]


def time_call(call: Callable[[], Tensor], inputs: list[Tensor]) -> float:
    """Median seconds of one forward + backward."""
    times = []
    for _ in range(20):
        start = time.perf_counter()
        torch.autograd.grad(call().sum(), inputs)
        wait()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def main() -> None:
    start = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    data = citation.load().to(device)
    n = data.x.shape[0]
    graph, w = gnnc.Graph.from_edge_index(data.edge_index, num_src=n).with_self_loops(
        "remaining", fill=1.0, edge_attr=torch.ones(data.edge_index.shape[1])
    )
    print(
        f"{data.name} on {device}: {n} nodes, {graph.num_edges} edges (self-loops too), "
        f"{data.x.shape[1]} features, {data.num_classes} classes\n"
    )
    features, classes = data.x.shape[1], data.num_classes

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, requires_grad=True)

    rows = [("", "test accuracy", "", "ms an epoch", "", "ms a layer call", ""), ("", "gnnc", "eager", "gnnc", "eager", "gnnc", "eager")]
    calls = {
        "GCN": (gcn, eager_gcn, GCN, [leaf(n, HIDDEN)], [w]),
        "GATv2": (gatv2, eager_gatv2, GATv2, [leaf(n, HEADS, 8), leaf(n, HEADS, 8), leaf(HEADS, 8)], []),
    }
    for name, (mine, eager, model, wanted, rest) in calls.items():
        found = [train(lambda m=model, f=f: m(f, features, classes), graph, w, data) for f in (mine, eager)]
        spent = [time_call(partial(f, graph, *wanted, *rest), wanted) for f in (mine, eager)]
        rows.append((name, *(f"{a:.3f}" for a, _ in found), *(f"{1e3 * t:.2f}" for _, t in found), *(f"{1e3 * t:.2f}" for t in spent)))
    for r in rows:
        print(f"{r[0]:6}  {r[1]:>13} {r[2]:>6}  {r[3]:>11} {r[4]:>6}  {r[5]:>15} {r[6]:>6}")

    print()
    print(gcn.explain(graph, calls["GCN"][3][0], w))
    print()
    print(gatv2.explain(graph, *calls["GATv2"][3]))
    print(f"\n{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
