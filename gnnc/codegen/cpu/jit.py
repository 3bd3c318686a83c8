"""LLVM IR text -> optimised object code -> a shared library or addresses in this process."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from .target_helpers import define_helpers


@dataclass(frozen=True)
class Target:
    """What code is made for: LLVM's ``cpu`` name and its feature string (``+avx2,+fma,-avx512f``). Part of every cache key."""

    cpu: str
    features: str
    triple: str

    @property
    def enabled(self) -> frozenset[str]:
        """Names of the features that are on."""
        return frozenset(f[1:] for f in self.features.split(",") if f.startswith("+"))

    @property
    def vector_bits(self) -> int:
        """Width of the widest vector register."""
        on = self.enabled
        return 512 if "avx512f" in on else 256 if "avx" in on else 128


class CodegenError(Exception):
    """LLVM refused generated text: a fault of gnnc. ``text`` is the module."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


@cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def host_target() -> Target:
    """This machine."""
    _initialise()
    features = llvm.get_host_cpu_features()
    flat = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    return Target(llvm.get_host_cpu_name(), flat, llvm.get_default_triple())


def _machine(target: Target) -> llvm.TargetMachine:
    _initialise()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
    )


def _optimised(text: str, target: Target) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    machine = _machine(target)
    try:
        module = llvm.parse_assembly(define_helpers(text, target.enabled))
        module.verify()
    except RuntimeError as error:
        raise CodegenError(f"generated LLVM IR is malformed: {error}", text) from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    options = llvm.PipelineTuningOptions(speed_level=3)
    # Loops come vectorised and unrolled as wanted: LLVM must not widen or interleave them again.
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module, machine


def compile_llvm(text: str, target: Target | None = None) -> bytes:
    """A relocatable object (position independent) for ``target``, this machine by default. Raises CodegenError."""
    module, machine = _optimised(text, target or host_target())
    return bytes(machine.emit_object(module))


def emit_assembly(text: str, target: Target | None = None) -> str:
    """The target's assembly, to be read."""
    module, machine = _optimised(text, target or host_target())
    return str(machine.emit_assembly(module))


def link_shared(obj: bytes, path: Path) -> bool:
    """Links ``obj`` into the shared library ``path`` with the system's ``ld``; False (nothing written) where there is none."""
    ld = shutil.which("ld")
    if ld is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        source.write_bytes(obj)
        done = subprocess.run([ld, "-shared", "-o", str(out), str(source)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return False
        shutil.move(out, path)
    return True


class LoadedObject:
    """Object code mapped into this process by LLVM's own loader, for machines without ``ld``. Keep it alive while it is called."""

    def __init__(self, obj: bytes) -> None:
        _initialise()
        empty = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(empty, _machine(host_target()))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(obj))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """Address of an exported function; KeyError if there is none."""
        at = int(self._engine.get_function_address(symbol))
        if at == 0:
            raise KeyError(symbol)
        return at


def load_in_process(obj: bytes) -> LoadedObject:
    """``obj`` loaded without a linker."""
    return LoadedObject(obj)
