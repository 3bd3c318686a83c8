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


def test_a_concat_with_an_empty_part_is_lowered():
    text = """
    func @padded(%x: dst<f64, 2>, %w: edge<f64>) -> (out: dst<f64, 2>) stage layer {
      %0 = gather %x {end = "dst"} : edge<f64, 2>
      %1 = slice %0 {axis = -1, start = 2, stop = 2} : edge<f64, 0>
      %2 = concat %0, %1 {axis = -1} : edge<f64, 2>
      %3 = fold %2 {monoid = "sum"} : dst<f64, 2>
      %4 = slice %3 {axis = -1, start = 2, stop = 2} : dst<f64, 0>
      %5 = concat %3, %4 {axis = -1} : dst<f64, 2>
      return %5
    }
    """
    from gnnc.codegen.cuda.emit import emit_cuda
    from gnnc.passes.fuse import fuse
    from gnnc.passes.lower_softmax import LowerSoftmax

    plan = fuse(LowerSoftmax().run(programs.func(text)))  # without simplify, which would take the empty part away
    assert [emit_cuda(s, I32, "k").path for s in plan.sweeps]
