"""Inputs that broke other implementations, sections E to H: mixed precision, caches, processes, determinism, the framework around."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import gnnc
from gnnc.lang import Edge, Param, Src, leaky_relu
from tests.cases.test_values import attend, edges, gat, total, weighted
from tests.reference import cases

SLOPE = 0.1


@gnnc.layer
def with_global(g, x: Src["F"]):
    return g.sum(leaky_relu(g.src(x), SLOPE))


@gnnc.layer
def projected(g, x: Src["F"], w: Param["F", "O"], e: Edge[()]):
    return g.sum(e[..., None] * g.src(x @ w))


def run_python(code: str, cache: Path, **env: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[2]
    full = {**os.environ, "GNNC_CACHE_DIR": str(cache), "PYTHONPATH": f"{root}{os.pathsep}{root / 'runtime'}", **env}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, env=full)


PROGRAM = """
    import torch, gnnc
    from gnnc.lang import Src
    @gnnc.layer
    def f(g, x: Src["F"]):
        return g.sum(g.src(x) * 2)
    out = f(torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1.0], [2.0]]))
    print(out.flatten().tolist())
"""


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_r61_autocast():
    g = cases.random_graph()
    graph = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
    x = torch.randn(g.n_src, 8, requires_grad=True)
    w = torch.randn(8, 4, requires_grad=True)
    e = torch.rand(g.E)
    want = projected(graph, x, w, e)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = projected(graph, x, w, e)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32
    assert torch.allclose(out.float(), want, atol=0.2, rtol=0.05)


def test_half_features_with_float_weights_promote():
    g = cases.random_graph()
    graph = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
    x = torch.randn(g.n_src, 3, dtype=torch.float16, requires_grad=True)
    out = weighted(graph, x, torch.rand(g.E))
    assert out.dtype == torch.float32
    out.sum().backward()
    assert x.grad.dtype == torch.float16


def test_r21_another_graph_is_another_answer():
    x = torch.tensor([[1.0], [10.0], [100.0]])
    assert total(edges((0, 1), (1, 2)), x).flatten().tolist() == [0.0, 1.0, 10.0]
    assert total(edges((2, 0), (0, 1)), x).flatten().tolist() == [100.0, 1.0, 0.0]


def test_an_edge_index_changed_in_place_is_seen():
    x = torch.tensor([[1.0], [10.0], [100.0]])
    ei = edges((0, 1), (1, 2))
    assert total(ei, x).flatten().tolist() == [0.0, 1.0, 10.0]
    ei[0, 0] = 2
    assert total(ei, x).flatten().tolist() == [0.0, 100.0, 10.0]


def test_r23_a_changed_global_is_seen_at_the_next_call():
    global SLOPE
    before, x = SLOPE, torch.tensor([[-2.0]])
    try:
        SLOPE = 0.1
        assert with_global(edges((0, 0)), x).item() == pytest.approx(-0.2)
        SLOPE = 0.5
        assert with_global(edges((0, 0)), x).item() == -1.0
    finally:
        SLOPE = before


def test_r23_in_another_process_over_the_same_cache(tmp_path):
    code = """
        import os, torch, gnnc
        from gnnc.lang import Src, leaky_relu
        SLOPE = float(os.environ["SLOPE"])
        @gnnc.layer
        def f(g, x: Src["F"]):
            return g.sum(leaky_relu(g.src(x), SLOPE))
        print(f(torch.tensor([[0], [0]]), torch.tensor([[-2.0]])).item())
    """
    for slope, want in (("0.1", -0.2), ("0.5", -1.0), ("0.1", -0.2)):
        done = run_python(code, tmp_path, SLOPE=slope)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) == pytest.approx(want)


def test_r26_a_second_process_adds_no_file(tmp_path):
    first = run_python(PROGRAM, tmp_path, PYTHONHASHSEED="1")
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == "[0.0, 6.0]"
    before = files(tmp_path)
    assert before
    second = run_python(PROGRAM, tmp_path, PYTHONHASHSEED="2")
    assert second.stdout == first.stdout
    assert files(tmp_path) == before


def test_r28_many_processes_on_one_empty_cache(tmp_path):
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "GNNC_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{root}{os.pathsep}{root / 'runtime'}"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for _ in range(4)
    ]
    for p in running:
        out, err = p.communicate(timeout=180)
        assert p.returncode == 0, err
        assert out.strip() == "[0.0, 6.0]"
    assert not [f for f in files(tmp_path) if "tmp" in f.lower()]


def test_r31_no_place_to_write(tmp_path):
    done = run_python(PROGRAM, Path("/proc/nowhere"), HOME="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0.0, 6.0]"
    assert done.stderr.count("Warning") <= 1


def test_r57_new_graphs_do_not_compile():
    from gnnc.compiled import CompiledLayer

    made = 0
    original = CompiledLayer.executable

    def counting(self, part):
        nonlocal made
        made += 1
        return original(self, part)

    CompiledLayer.executable = counting
    try:
        for i in range(50):
            n, e = 5 + i, 3 * i
            torch.manual_seed(i)
            ei = torch.randint(0, n, (2, e))
            x = torch.randn(n, 6)
            want = torch.zeros(n, 6).index_add(0, ei[1], x[ei[0]])
            assert torch.allclose(total(ei, x), want, atol=1e-5)
    finally:
        CompiledLayer.executable = original
    assert made <= 1


def test_r64_without_a_source_file(tmp_path):
    done = run_python(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    scope: dict = {}
    exec(textwrap.dedent(PROGRAM).replace("print", "result = str"), scope)
    assert scope["result"] == "[0.0, 6.0]"


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = projected
        self.w = torch.nn.Parameter(torch.randn(3, 2))

    def forward(self, ei, x, e):
        return self.layer(ei, x, self.w, e)


@pytest.mark.parametrize("called_before", [False, True])
def test_r36_modules_copy_and_pickle(called_before):
    ei, x, e = edges((0, 1), (2, 0)), torch.randn(3, 3), torch.rand(2)
    model = Holder()
    if called_before:
        model(ei, x, e)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(ei, x, e), model(ei, x, e))
        with torch.no_grad():
            other.w.add_(1)
        assert not torch.equal(other.w, model.w)


def test_r59_a_forked_worker_runs_what_the_parent_ran():
    class Set(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            g = cases.power_law()
            return total(g.edge_index, torch.full((g.n_src, 8), float(i)))[:3]

    want = [Set()[i] for i in range(4)]
    loader = torch.utils.data.DataLoader(Set(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    for a, b in zip(loader, want, strict=True):
        assert torch.equal(a, b)


def test_r60_the_same_bits_every_time_and_for_any_thread_count():
    star, law = cases.star_in(1000), cases.power_law()
    threads = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    try:
        for g in (star, law):
            graph = gnnc.Graph.from_edge_index(g.edge_index, num_src=g.n_src)
            h = torch.randn(g.n_src, 2, 8, requires_grad=True)
            a, b = (torch.randn(2, 8, requires_grad=True) for _ in range(2))
            s = torch.randn(g.E, 2, requires_grad=True)
            seen = []
            for run in range(20):
                torch.set_num_threads(1 + run % 2)
                grads = torch.autograd.grad(gat(graph, h, h, a, b).square().sum(), [h, a, b])
                more = torch.autograd.grad(attend(graph, s, h).square().sum(), [s, h])
                seen.append([t.clone() for t in (*grads, *more)])
            for other in seen[1:]:
                assert all(torch.equal(x, y) for x, y in zip(seen[0], other, strict=True))
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)


def test_double_backward_is_one_clear_error():
    x = torch.randn(3, 2, requires_grad=True)
    out = attend(edges((0, 1), (2, 1)), torch.randn(2, 1), x[:, None])
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()
