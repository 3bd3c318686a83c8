"""Small layer-IR programs and graphs for pass tests, as text."""

from __future__ import annotations

import numpy as np

from gnnc.ir.core import Func
from gnnc.ir.ops import GraphArrays
from gnnc.ir.parser import parse_func

GATV2 = """
func @gatv2(%x: src<f64, 3, 4>, %y: dst<f64, 3, 4>, %att: param<f64, 3, 4>) -> (out: dst<f64, 3, 4>) stage layer {
  %0 = gather %x {end = "src"} : edge<f64, 3, 4>
  %1 = gather %y {end = "dst"} : edge<f64, 3, 4>
  %2 = add %0, %1 : edge<f64, 3, 4>
  %3 = leaky_relu %2 {slope = 0.2} : edge<f64, 3, 4>
  %4 = mul %att, %3 : edge<f64, 3, 4>
  %5 = reduce_sum %4 {axis = -1} : edge<f64, 3>
  %6 = softmax %5 : edge<f64, 3>
  %7 = reshape %6 {dims = [3, 1]} : edge<f64, 3, 1>
  %8 = mul %7, %0 : edge<f64, 3, 4>
  %9 = fold %8 {monoid = "sum"} : dst<f64, 3, 4>
  return %9
}
"""

SPMM = """
func @spmm(%x: src<f64, 4>, %w: edge<f64>) -> (out: dst<f64, 4>) stage layer {
  %0 = gather %x {end = "src"} : edge<f64, 4>
  %1 = reshape %w {dims = [1]} : edge<f64, 1>
  %2 = mul %1, %0 : edge<f64, 4>
  %3 = fold %2 {monoid = "sum"} : dst<f64, 4>
  return %3
}
"""

MAX = SPMM.replace("@spmm", "@largest").replace('"sum"', '"max"')

TWO_LEVELS = """
func @norm(%w: edge<f64>, %x: node<f64, 4>) -> (out: node<f64, 4>) stage layer square {
  %0 = fold %w {monoid = "sum"} : node<f64>
  %1 = exp %0 : node<f64>
  %2 = gather %1 {end = "src"} : edge<f64>
  %3 = reshape %2 {dims = [1]} : edge<f64, 1>
  %4 = gather %x {end = "src"} : edge<f64, 4>
  %5 = mul %3, %4 : edge<f64, 4>
  %6 = fold %5 {monoid = "sum"} : node<f64, 4>
  return %6
}
"""


def func(text: str) -> Func:
    return parse_func(text)


def graph(square: bool = False, seed: int = 0) -> GraphArrays:
    """Six sources, five or six destinations, the last without an in-edge, duplicates."""
    rng = np.random.default_rng(seed)
    nd = 6 if square else 5
    return GraphArrays(rng.integers(0, 6, 20), rng.integers(0, nd - 1, 20), 6, nd)


def args(f: Func, g: GraphArrays, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = {"src": (g.num_src,), "dst": (g.num_dst,), "node": (g.num_dst,), "edge": (g.num_edges,), "param": ()}
    return {p.name: rng.normal(size=rows[p.type.space] + p.type.dims) for p in f.params}
