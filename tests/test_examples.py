"""The examples: data with nothing but packages, the eager layers beside the compiled ones, a whole example as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gnnc

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
import citation  # noqa: E402
import quickstart  # noqa: E402


def test_digits_stand_in_where_no_data_is_found():
    data = citation._digits()
    assert data.x.shape == (1797, 64)
    assert data.num_classes == 10
    assert torch.equal(data.edge_index.unique(dim=1), data.edge_index.flip(0).unique(dim=1))  # both ways
    assert not (data.train & data.test).any()


@pytest.mark.parametrize("name", ["gcn", "gatv2"])
def test_compiled_and_eager_layers_agree(name):
    data = citation._digits()
    n = data.x.shape[0]
    graph, w = gnnc.Graph.from_edge_index(data.edge_index, num_src=n).with_self_loops(
        "remaining", fill=1.0, edge_attr=torch.ones(data.edge_index.shape[1])
    )
    gen = torch.Generator().manual_seed(0)
    shapes = [(n, 16)] if name == "gcn" else [(n, 8, 8), (n, 8, 8), (8, 8)]
    inputs = [torch.randn(s, generator=gen, requires_grad=True) for s in shapes]
    rest = [w] if name == "gcn" else []
    mine = getattr(quickstart, name)(graph, *inputs, *rest)
    eager = getattr(quickstart, f"eager_{name}")(graph, *inputs, *rest)
    assert torch.allclose(mine, eager, atol=1e-4)
    for a, b in zip(torch.autograd.grad(mine.sum(), inputs), torch.autograd.grad(eager.sum(), inputs), strict=True):
        assert torch.allclose(a, b, atol=1e-3)


def test_own_layer_runs_as_a_user_runs_it(tmp_path):
    env = {**os.environ, "GNNC_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(EXAMPLES / "own_layer.py")], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.split("test accuracy ")[1].split()[0])
    assert accuracy > 0.6
    assert "monoid @SignedRms" in done.stdout
    assert "edge-wise tensors written: 0 B" in done.stdout
