"""CUDA C++ -> cubin, with NVRTC through cuda.core. Needs no GPU and no driver.

An `ObjectCode` is never kept or logged: its repr loads the driver. What leaves this file is bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from ...ir.core import Loc
from .elf import Usage, parse_ptxas_log, read_usage
from .text import CudaText, source_line

INSTALL = "pip install cuda-core cuda-bindings nvidia-cuda-nvrtc nvidia-cuda-runtime"
OPTIONS = ("std=c++17", "fma=false", "device as default execution space")
"""What every compilation is given, for cache keys: the emitter writes every fma itself."""


class ToolchainError(Exception):
    """NVRTC or its headers are missing, or refused the text. ``log`` is NVRTC's, ``where`` the DSL lines it speaks of."""

    def __init__(self, message: str, log: str = "", where: tuple[Loc, ...] = ()) -> None:
        super().__init__(message)
        self.log, self.where = log, where


@dataclass(frozen=True)
class Cubin:
    """A compiled translation unit. ``usage``: what each entry takes. ``log``: ptxas' report."""

    data: bytes
    arch: str
    usage: dict[str, Usage]
    log: str


@cache
def header_folder() -> str:
    """The folder of ``cuda_fp16.h``. ToolchainError with the mend when the wheel is missing."""
    try:
        from cuda.pathfinder import locate_nvidia_header_directory
    except ImportError as e:
        raise ToolchainError(f"cuda.pathfinder is not installed, so the CUDA headers cannot be found\n  hint: {INSTALL}") from e
    found = locate_nvidia_header_directory("cudart")
    if found is None or found.abs_path is None:
        raise ToolchainError(f"the CUDA headers (cuda_fp16.h, cuda_bf16.h) are not installed\n  hint: {INSTALL}")
    return str(found.abs_path)


def compile_cuda(text: CudaText, arch: str = "sm_90") -> Cubin:
    """The cubin of a sweep's text for an architecture such as ``sm_90``. One that spills is compiled again with more registers.

    Raises ToolchainError: NVRTC or headers missing (with the pip command), or an error of NVRTC, told with the DSL lines its messages
    point at.
    """
    cubin = _compiled(text, text.text, arch)
    spilled = [k for k, u in cubin.usage.items() if u.spill_stores]
    again = without_register_cap(text.text, spilled)
    return cubin if again == text.text else _compiled(text, again, arch)


def without_register_cap(source: str, entries: Sequence[str]) -> str:
    """``source`` with these entries bound to one resident block. Where nothing is said, ptxas aims at an occupancy of its own choice and
    now and then spills a few bytes for it, which costs more than it gains."""
    for name in entries:
        pattern = rf"(__global__ void __launch_bounds__\(\d+)\)(\s+{name}\()"
        source = re.sub(pattern, r"\1, 1)\2", source)
    return source


def _compiled(text: CudaText, source: str, arch: str) -> Cubin:
    data, log = _nvrtc(source, arch, text.run.name, text.lines)
    spills = parse_ptxas_log(log)
    names = {e.name for e in text.entries}
    usage = {}
    for k, u in read_usage(data).items():
        if k in names:
            stores, loads = spills.get(k, (None, None))
            usage[k] = replace(u, spill_stores=stores, spill_loads=loads)
    return Cubin(data, arch, usage, log)


def _nvrtc(source: str, arch: str, name: str, lines: dict[int, Loc]) -> tuple[bytes, str]:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as e:
        raise ToolchainError(f"cuda-core is not installed, so CUDA kernels cannot be compiled\n  hint: {INSTALL}") from e
    include = [header_folder()] if "#include <cuda_" in source else None
    options = ProgramOptions(
        name=f"{name}.cu",
        arch=arch,
        std="c++17",
        fma=False,
        include_path=include,
        ptxas_options=["-v"],
        device_as_default_execution_space=True,
    )
    logs = io.StringIO()
    try:
        program = Program(source, "c++", options)
    except Exception as e:  # cuda.core reports a missing library by the loader's own exceptions
        raise ToolchainError(f"NVRTC cannot be loaded: {e}\n  hint: {INSTALL}") from e
    try:
        data = bytes(program.compile("cubin", logs=logs).code)
    except Exception as e:
        raise translated(f"{logs.getvalue()}\n{e}", name, arch, lines) from e
    finally:
        program.close()
    return data, logs.getvalue()


def translated(log: str, name: str, arch: str, lines: dict[int, Loc]) -> ToolchainError:
    """NVRTC's log as an error: each message with the DSL line it came from, where it came from one."""
    found: dict[tuple[str, str], Loc | None] = {}
    for m in re.finditer(r"^\S*?\((\d+)\): (?:catastrophic )?error:? ?(?:#\S+: )?(.*)$", log, re.MULTILINE):
        found.setdefault((m.group(1), m.group(2).strip()), lines.get(int(m.group(1))))
    if not found:
        return ToolchainError(f"NVRTC failed on kernel {name} for {arch}:\n{log.strip()}", log)
    out = [f"NVRTC refused kernel {name} for {arch} (a fault of gnnc, please report it)"]
    for (number, message), loc in found.items():
        out.append(f"  line {number}: {message}")
        if loc is not None:
            out.append(f"    from {source_line(loc)}")
    where = tuple(dict.fromkeys(loc for loc in found.values() if loc is not None))
    return ToolchainError("\n".join(out), log, where)
