"""gnnc: a compiler for graph neural network layers.

    import gnnc
    from gnnc.lang import Dst, Param, Src, leaky_relu

    @gnnc.layer
    def gatv2(g, x_src: Src["H", "C"], x_dst: Dst["H", "C"], att: Param["H", "C"], *, slope: float = 0.2):
        score = (att * leaky_relu(g.src(x_src) + g.dst(x_dst), slope)).sum(-1)
        alpha = g.softmax(score)
        return g.sum(alpha[..., None] * g.src(x_src))

`gnnc.Graph` is the graph, `gnnc.layer` the compiler, `gnnc.monoid` a fold of your own, `gnnc.dump` shows every stage. The compiler needs
the extra ``compiler``; running an existing bundle needs `gnnc_runtime` alone.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

_missing = [m for m in ("lark", "llvmlite", "networkx") if _find_spec(m) is None]
if _missing:
    raise ImportError(f"gnnc needs {', '.join(_missing)}: install the compiler with  pip install 'gnnc[compiler]'")

if TYPE_CHECKING:
    from gnnc.frontend.errors import UserError
    from gnnc.frontend.monoid import monoid
    from gnnc.layer import Layer, layer
    from gnnc.stages import dump
    from gnnc_runtime.graph import Graph

__version__ = "0.1.0"
__all__ = ["Graph", "Layer", "UserError", "dump", "layer", "monoid"]

# Loaded when first used, so that importing one part (a pass, the IR) does not load all of them.
_HOME = {
    "Graph": "gnnc_runtime.graph",
    "Layer": "gnnc.layer",
    "UserError": "gnnc.frontend.errors",
    "dump": "gnnc.stages",
    "layer": "gnnc.layer",
    "monoid": "gnnc.frontend.monoid",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gnnc' has no attribute {name!r}")
    found = getattr(_import_module(_HOME[name]), name)
    globals()[name] = found
    return found
