"""Compiles a sweep and runs it on numpy arrays: tasks with split rows, then `finish`, as the runtime does it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gnnc.codegen.cpu.jit import LoadedObject, Target, compile_llvm
from gnnc.codegen.cpu.sweep import KernelText, emit_llvm
from gnnc.ir.core import Func, Value
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.sweep import Schedule, SweepSpec
from gnnc.ir.types import I32, DType

_NUMPY = {"f16": "float16", "bf16": "uint16", "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
_NUMPY |= {"f32": "float32", "f64": "float64", "bool": "bool"}


def to_storage(a: Array, dtype: DType) -> Array:
    """An array as it lies in memory; bf16 as uint16, rounded to nearest even."""
    if dtype.name != "bf16":
        return np.ascontiguousarray(a.astype(_NUMPY[dtype.name]))
    f = np.ascontiguousarray(a.astype(np.float32))
    bits = f.view(np.uint32).astype(np.uint64)
    out = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(f), np.uint16(0x7FC0), out).astype(np.uint16)


def from_storage(a: Array, dtype: DType) -> Array:
    """The values of an array in memory, floats as float64."""
    if dtype.name == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return a.astype(np.float64) if dtype.is_float else a


def quantised(a: Array, dtype: DType) -> Array:
    """What storage keeps of ``a``."""
    return from_storage(to_storage(a, dtype), dtype)


@dataclass
class Compressed:
    """A graph grouped by one end."""

    indptr: Array
    indices: Array
    edge_ids: Array

    @classmethod
    def of(cls, graph: GraphArrays, by: str) -> Compressed:
        rows, other = graph.index(by), graph.index("src" if by == "dst" else "dst")
        order = np.argsort(rows, kind="stable")
        indptr = np.searchsorted(rows[order], np.arange(graph.count(by) + 1)).astype(np.int64)
        return cls(indptr, other[order], order)


def make_tasks(indptr: Array, task_edges: int) -> tuple[Array, Array]:
    """(tasks, hubs) with about ``task_edges`` edges + rows a task; longer rows are split."""
    tasks: list[tuple[int, ...]] = []
    hubs: list[tuple[int, ...]] = []
    rows, begin, load, partial = len(indptr) - 1, 0, 0, 0
    for r in range(rows):
        n = int(indptr[r + 1] - indptr[r])
        if n > task_edges:
            if begin < r:
                tasks.append((begin, r, int(indptr[begin]), int(indptr[r]), -1))
            first = partial
            for at in range(int(indptr[r]), int(indptr[r + 1]), task_edges):
                tasks.append((r, r + 1, at, min(at + task_edges, int(indptr[r + 1])), partial))
                partial += 1
            hubs.append((r, first, partial))
            begin, load = r + 1, 0
            continue
        load += n + 1
        if load >= task_edges:
            tasks.append((begin, r + 1, int(indptr[begin]), int(indptr[r + 1]), -1))
            begin, load = r + 1, 0
    if begin < rows:
        tasks.append((begin, rows, int(indptr[begin]), int(indptr[rows]), -1))
    return np.array(tasks, np.int64).reshape(-1, 5), np.array(hubs, np.int64).reshape(-1, 3)


GUARD = 256


def guarded(shape: tuple[int, ...], dtype: str) -> Array:
    """An array that starts at a multiple of 64, filled with rubbish, between two guards of the same rubbish."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(size + 2 * GUARD + 64, 0xA5, np.uint8)
    start = GUARD + -(raw.ctypes.data + GUARD) % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def check_guards(a: Array) -> None:
    """Nothing was written beside ``a``."""
    raw = a
    while raw.base is not None:
        raw = raw.base
    start = a.ctypes.data - raw.ctypes.data
    assert (raw[:start] == 0xA5).all(), "written before the buffer"
    assert (raw[start + a.nbytes :] == 0xA5).all(), "written behind the buffer"


@dataclass
class Kernel:
    """A compiled sweep."""

    spec: SweepSpec
    text: KernelText
    index_dtype: DType
    loaded: Any
    run: Any = field(init=False)
    finish: Any = field(init=False)

    def __post_init__(self) -> None:
        p, i = ctypes.c_void_p, ctypes.c_int64
        self.run = ctypes.CFUNCTYPE(None, p, p, i, i, p, p)(self.loaded.address("k_run"))
        self.finish = ctypes.CFUNCTYPE(None, p, p, i, p, p, i)(self.loaded.address("k_finish"))

    def __call__(self, graph: GraphArrays, args: dict[str, Array], task_edges: int | None = None, grain: int = 1000) -> list[Array]:
        """Results as float64 or integers; ``args`` are values, stored here by each param's dtype. ``grain``: tasks a call."""
        stored = {v.name: to_storage(args[v.name], v.type.dtype) for v in self.spec.func.params}
        raw = self.raw(graph, stored, task_edges, grain)
        return [from_storage(a, r.type.dtype) for a, r in zip(raw, self.spec.func.results, strict=True)]

    def raw(self, graph: GraphArrays, stored: dict[str, Array], task_edges: int | None = None, grain: int = 1000) -> list[Array]:
        """Results as they lie in memory."""
        func, by = self.spec.func, self.spec.grouped_by
        outs = [guarded((graph.rows(r.type.space), *r.type.dims), _NUMPY[r.type.dtype.name]) for r in func.results]
        if by:
            form = Compressed.of(graph, by)
            index = np.int64 if self.index_dtype.name == "i64" else np.int32
            forms = [form.indptr, form.indices.astype(index), form.edge_ids.astype(index)]
            tasks, hubs = make_tasks(form.indptr, task_edges or self.spec.schedule.task_edges)
        else:
            forms = []
            rows = graph.rows(self.spec.rows)
            tasks, hubs = make_tasks(np.zeros(rows + 1, np.int64), task_edges or 1000)
        buffers = [stored[v.name] for v in func.params] + outs
        self.keep = (forms, buffers)
        pointers = [a.ctypes.data for a in forms] if forms else [0, 0, 0]
        ptrs = np.array(pointers + [a.ctypes.data for a in buffers], np.uint64)
        states = guarded((int(hubs[:, 2].max(initial=0)) * self.text.state_bytes,), "uint8")
        carries = guarded(((len(tasks) + 1) * self.text.carry_bytes,), "uint8")
        for first in range(0, len(tasks), grain):
            last = min(first + grain, len(tasks))
            self.run(ptrs.ctypes.data, tasks.ctypes.data, first, last, states.ctypes.data, carries.ctypes.data)
        self.finish(ptrs.ctypes.data, hubs.ctypes.data, len(hubs), states.ctypes.data, carries.ctypes.data, len(tasks))
        for a in [*outs, states, carries]:
            check_guards(a)
        return outs


def compile_sweep(
    func: Func,
    grouped_by: str | None,
    rows: str | None = None,
    *,
    index_dtype: DType = I32,
    vector_bits: int = 256,
    task_edges: int = 7,
    target: Target | None = None,
) -> Kernel:
    """A kernel for ``func`` on this machine."""
    space = rows or ("node" if func.square else str(grouped_by))
    spec = SweepSpec("s", func, grouped_by, space, schedule=Schedule(task_edges=task_edges, vector_bits=vector_bits))
    text = emit_llvm(spec, index_dtype, "k")
    return Kernel(spec, text, index_dtype, LoadedObject(compile_llvm(text.text, target)))


def sweep_func(params: list[Value], results: list[Value], **more: Any) -> Func:
    return Func("s", tuple(params), tuple(results), stage="sweep", **more)


def random_graph(seed: int, num_src: int, num_dst: int, num_edges: int, hub: int = 0) -> GraphArrays:
    """Edges in random order; rows 0 and 2 are empty at both ends if there is room; ``hub`` more edges go to the last dst and src."""
    rng = np.random.default_rng(seed)

    def ends(count: int, n: int) -> Array:
        return rng.choice([i for i in range(count) if i not in (0, 2)] or [0], n)

    src = np.concatenate([ends(num_src, num_edges), ends(num_src, hub)])
    dst = np.concatenate([ends(num_dst, num_edges), np.full(hub, num_dst - 1)])
    if hub:
        src[: hub // 2] = num_src - 1
    order = rng.permutation(len(src))
    return GraphArrays(src[order].astype(np.int64), dst[order].astype(np.int64), num_src, num_dst)


def random_args(func: Func, graph: GraphArrays, seed: int = 0) -> dict[str, Array]:
    """Values for every param, such as its storage keeps them."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for v in func.params:
        shape = (graph.rows(v.type.space), *v.type.dims)
        d = v.type.dtype
        if d.is_float:
            out[v.name] = quantised(rng.standard_normal(shape), d)
        elif d.kind == "bool":
            out[v.name] = rng.random(shape) < 0.5
        else:
            out[v.name] = rng.integers(0, 5, shape).astype(_NUMPY[d.name])
    return out
