"""Dense steps on a GPU: torch's products (cuBLAS), in the operands' promoted dtype, rounded once to the result's."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from ..plan import DenseStep

Multiply = Callable[[Tensor, Tensor, Tensor], None]


def build_dense(step: DenseStep, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> Multiply:
    """A function ``(a, b, out)`` that fills ``out`` (contiguous, as ``a`` and ``b``). A product over no rows or of no terms is zero.

    Raises ValueError for an unknown operation.
    """
    if step.op not in ("matmul", "contract_rows"):
        raise ValueError(f"unknown dense operation {step.op!r}")
    rows, k = prod(a_shape[:-1]), a_shape[-1]
    contract = step.op == "contract_rows"
    f = b_shape[0] if step.transpose_b and not contract else b_shape[-1]

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        x = a.view(rows, k).t() if contract else a.view(rows, k)
        y = b.view(rows, f) if contract else b.t() if step.transpose_b else b
        z = out.view(k, f) if contract else out.view(rows, f)
        if x.dtype == y.dtype == z.dtype:
            torch.mm(x, y, out=z)
        else:
            common = torch.promote_types(x.dtype, y.dtype)
            z.copy_(torch.mm(x.to(common), y.to(common)))

    return multiply
