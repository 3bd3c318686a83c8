"""What the runtime executes: buffers and steps, as frozen data that round-trips through JSON.

A `Plan` is made by the compiler (forward or backward of one signature) and needs nothing of it afterwards. Row counts are not in
it: a buffer's rows come from its space and the graph at the call.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class BufferSpec:
    """A tensor of the plan: ``[rows(space), *dims]``, contiguous; a ``param`` is ``[*dims]`` without a row axis.

    ``space``: src, dst, node, edge or param. ``dtype``: f16, bf16, f32, f64, i8, u8, i16, i32, i64 or bool. Edge buffers are in
    the user's edge order. ``role``: input, output (returned to the caller: results and values saved for the backward) or temp.
    """

    name: str
    space: str
    dtype: str
    dims: tuple[int, ...]
    role: str


@dataclass(frozen=True)
class CudaEntry:
    """A ``__global__`` function of a sweep. ``block``: threads; ``shared_bytes``: dynamic shared memory; ``items_per_block``: list items
    a block takes at a time (any grid is right); ``slices``: how often the list is worked on; ``persistent``: at most the resident blocks,
    since each leaves ``images_per_block`` carry images."""

    name: str
    block: int
    shared_bytes: int
    items_per_block: int
    slices: int = 1
    persistent: bool = False
    images_per_block: int = 0


@dataclass(frozen=True)
class CudaLaunch:
    """How a sweep is launched on a GPU: ``run`` over the chunks (or the rows of a map), ``merge`` over the split rows, ``carry`` (one
    block) over the carry images. ``workspace_bytes``: global scratch of one block."""

    run: CudaEntry
    merge: CudaEntry | None
    carry: CudaEntry | None
    workspace_bytes: int = 0


@dataclass(frozen=True)
class SweepStep:
    """One generated kernel over rows.

    ``grouped_by``: ``dst`` or ``src`` when it walks the edges of each row, None for a map over the rows of ``rows``.
    ``rows``: the space of its rows (src, dst, node or param). ``args``: buffers in the order of the kernel's pointers, read ones
    first, written ones after. ``state_bytes``: image of a row's fold states (0: no folds). ``carry_bytes``: image of the sums over
    all rows (0: none). On a CPU images are multiples of 64 bytes and ``task_edges`` is the work (edges + rows) of one task (`tasks.py`); on
    a GPU ``cuda`` says how the kernel's entries are launched.
    """

    kernel: str
    grouped_by: str | None
    rows: str
    args: tuple[str, ...]
    num_read: int
    state_bytes: int = 0
    carry_bytes: int = 0
    task_edges: int = 4096
    label: str = ""
    cuda: CudaLaunch | None = None


@dataclass(frozen=True)
class DenseStep:
    """A torch product. ``matmul``: out = a @ b, ``a`` rows of [..., K], ``b`` a param [K, F] (transposed first where ``transpose_b``).
    ``contract_rows``: out [K, F] = sum over rows and leading dims of a[..., K] x b[..., F]."""

    op: str
    a: str
    b: str
    out: str
    transpose_b: bool = False
    label: str = ""


Step = SweepStep | DenseStep


@dataclass(frozen=True)
class Plan:
    """``inputs`` and ``outputs`` name buffers in calling order. ``index_dtype``: i32 or i64, of graph forms and edge ids."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[BufferSpec, ...]
    steps: tuple[Step, ...]
    square: bool = False
    index_dtype: str = "i32"
    schema: int = field(default=1)

    def buffer(self, name: str) -> BufferSpec:
        for b in self.buffers:
            if b.name == name:
                return b
        raise KeyError(name)

    def to_json(self) -> str:
        d = asdict(self)
        d["steps"] = [{"step": type(s).__name__, **asdict(s)} for s in self.steps]
        return json.dumps(d, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of `to_json`. ValueError on an unknown schema or step."""
        d: dict[str, Any] = json.loads(text)
        if d.pop("schema", None) != 1:
            raise ValueError("plan of an unknown schema")
        steps: list[Step] = []
        for s in d.pop("steps"):
            kind = s.pop("step")
            if kind == "SweepStep":
                steps.append(SweepStep(**{**s, "args": tuple(s["args"]), "cuda": _launch(s["cuda"])}))
            elif kind == "DenseStep":
                steps.append(DenseStep(**s))
            else:
                raise ValueError(f"plan with an unknown step {kind!r}")
        buffers = tuple(BufferSpec(**{**b, "dims": tuple(b["dims"])}) for b in d.pop("buffers"))
        return cls(**{**d, "inputs": tuple(d["inputs"]), "outputs": tuple(d["outputs"])}, buffers=buffers, steps=tuple(steps))


def _launch(d: dict[str, Any] | None) -> CudaLaunch | None:
    if d is None:
        return None
    entries = {k: None if d[k] is None else CudaEntry(**d[k]) for k in ("run", "merge", "carry")}
    return CudaLaunch(**{**d, **entries})
