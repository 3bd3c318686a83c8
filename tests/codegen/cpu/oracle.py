"""The interpreter's results in the form that kernels write them: params with a row axis too."""

from __future__ import annotations

import numpy as np

from gnnc.ir import interpreter
from gnnc.ir.core import Func
from gnnc.ir.ops import Array, GraphArrays


def interpret(func: Func, graph: GraphArrays, args: dict[str, Array]) -> list[Array]:
    """Results of ``func``; every array has a leading row axis, in ``args`` and in the results."""
    given = {p.name: args[p.name][0] if p.type.space == "param" else args[p.name] for p in func.params}
    outs = interpreter.interpret(func, graph, given)
    return [np.asarray(o)[None] if r.type.space == "param" else np.asarray(o) for o, r in zip(outs, func.results, strict=True)]
