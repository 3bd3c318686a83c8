"""Back ends: launches as data, registers against resident warps, which device gets which."""

from __future__ import annotations

import pytest
import torch

from gnnc.backends import CpuBackend, CudaBackend, backend_for
from gnnc.ir.types import I32
from gnnc.pipeline import Compilation
from gnnc_runtime.plan import Plan, SweepStep
from tests.passes import programs

pytest.importorskip("cuda.core", reason="NVRTC comes with the extra cuda")
CUDA = CudaBackend("sm_90")


def lowered(text, *wrt):
    return Compilation(programs.func(text), wrt, I32, CUDA)


def test_a_plan_for_a_gpu_survives_json():
    plan = lowered(programs.GATV2, "x", "att").lower("backward").plan
    assert Plan.from_json(plan.to_json()) == plan
    sweeps = [s for s in plan.steps if isinstance(s, SweepStep)]
    assert sweeps
    assert all(s.cuda is not None and s.cuda.run.name == s.kernel for s in sweeps)
    assert [s.cuda.carry is not None for s in sweeps].count(True) == 1  # d_att is a sum over all rows


def test_a_sum_gets_more_resident_blocks_and_no_stack():
    from gnnc.codegen.cuda.occupancy import compiled

    (kernel,) = lowered(programs.SPMM.replace("f64", "f32")).lower("forward").kernels.values()
    usage = compiled(kernel, "sm_90").usage["spmm_0"]
    assert usage.stack == 0
    assert usage.registers <= 48
    assert "__launch_bounds__(256, 5)" in kernel.text


def test_attention_keeps_its_registers():
    (kernel,) = lowered(programs.GATV2.replace("f64", "f32")).lower("forward").kernels.values()
    assert "__launch_bounds__(256, " not in kernel.text


def test_binaries_are_cubins_for_the_architecture():
    c = lowered(programs.SPMM)
    files = CUDA.build(c.lower("forward"))
    assert list(files) == ["spmm_0.cubin"]
    assert files["spmm_0.cubin"][:4] == b"\x7fELF"
    assert CUDA.target.startswith("sm_90; nvrtc ")


def test_a_device_that_is_neither():
    assert backend_for(torch.device("cpu")) == CpuBackend()
    with pytest.raises(ValueError, match="gnnc compiles for cpu and cuda, not for meta"):
        backend_for(torch.device("meta"))
