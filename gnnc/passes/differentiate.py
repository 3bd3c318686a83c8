"""Reverse-mode differentiation of a layer: one joint function of the forward and the backward.

The joint function keeps the forward's parameters and results, gains ``grad_<result>`` parameters (upstream gradients of the float
results) and ``d_<param>`` results for the requested parameters. Forward and backward stay one DAG so that ``simplify`` sees
both (the backward of a softmax finds ``sum(alpha * dalpha) = dout . out`` there) and ``save_or_recompute`` can choose the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnc.ir.adjoint import pullback
from gnnc.ir.builder import Builder, rewrite
from gnnc.ir.core import Func, Value
from gnnc.ir.types import TypeRuleError


def grad_name(result: str) -> str:
    """Name of the parameter that holds the upstream gradient of a result."""
    return f"grad_{result}"


def wrt_name(param: str) -> str:
    """Name of the result that holds the gradient of a parameter."""
    return f"d_{param}"


def zeros_like(b: Builder, v: Value) -> Value:
    """A zero of the type of `v`."""
    z: Value = b.broadcast(b.const(0.0, v.type.dtype), v.type.dims)
    return z if v.type.space == "param" else b.op("spread", z, space=v.type.space)


@dataclass(frozen=True)
class Differentiate:
    """Adds the gradients of the parameters ``wrt`` (names; empty: every float one). A parameter that no result hangs on gets zeros.

    Raises TypeRuleError ``no-gradient`` where an operation on the way has none.
    """

    wrt: tuple[str, ...] = ()
    name = "differentiate"

    def run(self, func: Func) -> Func:
        b = Builder.like(func)
        f = rewrite(func, lambda _b, _v, _o: None, b)
        wanted = self.wrt or tuple(p.name for p in f.params if p.type.dtype.is_float)
        by_name = {p.name: p for p in f.params}
        if unknown := [w for w in wanted if w not in by_name or not by_name[w].type.dtype.is_float]:
            raise TypeRuleError("no-gradient", f"{unknown[0]!r} is no floating parameter of {func.name}")
        seeds, grads = [], []
        for name, r in zip(f.result_names, f.results, strict=True):
            if r.type.dtype.is_float:
                g = b.input(grad_name(name), r.type)
                grads.append(g)
                seeds.append((r, b.cast(g, r.type.dtype.acc)))
        targets = [by_name[w] for w in wanted]
        found = pullback(b, seeds, targets)
        out = [zeros_like(b, p) if d is None else b.cast(d, p.type.dtype) for p, d in zip(targets, found, strict=True)]
        return replace(
            f,
            params=(*f.params, *grads),
            results=(*f.results, *out),
            result_names=(*f.result_names, *(wrt_name(w) for w in wanted)),
        )
