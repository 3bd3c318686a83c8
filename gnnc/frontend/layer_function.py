"""A layer's function: its signature read at decoration, calls bound, the layer IR traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.types import DType, Type

from .binding import BoundCall, Counts, bind, result_dtype
from .captured import Identity
from .errors import BadResult, NestedResult, ParamResult, described
from .graph_proxy import GraphProxy
from .signature import read_signature
from .statics import static_key
from .tracing import TracedValue, Tracer

__all__ = ["BoundCall", "LayerFunction", "result_dtype"]


# Names that results, gradients, saved values and temporaries have in the IR.
_RESERVED = re.compile(r"out\d+|grad_.*|d_.*|saved\d+|t\d+")


def ir_names(names: Sequence[str]) -> dict[str, str]:
    """What each parameter is called in the IR: its own name, with ``in_`` before it where a result or temporary could be called so."""
    out: dict[str, str] = {}
    for name in names:
        mine = name
        while _RESERVED.fullmatch(mine) or (mine != name and mine in names):
            mine = f"in_{mine}"
        out[name] = mine
    return out


class LayerFunction:
    """A decorated function. Raises located errors of the GN1xx family for a ``def`` that is no layer."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.signature, self.fn = read_signature(fn)
        self._identity = Identity(self.fn)
        self._tuple: dict[object, bool] = {}

    @property
    def name(self) -> str:
        return self.signature.name

    def fingerprint(self) -> str:
        """Identity of the program: its code and everything it reads from outside, as of now (`captured.py`)."""
        return self._identity.digest()

    def bind(self, graph_counts: Counts, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device | None = None) -> BoundCall:
        """Checks a call's arguments (without the graph). ``graph_counts``: (num_src, num_dst, num_edges), None where unknown;
        ``device``: the graph's. Raises located errors of the GN2xx family."""
        return bind(self.signature, graph_counts, args, kwargs, device)

    def trace(self, call: BoundCall) -> Func:
        """The layer IR of a call. Raises located errors of the GN3xx, GN4xx and GN5xx families."""
        return self.trace_types(call.types, call.statics, call.out_dtype)

    def returns_tuple(self, call: BoundCall) -> bool:
        """Whether the function returns a tuple (of one value, too) for this call."""
        key = self.fingerprint(), call.key
        if key not in self._tuple:
            self.trace(call)
        return self._tuple[key]

    def inline(self, g: GraphProxy, *args: Any, **kwargs: Any) -> Any:
        """The function as a helper of another layer that is being traced."""
        return self.fn(g, *args, **kwargs)

    def trace_types(self, types: Sequence[Type], statics: dict[str, Any], out_dtype: DType) -> Func:
        """Runs the function once on symbols. ``types`` are the tensors' (``src`` and ``dst`` become ``node`` in a function with Node);
        floating results get ``out_dtype`` unless they come from ``.to()``."""
        sig = self.signature
        identity = self.fingerprint()  # refuses captured tensors before they are met
        builder = Builder(square=sig.square)
        tracer = Tracer(builder, out_dtype.acc)
        types = [t.with_space("node") if sig.square and t.space in ("src", "dst") else t for t in types]
        params, values = [], []
        names = ir_names(sig.names)
        for p, t in zip(sig.tensors, types, strict=True):
            with builder.at(sig.source.param(p.name)):
                v = builder.input(names[p.name], t)
                params.append(v)
                # A 0-d tensor does not promote: one wider than the layer is rounded to its arithmetic.
                narrow = t.space == "param" and not t.dims and t.dtype.is_float and t.dtype.bits > out_dtype.acc.bits
                values.append(TracedValue(tracer, builder.cast(v, out_dtype.acc) if narrow else v))
        result = self.fn(GraphProxy(tracer), *values, **statics)
        results = self._results(tracer, result, out_dtype)
        key = tuple(types), tuple((n, static_key(v)) for n, v in statics.items()), out_dtype.name
        self._tuple[identity, key] = isinstance(result, tuple)
        return Func(self.name, tuple(params), tuple(results), sig.square, monoids=builder.monoids)

    def _results(self, tracer: Tracer, result: object, out_dtype: DType) -> list[Value]:
        where = self.signature.source.result
        if isinstance(result, tuple) and not result:
            raise BadResult(where(), name=self.name, what="an empty tuple")
        out = []
        for r in result if isinstance(result, tuple) else (result,):
            if isinstance(r, tuple | list | dict) and isinstance(result, tuple):
                raise NestedResult(where(), name=self.name, what=described(r))
            if not isinstance(r, TracedValue):
                raise BadResult(
                    where(), name=self.name, what=_unusable(r), hint="return a, b gives two results" if isinstance(r, list) else None
                )
            v = tracer.value_of(r)
            if v.type.space == "param":
                raise ParamResult(where(), name=self.name, type=r._a())
            with tracer.builder.at(v.loc):
                out.append(tracer.builder.cast(v, out_dtype) if v.type.dtype.is_float and not r._explicit else v)
        return out


def _unusable(r: object) -> str:
    if isinstance(r, GraphProxy):
        return "the graph"
    if isinstance(r, bool | int | float):
        return f"the number {r!r}, which is not a tensor"
    return f"{described(r)}, which is not a value of the layer"
