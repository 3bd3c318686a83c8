"""A layer and a fold of the reader's own: a signed root-mean-square pooling, trained end to end.

    python examples/own_layer.py

The monoid says how a row's messages are folded (`step`), how two halves of a row are merged (`combine`) and what comes out (`finish`).
gnnc derives its gradient because `combine` is made of sums; nothing in the compiler knows this fold.
"""

from __future__ import annotations

import citation
import torch
from torch import nn

import gnnc
from gnnc.lang import Dst, Param, Src, maximum, sigmoid, sqrt, where


@gnnc.monoid
class SignedRms:
    """sign-aware root mean square: sqrt(mean(m^2)), halved where the plain mean is negative. 0 for an empty row."""

    def init():
        return 0.0, 0.0

    def step(state, m):
        total, squares = state
        return total + m, squares + m * m

    def combine(a, b):
        return a[0] + b[0], a[1] + b[1]

    def finish(state, degree):
        total, squares = state
        rms = sqrt(squares / maximum(degree, 1.0) + 1e-6)
        return where(degree > 0, where(total < 0, 0.5 * rms, rms), 0.0)


@gnnc.layer
def gated_rms(g, x: Src["F"], q: Dst["F"], w: Param["F", "F"]):
    """Each message is a projected neighbour, gated by its destination; the row's messages meet in the fold above."""
    gate = sigmoid(g.dst(q))
    return g.fold(SignedRms, gate * g.src(x @ w))


class Model(nn.Module):
    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(features, width), nn.Linear(2 * width, classes)
        self.w = nn.Parameter(torch.eye(width) + 0.1 * torch.randn(width, width))

    def forward(self, graph: gnnc.Graph, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(nn.functional.dropout(x, 0.5, self.training)).relu()
        return self.outer(torch.cat([h, gated_rms(graph, h, h, self.w)], -1))


def main() -> None:
    data = citation.load()
    graph = gnnc.Graph.from_edge_index(data.edge_index, num_src=data.x.shape[0])
    torch.manual_seed(0)
    model = Model(data.x.shape[1], data.num_classes)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(60):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(graph, data.x)[data.train], data.y[data.train])
        loss.backward()
        opt.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch:3}  loss {loss:.3f}")
    model.eval()
    with torch.no_grad():
        right = model(graph, data.x)[data.test].argmax(1) == data.y[data.test]
    print(f"{data.name}: test accuracy {right.float().mean():.3f}\n")
    h = torch.randn(data.x.shape[0], 32, requires_grad=True)
    print(gated_rms.ir(graph, h, h, model.w))
    print(gated_rms.explain(graph, h, h, model.w))


if __name__ == "__main__":
    main()
