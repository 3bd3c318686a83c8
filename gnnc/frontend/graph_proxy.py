"""``g`` inside a layer: gathers, folds, softmax and degrees. It knows no counts: those are never compiled in."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import Any, NoReturn

from gnnc.ir.core import Value
from gnnc.ir.monoid import builtin_monoids

from .errors import BadOperationArgument, UnknownOperation, described
from .source import user_loc
from .tracing import TracedValue, Tracer

_COUNTS = ("num_src", "num_dst", "num_nodes", "num_edges", "edge_index")


class GraphProxy:
    """The graph of a layer while it is traced. Folds go to the destination unless ``to="src"``."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __repr__(self) -> str:
        return "<graph of a layer>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _COUNTS:
            hint = (
                "counts and indices differ from graph to graph and are not known while tracing; "
                "degrees are g.in_degree() and g.out_degree()"
            )
        else:
            near = difflib.get_close_matches(name, [n for n in dir(type(self)) if not n.startswith("_")], 1)
            hint = f"did you mean g.{near[0]}?" if near else "a fold of your own is g.fold(monoid, m)"
        raise UnknownOperation(user_loc(), message=f"unknown operation g.{name}", hint=hint)

    # ---- node -> edge

    def src(self, v: TracedValue) -> TracedValue:
        """Every edge's value at its source."""
        return self._tracer.op("gather", self._tracer.value_of(v), end="src")

    def dst(self, v: TracedValue) -> TracedValue:
        """Every edge's value at its destination."""
        return self._tracer.op("gather", self._tracer.value_of(v), end="dst")

    # ---- edge -> node

    def _message(self, m: object) -> Value:
        v = self._tracer.lift(m)
        # Integer and bool messages are folded in the layer's accumulation dtype (where they are edge values at all).
        return v if v.type.dtype.is_float or v.type.space != "edge" else self._tracer.cast(v, self._tracer.acc)

    def _fold(self, monoid: str, m: object, to: str, part: str = "value") -> TracedValue:
        return self._tracer.op("fold", self._message(m), monoid=monoid, to=to, part=part)

    def sum(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Sum of a node's edge values; 0 for an empty row."""
        return self._fold("sum", m, to)

    def mean(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Mean of a node's edge values; 0 for an empty row."""
        return self._fold("mean", m, to)

    def max(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Maximum; 0 for an empty row; the gradient of a tie goes to the first edge."""
        return self._fold("max", m, to)

    def min(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Minimum; 0 for an empty row; the gradient of a tie goes to the first edge."""
        return self._fold("min", m, to)

    def prod(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Product; 1 for an empty row."""
        return self._fold("prod", m, to)

    def var(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Population variance; 0 for an empty row."""
        return self._fold("moments", m, to, "var")

    def std(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """Population standard deviation; 0 for an empty row, and exactly 0 (gradient too) for equal values."""
        return self._fold("moments", m, to, "std")

    def logsumexp(self, m: TracedValue, to: str = "dst") -> TracedValue:
        """log(sum(exp(m))), shifted by the row's maximum; -inf for an empty row."""
        return self._fold("logsumexp", m, to)

    def softmax(self, s: TracedValue, over: str = "dst") -> TracedValue:
        """edge -> edge: softmax over each node's edges, element by element."""
        return self._tracer.op("softmax", self._tracer.lift(s), over=over)

    def fold(self, monoid: object, m: TracedValue | tuple[TracedValue, ...], to: str = "dst") -> TracedValue:
        """A fold of the user's own (`gnnc.monoid`); a tuple of messages for one that takes several."""
        messages = [self._message(x) for x in (m if isinstance(m, tuple) else (m,))]
        return self._tracer.op("fold", *messages, monoid=self._register(monoid), to=to)

    def _register(self, monoid: object) -> str:
        """The name of a user's monoid in this function; two of one name are told apart by a number."""
        for known, name in self._tracer.user_monoids:
            if known is monoid:
                return name
        if not hasattr(monoid, "to_ir"):
            raise BadOperationArgument(
                user_loc(), message=f"g.fold of {described(monoid)}", hint="its first argument is a class decorated with @gnnc.monoid"
            )
        ir = monoid.to_ir()
        taken = {*builtin_monoids(), *(m.name for m in self._tracer.builder.monoids)}
        name, n = ir.name, 2
        while name in taken:
            name, n = f"{ir.name}_{n}", n + 1
        self._tracer.builder.monoids = (*self._tracer.builder.monoids, replace(ir, name=name))
        self._tracer.user_monoids.append((monoid, name))
        return name

    # ---- degrees

    def in_degree(self) -> TracedValue:
        """dst []: how many edges enter a node, in the layer's accumulation dtype."""
        return self._tracer.op("degree", end="dst", dtype=self._tracer.acc.name)

    def out_degree(self) -> TracedValue:
        """src []: how many edges leave a node, in the layer's accumulation dtype."""
        return self._tracer.op("degree", end="src", dtype=self._tracer.acc.name)

    # ---- what it is not

    def __iter__(self) -> NoReturn:
        raise UnknownOperation(
            user_loc(), message="iteration over g", hint="a layer says what happens on every edge at once: g.sum(g.src(x))"
        )
