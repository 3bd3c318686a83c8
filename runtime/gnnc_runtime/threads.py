"""Runs ranges of tasks on several CPU threads: a persistent pool whose members pull the next range when they are free.

Kernels are called through ctypes, which releases the GIL, so Python threads suffice. The caller always works too and never waits for a
thread that has not begun, so nested use cannot deadlock and a busy pool only means less help. A forked child starts without a pool.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

import torch

RangeFn = Callable[[int, int], None]
# Ranges per thread: enough to even out tasks of unlike size, few enough that pulling one (about 1 us) costs nothing.
RANGES_PER_THREAD = 8


@cache
def _libraries() -> tuple[Callable[[int], int] | None, Callable[[], int] | None, Callable[[int], None] | None]:
    """MKL's and OpenMP's own settings of the calling thread, as far as torch has these libraries: MKL_Set_Num_Threads_Local,
    omp_get_max_threads, omp_set_num_threads."""
    for file in sorted((Path(torch.__file__).parent / "lib").glob("*torch_cpu.*")):
        try:
            # PyDLL: these take no time, so the GIL is kept.
            library = ctypes.PyDLL(str(file))
        except OSError:
            continue
        mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
        get, put = getattr(library, "omp_get_max_threads", None), getattr(library, "omp_set_num_threads", None)
        return mkl, get if put is not None else None, put if get is not None else None
    return None, None, None


def _set_threads(mkl: int, omp: int) -> tuple[int, int]:
    """Sets how many threads torch's libraries use when called from this thread (mkl 0: as set globally); returns what was set."""
    set_mkl, get_omp, set_omp = _libraries()
    before = (set_mkl(mkl) if set_mkl is not None else 0), (get_omp() if get_omp is not None else 1)
    if set_omp is not None and omp != before[1]:
        set_omp(omp)
    return before


@contextmanager
def one_thread() -> Iterator[None]:
    """torch operations of this thread run on this thread alone: what they compute does not depend on the number of threads."""
    before = _set_threads(1, 1)
    try:
        yield
    finally:
        _set_threads(*before)


class _Job:
    """One call of `parallel_for`: ranges still to do and the threads at work on them."""

    __slots__ = ("_active", "_closed", "_fn", "_idle", "_lock", "_num_tasks", "_ranges", "_size", "error")

    def __init__(self, num_tasks: int, size: int, fn: RangeFn) -> None:
        self._fn: RangeFn | None = fn
        self._num_tasks, self._size = num_tasks, size
        self._ranges: Iterator[int] = itertools.count(0, size)  # next() is atomic
        self._lock, self._idle = threading.Lock(), threading.Lock()
        self._active, self._closed = 0, False
        self.error: BaseException | None = None

    def work(self) -> None:
        fn, n, size = self._fn, self._num_tasks, self._size
        assert fn is not None
        try:
            for first in self._ranges:
                if first >= n or self.error is not None:
                    return
                fn(first, min(first + size, n))
        except BaseException as e:  # handed to the caller of parallel_for
            if self.error is None:
                self.error = e

    def help(self) -> None:
        """Work done by a thread of the pool."""
        with self._lock:
            if self._closed:
                return
            self._active += 1
        try:
            self.work()
        finally:
            with self._lock:
                self._active -= 1
                if self._closed and self._active == 0:
                    self._idle.release()

    def close(self) -> None:
        """Waits for the threads that have begun; nobody begins afterwards. Buffers may be freed once it returns, so an interrupt
        waits too."""
        with self._lock:
            self._closed = True
            busy = self._active > 0
            if busy:
                self._idle.acquire()
        while busy:
            try:
                self._idle.acquire()
                busy = False
            except BaseException as e:
                self.error = self.error or e
        self._fn = None  # a thread that comes late must not keep tensors alive


class _Pool:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._size = 0

    def offer(self, job: _Job, helpers: int) -> None:
        if self._size < helpers:
            self._grow(helpers)
        for _ in range(min(helpers, self._size)):
            self._jobs.put(job)

    def _grow(self, size: int) -> None:
        with self._lock:
            while self._size < size:
                try:
                    threading.Thread(target=self._serve, name=f"gnnc-{self._size}", daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter is shutting down: the caller works alone
                    return
                self._size += 1

    def _serve(self) -> None:
        torch.get_num_threads()  # torch sets up its own threads for this one now, not later
        _set_threads(1, 1)
        jobs = self._jobs
        while True:
            jobs.get().help()


_pool = _Pool()


def _forget_pool() -> None:
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def parallel_for(num_tasks: int, fn: RangeFn) -> None:
    """Calls ``fn(first, last)`` for ranges that cover ``0 .. num_tasks`` once each, on up to ``torch.get_num_threads()`` threads.

    Returns when all are done. The first exception of a call is raised here; ranges not yet begun are then left out. The ranges depend
    on the number of threads, so what `fn` computes must not depend on them.
    """
    if num_tasks <= 1:
        if num_tasks == 1:
            fn(0, 1)
        return
    threads = min(torch.get_num_threads(), num_tasks)
    if threads == 1:
        fn(0, num_tasks)
        return
    job = _Job(num_tasks, max(1, num_tasks // (threads * RANGES_PER_THREAD)), fn)
    _pool.offer(job, threads - 1)
    try:
        job.work()
    finally:
        job.close()
    if job.error is not None:
        raise job.error
