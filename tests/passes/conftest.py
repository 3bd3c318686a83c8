"""Text tests of passes: how one ``.gir`` file is read, run, checked and compared with the interpreter.

A file is IR text with directives in comments::

    // RUN: simplify,lower_softmax
    // NO-INTERPRET: why the values may differ
    // CHECK: ...           (also CHECK-NEXT, CHECK-NOT, CHECK-SAME, CHECK-DAG, CHECK-LABEL)

The pipeline is `parse_pipeline`'s; ``fuse`` may come last and leaves a plan, as ``gnnc opt`` prints it. Every function of the file is
run before and after the pipeline on small graphs; results of the same name must agree.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from gnnc.ir.core import Func
from gnnc.ir.interpreter import interpret, interpret_plan, numpy_dtype
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.parser import parse_module
from gnnc.ir.printer import print_func, print_plan
from gnnc.ir.sweep import PlanSpec
from gnnc.ir.types import Type
from gnnc.ir.verifier import verify, verify_plan
from gnnc.passes.manager import PassManager, parse_pipeline

HERE = Path(__file__).parent


@dataclass(frozen=True)
class TextTest:
    """One file. ``run``: its pipelines, in order. ``no_interpret``: why values are not compared, or ""."""

    path: Path
    text: str
    run: tuple[str, ...]
    no_interpret: str

    @classmethod
    def read(cls, path: Path) -> TextTest:
        text = path.read_text(encoding="utf-8")
        run = tuple(re.findall(r"^\s*// RUN:\s*(.*?)\s*$", text, re.M))
        why = re.search(r"^\s*// NO-INTERPRET:\s*(.*?)\s*$", text, re.M)
        assert why is None or why[1], f"{path}: NO-INTERPRET needs a reason"
        return cls(path, text, run, why[1] if why else "")

    def functions(self) -> list[Func]:
        funcs = parse_module(self.text, str(self.path))
        for f in funcs:
            verify(f)
        return funcs


def text_tests() -> list[Path]:
    return sorted(HERE.rglob("*.gir"))


def run_pipeline(pipeline: str, func: Func) -> Func | PlanSpec:
    """`func` after a pipeline; a plan where it ends with ``fuse``."""
    names, _, last = pipeline.rpartition(",")
    if last.strip() != "fuse":
        return PassManager(parse_pipeline(pipeline)).run(func)
    from gnnc.passes.classify import classify
    from gnnc.passes.fuse import fuse
    from gnnc.passes.schedule import schedule

    plan = schedule(classify(fuse(PassManager(parse_pipeline(names)).run(func))))
    verify_plan(plan)
    return plan


def ir_text(what: Func | PlanSpec) -> str:
    return print_plan(what) if isinstance(what, PlanSpec) else print_func(what)


def filecheck(checks: str, output: str, name: str = "checks") -> str:
    """The error text of filecheck, "" when every directive holds."""
    opts = Options(match_filename=name, input_file="output")
    parser = Parser(opts, io.StringIO(checks), *pattern_for_opts(opts))
    matcher = Matcher(opts, FInput("output", output), parser)
    matcher.stderr = io.StringIO()
    return "" if matcher.run() == 0 else matcher.stderr.getvalue() or "filecheck failed"


# ---- values


def small_graphs(square: bool) -> Iterator[tuple[str, GraphArrays]]:
    """A few graphs that break things: nothing at all, no edges, duplicates, unsorted, more sources or more destinations."""
    from tests.reference import cases

    makers = [cases.empty_all, cases.no_edges, cases.single_edge, cases.duplicate_self_loops, cases.duplicates, cases.unsorted]
    if not square:
        makers += [cases.src_zero, cases.dst_zero, cases.bipartite_wide, cases.bipartite_tall]
    for make in makers:
        g = make()
        src, dst = (np.asarray(x, dtype=np.int64) for x in g.edge_index)
        yield g.name, GraphArrays(src, dst, g.n_src, g.n_dst)


def random_array(t: Type, graph: GraphArrays, rng: np.random.Generator) -> Array:
    """Values of a type, in the interpreter's form."""
    shape = t.dims if t.space == "param" else (graph.rows(t.space), *t.dims)
    if t.dtype.is_float:
        return rng.normal(size=shape)
    if t.dtype.kind == "bool":
        return rng.integers(0, 2, size=shape).astype(bool)
    return rng.integers(0, 5, size=shape).astype(numpy_dtype(t.dtype))


def results_of(what: Func | PlanSpec, graph: GraphArrays, args: dict[str, Array]) -> dict[str, Array]:
    if isinstance(what, PlanSpec):
        return interpret_plan(what, graph, args)
    return dict(zip(what.result_names, interpret(what, graph, args), strict=True))


def assert_same_values(before: Func, after: Func | PlanSpec, seed: int = 0) -> None:
    """The results that both have agree on every small graph, with random inputs."""
    params = {p.name: p.type for p in before.params}
    params |= dict(after.params) if isinstance(after, PlanSpec) else {p.name: p.type for p in after.params}
    for name, graph in small_graphs(before.square):
        rng = np.random.default_rng(seed)
        args = {n: random_array(t, graph, rng) for n, t in params.items()}
        want, have = results_of(before, graph, args), results_of(after, graph, args)
        shared = [n for n in want if n in have]
        assert shared, "no result in common"
        for n in shared:
            np.testing.assert_allclose(have[n], want[n], rtol=1e-9, atol=1e-9, err_msg=f"result {n} on graph {name}")
