"""Whole layers through the passes, forward and backward: every sweep of their plans on the emulator against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gnnc.codegen.cuda.emit import emit_cuda
from gnnc.ir.interpreter import interpret
from gnnc.ir.ops import GraphArrays
from gnnc.ir.sweep import PlanSpec, SweepSpec
from gnnc.ir.types import I32, I64
from gnnc.pipeline import Compilation
from tests.codegen.cpu.kernels import quantised
from tests.golden.harness import graph_of, make_inputs
from tests.golden.layers import CASES
from tests.reference import cases

from .emulated import Emulated

GRAPHS = {g.name: g for g in cases.all_graphs()}
LAYERS = {c.name: c for c in CASES}
TOLERANCE = {"f64": 1e-10, "f32": 3e-4, "f16": 4e-3, "bf16": 3e-2}


def run_layer(name: str, dtype: torch.dtype, graph_name: str, index: str = "i32") -> list[str]:
    """Runs every sweep of a layer's forward and backward on its own, from the interpreter's buffers; the paths they took."""
    case, g = LAYERS[name], GRAPHS[graph_name]
    layer: Any = case.layer
    raw = [x.to(dtype) if x.is_floating_point() else x for x in make_inputs(case, g, 3)]
    func = layer.trace(graph_of(g), *raw)
    wrt = tuple(p.name for p in func.params if p.type.dtype.is_float) if case.differentiable else ()
    compilation = Compilation(func, wrt, I64 if index == "i64" else I32)
    plans = [compilation.forward_plan()] + ([compilation.backward_plan()] if wrt else [])
    arrays = GraphArrays(g.edge_index[0].numpy(), g.edge_index[1].numpy(), g.n_src, g.n_dst)
    buffers = {p.name: np.asarray(x.double() if x.is_floating_point() else x) for p, x in zip(func.params, raw, strict=True)}
    return [path for plan in plans for path in _run_plan(plan, arrays, buffers, index)]


def _run_plan(plan: PlanSpec, graph: GraphArrays, buffers: dict[str, np.ndarray], index: str) -> list[str]:
    rng = np.random.default_rng(0)
    paths = []
    for name, t in plan.params:
        rows = () if t.space == "param" else (graph.rows(t.space),)
        a = buffers[name] if name in buffers else rng.standard_normal((*rows, *t.dims))
        buffers[name] = quantised(a, t.dtype).reshape((*rows, *t.dims))
    for step in plan.steps:
        for p in step.func.params:
            if p.name.startswith("$"):
                buffers[p.name] = graph.degree("dst" if p.name.startswith("$in_degree") else "src")
        want = interpret(step.func, graph, {p.name: buffers[p.name] for p in step.func.params})
        if isinstance(step, SweepSpec):
            kernel = Emulated(step, emit_cuda(step, I64 if index == "i64" else I32, step.name))
            paths.append(kernel.text.path)
            args = {p.name: buffers[p.name][None] if p.type.space == "param" else buffers[p.name] for p in step.func.params}
            for w, x, r in zip(want, kernel(graph, args), step.func.results, strict=True):
                finite = np.abs(w[np.isfinite(w)]) if r.type.dtype.is_float else np.zeros(0)
                tol = TOLERANCE[r.type.dtype.name] if r.type.dtype.is_float else 0
                scale = max(1.0, float(finite.max(initial=0)))
                x = x[0] if r.type.space == "param" else x
                np.testing.assert_allclose(x, w, rtol=0, atol=tol * scale, err_msg=f"{step.name}: {r}")
        for n, r, w in zip(step.func.result_names, step.func.results, want, strict=True):
            buffers[n] = quantised(w, r.type.dtype).reshape(w.shape)
    return paths


# Layers with a sweep that fragments do not have: products on edges, channels of two sizes, concats of unlike parts.
GENERAL = {"edge_conv_concat", "cgconv", "gmm", "gatv2_edge", "dot_attention", "feast", "activations"}
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_every_golden_layer(number: int) -> None:
    """Dtypes take turns; every layer of the three families runs by fragments."""
    name = CASES[number].name
    paths = run_layer(name, DTYPES[number % 4], "random")
    assert ("general" in paths) == (name in GENERAL), paths


@pytest.mark.parametrize("graph", ["bip_17to5", "N5_E0", "duplicates"])
def test_gatv2_on_odd_graphs(graph: str) -> None:
    run_layer("gatv2", torch.float32, graph, index="i64")
