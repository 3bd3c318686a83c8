"""One call's arguments, checked against the layer's signature: types, counts, symbols, static values.

This runs at every call, so the path without errors is short; errors point at the parameter in the user's ``def``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from gnnc.ir.types import F32, Dims, DType, Type, promote

from .dtypes import FROM_TORCH
from .errors import (
    ArgumentCount,
    BadStatic,
    BadTensorDtype,
    BipartiteNode,
    DeviceMismatch,
    FeatureShapeMismatch,
    NotATensor,
    RowCountMismatch,
    UnknownNodeCount,
    described,
)
from .signature import EMPTY, LayerSignature, StaticParam, TensorParam
from .statics import NotStatic, fit, normalise, static_key
from .tracing import TracedValue

Count = int | None
Counts = tuple[Count, Count, Count]

_ENDS = {"src": "source nodes", "dst": "destination nodes", "node": "nodes", "edge": "edges"}


@dataclass(frozen=True)
class BoundCall:
    """A checked call. ``tensors`` in parameter order, `Edge[()]` as ``[E]`` and `Param[()]` 0-d; ``types`` theirs in the IR; ``statics``
    by name, defaults filled in. ``key`` tells specialisations apart: types, static values and the result dtype, no counts."""

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    types: tuple[Type, ...]
    statics: dict[str, Any]
    num_src: int
    num_dst: int
    square: bool
    out_dtype: DType
    key: object


@lru_cache(maxsize=4096)
def _type(space: str, dtype: DType, dims: Dims) -> Type:
    return Type(space, dtype, dims)


def bind(
    sig: LayerSignature, counts: Counts, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None = None
) -> BoundCall:
    """The checked call. ``counts``: the graph's (num_src, num_dst, num_edges), None where unknown. Raises errors of the GN2xx family."""
    values, given = _by_name(sig, args, kwargs)
    statics = {p.name: _static(sig, p, given) for p in sig.statics}
    tensors, types = [], []
    symbols: dict[str, tuple[int, str]] = {}
    for p, x in zip(sig.tensors, values, strict=True):
        x, dims = _features(sig, p, x, symbols)
        tensors.append(x)
        types.append(_type(p.annotation.space, FROM_TORCH[x.dtype], dims))
    _check_devices(sig, tensors, device)
    num_src, num_dst = _rows(sig, tensors, counts)
    out = result_dtype(types)
    if sig.square:
        types = [t.with_space("node") if t.space in ("src", "dst") else t for t in types]
    key = (tuple(types), tuple((n, static_key(v)) for n, v in statics.items()), out.name)
    return BoundCall(sig.names, tuple(tensors), tuple(types), statics, num_src, num_dst, sig.square, out, key)


def result_dtype(types: list[Type]) -> DType:
    """The promoted dtype of the floating inputs: 0-d parameters count only where there is nothing else; f32 without any."""
    floats = [t for t in types if t.dtype.is_float]
    out: DType | None = None
    for t in [t for t in floats if t.space != "param" or t.dims] or floats:
        out = t.dtype if out is None else promote(out, t.dtype)
    return out or F32


# ---- which argument is which


def _by_name(sig: LayerSignature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    names = sig.names
    if len(args) > len(names):
        hint = "static arguments are given by name" if sig.statics else ""
        raise ArgumentCount(
            sig.source.definition(), message=f"{sig.name} takes {_tensors(names)} after the graph, not {len(args)}", hint=hint
        )
    if len(args) == len(names) and not kwargs:
        return list(args), kwargs
    known = {*names, *(p.name for p in sig.statics)}
    for k in kwargs:
        if k not in known:
            import difflib

            near = difflib.get_close_matches(k, sorted(known), 1)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"it takes {', '.join([*names, *(p.name for p in sig.statics)]) or 'the graph alone'}"
            )
            raise ArgumentCount(sig.source.definition(), message=f"{sig.name} has no argument {k!r}", hint=hint)
        if k in names[: len(args)]:
            raise ArgumentCount(sig.source.param(k), message=f"{sig.name} got {k} twice", hint="give it by position or by name")
    missing = [n for n in names[len(args) :] if n not in kwargs]
    if missing:
        text = f"{sig.name} takes {_tensors(names)} after the graph; missing: {', '.join(missing)}"
        raise ArgumentCount(sig.source.param(missing[0]), message=text)
    return [*args, *(kwargs[n] for n in names[len(args) :])], kwargs


def _tensors(names: tuple[str, ...]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}" + (f" ({', '.join(names)})" if names else "")


def _static(sig: LayerSignature, p: StaticParam, given: dict[str, Any]) -> Any:
    if p.name not in given and p.default is EMPTY:
        raise ArgumentCount(
            sig.source.param(p.name), message=f"{sig.name} needs the static argument {p.name}", hint=f"give it by name: {p.name}=..."
        )
    raw = given.get(p.name, p.default)
    try:
        value = normalise(raw)
    except NotStatic as why:
        hint = (
            "pass a tuple"
            if isinstance(raw, list)
            else "pass it as a tensor argument, Param[...]"
            if isinstance(raw, torch.Tensor)
            else None
        )
        raise BadStatic(sig.source.param(p.name), message=f"the static argument {p.name} is {why.args[0]}", hint=hint) from None
    if p.annotation is EMPTY or (raw is p.default and value is None):
        return value
    ok, value = fit(p.annotation, value)
    if not ok:
        name = p.annotation.__name__ if isinstance(p.annotation, type) else str(p.annotation)
        raise BadStatic(
            sig.source.param(p.name),
            message=f"the static argument {p.name} is {value!r}, not {name}",
            hint="give a value of the annotated type",
        )
    return value


# ---- one tensor


def _features(sig: LayerSignature, p: TensorParam, x: Any, symbols: dict[str, tuple[int, str]]) -> tuple[torch.Tensor, Dims]:
    """The tensor in its canonical shape, and its feature dims."""
    if not isinstance(x, torch.Tensor):
        raise NotATensor(sig.source.param(p.name), name=p.name, what=described(x), hint=_tensor_hint(p, x))
    if x.dtype not in FROM_TORCH:
        raise BadTensorDtype(sig.source.param(p.name), name=p.name, what=f"dtype {x.dtype}")
    if x.layout is not torch.strided:
        raise BadTensorDtype(sig.source.param(p.name), name=p.name, what=f"layout {x.layout}")
    rows = 0 if p.annotation.space == "param" else 1
    wanted = p.annotation.dims
    if not wanted and x.dim() == rows + 1 and x.shape[-1] == 1:
        x = x.reshape(x.shape[:-1])
    if x.dim() != rows + len(wanted):
        raise FeatureShapeMismatch(sig.source.param(p.name), message=_rank_message(p, x, rows), hint=_rank_hint(p, x, rows))
    dims = tuple(int(d) for d in x.shape[rows:])
    for axis, (want, got) in enumerate(zip(wanted, dims, strict=True)):
        if isinstance(want, int):
            if want != got:
                text = f"{p.name} has feature dims {list(dims)}, but dim {axis - len(wanted)} of {p.annotation} is {want}"
                raise FeatureShapeMismatch(
                    sig.source.param(p.name), message=text, hint=f"give a tensor of that size, or name the dim to allow any: {_named(p)}"
                )
            continue
        size, first = symbols.setdefault(want, (got, p.name))
        if size != got:
            text = f"{p.name} has feature dims {list(dims)}: {want} was {size} from {first}, here {got}"
            raise FeatureShapeMismatch(
                sig.source.param(p.name), message=text, hint=f"one name is one size in a call; use another name where {want} may differ"
            )
    return x, dims


def _named(p: TensorParam) -> str:
    names = iter("FGHKLMNOPQ")
    inner = ", ".join(f'"{d if isinstance(d, str) else next(names, "D")}"' for d in p.annotation.dims)
    return f"{p.annotation.space.capitalize()}[{inner}]"


def _tensor_hint(p: TensorParam, x: object) -> str:
    if isinstance(x, TracedValue):
        return "a layer called inside of a layer takes the outer layer's g"
    if isinstance(x, np.ndarray):
        return f"torch.from_numpy({p.name})"
    if isinstance(x, bool | int | float):
        return f"torch.tensor({x!r}), or make {p.name} a static argument behind the `*`"
    return "convert it with torch.as_tensor"


def _shape(p: TensorParam) -> str:
    row = {"edge": ["E"], "param": []}.get(p.annotation.space, ["N"])
    dims = [str(d) for d in p.annotation.dims]
    if p.annotation.dims:
        return f"[{', '.join([*row, *dims])}]"
    return "[] or [1]" if not row else f"[{row[0]}] or [{row[0]}, 1]"


def _rank_message(p: TensorParam, x: torch.Tensor, rows: int) -> str:
    return f"{p.name} has shape {[int(s) for s in x.shape]}, but {p.annotation} takes {_shape(p)}"


def _rank_hint(p: TensorParam, x: torch.Tensor, rows: int) -> str:
    extra = x.dim() - rows - len(p.annotation.dims)
    if extra == -1 and len(p.annotation.dims) == 1 and rows:
        return f"one scalar a row is {p.annotation.space.capitalize()}[()]; as a feature dim of size 1 it is {p.name}[:, None]"
    if extra > 0:
        return "give one annotation dim for every feature dim of the tensor, or reshape the tensor"
    return "reshape the tensor, or annotate it with the dims it has"


def _check_devices(sig: LayerSignature, tensors: list[torch.Tensor], graph: torch.device | None) -> None:
    first, owner = graph, "the graph"
    for p, x in zip(sig.tensors, tensors, strict=True):
        if first is None:
            first, owner = x.device, p.name
        elif x.device != first:
            raise DeviceMismatch(sig.source.param(p.name), name=p.name, device=x.device, other=owner, other_device=first)


# ---- rows


def _rows(sig: LayerSignature, tensors: list[torch.Tensor], counts: Counts) -> tuple[int, int]:
    """num_src and num_dst, from the graph or else from the tensors. Every tensor's rows are compared with them."""
    num: dict[str, Count] = {"src": counts[0], "dst": counts[1], "edge": counts[2]}
    owner: dict[str, str] = dict.fromkeys(num, "")  # "" is the graph
    if sig.square and num["src"] is not None and num["dst"] is not None and num["src"] != num["dst"]:
        p = next(p for p in sig.tensors if p.annotation.space == "node")
        raise BipartiteNode(sig.source.param(p.name), name=p.name, num_src=num["src"], num_dst=num["dst"])
    for p, x in zip(sig.tensors, tensors, strict=True):
        space = p.annotation.space
        if space == "param":
            continue
        rows = x.shape[0]
        ends = ("src", "dst") if space == "node" or (sig.square and space != "edge") else (space,)
        for end in ends:
            want = num[end]
            if want is None:
                if end == "edge":
                    continue
                num[end], owner[end] = rows, p.name
            elif rows != want:
                raise _row_error(sig, p, rows, num, owner, end)
    num_src, num_dst = num["src"], num["dst"]
    num_src = num_dst if num_src is None else num_src
    num_dst = num_src if num_dst is None else num_dst
    if num_src is None or num_dst is None:
        raise UnknownNodeCount(sig.source.definition(), name=sig.name)
    return num_src, num_dst


def _row_error(sig: LayerSignature, p: TensorParam, rows: int, num: dict[str, Count], owner: dict[str, str], end: str) -> RowCountMismatch:
    want = num[end]
    shown = _ENDS["node" if p.annotation.space == "node" else end]
    other = f"the graph has {want} {shown}" if not owner[end] else f"{owner[end]} has {want} ({shown})"
    reverse = {"src": "dst", "dst": "src"}.get(end)
    if p.annotation.space in ("src", "dst") and reverse and num[reverse] == rows and not sig.square:
        hint = f"there are {rows} {_ENDS[reverse]}: if {p.name} belongs to them, annotate it with {reverse.capitalize()}"
    else:
        unit = {"edge": "edge, in the order of edge_index", "node": "node"}.get(p.annotation.space, _ENDS[end][:-1])
        hint = f"{p.annotation.space.capitalize()} takes one row for every {unit}"
    return RowCountMismatch(sig.source.param(p.name), name=p.name, rows=rows, other=other, hint=hint)
