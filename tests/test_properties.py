"""Random well-typed layer functions on random graphs: the interpreter and the compiled CPU code agree, forward and backward.

The plan is run below the operator, so that no torch operator is registered for every example. ``GNNC_EXAMPLES`` sets how many are tried.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnc.codegen.cpu.jit import compile_llvm, load_in_process
from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret, interpret_plan
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.types import F64, I32
from gnnc.passes.differentiate import Differentiate
from gnnc.pipeline import Compilation
from gnnc_runtime.executor import TORCH_DTYPES, Executable
from gnnc_runtime.graph import Graph
from gnnc_runtime.kernels import CpuKernel
from tests import strategies

EXAMPLES = int(os.environ.get("GNNC_EXAMPLES", "40"))


def executable(c: Compilation, part: str) -> Executable:
    lowered = c.lower(part)
    kernels = {}
    for name, kernel in lowered.kernels.items():
        loaded = load_in_process(compile_llvm(kernel.text))
        kernels[name] = CpuKernel(loaded.address(f"{name}_run"), loaded.address(f"{name}_finish"), keep=loaded)
    return Executable(lowered.plan, kernels)


def run(e: Executable, graph: GraphArrays, args: dict[str, Array]) -> dict[str, Array]:
    ei = torch.from_numpy(np.stack([graph.src, graph.dst]))
    g = Graph.from_edge_index(ei, graph.num_src, graph.num_dst)
    tensors = [torch.from_numpy(np.array(args[n], order="C")).to(TORCH_DTYPES[e.plan.buffer(n).dtype]) for n in e.plan.inputs]
    return {n: t.numpy() for n, t in zip(e.plan.outputs, e.run(g, tensors), strict=True)}


def same(got: Array, want: Array, what: str, tol: float = 1e-7) -> None:
    assert got.shape == want.shape, what
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0.0)))
    assert np.allclose(got, want, rtol=tol, atol=tol * scale, equal_nan=True), f"{what}: {np.abs(got - want).max()} at scale {scale}"


def is_tame(values: dict[str, Array]) -> bool:
    """Products of many large factors leave float64: such examples say nothing."""
    return all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 1e9 for v in values.values() if v.dtype.kind == "f")


def draw_example(data: st.DataObject) -> tuple[Func, GraphArrays, dict[str, Array], dict[str, Array]] | None:
    """A random function, a graph, arguments with upstream gradients, and what the interpreter makes of them: results and the
    gradients of every float parameter. None for an example whose values leave float64."""
    func: Func = data.draw(strategies.funcs(F64))
    graph = data.draw(strategies.graphs(func.square))
    args = strategies.arguments(func, graph, data.draw(st.integers(0, 99)))
    joint = Differentiate(floats(func)).run(func)
    values = dict(zip(func.result_names, interpret(func, graph, args), strict=True))
    rng = np.random.default_rng(1)
    full = dict(args)
    for p in joint.params:
        if p.name not in full:
            full[p.name] = rng.normal(size=values[p.name.removeprefix("grad_")].shape)
    want = dict(zip(joint.result_names, interpret(joint, graph, full), strict=True))
    return (func, graph, full, want) if is_tame(want) else None


def floats(func: Func) -> tuple[str, ...]:
    return tuple(p.name for p in func.params if p.type.dtype.is_float)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_interpreter_and_cpu_agree(data: st.DataObject) -> None:
    example = draw_example(data)
    if example is None:
        return
    func, graph, full, want = example
    c = Compilation(func, floats(func), I32)
    forward, backward = c.forward_plan(), c.backward_plan()
    plain = interpret_plan(forward, graph, full)
    plain |= interpret_plan(backward, graph, {**full, **plain})
    for name, value in want.items():
        same(plain[name], value, f"plan, {name}")
    got = run(executable(c, "forward"), graph, full)
    got |= run(executable(c, "backward"), graph, {**full, **got})
    for name, value in want.items():
        same(got[name], value, f"kernels, {name}")
