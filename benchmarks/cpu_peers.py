"""gnnc on a CPU beside eager PyTorch and torch.sparse, on one seeded power-law graph. Ratios of one run are what counts.

    python benchmarks/cpu_peers.py [--nodes 169343] [--edges 2332486] [--json out.json]

Eager peers are what message-passing libraries run: index_select, arithmetic, scatter/index_add, one kernel an operation. Inputs are the
same tensors for everybody; each timing is the median of calls after a warm-up; preparation (graph forms, compilation) is outside.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor

import gnnc
from gnnc.lang import Dst, Edge, Param, Src, leaky_relu


@gnnc.layer
def spmm(g, w: Edge[()], x: Src["F"]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def largest(g, x: Src["F"]):
    return g.max(g.src(x))


@gnnc.layer
def gatv2(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"]):
    score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), 0.2)).sum(-1)
    return g.sum(g.softmax(score)[..., None] * g.src(x_src))


@gnnc.layer
def dot(g, q: Dst["H", "C"], k: Src["H", "C"], v: Src["H", "C"]):
    alpha = g.softmax((g.dst(q) * g.src(k)).sum(-1) * (1 / math.sqrt(q.dims[-1])))
    return g.sum(alpha[..., None] * g.src(v))


def power_law(n: int, e: int, seed: int = 0) -> Tensor:
    """Both ends drawn with Zipf-like weights, node numbers shuffled."""
    gen = torch.Generator().manual_seed(seed)
    w = torch.arange(1, n + 1, dtype=torch.float64).pow(-0.6)
    perm = torch.randperm(n, generator=gen)
    ends = [perm[torch.multinomial(w, e, replacement=True, generator=gen)] for _ in range(2)]
    return torch.stack(ends)


def softmax(s: Tensor, dst: Tensor, n: int) -> Tensor:
    index = dst[:, None].expand_as(s)
    top = torch.full((n, s.shape[1]), -math.inf).scatter_reduce(0, index, s.detach(), "amax")
    e = (s - top.index_select(0, dst)).exp()
    return e / torch.zeros(n, s.shape[1]).index_add(0, dst, e).index_select(0, dst)


def median(call: Callable[[], object], calls: int) -> float:
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--nodes", type=int, default=169_343)
    p.add_argument("--edges", type=int, default=2_332_486)
    p.add_argument("--json")
    a = p.parse_args()
    ei = power_law(a.nodes, a.edges)
    src, dst = ei
    n = a.nodes
    start = time.perf_counter()
    graph = gnnc.Graph.from_edge_index(ei, num_src=n)
    graph.in_form()
    graph.out_form()
    prepared = time.perf_counter() - start
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(n, 64, generator=gen)
    w = torch.rand(a.edges, generator=gen)
    xs, xd, v = (torch.randn(n, 8, 8, generator=gen, requires_grad=True) for _ in range(3))
    att = torch.randn(8, 8, generator=gen, requires_grad=True)
    form = graph.in_form()
    csr = torch.sparse_csr_tensor(form.indptr, form.indices.long(), w[form.edge_ids.long()], (n, n))

    def add(m: Tensor, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape).index_add(0, dst, m)

    def eager_gatv2() -> Tensor:
        value = xs.index_select(0, src)
        s = (att * torch.nn.functional.leaky_relu(value + xd.index_select(0, dst), 0.2)).sum(-1)
        return add(softmax(s, dst, n)[..., None] * value, (n, 8, 8))

    def eager_dot() -> Tensor:
        s = (xd.index_select(0, dst) * xs.index_select(0, src)).sum(-1) / math.sqrt(8)
        return add(softmax(s, dst, n)[..., None] * v.index_select(0, src), (n, 8, 8))

    def eager_max() -> Tensor:
        m = x.index_select(0, src)
        return torch.zeros(n, 64).scatter_reduce(0, dst[:, None].expand_as(m), m, "amax", include_self=False)

    def train(f: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(f().sum(), inputs)

    def quiet(f: Callable[[], Tensor]) -> Callable[[], object]:
        def call() -> Tensor:
            with torch.no_grad():
                return f()

        return call

    rows: list[tuple[str, Callable[[], object], dict[str, Callable[[], object]]]] = [
        (
            "SpMM sum D64",
            lambda: spmm(graph, w, x),
            {
                "torch.sparse (MKL)": lambda: torch.sparse.mm(csr, x),
                "eager scatter": lambda: add(w[:, None] * x.index_select(0, src), (n, 64)),
            },
        ),
        ("max D64", lambda: largest(graph, x), {"eager scatter": eager_max}),
        ("GATv2 8x8 forward", quiet(lambda: gatv2(graph, xs, xd, att)), {"eager": quiet(eager_gatv2)}),
        ("GATv2 8x8 fwd+bwd", train(lambda: gatv2(graph, xs, xd, att), [xs, xd, att]), {"eager": train(eager_gatv2, [xs, xd, att])}),
        ("dot attention 8x8 forward", quiet(lambda: dot(graph, xd, xs, v)), {"eager": quiet(eager_dot)}),
        ("dot attention 8x8 fwd+bwd", train(lambda: dot(graph, xd, xs, v), [xd, xs, v]), {"eager": train(eager_dot, [xd, xs, v])}),
    ]
    degree = graph.in_indptr.diff()
    print(
        f"{n} nodes, {a.edges} edges, largest in-degree {int(degree.max())}; {torch.get_num_threads()} threads; "
        f"forms {1e3 * prepared:.0f} ms"
    )
    found = []
    for name, mine, peers in rows:
        ours = median(mine, 7)
        for peer, call in peers.items():
            theirs = median(call, 3)
            print(f"{name:26} gnnc {1e3 * ours:8.1f} ms   {peer:20} {1e3 * theirs:8.1f} ms   {theirs / ours:5.1f}x")
            found.append({"workload": name, "gnnc_ms": 1e3 * ours, "peer": peer, "peer_ms": 1e3 * theirs, "ratio": theirs / ours})
    if a.json:
        meta = {"nodes": n, "edges": a.edges, "threads": torch.get_num_threads(), "torch": torch.__version__, "machine": platform.machine()}
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({**meta, "rows": found}, f, indent=1)


if __name__ == "__main__":
    main()
