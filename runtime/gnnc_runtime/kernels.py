"""Compiled kernels in memory: two C functions a sweep, found in a shared library or already loaded by someone else.

For a kernel ``K``::

    void K_run   (void** ptrs, const int64_t* tasks, int64_t first, int64_t last, char* states, char* carries)
    void K_finish(void** ptrs, const int64_t* hubs, int64_t num_hubs, char* states, char* carries, int64_t num_tasks)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

_P, _I = ctypes.c_void_p, ctypes.c_int64
# Calls through these release the GIL.
RUN = ctypes.CFUNCTYPE(None, _P, _P, _I, _I, _P, _P)
FINISH = ctypes.CFUNCTYPE(None, _P, _P, _I, _P, _P, _I)


@dataclass(frozen=True)
class CpuKernel:
    """Addresses of a kernel's two functions. ``keep`` is whatever must stay alive for them to be valid."""

    run: int
    finish: int
    keep: object = field(default=None, compare=False, repr=False)


def load_shared(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, CpuKernel]:
    """The kernels called `names` of the shared library at `path`, which stays loaded.

    Raises OSError when the library cannot be loaded, ValueError when it lacks a kernel.
    """
    library = ctypes.CDLL(os.fspath(path))

    def address(symbol: str) -> int:
        try:
            found = ctypes.cast(getattr(library, symbol), _P).value
        except AttributeError:
            raise ValueError(f"{os.fspath(path)} has no function {symbol}") from None
        assert found is not None
        return found

    return {name: CpuKernel(address(f"{name}_run"), address(f"{name}_finish"), library) for name in names}
