"""`parallel_for`: every task once, on as many threads as torch says, in nested, failing and forked use."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc_runtime import threads
from gnnc_runtime.threads import one_thread, parallel_for
from tests.runtime import scaled


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def ranges(n: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    parallel_for(n, lambda first, last: found.append((first, last)))
    return sorted(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 500))
def test_every_task_once(n: int) -> None:
    assert [i for first, last in ranges(n) for i in range(first, last)] == list(range(n))


def test_one_thread_takes_all_in_one_range() -> None:
    torch.set_num_threads(1)
    assert ranges(100) == [(0, 100)]


def test_number_of_threads_is_read_at_each_call() -> None:
    def used() -> int:
        seen: set[int] = set()
        together = threading.Barrier(torch.get_num_threads())

        def wait(first: int, last: int) -> None:
            if threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                together.wait(20)

        parallel_for(200, wait)
        return len(seen)

    for n in (2, 4, 3):
        torch.set_num_threads(n)
        assert used() == n


def test_exceptions_reach_the_caller_and_stop_the_rest() -> None:
    done: list[int] = []

    def fail(first: int, last: int) -> None:
        if first >= 300:
            raise KeyError("three hundred")
        done.append(first)
        time.sleep(1e-4)

    with pytest.raises(KeyError, match="three hundred"):
        parallel_for(100_000, lambda first, last: fail(300 + first, last))
    with pytest.raises(KeyError, match="three hundred"):
        parallel_for(1000, fail)
    assert len(done) < 1000
    assert ranges(9)[-1][1] == 9  # the pool is still good


def test_an_interrupt_waits_for_threads_that_write() -> None:
    writing = threading.Event()
    finished: list[int] = []

    def work(first: int, last: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert writing.wait(20)
            raise KeyboardInterrupt
        writing.set()
        time.sleep(0.05)
        finished.append(first)

    with pytest.raises(KeyboardInterrupt):
        parallel_for(8, work)
    count = len(finished)
    assert count >= 1
    time.sleep(0.1)
    assert len(finished) == count


def test_nested_and_concurrent_use() -> None:
    totals: list[int] = []

    def inner(first: int, last: int) -> None:
        for _ in range(first, last):
            parallel_for(20, lambda a, b: totals.append(b - a))

    callers = [threading.Thread(target=parallel_for, args=(10, inner)) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(30)
        assert not c.is_alive()
    assert sum(totals) == 4 * 10 * 20


def test_nothing_of_a_call_is_kept() -> None:
    import gc
    import weakref

    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)
    parallel_for(50, lambda first, last, _big=big: None)  # type: ignore[misc]
    del big
    deadline = time.time() + 20
    while gone() is not None and time.time() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_one_thread_is_undone() -> None:
    before = threads._set_threads(1, 1)
    threads._set_threads(*before)
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    again = threads._set_threads(1, 1)
    threads._set_threads(*again)
    assert again == before


def run_layer(seed: int) -> list[float]:
    g = scaled.a_graph(seed=seed)
    torch.set_num_threads(2)
    out: list[float] = scaled.forward(task_edges=1).run(g, scaled.inputs(g))[0].flatten().tolist()
    return out


class Layers(torch.utils.data.Dataset[list[float]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> list[float]:
        return run_layer(i)


def test_forked_data_loader_workers() -> None:
    """R59: a pool that the parent has used is not there in a forked child."""
    want = [run_layer(i) for i in range(6)]
    assert threads._pool._size > 0
    loader = torch.utils.data.DataLoader(Layers(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
    assert list(loader) == want
    assert run_layer(0) == want[0]


def test_forked_child_uses_threads_again() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    assert ranges(8)

    def child() -> None:
        started_with = threads._pool._size
        queue.put((started_with, ranges(64)[-1][1], threads._pool._size))

    p = context.Process(target=child)
    p.start()
    p.join(60)
    assert p.exitcode == 0
    assert queue.get() == (0, 64, 3)
