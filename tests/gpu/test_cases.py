"""The cases that broke other implementations, on a GPU: the very tests of `tests/cases`, with every tensor made there."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import test_framework, test_values
from tests.reference import cases

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

# Processes, forks and autocast dtypes of the CPU: no matter of the device, or tested in test_gpu.py.
ELSEWHERE = {"test_r59_a_forked_worker_runs_what_the_parent_ran", "test_r61_autocast"}


class OnGpu:
    """`tests.reference.cases`, its graphs and values made on the CPU (their generators live there) and moved."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(cases, name)
        if not inspect.isfunction(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.device("cpu"):
                return moved(found(*[a.cpu() if isinstance(a, Tensor) else a for a in args], **kwargs))

        return call


def moved(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.cuda()
    if isinstance(x, dict):
        return {k: moved(v) for k, v in x.items()}
    if isinstance(x, cases.Graph):
        return cases.Graph(x.name, x.edge_index.cuda(), x.n_src, x.n_dst, x.why)
    return x


def collect() -> list[Any]:
    out = []
    for module in (test_values, test_framework):
        for name, fn in vars(module).items():
            if not name.startswith("test_") or not inspect.isfunction(fn) or name in ELSEWHERE:
                continue
            if "tmp_path" in inspect.signature(fn).parameters:
                continue
            grid: list[dict[str, Any]] = [{}]
            for mark in getattr(fn, "pytestmark", []):
                if mark.name == "parametrize":
                    grid = [{**g, mark.args[0]: v} for g in grid for v in mark.args[1]]
            out += [pytest.param(fn, g, id=f"{name}-{'-'.join(map(str, g.values()))}") for g in grid]
    return out


@pytest.mark.parametrize(("fn", "kwargs"), collect())
def test_on_a_gpu(fn: Any, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect.getmodule(fn), "cases", OnGpu())
    with torch.device("cuda"):
        fn(**kwargs)
