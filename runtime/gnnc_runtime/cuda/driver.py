"""The few driver calls a launch needs, with errors as exceptions.

cuda-bindings gives ``(error, *values)``; `check` turns that into values. Contexts are torch's: every call runs under the device's primary
context, made current by torch.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import GnncError


class CudaError(GnncError, RuntimeError):
    """The driver refused a call."""


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as e:
        raise CudaError("running on a GPU needs cuda-bindings: pip install 'gnnc[cuda]'") from e
    return driver


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call. Raises CudaError with the driver's own name for the fault."""
    error, *values = result
    if int(error) != 0:
        raise CudaError(f"{what}: {getattr(error, 'name', error)}")
    return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True)
class Function:
    """A loaded ``__global__`` function. ``resident``: blocks that one multiprocessor holds at its block size and shared memory."""

    handle: Any
    name: str
    resident: int
    module: Any = field(compare=False, repr=False)


_contexts: dict[int, Any] = {}


def activate(device: int) -> None:
    """Makes the device's primary context (torch's) current in this thread. Threads of autograd start without one."""
    driver = _driver()
    if device not in _contexts:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        handle = check(driver.cuDeviceGet(device), f"device {device}")
        _contexts[device] = check(driver.cuDevicePrimaryCtxRetain(handle), f"context of device {device}")
    check(driver.cuCtxSetCurrent(_contexts[device]), f"context of device {device}")


def load(cubin: bytes, entries: Sequence[tuple[str, int, int]], device: int) -> dict[str, Function]:
    """The functions ``(name, block, shared_bytes)`` of a cubin on a device. Raises CudaError (a cubin for another architecture, say)."""
    driver = _driver()
    with torch.cuda.device(device):
        activate(device)
        module = check(driver.cuModuleLoadData(cubin), "loading a kernel")
        out = {}
        for name, block, shared in entries:
            handle = check(driver.cuModuleGetFunction(module, name.encode()), f"kernel {name}")
            blocks = check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, block, shared), f"occupancy of {name}")
            out[name] = Function(handle, name, max(1, int(blocks)), module)
        return out


class Arguments:
    """The argument block of one launch: 8-byte values and the table of their addresses, as cuLaunchKernel reads them."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = array("q", values)
        base = self.values.buffer_info()[0]
        self.table = array("Q", [base + 8 * i for i in range(len(values))])

    @property
    def address(self) -> int:
        return self.table.buffer_info()[0]


def launch(f: Function, grid: int, block: int, shared: int, stream: int, arguments: Arguments) -> None:
    """One launch; arguments are copied by the driver before it returns."""
    driver = _driver()
    result = driver.cuLaunchKernel(f.handle, grid, 1, 1, block, 1, 1, shared, stream, arguments.address, 0)
    check(result, f"launch of {f.name} with {grid} blocks of {block}")


def signed(pointer: int) -> int:
    """A pointer as the signed 64-bit value that an argument block holds."""
    return ctypes.c_int64(pointer).value
