"""What the emitter gives: a translation unit, its entries, and which DSL line each generated line came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ...ir.core import Loc
from ...ir.types import DType, Type

SKELETONS = Path(__file__).parent / "skeletons"

PARAMS = ("list", "count", "indptr", "neighbours", "edge_ids", "partials", "carries", "carry_base", "workspace")
"""Kernel parameters before the buffers, the same for every entry; each is a pointer or an i64."""


@dataclass(frozen=True)
class Entry:
    """A ``__global__`` function. ``block``: threads of a block (the launch bound). ``shared_bytes``: dynamic shared memory.
    ``items_per_block``: list items that one block works on at a time; any grid is right, a block goes on with items that are left.
    ``slices``: how often the list is worked on. ``persistent``: give it a whole multiple of the resident blocks at most, because every
    block leaves images. ``images_per_block``: carry images a block leaves. ``single``: launched with one block."""

    name: str
    block: int
    shared_bytes: int
    items_per_block: int
    slices: int = 1
    persistent: bool = False
    images_per_block: int = 0
    single: bool = False


@dataclass(frozen=True)
class CudaText:
    """A sweep as CUDA C++: see the package's docstring for how to launch it.

    ``text`` is one self-contained translation unit; ``program`` its generated part alone. ``args``: buffer names in pointer order, the
    first ``num_read`` are read, the others written. ``state_words`` and ``carry_words``: 4-byte words of one image (0: none).
    ``workspace_words``: words of scratch in global memory for one block (0: none). ``run``, ``merge`` (None: hub rows need none) and
    ``carry`` (None: no sum over all rows) are the entries. ``path`` is "fragment" or "general", with its ``reason``; ``layout`` says
    how lanes and edges are laid out. ``lines``: line of ``text`` -> where it came from.
    """

    text: str
    program: str
    args: tuple[str, ...]
    arg_types: tuple[Type, ...]
    num_read: int
    index_dtype: DType
    state_words: int
    carry_words: int
    workspace_words: int
    run: Entry
    merge: Entry | None
    carry: Entry | None
    path: str
    reason: str
    layout: str
    lines: dict[int, Loc]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(e for e in (self.run, self.merge, self.carry) if e is not None)

    @property
    def groups(self) -> int:
        """Chunks (or rows of a map) that one warp of ``run`` takes at a time."""
        return self.run.items_per_block * 32 // self.run.block

    @property
    def state_bytes(self) -> int:
        return 4 * self.state_words

    @property
    def carry_bytes(self) -> int:
        return 4 * self.carry_words


@dataclass
class Writer:
    """Lines of C++ with their indentation and origin."""

    out: list[str] = field(default_factory=list)
    origins: dict[int, Loc] = field(default_factory=dict)
    depth: int = 0
    shown: Loc | None = None

    def line(self, text: str = "", loc: Loc | None = None) -> None:
        """One line; with a location whose source line was not the last one shown, that line goes over it as a comment."""
        if loc is not None and not same_line(loc, self.shown):
            self.comment(source_line(loc))
            self.shown = loc
        self.out.append("  " * self.depth + text if text else "")
        if loc is not None:
            self.origins[len(self.out)] = loc

    def comment(self, text: str) -> None:
        self.out.append("  " * self.depth + "// " + text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        self.line(head + " {")
        self.depth += 1
        self.shown = None
        yield
        self.depth -= 1
        self.line(tail)
        self.shown = None


def same_line(a: Loc, b: Loc | None) -> bool:
    return b is not None and (a.file, a.line) == (b.file, b.line)


def source_line(loc: Loc) -> str:
    """A DSL line as a comment: file name, line number, text. A backslash at its end would swallow the next line."""
    text = loc.text.strip().rstrip("\\").strip()
    return f"{Path(loc.file).name}:{loc.line}" + (f": {text}" if text else "")


def assemble(skeletons: tuple[str, ...], dtypes: set[str], program: Writer) -> tuple[str, dict[int, Loc]]:
    """The translation unit: headers for the storage dtypes in use, the skeletons, the generated program."""
    head: list[str] = []
    if "f16" in dtypes:
        head += ["#include <cuda_fp16.h>", "#define SWEEP_F16"]
    if "bf16" in dtypes:
        head += ["#include <cuda_bf16.h>", "#define SWEEP_BF16"]
    for name in ("prelude.cuh", "half.cuh", *skeletons):
        head += (SKELETONS / name).read_text(encoding="utf-8").splitlines()
        head.append("")
    lines = {n + len(head): loc for n, loc in program.origins.items()}
    return "\n".join([*head, *program.out, ""]), lines
