"""Layers in the DSL and their eager references, side by side. One `Case` each: the golden tests run every one of them.

The references are plain eager PyTorch from `tests/reference/reference.py` (or a line of it), computed at test time in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import gnnc
from gnnc.lang import (
    Dst,
    Edge,
    Node,
    Param,
    Src,
    abs,
    clamp,
    concat,
    elu,
    exp,
    gelu,
    leaky_relu,
    log,
    matmul,
    maximum,
    minimum,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    tanh,
    where,
)
from tests.reference import reference as ref

H, C, F = 3, 5, 7

# ---- sums, means, extrema


@gnnc.layer
def copy_sum(g, x: Src["F"]):
    return g.sum(g.src(x))


@gnnc.layer
def spmm(g, w: Edge[()], x: Src["F"]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def spmm_heads(g, w: Edge["H"], x: Src["H", "C"]):
    return g.sum(w[..., None] * g.src(x))


@gnnc.layer
def gcn(g, x: Node["F"], w: Edge[()]):
    deg = g.sum(w)
    d = where(deg > 0, rsqrt(maximum(deg, 1e-12)), 0.0)
    return g.sum((g.src(d) * w * g.dst(d))[..., None] * g.src(x))


@gnnc.layer
def sage_mean(g, x: Src["F"], x_dst: Dst["F"], w_l: Param["F", "O"], w_r: Param["F", "O"]):
    return matmul(g.mean(g.src(x)), w_l) + x_dst @ w_r


@gnnc.layer
def sage_max(g, x: Src["F"], w: Param["F", "O"]):
    return g.max(relu(g.src(x) @ w))


@gnnc.layer
def weighted_max(g, x: Src["F"], w: Edge[()]):
    return g.max(w[..., None] * g.src(x))


@gnnc.layer
def weighted_min(g, x: Src["F"], y: Dst["F"], w: Edge["F"]):
    return g.min(w * g.src(x) + g.dst(y))


@gnnc.layer
def gated_max(g, x: Src["F"], gate: Dst["F"]):
    return g.max(sigmoid(g.dst(gate)) * g.src(x))


@gnnc.layer
def gin(g, x: Node["F"], eps: Param[()]):
    return (1 + eps) * x + g.sum(g.src(x))


@gnnc.layer
def gine(g, x: Node["F"], e: Edge["F"], eps: Param[()]):
    return (1 + eps) * x + g.sum(relu(g.src(x) + e))


@gnnc.layer
def edge_conv(g, x: Src["F"], x_dst: Dst["F"], theta: Param["F", "O"], phi: Param["F", "O"], b: Param["O"]):
    return g.max((g.src(x) - g.dst(x_dst)) @ theta + g.dst(x_dst) @ phi + b)


@gnnc.layer
def edge_conv_concat(g, x: Node["F"], w: Param["G", "O"], v: Param["O", "O"]):
    h = relu(concat([g.dst(x), g.src(x) - g.dst(x)], -1) @ w)
    return g.max(h @ v)


@gnnc.layer
def std_layer(g, x: Src["F"]):
    return g.std(g.src(x))


@gnnc.layer
def var_layer(g, x: Src["F"], y: Dst["F"]):
    return g.var(g.src(x) * g.dst(y))


@gnnc.layer
def prod_layer(g, x: Src["F"]):
    return g.prod(g.src(x))


@gnnc.layer
def lse_layer(g, x: Src["F"]):
    out = g.logsumexp(g.src(x))
    return where(out > -1e30, out, 0.0)


@gnnc.layer
def pna(g, x: Src["F"], *, avg: float = 1.5):
    m = g.src(x)
    a = concat([g.mean(m), g.std(m), g.min(m), g.max(m)], -1)
    d = log(g.in_degree() + 1)[..., None]
    return concat([a, a * (d / avg), a * (avg / maximum(d, math.log(2.0)))], -1)


@gnnc.layer
def by_source(g, x: Dst["F"], w: Edge[()]):
    return g.sum(w[..., None] * g.dst(x), to="src"), g.max(g.dst(x), to="src")


@gnnc.layer
def degrees(g, x: Src["F"], y: Dst["F"]):
    return x / (1 + g.out_degree()[..., None]), y * g.in_degree()[..., None]


# ---- gates and edge networks


@gnnc.layer
def resgated(g, x: Node["F"], k: Param["F", "O"], q: Param["F", "O"], v: Param["F", "O"]):
    return g.sum(sigmoid(g.dst(x) @ k + g.src(x) @ q) * (g.src(x) @ v))


@gnnc.layer
def gated_gcn(g, a: Node["F"], b: Node["F"], d: Node["F"], e: Node["F"], c: Edge["F"]):
    eh = g.src(d) + g.dst(e) + c
    s = sigmoid(eh)
    return a + g.sum(s * g.src(b)) / (g.sum(s) + 1e-6), eh


@gnnc.layer
def cgconv(g, x: Node["F"], e: Edge["D"], wf: Param["G", "F"], ws: Param["G", "F"]):
    z = concat([g.dst(x), g.src(x), e], -1)
    return x + g.sum(sigmoid(z @ wf) * log(1 + exp(z @ ws)))


@gnnc.layer
def nnconv(g, x: Src["F"], we: Edge["F", "O"]):
    return g.sum((g.src(x)[..., None] * we).sum(-2))


@gnnc.layer
def film(g, gamma: Dst["F"], beta: Dst["F"], x: Src["F"]):
    return g.mean(relu(g.dst(gamma) * g.src(x) + g.dst(beta)))


@gnnc.layer
def gmm(g, x: Src["K", "F"], pseudo: Edge["D"], mu: Param["K", "D"], sigma: Param["K", "D"]):
    d = pseudo[..., None, :] - mu
    w = exp((-0.5 * d * d / (1e-15 + sigma * sigma)).sum(-1))
    return g.mean((g.src(x) * w[..., None]).sum(-2))


@gnnc.layer
def genconv(g, x: Src["F"], e: Edge["F"], t: Param[()]):
    m = relu(g.src(x) + e) + 1e-7
    return g.sum(g.softmax(t * m) * m)


@gnnc.layer
def powermean(g, x: Src["F"], p: Param[()]):
    m = clamp(g.mean(clamp(g.src(x), 1e-4, 100.0) ** p), 1e-4, 100.0)
    return m ** (1 / p)


@gnnc.layer
def egnn_coords(g, pos: Node["D"], s: Edge[()]):
    diff = g.dst(pos) - g.src(pos)
    d2 = (diff * diff).sum(-1, keepdim=True)
    return pos + g.mean(diff * tanh(s[..., None] * d2)), g.sum(d2)


@gnnc.layer
def rel_types(g, x: Src["F"], kind: Edge[()], scale: Param["R", "F"]):
    out = g.sum(where((kind == 0)[..., None], g.src(x), 0.0) * scale[..., 0, :])
    return out + g.sum(where((kind == 1)[..., None], g.src(x), 0.0) * scale[..., 1, :])


# ---- attention


@gnnc.layer
def gat(g, h: Src["H", "C"], a_src: Param["H", "C"], h_dst: Dst["H", "C"], a_dst: Param["H", "C"], *, slope: float = 0.2):
    s = g.src((h * a_src).sum(-1)) + g.dst((h_dst * a_dst).sum(-1))
    return g.sum(g.softmax(leaky_relu(s, slope))[..., None] * g.src(h))


@gnnc.layer
def gat_on_edges(g, h: Src["H", "C"], h_dst: Dst["H", "C"], att: Param["H", "D"], *, slope: float = 0.2):
    z = concat([g.src(h), g.dst(h_dst)], -1)
    alpha = g.softmax(leaky_relu((z * att).sum(-1), slope))
    return g.sum(alpha[..., None] * g.src(h)), alpha


@gnnc.layer
def gatv2(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2):
    score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), slope)).sum(-1)
    alpha = g.softmax(score)
    return g.sum(alpha[..., None] * g.src(x_src))


@gnnc.layer
def gatv2_edge(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], e: Edge["D"], w: Param["D", "K"], att: Param["H", "C"]):
    z = g.src(x_src) + g.dst(x_dst) + (e @ w).reshape(att.dims)
    alpha = g.softmax((leaky_relu(z, 0.2) * att).sum(-1))
    return g.sum(alpha[..., None] * g.src(x_src))


@gnnc.layer
def dot_attention(g, q: Dst["H", "C"], k: Src["H", "C"], v: Src["H", "V"]):
    alpha = g.softmax((g.dst(q) * g.src(k)).sum(-1) / math.sqrt(k.dims[-1]))
    return g.sum(alpha[..., None] * g.src(v))


@gnnc.layer
def dot_attention_bias(g, q: Dst["H", "C"], k: Src["H", "C"], v: Src["H", "C"], bias: Edge["H"]):
    alpha = g.softmax((g.dst(q) * g.src(k)).sum(-1) + bias)
    return g.sum(alpha[..., None] * (g.src(v) + bias[..., None]))


@gnnc.layer
def agnn(g, x: Node["F"], beta: Param[()]):
    u = x / maximum(sqrt((x * x).sum(-1, keepdim=True)), 1e-12)
    alpha = g.softmax(beta * (g.dst(u) * g.src(u)).sum(-1))
    return g.sum(alpha[..., None] * g.src(x))


@gnnc.layer
def faconv(g, x: Node["F"], x0: Node["F"], att_l: Param["F"], att_r: Param["F"], w: Edge[()]):
    a = tanh(g.src((x * att_l).sum(-1)) + g.dst((x * att_r).sum(-1)))
    return g.sum((a * w)[..., None] * g.src(x)) + 0.1 * x0


@gnnc.layer
def point_transformer(g, a: Dst["F"], b: Src["F"], v: Src["F"], delta: Edge["F"]):
    alpha = g.softmax(g.dst(a) - g.src(b) + delta)
    return g.sum(alpha * (g.src(v) + delta))


@gnnc.layer
def two_softmaxes(g, s: Edge["H"], t: Edge["H"], v: Src["H", "C"]):
    one = g.softmax(s)
    two = g.softmax(t * one)
    return g.sum((one * two)[..., None] * g.src(v))


@gnnc.layer
def source_softmax(g, s: Edge["H"], v: Dst["H", "C"]):
    return g.sum(g.softmax(s, over="src")[..., None] * g.dst(v), to="src")


@gnnc.layer
def crossed_softmax(g, s: Edge["H"], v: Src["H", "C"]):
    return g.sum(g.softmax(s, over="src")[..., None] * g.src(v))


@gnnc.layer
def feast(g, x: Node["F"], u: Param["F", "H"], c: Param["H"], w: Param["F", "K"]):
    q = (g.src(x) - g.dst(x)) @ u + c
    q = exp(q - q.max(-1, keepdim=True))
    q = q / q.sum(-1, keepdim=True)
    m = (g.src(x) @ w).reshape((c.dims[0], w.dims[1] // c.dims[0]))
    return g.mean((m * q[..., None]).sum(-2))


@gnnc.layer
def activations(g, x: Src["F"], y: Dst["F"]):
    z = g.src(x) * g.dst(y)
    a = g.sum(elu(z) + gelu(z) + silu(z) + abs(z))
    b = g.sum(minimum(z, 0.3) * maximum(z, -0.2) + z[..., 1:4].mean(-1)[..., None])
    return a, b


# ---- references


def _lin(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def _src(x: Tensor, ei: Tensor) -> Tensor:
    return x.index_select(0, ei[0])


def _dst(x: Tensor, ei: Tensor) -> Tensor:
    return x.index_select(0, ei[1])


def ref_gcn(ei, n_src, n_dst, x, w):
    d = ref.scatter_sum(w, ei[1], n_dst)
    d = torch.where(d > 0, d.clamp(min=1e-12).rsqrt(), torch.zeros_like(d))
    return ref.scatter_sum((_src(d, ei) * w * _dst(d, ei))[:, None] * _src(x, ei), ei[1], n_dst)


def ref_pna(ei, n_src, n_dst, x, avg=1.5):
    m = _src(x, ei)
    agg = [ref.scatter_mean(m, ei[1], n_dst), ref.scatter_std(m, ei[1], n_dst)]
    agg += [ref.scatter_min(m, ei[1], n_dst), ref.scatter_max(m, ei[1], n_dst)]
    a = torch.cat(agg, -1)
    d = torch.log(ref.in_degree(ei[1], n_dst) + 1)[:, None]
    return torch.cat([a, a * (d / avg), a * (avg / d.clamp(min=math.log(2.0)))], -1)


def ref_gated(ei, n_src, n_dst, a, b, d, e, c):
    eh = _src(d, ei) + _dst(e, ei) + c
    s = torch.sigmoid(eh)
    num = ref.scatter_sum(s * _src(b, ei), ei[1], n_dst)
    return a + num / (ref.scatter_sum(s, ei[1], n_dst) + 1e-6), eh


def ref_cgconv(ei, n_src, n_dst, x, e, wf, ws):
    z = torch.cat([_dst(x, ei), _src(x, ei), e], -1)
    m = torch.sigmoid(z @ wf) * torch.nn.functional.softplus(z @ ws)
    return x + ref.scatter_sum(m, ei[1], n_dst)


def ref_gmm(ei, n_src, n_dst, x, pseudo, mu, sigma):
    w = torch.exp((-0.5 * (pseudo[:, None] - mu) ** 2 / (1e-15 + sigma**2)).sum(-1))
    return ref.scatter_mean((_src(x, ei) * w[..., None]).sum(1), ei[1], n_dst)


def ref_egnn(ei, n_src, n_dst, pos, s):
    diff = _dst(pos, ei) - _src(pos, ei)
    d2 = (diff * diff).sum(-1, keepdim=True)
    return pos + ref.scatter_mean(diff * torch.tanh(s[:, None] * d2), ei[1], n_dst), ref.scatter_sum(d2, ei[1], n_dst)


def ref_rel(ei, n_src, n_dst, x, kind, scale):
    m = _src(x, ei)
    return sum(ref.scatter_sum(m * (kind == r)[:, None] * scale[r], ei[1], n_dst) for r in (0, 1))


def _attend(ei, n_dst, s, v):
    return ref.scatter_sum(ref.segment_softmax(s, ei[1], n_dst)[..., None] * v, ei[1], n_dst)


def ref_gat(ei, n_src, n_dst, h, a_src, h_dst, a_dst, slope=0.2):
    s = _src((h * a_src).sum(-1), ei) + _dst((h_dst * a_dst).sum(-1), ei)
    return _attend(ei, n_dst, torch.nn.functional.leaky_relu(s, slope), _src(h, ei))


def ref_gat_edges(ei, n_src, n_dst, h, h_dst, att, slope=0.2):
    z = torch.cat([_src(h, ei), _dst(h_dst, ei)], -1)
    al = ref.segment_softmax(torch.nn.functional.leaky_relu((z * att).sum(-1), slope), ei[1], n_dst)
    return ref.scatter_sum(al[..., None] * _src(h, ei), ei[1], n_dst), al


def ref_gatv2(ei, n_src, n_dst, x_src, x_dst, att, slope=0.2):
    s = (att * torch.nn.functional.leaky_relu(_src(x_src, ei) + _dst(x_dst, ei), slope)).sum(-1)
    return _attend(ei, n_dst, s, _src(x_src, ei))


def ref_gatv2_edge(ei, n_src, n_dst, x_src, x_dst, e, w, att):
    z = _src(x_src, ei) + _dst(x_dst, ei) + (e @ w).view(-1, *att.shape)
    return _attend(ei, n_dst, (torch.nn.functional.leaky_relu(z, 0.2) * att).sum(-1), _src(x_src, ei))


def ref_agnn(ei, n_src, n_dst, x, beta):
    u = x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
    return _attend(ei, n_dst, (beta * (_dst(u, ei) * _src(u, ei)).sum(-1))[:, None], _src(x, ei)[:, None]).squeeze(1)


def ref_faconv(ei, n_src, n_dst, x, x0, att_l, att_r, w):
    a = torch.tanh(_src((x * att_l).sum(-1), ei) + _dst((x * att_r).sum(-1), ei))
    return ref.scatter_sum((a * w)[:, None] * _src(x, ei), ei[1], n_dst) + 0.1 * x0


def ref_point(ei, n_src, n_dst, a, b, v, delta):
    al = ref.segment_softmax(_dst(a, ei) - _src(b, ei) + delta, ei[1], n_dst)
    return ref.scatter_sum(al * (_src(v, ei) + delta), ei[1], n_dst)


def ref_two(ei, n_src, n_dst, s, t, v):
    one = ref.segment_softmax(s, ei[1], n_dst)
    two = ref.segment_softmax(t * one, ei[1], n_dst)
    return ref.scatter_sum((one * two)[..., None] * _src(v, ei), ei[1], n_dst)


def ref_feast(ei, n_src, n_dst, x, u, c, w):
    q = torch.softmax((_src(x, ei) - _dst(x, ei)) @ u + c, -1)
    m = (_src(x, ei) @ w).view(-1, c.shape[0], w.shape[1] // c.shape[0])
    return ref.scatter_mean((m * q[..., None]).sum(1), ei[1], n_dst)


def ref_activations(ei, n_src, n_dst, x, y):
    fn = torch.nn.functional
    z = _src(x, ei) * _dst(y, ei)
    a = ref.scatter_sum(fn.elu(z) + fn.gelu(z) + fn.silu(z) + z.abs(), ei[1], n_dst)
    lo, hi = torch.tensor(0.3, dtype=z.dtype), torch.tensor(-0.2, dtype=z.dtype)
    return a, ref.scatter_sum(torch.minimum(z, lo) * torch.maximum(z, hi) + z[:, 1:4].mean(-1, keepdim=True), ei[1], n_dst)


def ref_gine(ei, n_src, n_dst, x, e, eps):
    return (1 + eps) * x + ref.scatter_sum((_src(x, ei) + e).relu(), ei[1], n_dst)


def ref_powermean(ei, n_src, n_dst, x, p):
    m = ref.scatter_mean(_src(x, ei).clamp(1e-4, 100.0) ** p, ei[1], n_dst).clamp(1e-4, 100.0)
    return m ** (1 / p)


@dataclass(frozen=True)
class Case:
    """A layer, its reference ``(edge_index, num_src, num_dst, *tensors) -> tensor(s)`` and its inputs: (space, dims or maker)."""

    layer: Callable
    reference: Callable
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    kinds: dict[int, str] = field(default_factory=dict)  # input position -> "positive", "type", "nonzero"
    differentiable: bool = True

    @property
    def name(self) -> str:
        return self.layer.__name__

    @property
    def square(self) -> bool:
        return any(s == "node" for s, _ in self.inputs)


def _gathered(ei, x):
    return _src(x, ei)


def _fold(fn: Callable, message: Callable) -> Callable:
    return lambda ei, ns, nd, *a: fn(message(ei, *a), ei[1], nd)


CASES: list[Case] = [
    Case(copy_sum, _fold(ref.scatter_sum, _gathered), (("src", (F,)),)),
    Case(spmm, _fold(ref.scatter_sum, lambda ei, w, x: w[:, None] * _src(x, ei)), (("edge", ()), ("src", (F,)))),
    Case(spmm_heads, _fold(ref.scatter_sum, lambda ei, w, x: w[..., None] * _src(x, ei)), (("edge", (H,)), ("src", (H, C)))),
    Case(gcn, ref_gcn, (("node", (F,)), ("edge", ())), {1: "positive"}),
    Case(
        sage_mean,
        lambda ei, ns, nd, x, y, a, b: ref.scatter_mean(_src(x, ei), ei[1], nd) @ a + y @ b,
        (("src", (F,)), ("dst", (F,)), ("param", (F, 4)), ("param", (F, 4))),
    ),
    Case(sage_max, _fold(ref.scatter_max, lambda ei, x, w: (_src(x, ei) @ w).relu()), (("src", (F,)), ("param", (F, 4)))),
    Case(weighted_max, _fold(ref.scatter_max, lambda ei, x, w: w[:, None] * _src(x, ei)), (("src", (F,)), ("edge", ()))),
    Case(
        weighted_min,
        _fold(ref.scatter_min, lambda ei, x, y, w: w * _src(x, ei) + _dst(y, ei)),
        (("src", (F,)), ("dst", (F,)), ("edge", (F,))),
    ),
    Case(gated_max, _fold(ref.scatter_max, lambda ei, x, y: torch.sigmoid(_dst(y, ei)) * _src(x, ei)), (("src", (F,)), ("dst", (F,)))),
    Case(gin, lambda ei, ns, nd, x, e: (1 + e) * x + ref.scatter_sum(_src(x, ei), ei[1], nd), (("node", (F,)), ("param", ()))),
    Case(gine, ref_gine, (("node", (F,)), ("edge", (F,)), ("param", ()))),
    Case(
        edge_conv,
        lambda ei, ns, nd, x, y, t, p, b: ref.edgeconv_linear(x, y, ei, t.t(), p.t(), b),
        (("src", (F,)), ("dst", (F,)), ("param", (F, 4)), ("param", (F, 4)), ("param", (4,))),
    ),
    Case(
        edge_conv_concat,
        lambda ei, ns, nd, x, w, v: ref.scatter_max(
            torch.cat([_dst(x, ei), _src(x, ei) - _dst(x, ei)], -1).matmul(w).relu() @ v, ei[1], nd
        ),
        (("node", (F,)), ("param", (2 * F, 4)), ("param", (4, 4))),
    ),
    Case(std_layer, _fold(ref.scatter_std, _gathered), (("src", (F,)),)),
    Case(var_layer, _fold(ref.scatter_var, lambda ei, x, y: _src(x, ei) * _dst(y, ei)), (("src", (F,)), ("dst", (F,)))),
    Case(prod_layer, _fold(ref.scatter_mul, _gathered), (("src", (F,)),)),
    Case(
        lse_layer,
        lambda ei, ns, nd, x: _dense_lse(_src(x, ei), ei[1], nd),
        (("src", (F,)),),
    ),
    Case(pna, ref_pna, (("src", (F,)),)),
    Case(
        by_source,
        lambda ei, ns, nd, x, w: (ref.scatter_sum(w[:, None] * _dst(x, ei), ei[0], ns), ref.scatter_max(_dst(x, ei), ei[0], ns)),
        (("dst", (F,)), ("edge", ())),
    ),
    Case(
        degrees,
        lambda ei, ns, nd, x, y: (x / (1 + ref.in_degree(ei[0], ns))[:, None], y * ref.in_degree(ei[1], nd)[:, None]),
        (("src", (F,)), ("dst", (F,))),
    ),
    Case(
        resgated,
        lambda ei, ns, nd, x, k, q, v: ref.scatter_sum(torch.sigmoid(_dst(x @ k, ei) + _src(x @ q, ei)) * _src(x @ v, ei), ei[1], nd),
        (("node", (F,)), ("param", (F, 4)), ("param", (F, 4)), ("param", (F, 4))),
    ),
    Case(gated_gcn, ref_gated, (*[("node", (F,))] * 4, ("edge", (F,)))),
    Case(cgconv, ref_cgconv, (("node", (F,)), ("edge", (3,)), ("param", (2 * F + 3, F)), ("param", (2 * F + 3, F)))),
    Case(
        nnconv,
        _fold(ref.scatter_sum, lambda ei, x, we: torch.einsum("ei,eio->eo", _src(x, ei), we)),
        (("src", (F,)), ("edge", (F, 4))),
    ),
    Case(
        film,
        _fold(ref.scatter_mean, lambda ei, a, b, x: (_dst(a, ei) * _src(x, ei) + _dst(b, ei)).relu()),
        (("dst", (F,)), ("dst", (F,)), ("src", (F,))),
    ),
    Case(gmm, ref_gmm, (("src", (3, F)), ("edge", (2,)), ("param", (3, 2)), ("param", (3, 2))), {3: "positive"}),
    Case(
        genconv,
        lambda ei, ns, nd, x, e, t: ref.softmax_aggr((_src(x, ei) + e).relu() + 1e-7, ei[1], nd, t),
        (("src", (F,)), ("edge", (F,)), ("param", ())),
    ),
    Case(powermean, ref_powermean, (("src", (F,)), ("param", ())), {0: "positive", 1: "positive"}),
    Case(egnn_coords, ref_egnn, (("node", (3,)), ("edge", ()))),
    Case(rel_types, ref_rel, (("src", (F,)), ("edge", ()), ("param", (2, F))), {1: "type"}),
    Case(gat, ref_gat, (("src", (H, C)), ("param", (H, C)), ("dst", (H, C)), ("param", (H, C)))),
    Case(gat_on_edges, ref_gat_edges, (("src", (H, C)), ("dst", (H, C)), ("param", (H, 2 * C)))),
    Case(gatv2, ref_gatv2, (("src", (H, C)), ("dst", (H, C)), ("param", (H, C)))),
    Case(
        gatv2_edge,
        ref_gatv2_edge,
        (("src", (H, C)), ("dst", (H, C)), ("edge", (4,)), ("param", (4, H * C)), ("param", (H, C))),
    ),
    Case(
        dot_attention,
        lambda ei, ns, nd, q, k, v: ref.dot_attention(q, k, v, ei),
        (("dst", (H, C)), ("src", (H, C)), ("src", (H, 4))),
    ),
    Case(
        dot_attention_bias,
        lambda ei, ns, nd, q, k, v, b: _attend(ei, nd, (_dst(q, ei) * _src(k, ei)).sum(-1) + b, _src(v, ei) + b[..., None]),
        (("dst", (H, C)), ("src", (H, C)), ("src", (H, C)), ("edge", (H,))),
    ),
    Case(agnn, ref_agnn, (("node", (F,)), ("param", ()))),
    Case(faconv, ref_faconv, (("node", (F,)), ("node", (F,)), ("param", (F,)), ("param", (F,)), ("edge", ()))),
    Case(point_transformer, ref_point, (("dst", (F,)), ("src", (F,)), ("src", (F,)), ("edge", (F,)))),
    Case(two_softmaxes, ref_two, (("edge", (H,)), ("edge", (H,)), ("src", (H, C)))),
    Case(
        source_softmax,
        lambda ei, ns, nd, s, v: ref.scatter_sum(ref.segment_softmax(s, ei[0], ns)[..., None] * _dst(v, ei), ei[0], ns),
        (("edge", (H,)), ("dst", (H, C))),
    ),
    Case(
        crossed_softmax,
        lambda ei, ns, nd, s, v: ref.scatter_sum(ref.segment_softmax(s, ei[0], ns)[..., None] * _src(v, ei), ei[1], nd),
        (("edge", (H,)), ("src", (H, C))),
    ),
    Case(feast, ref_feast, (("node", (F,)), ("param", (F, H)), ("param", (H,)), ("param", (F, H * 4)))),
    Case(activations, ref_activations, (("src", (F,)), ("dst", (F,)))),
]


def _dense_lse(m: Tensor, index: Tensor, n: int) -> Tensor:
    """log-sum-exp by row, 0 for an empty row (as `lse_layer` replaces its -inf)."""
    with torch.no_grad():
        top = torch.full((n, m.shape[1]), -math.inf, dtype=m.dtype).scatter_reduce(0, index[:, None].expand_as(m), m, "amax")
    z = ref.scatter_sum((m - top.index_select(0, index)).exp(), index, n)
    empty = z == 0
    return torch.where(
        empty, torch.zeros_like(z), torch.where(empty, torch.zeros_like(top), top) + torch.where(empty, torch.ones_like(z), z).log()
    )
