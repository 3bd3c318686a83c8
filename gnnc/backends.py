"""The back ends as the pipeline sees them: lower a plan to kernel texts, build binaries, load them as an executable.

A back end is a value (two equal ones share compiled layers); its ``target`` text is part of every cache key.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from gnnc.codegen.plan import KernelText, LoweredPlan, lower_plan
from gnnc.ir.sweep import PlanSpec, SweepSpec
from gnnc.ir.types import DType
from gnnc_runtime.operators import PlanExecutable
from gnnc_runtime.plan import CudaEntry, CudaLaunch, Plan, SweepStep


class Backend(Protocol):
    """``extension`` of kernel texts in dumps, ``vector_bits`` that schedules assume, ``target``: what binaries are made for."""

    @property
    def extension(self) -> str: ...
    @property
    def vector_bits(self) -> int: ...
    @property
    def target(self) -> str: ...
    def lower(self, plan: PlanSpec, index_dtype: DType) -> LoweredPlan: ...
    def build(self, lowered: LoweredPlan) -> dict[str, bytes]: ...
    def load(self, plan: Plan, folder: Path | None, files: dict[str, bytes]) -> PlanExecutable: ...
    def describe(self, sweep: SweepSpec, kernel: KernelText) -> str:
        """How a kernel is mapped to the machine, for explain."""
        ...


def kernel_names(plan: Plan) -> list[str]:
    return [s.kernel for s in plan.steps if isinstance(s, SweepStep)]


@dataclass(frozen=True)
class CpuBackend:
    """LLVM for this machine."""

    extension: str = "ll"
    vector_bits: int = 256

    @property
    def target(self) -> str:
        from gnnc.codegen.cpu.jit import host_target

        return str(host_target())

    def lower(self, plan: PlanSpec, index_dtype: DType) -> LoweredPlan:
        from gnnc.codegen.cpu.sweep import emit_llvm

        return lower_plan(plan, index_dtype, emit_llvm)

    def build(self, lowered: LoweredPlan) -> dict[str, bytes]:
        """An object a kernel, and a shared library where there is a linker."""
        from gnnc.codegen.cpu.jit import compile_llvm, host_target, link_shared

        files: dict[str, bytes] = {}
        for name, kernel in lowered.kernels.items():
            files[f"{name}.o"] = compile_llvm(kernel.text, host_target())
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder) / f"{name}.so"
                if link_shared(files[f"{name}.o"], library):
                    files[library.name] = library.read_bytes()
        return files

    def load(self, plan: Plan, folder: Path | None, files: dict[str, bytes]) -> PlanExecutable:
        from gnnc_runtime.executor import Executable
        from gnnc_runtime.kernels import CpuKernel, load_shared

        kernels: dict[str, CpuKernel] = {}
        for name in kernel_names(plan):
            if folder is not None and f"{name}.so" in files:
                kernels |= load_shared(folder / f"{name}.so", [name])
            else:
                from gnnc.codegen.cpu.jit import load_in_process

                loaded = load_in_process(files[f"{name}.o"])
                kernels[name] = CpuKernel(loaded.address(f"{name}_run"), loaded.address(f"{name}_finish"), keep=loaded)
        return Executable(plan, kernels)

    def describe(self, sweep: SweepSpec, kernel: KernelText) -> str:
        return sweep.schedule.reason


@dataclass(frozen=True)
class CudaBackend:
    """CUDA C++ through NVRTC for one architecture (``sm_90``)."""

    arch: str
    extension: str = "cu"
    vector_bits: int = 256

    @property
    def target(self) -> str:
        from importlib.metadata import version

        from gnnc.codegen.cuda.compile import OPTIONS

        return f"{self.arch}; nvrtc {version('nvidia-cuda-nvrtc')}; {' '.join(OPTIONS)}"

    def lower(self, plan: PlanSpec, index_dtype: DType) -> LoweredPlan:
        from gnnc.codegen.cuda.occupancy import emit_resident

        return lower_plan(plan, index_dtype, lambda spec, index, name: emit_resident(spec, index, name, self.arch), cuda_launch)

    def build(self, lowered: LoweredPlan) -> dict[str, bytes]:
        from gnnc.codegen.cuda.occupancy import compiled
        from gnnc.codegen.cuda.text import CudaText

        files: dict[str, bytes] = {}
        for name, kernel in lowered.kernels.items():
            assert isinstance(kernel, CudaText)
            files[f"{name}.cubin"] = compiled(kernel, self.arch).data
        return files

    def load(self, plan: Plan, folder: Path | None, files: dict[str, bytes]) -> PlanExecutable:
        from gnnc_runtime.cuda.executor import CudaExecutable, CudaModule

        return CudaExecutable(plan, {name: CudaModule(files[f"{name}.cubin"]) for name in kernel_names(plan)})

    def describe(self, sweep: SweepSpec, kernel: KernelText) -> str:
        from gnnc.codegen.cuda.occupancy import compiled
        from gnnc.codegen.cuda.text import CudaText

        assert isinstance(kernel, CudaText)
        usage = compiled(kernel, self.arch).usage[kernel.run.name]
        stack = f", {usage.stack} bytes of stack" if usage.stack else ""
        return f"{kernel.path} path ({kernel.reason}): {kernel.layout}; {usage.registers} registers{stack}"


def cuda_launch(text: object) -> CudaLaunch:
    """How an emitted CUDA sweep is launched, as the runtime's data."""
    from gnnc.codegen.cuda.text import CudaText, Entry

    assert isinstance(text, CudaText)

    def entry(e: Entry | None) -> CudaEntry | None:
        if e is None:
            return None
        return CudaEntry(e.name, e.block, e.shared_bytes, e.items_per_block, e.slices, e.persistent, e.images_per_block)

    run = entry(text.run)
    assert run is not None
    return CudaLaunch(run, entry(text.merge), entry(text.carry), 4 * text.workspace_words)


@cache
def _cuda(index: int) -> CudaBackend:
    major, minor = torch.cuda.get_device_capability(index)
    return CudaBackend(f"sm_{major}{minor}")


_cpu = CpuBackend()


def backend_for(device: torch.device) -> Backend:
    """The back end of a device. Raises ValueError for one that gnnc does not compile for."""
    if device.type == "cpu":
        return _cpu
    if device.type == "cuda":
        return _cuda(torch.cuda.current_device() if device.index is None else device.index)
    raise ValueError(f"gnnc compiles for cpu and cuda, not for {device.type}")
