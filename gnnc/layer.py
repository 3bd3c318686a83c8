"""`@gnnc.layer`: a Python function that describes a message-passing layer, compiled at its first call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnnc.backends import backend_for
from gnnc.compiled import CompiledLayer, Signature
from gnnc.explain import Explanation, Half
from gnnc.frontend.graph_proxy import GraphProxy
from gnnc.frontend.layer_function import BoundCall, LayerFunction
from gnnc.ir.core import Func
from gnnc.traffic import Sizes
from gnnc_runtime.edge_index import graph_of
from gnnc_runtime.graph import Graph
from gnnc_runtime.operators import autocast_inputs, grad_mask


def signature_of(func: Func, call: BoundCall, mask: tuple[bool, ...], index: str) -> Signature:
    """The signature of a call, parameters under the names they have in the IR."""
    return Signature(tuple(p.name for p in func.params), call.types, mask, index)


class Layer:
    """A compiled layer. Call it with a graph and tensors, as the decorated function says.

    The graph is a `gnnc.Graph` or an ``edge_index`` (int32 or int64 ``[2, E]``). Results have the layer's spaces as leading axis
    (``[num_dst, *dims]``, edge results ``[E, *dims]`` in the caller's edge order) and the promoted dtype of the floating inputs.
    A new combination of feature dims, dtypes, static arguments or wanted gradients compiles once; new graphs never do.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.function = LayerFunction(fn)
        self._compiled: dict[object, CompiledLayer] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<gnnc.layer {self.function.name}>"

    def __reduce__(self) -> str:
        # Like a function: by name. Compiled code is found again through the disk cache.
        return self.__qualname__  # type: ignore[attr-defined,no-any-return]

    def __copy__(self) -> Layer:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        return self

    def __call__(self, graph: Graph | Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, GraphProxy):  # called by another layer that is being traced: a helper of it
            return self.function.inline(graph, *args, **kwargs)
        g, call, tensors = self._bind(graph, args, kwargs)
        out = self._compiled_for(g, call, grad_mask(tensors)).operator(g, tensors)
        return out if self._is_tuple(g, call) else out[0]

    def _bind(self, graph: Graph | Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Graph, BoundCall, tuple[Tensor, ...]]:
        args, kwargs = self._autocast(args, kwargs)
        if isinstance(graph, Graph):
            call = self.function.bind((graph.num_src, graph.num_dst, graph.num_edges), args, kwargs, graph.device)
            return graph, call, call.tensors
        edges = graph.shape[1] if isinstance(graph, Tensor) and graph.dim() == 2 else None
        call = self.function.bind((None, None, edges), args, kwargs, graph.device if isinstance(graph, Tensor) else None)
        return graph_of(graph, call.num_src, call.num_dst), call, call.tensors

    @staticmethod
    def _autocast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Under autocast, floating inputs take its dtype, as for torch's own matmul-like operations."""
        if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
            return args, kwargs
        names = [k for k, v in kwargs.items() if isinstance(v, Tensor)]
        cast = autocast_inputs(tuple(a for a in args if isinstance(a, Tensor)) + tuple(kwargs[k] for k in names))
        it = iter(cast)
        new_args = tuple(next(it) if isinstance(a, Tensor) else a for a in args)
        return new_args, {**kwargs, **{k: next(it) for k in names}}

    def _compiled_for(self, g: Graph, call: BoundCall, mask: tuple[bool, ...]) -> CompiledLayer:
        index = "i64" if g.index_dtype == torch.int64 else "i32"
        backend = backend_for(g.device)
        key = (self.function.fingerprint(), call.key, mask, index, backend)
        found = self._compiled.get(key)
        if found is None:
            func = self.function.trace(call)
            with self._lock:
                found = self._compiled.setdefault(key, CompiledLayer(func, signature_of(func, call, mask, index), backend))
        return found

    def _is_tuple(self, g: Graph, call: BoundCall) -> bool:
        return self.function.returns_tuple(call)

    # ---- looking inside

    def ir(self, graph: Graph | Tensor, *args: Any, stage: str = "simplified", grad: bool | None = None, **kwargs: Any) -> str:
        """The IR of a call as text. ``stage``: traced, simplified, joint, joint-simplified, lowered, forward, forward-plan, backward,
        backward-simplified, backward-plan. ``grad``: with gradients of every floating input (default: of those that ask for one)."""
        compiled = self._inspect(graph, args, kwargs, grad)
        c = compiled.compilation
        c.cut()
        if stage.startswith("backward"):
            c.backward_plan()
        elif stage == "forward-plan":
            c.forward_plan()
        return c.stages.text(stage)

    def trace(self, graph: Graph | Tensor, *args: Any, **kwargs: Any) -> Func:
        """The layer IR of a call, as traced."""
        _g, call, _t = self._bind(graph, args, kwargs)
        return self.function.trace(call)

    def explain(self, graph: Graph | Tensor, *args: Any, grad: bool | None = None, **kwargs: Any) -> Explanation:
        """Stages, sweeps with family and reason, buffers and bytes moved, for this call; print it. ``grad`` as in `ir`."""
        compiled = self._inspect(graph, args, kwargs, grad)
        g, _call, _t = self._bind(graph, args, kwargs)
        c = compiled.compilation
        cut = c.cut()
        halves = [Half("forward", cut.forward, c.forward_plan(), c.mapped("forward"))]
        if compiled.signature.wrt:
            halves.append(Half("backward", cut.backward, c.backward_plan(), c.mapped("backward")))
        sizes = Sizes(g.num_src, g.num_dst, g.num_edges, 8 if g.index_dtype == torch.int64 else 4)
        name = self.function.name
        return Explanation(name, str(compiled.signature), sizes, tuple(c.stages.names()), tuple(halves), cut.reasons)

    def _inspect(self, graph: Graph | Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool | None) -> CompiledLayer:
        """A compilation of its own, so that looking never disturbs what runs."""
        g, call, tensors = self._bind(graph, args, kwargs)
        mask = grad_mask(tensors) if grad is None else tuple(bool(grad) and t.is_floating_point() for t in tensors)
        index = "i64" if g.index_dtype == torch.int64 else "i32"
        func = self.function.trace(call)
        return CompiledLayer(func, signature_of(func, call, mask, index), backend_for(g.device))


def layer(fn: Callable[..., Any]) -> Layer:
    """Turns a function into a compiled message-passing layer. See `gnnc.lang` for the vocabulary.

    ``fn(g, x: Src[...], w: Edge[...], *, slope: float = 0.2)``: the first parameter is the graph, positional ones are tensors with
    the space they live in, keyword-only ones are static. Raises a located error for a signature that says something else.
    """
    return Layer(fn)
