"""Dense steps: torch products over rows, in the dtype that is fast and exact enough on this machine.

Half operands are multiplied as they are where torch's library has such products (they accumulate in f32); elsewhere its own loops are ten
times slower than converting to f32 and back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch import Tensor

from .plan import DenseStep

Multiply = Callable[[Tensor, Tensor, Tensor], None]


@cache
def has_half_products(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of a half dtype natively."""
    ask = {torch.float16: "_is_mkldnn_fp16_supported", torch.bfloat16: "_is_mkldnn_bf16_supported"}[dtype]
    supported = getattr(torch.ops.mkldnn, ask, None)
    return supported is not None and bool(torch.backends.mkldnn.enabled) and bool(supported())


def product_dtype(a: torch.dtype, b: torch.dtype, out: torch.dtype) -> torch.dtype:
    """The dtype a product of `a` and `b` is computed in, for a result of dtype `out`: rounded once, at the end."""
    common = torch.promote_types(a, b)
    if common not in (torch.float16, torch.bfloat16):
        return common
    return common if common == out and has_half_products(common) else torch.float32


def build_dense(
    step: DenseStep, a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_dtype: torch.dtype, b_dtype: torch.dtype, out_dtype: torch.dtype
) -> Multiply:
    """A function ``(a, b, out)`` that fills `out` (contiguous, as `a` and `b`). A product over no rows or of no terms is zero.

    Raises ValueError for an unknown operation.
    """
    if step.op not in ("matmul", "contract_rows"):
        raise ValueError(f"unknown dense operation {step.op!r}")
    dtype = product_dtype(a_dtype, b_dtype, out_dtype)
    direct = a_dtype == b_dtype == out_dtype == dtype
    rows, k = prod(a_shape[:-1]), a_shape[-1]
    if step.op == "matmul":
        f = b_shape[0] if step.transpose_b else b_shape[1]
        out_shape = (rows, f)
    else:
        f = b_shape[-1]
        out_shape = (k, f)

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        a, out = a.view(rows, k), out.view(out_shape)
        if step.op == "contract_rows":
            a, b = a.t(), b.view(rows, f)
        elif step.transpose_b:
            b = b.t()
        if direct:
            torch.mm(a, b, out=out)
        else:
            out.copy_(torch.mm(a.to(dtype), b.to(dtype)))

    return multiply
