"""Kernels with the runtime's C interface written in Python, so that executor and operators are tested without a code generator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnc_runtime.kernels import FINISH, RUN, CpuKernel

NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
LONG = 1 << 20  # rows of a view: the C interface has no lengths


def view(address: int | None, dtype: type, shape: tuple[int, ...]) -> Any:
    if not address:
        return np.zeros((0, *shape[1:]), dtype)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def image(numbers: int) -> int:
    """Bytes of an image of that many f64."""
    return (8 * numbers + 63) // 64 * 64


@dataclass
class PythonKernel:
    """A sweep by callbacks on whole rows or their parts. ``args``: (dtype, dims) of each buffer.

    ``fold(v, row, slots)``: the state (f64 ``[state]``) of some slots of a row, summed over parts; ``store(v, row, state)`` ends a row;
    ``carry(v, row, state)``: its share of the sum over rows, ``[carries]``; ``store_carry(v, sum)`` ends the sweep. ``v`` has
    ``indptr``, ``indices``, ``ids`` and ``a`` (the buffers).
    """

    args: Sequence[tuple[str, tuple[int, ...]]]
    fold: Callable[..., Any] = lambda v, row, slots: np.zeros(0)
    store: Callable[..., None] = lambda v, row, state: None
    carry: Callable[..., Any] = lambda v, row, state: np.zeros(0)
    store_carry: Callable[..., None] = lambda v, total: None
    state: int = 0
    carries: int = 0
    index: str = "i32"
    calls: list[tuple[int, int]] = field(default_factory=list)

    def views(self, ptrs: int) -> Any:
        p = (ctypes.c_void_p * (3 + len(self.args))).from_address(ptrs)

        class V:
            indptr = view(p[0], np.int64, (LONG,))
            indices = view(p[1], NUMPY[self.index], (LONG,))
            ids = view(p[2], NUMPY[self.index], (LONG,))
            a = [view(q, NUMPY[d], (LONG, *dims)) for q, (d, dims) in zip(p[3:], self.args, strict=True)]

        return V

    def run(self, ptrs: int, tasks: int, first: int, last: int, states: int | None, carries: int | None) -> None:
        v = self.views(ptrs)
        self.calls.append((first, last))
        table = view(tasks, np.int64, (last, 5))
        for t in range(first, last):
            begin, end, slot_begin, slot_end, partial = (int(n) for n in table[t])
            total = np.zeros(self.carries)
            if partial >= 0:
                out = view(states, np.uint8, (LONG,))[partial * image(self.state) :] if states else np.zeros(64, np.uint8)
                out[: 8 * self.state].view(np.float64)[:] = self.fold(v, begin, range(slot_begin, slot_end))
            else:
                for row in range(begin, end):
                    slots = range(int(v.indptr[row]), int(v.indptr[row + 1])) if len(v.indptr) else range(0)
                    state = self.fold(v, row, slots)
                    self.store(v, row, state)
                    total = total + self.carry(v, row, state)
            if self.carries:
                assert carries is not None and carries % 64 == 0
                view(carries + t * image(self.carries), np.float64, (self.carries,))[:] = total

    def finish(self, ptrs: int, hubs: int, num_hubs: int, states: int | None, carries: int | None, num_tasks: int) -> None:
        v = self.views(ptrs)
        total = np.zeros(self.carries)
        for t in range(num_tasks if self.carries else 0):
            assert carries is not None
            total = total + view(carries + t * image(self.carries), np.float64, (self.carries,))
        for row, first, end in view(hubs, np.int64, (num_hubs, 3)) if num_hubs else []:
            state = np.zeros(self.state)
            for p in range(first, end if self.state else first):
                assert states is not None and states % 64 == 0
                state = state + view(states + int(p) * image(self.state), np.float64, (self.state,))
            self.store(v, int(row), state)
            total = total + self.carry(v, int(row), state)
        self.store_carry(v, total)

    def kernel(self) -> CpuKernel:
        run, finish = RUN(self.run), FINISH(self.finish)
        addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (run, finish)]
        assert addresses[0] is not None and addresses[1] is not None
        return CpuKernel(addresses[0], addresses[1], (run, finish))
