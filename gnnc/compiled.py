"""Compiled signatures of a layer: passes when first needed, kernels through the disk cache, the torch operator on top.

A `Signature` says what one specialisation fixes: types, static arguments, index width, squareness, which inputs want gradients. Counts are
not in it. Kernels of the forward and the backward are separate cache entries, so a backward that nobody asks for is never built.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import gnnc
from gnnc.backends import Backend
from gnnc.ir.builder import free_inputs
from gnnc.ir.core import Func
from gnnc.ir.printer import print_func
from gnnc.ir.types import DTYPES, Type
from gnnc.pipeline import Compilation
from gnnc.stages import dump_folder, write_dump
from gnnc_runtime.cache import CacheKey, DiskCache, default_cache
from gnnc_runtime.operators import LayerOperator, PlanExecutable
from gnnc_runtime.plan import Plan

SCHEMA = 1


@cache
def compiler_digest() -> str:
    """sha256 over every source file of the compiler and its runtime: another compiler never reads this one's kernels."""
    h = hashlib.sha256()
    import gnnc_runtime

    for root in (Path(gnnc.__file__).parent, Path(gnnc_runtime.__file__).parent):
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".lark", ".cuh")):
            data = path.read_bytes()
            name = path.relative_to(root).as_posix().encode()
            h.update(len(name).to_bytes(8, "little") + name + len(data).to_bytes(8, "little") + data)
    return h.hexdigest()


@dataclass(frozen=True)
class Signature:
    """What one specialisation of a layer fixes. ``mask``: which inputs want gradients."""

    names: tuple[str, ...]
    types: tuple[Type, ...]
    mask: tuple[bool, ...]
    index_dtype: str

    @property
    def wrt(self) -> tuple[str, ...]:
        return tuple(n for n, m in zip(self.names, self.mask, strict=True) if m)

    def __str__(self) -> str:
        parts = [f"{n}: {t}" + ("*" if m else "") for n, t, m in zip(self.names, self.types, self.mask, strict=True)]
        return ", ".join(parts)


def constant_results(func: Func, wrt: tuple[str, ...]) -> tuple[str, ...]:
    """Results that hang on none of the parameters ``wrt``: they require no gradient."""
    return tuple(n for n, r in zip(func.result_names, func.results, strict=True) if not {p.name for p in free_inputs((r,))} & set(wrt))


@dataclass
class CompiledLayer:
    """One signature's operator. Made when a layer is first called with it; thread-safe."""

    func: Func
    signature: Signature
    backend: Backend
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _operator: LayerOperator | None = None
    _compilation: Compilation | None = None

    @property
    def compilation(self) -> Compilation:
        """The passes, run when something asks; a warm cache asks for nothing."""
        with self._lock:
            if self._compilation is None:
                self._compilation = Compilation(self.func, self.signature.wrt, DTYPES[self.signature.index_dtype], self.backend)
            return self._compilation

    @property
    def operator(self) -> LayerOperator:
        with self._lock:
            if self._operator is None:
                self._operator = self._make_operator()
            return self._operator

    def _key(self, part: str) -> CacheKey:
        return CacheKey(
            schema=str(SCHEMA),
            compiler=compiler_digest(),
            ir=print_func(self.func),
            signature=f"{part}; {self.signature}; index {self.signature.index_dtype}",
            target=self.backend.target,
            options="",
        )

    def executable(self, part: str) -> PlanExecutable:
        """The forward or backward, ready to run: from the disk cache, or compiled and stored there."""
        return self._executable(part)[0]

    def _executable(self, part: str) -> tuple[PlanExecutable, dict[str, bytes]]:
        with self._lock:
            if dump_folder() is not None:
                self._record(part)
            store, key = default_cache(), self._key(part)
            entry = store.get(key)
            if entry is None:
                entry = self._build(part, store, key)
            plan = Plan.from_json(entry["plan.json"].decode())
            return self.backend.load(plan, store.path(key), entry), entry

    def _record(self, part: str) -> None:
        c = self.compilation
        c.lower(part)
        write_dump(self.func.name, c.stages)

    def _build(self, part: str, store: DiskCache, key: CacheKey) -> dict[str, bytes]:
        with store.lock(key):
            found = store.get(key)  # another process may have been first
            if found is not None:
                return found
            c = self.compilation
            lowered = c.lower(part)
            files = {"plan.json": lowered.plan.to_json().encode()}
            if part == "forward":
                files["backward_inputs.json"] = json.dumps([p.name for p in c.cut().backward.params]).encode()
            files |= self.backend.build(lowered)
            store.put(key, files)
            return files

    def _make_operator(self) -> LayerOperator:
        forward, entry = self._executable("forward")
        wants = any(self.signature.mask)
        return LayerOperator(
            name=self.func.name,
            digest=self._key("operator").digest,
            forward=forward,
            num_results=len(self.func.results),
            mask=self.signature.mask,
            backward=(lambda: self.executable("backward")) if wants else None,
            backward_inputs=json.loads(entry["backward_inputs.json"]) if wants else None,
            constant_results=constant_results(self.func, self.signature.wrt),
        )
