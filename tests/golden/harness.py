"""Runs a golden `Case`: gnnc forward and backward beside the eager float64 reference."""

from __future__ import annotations

import torch
from torch import Tensor

import gnnc
from tests.golden.layers import Case
from tests.reference import cases

# Relative to the largest magnitude of the compared tensor (at least 1): (forward, gradient).
TOLERANCE = {torch.float64: (1e-10, 1e-9), torch.float32: (3e-5, 3e-4), torch.float16: (1e-2, 4e-2), torch.bfloat16: (5e-2, 2e-1)}


def make_inputs(case: Case, g: cases.Graph, seed: int, scale: float = 0.7) -> list[Tensor]:
    """Fresh float64 (or int64) inputs for a case on a graph."""
    gen = torch.Generator().manual_seed(seed)
    rows = {"src": (g.n_src,), "dst": (g.n_dst,), "node": (g.n_dst,), "edge": (g.E,), "param": ()}
    out = []
    for i, (space, dims) in enumerate(case.inputs):
        shape = rows[space] + dims
        kind = case.kinds.get(i, "")
        if kind == "type":
            out.append(torch.randint(0, 3, shape, generator=gen))
            continue
        x = torch.randn(shape, generator=gen, dtype=torch.float64) * scale
        out.append(x.abs() + 0.5 if kind == "positive" else x)
    return out


def as_tuple(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def graph_of(g: cases.Graph, device: str = "cpu") -> gnnc.Graph:
    return gnnc.Graph.from_edge_index(g.edge_index.to(device), num_src=g.n_src, num_dst=g.n_dst)


def close(got: Tensor, want: Tensor, tol: float, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    got64 = got.double()
    nan_g, nan_w = got64.isnan(), want.isnan()
    assert torch.equal(nan_g, nan_w), f"{what}: {int(nan_g.sum())} NaN, not {int(nan_w.sum())}"
    if want.numel() == 0 or bool(nan_w.all()):
        return
    ok = ~nan_w & want.isfinite()
    assert torch.equal(got64[~ok & ~nan_w], want[~ok & ~nan_w]), f"{what}: infinities differ"
    scale = max(1.0, float(want[ok].abs().max())) if bool(ok.any()) else 1.0
    worst = float((got64[ok] - want[ok]).abs().max()) if bool(ok.any()) else 0.0
    assert worst <= tol * scale, f"{what}: off by {worst:.3g} at scale {scale:.3g}"


def check(
    case: Case, g: cases.Graph, dtype: torch.dtype = torch.float64, seed: int = 0, wrt: set[int] | None = None, device: str = "cpu"
) -> None:
    """Forward and every gradient in `wrt` (default: all float inputs) against float64 on the CPU; gnnc runs on `device`."""
    raw = make_inputs(case, g, seed)
    # The reference starts from the rounded inputs, so only arithmetic differs.
    mine = [x.to(dtype) if x.is_floating_point() else x for x in raw]
    theirs = [x.double() if x.is_floating_point() else x for x in mine]
    mine = [x.to(device) for x in mine]
    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.is_floating_point() and (wrt is None or i in wrt):
            a.requires_grad_()
            b.requires_grad_()
    forward, gradient = TOLERANCE[dtype]
    got = as_tuple(case.layer(graph_of(g, device), *mine))
    want = as_tuple(case.reference(g.edge_index, g.n_src, g.n_dst, *theirs))
    where = f"{case.name} on {g.name} in {dtype}"
    assert len(got) == len(want)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == dtype, f"{where}: result {k} is {a.dtype}"
        close(a.detach().cpu(), b.detach(), forward, f"{where}, result {k}")
    gen = torch.Generator().manual_seed(seed + 1)
    upstream = [torch.randn(b.shape, generator=gen, dtype=torch.float64).to(dtype) for b in want]
    a_in = [x for x in mine if x.requires_grad]
    b_in = [x for x in theirs if x.requires_grad]
    if not a_in or not case.differentiable:
        return
    a_out = [(o, u.to(device)) for o, u in zip(got, upstream, strict=True) if o.requires_grad]
    b_out = [(o, u.double()) for o, u in zip(want, upstream, strict=True) if o.requires_grad]
    assert len(a_out) == len(b_out), f"{where}: which results require a gradient differs"
    if not a_out:
        return
    ga = torch.autograd.grad([o for o, _ in a_out], a_in, [u for _, u in a_out], allow_unused=True)
    gb = torch.autograd.grad([o for o, _ in b_out], b_in, [u for _, u in b_out], allow_unused=True)
    for k, (x, a, b) in enumerate(zip(a_in, ga, gb, strict=True)):
        b = torch.zeros_like(x, dtype=torch.float64) if b is None else b
        a = torch.zeros_like(x) if a is None else a
        assert a.dtype == dtype
        close(a.cpu(), b, gradient, f"{where}, gradient {k}")
