"""Runs generated CUDA text on a CPU emulator of threads and warps, launched as the package's docstring says."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gnnc.codegen.cuda.emit import emit_cuda
from gnnc.codegen.cuda.schedule import CudaSchedule
from gnnc.codegen.cuda.text import CudaText, Entry
from gnnc.ir.core import Func
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.sweep import SweepSpec
from gnnc.ir.types import I32, DType
from tests.codegen.cpu.kernels import Compressed, from_storage, to_storage

HERE = Path(__file__).parent / "emulator"
_NUMPY = {"f16": "float16", "bf16": "uint16", "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
_NUMPY |= {"f32": "float32", "f64": "float64", "bool": "bool"}


def need_compiler() -> str:
    """g++, or a skip."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("the CUDA emulator needs g++")
    return found


@cache
def _build_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="gnnc-emulated-"))


def build(text: CudaText) -> ctypes.CDLL:
    """The text as a shared library: every entry behind a launcher ``<entry>_launch(grid, block, shared, arguments)``."""
    index = text.index_dtype.name
    kinds = [f"const {index}*", "i64", "const i64*", f"const {index}*", f"const {index}*", "u32*", "u32*", "i64", "u32*"]
    kinds += [f"{'const ' if i < text.num_read else ''}{t.dtype}*" for i, t in enumerate(text.arg_types)]
    lines = ['#include "emulate.h"', text.text]
    name = text.run.name
    lines.append(f"namespace sweep {{ namespace {name}_ns {{")
    for e in text.entries:
        args = ", ".join(f"({k})a[{i}]" for i, k in enumerate(kinds))
        lines.append(f'extern "C" void {e.name}_launch(int grid, int block, int shared, const long long* a) {{')
        lines.append(f"  emulator.launch(grid, block, shared, [&] {{ {e.name}({args}); }});")
        lines.append("}")
    lines.append("}}")
    source = "\n".join(lines) + "\n"
    at = _build_folder() / hashlib.sha256(source.encode()).hexdigest()
    library = at.with_suffix(".so")
    if not library.exists():
        at.with_suffix(".cpp").write_text(source)
        command = [need_compiler(), "-std=c++17", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC", f"-I{HERE}", "-o", str(library)]
        done = subprocess.run([*command, str(at.with_suffix(".cpp"))], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000] + text.program
    return ctypes.CDLL(str(library))


def make_chunks(indptr: Array, chunk: int) -> tuple[Array, Array]:
    """(chunks, hubs): a row of more than ``chunk`` edges is cut; every other row, the empty ones too, is one chunk."""
    chunks: list[tuple[int, ...]] = []
    hubs: list[tuple[int, ...]] = []
    partial = 0
    for r in range(len(indptr) - 1):
        begin, end = int(indptr[r]), int(indptr[r + 1])
        if end - begin <= chunk:
            chunks.append((r, begin, end, -1))
            continue
        first = partial
        for at in range(begin, end, chunk):
            chunks.append((r, at, min(at + chunk, end), partial))
            partial += 1
        hubs.append((r, first, partial))
    return np.array(chunks, np.int64).reshape(-1, 4), np.array(hubs, np.int64).reshape(-1, 3)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _aligned(shape: tuple[int, ...], dtype: str, fill: int) -> Array:
    """A poisoned array that starts at a multiple of 16 bytes and ends where a page without access begins: a load or store past its end
    ends the run, as compute-sanitizer would report it."""
    page, size = mmap.PAGESIZE, int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = max(1, -(-size // page)) * page
    memory = mmap.mmap(-1, data + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert _libc().mprotect(ctypes.c_void_p(address + data), ctypes.c_size_t(page), 0) == 0
    out = np.frombuffer(memory, np.uint8, size, data - -(-size // 16) * 16)
    out[...] = fill
    return out.view(dtype).reshape(shape)


def _copy(a: Array) -> Array:
    out = _aligned(a.shape, str(a.dtype), 0)
    out[...] = a
    return out


@dataclass
class Emulated:
    """A sweep on the emulator."""

    spec: SweepSpec
    text: CudaText

    def __post_init__(self) -> None:
        self.library = build(self.text)

    def __call__(self, graph: GraphArrays, args: dict[str, Array], chunk: int = 8, blocks: int = 2) -> list[Array]:
        """Results as float64 or integers. ``chunk``: edges a chunk; ``blocks``: the grid of `run`."""
        stored = {v.name: to_storage(args[v.name], v.type.dtype) for v in self.spec.func.params}
        raw = self.raw(graph, stored, chunk, blocks)
        return [from_storage(a, r.type.dtype) for a, r in zip(raw, self.spec.func.results, strict=True)]

    def raw(self, graph: GraphArrays, stored: dict[str, Array], chunk: int = 8, blocks: int = 2) -> list[Array]:
        """Results as they lie in memory."""
        t, func = self.text, self.spec.func
        index = _NUMPY[t.index_dtype.name]
        outs = [_aligned((graph.rows(r.type.space), *r.type.dims), _NUMPY[r.type.dtype.name], 0x4D) for r in func.results]
        forms: list[Array | None] = [None, None, None]
        hubs: Array = np.zeros((0, 3), index)
        if self.spec.grouped_by:
            form = Compressed.of(graph, self.spec.grouped_by)
            forms = [_copy(form.indptr.astype(np.int64)), _copy(form.indices.astype(index)), _copy(form.edge_ids.astype(index))]
            chunks, hubs = (_copy(a.astype(index)) for a in make_chunks(form.indptr, chunk))
            count, partials = len(chunks), int(hubs[:, 2].max(initial=0))
        else:
            chunks, count, partials = None, graph.rows(self.spec.rows), 0
        buffers = [_copy(stored[v.name]) for v in func.params] + outs
        images = blocks * t.run.images_per_block + (len(hubs) * t.merge.images_per_block if t.merge else 0)
        state = _aligned((partials * t.state_words + 1,), "uint32", 0xCD)
        carry = _aligned((images * t.carry_words + 1,), "uint32", 0xCD)
        scratch = _aligned((max(blocks, len(hubs), 1) * t.workspace_words + 1,), "uint32", 0xCD)

        def launch(e: Entry, grid: int, items: Array | None, number: int, base: int) -> None:
            arrays = [items, number, *forms, state, carry, base, scratch, *buffers]
            flat = [0 if a is None else a if isinstance(a, int) else a.ctypes.data for a in arrays]
            call = getattr(self.library, f"{e.name}_launch")
            call(ctypes.c_int(grid), ctypes.c_int(e.block), ctypes.c_int(e.shared_bytes), (ctypes.c_longlong * len(flat))(*flat))

        if count or t.carry:
            launch(t.run, blocks, chunks, count, 0)
        if t.merge and len(hubs):
            launch(t.merge, len(hubs), hubs, len(hubs), blocks * t.run.images_per_block)
        if t.carry:
            launch(t.carry, 1, None, images, 0)
        return outs


def emulate(
    func: Func,
    grouped_by: str | None,
    rows: str | None = None,
    *,
    index_dtype: DType = I32,
    schedule: CudaSchedule | None = None,
    name: str = "kernel",
) -> Emulated:
    """A sweep's function, emitted and built."""
    spec = SweepSpec(name, func, grouped_by, rows or ("node" if func.square else str(grouped_by)))
    return Emulated(spec, emit_cuda(spec, index_dtype, name, schedule))
