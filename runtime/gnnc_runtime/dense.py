"""Dense steps: torch products over rows, cut into blocks whose shapes depend on the operands alone.

torch's libraries round differently with the number of threads (a sum over rows is split among them), so every block is one single-threaded
product and blocks are spread over threads here: the same bits for any number of threads, and as fast or faster for tall operands.

Half operands are multiplied as they are where torch's library has such products (they accumulate in f32); elsewhere its own loops are ten
times slower than converting a block to f32 and back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch import Tensor

from .plan import DenseStep
from .threads import one_thread, parallel_for

HALF = (torch.float16, torch.bfloat16)
BLOCK_TERMS = 1 << 21  # about 50 us of one core
MIN_ROWS = 64
MAX_BLOCKS = 1024
MAX_PARTIALS = 64

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
    if common not in HALF:
        return common
    return common if common == out and has_half_products(common) else torch.float32


def block_rows(rows: int, k: int, f: int, most: int) -> int:
    """Rows of one block of a product of [rows, k] and [k, f]: about BLOCK_TERMS terms, at most `most` blocks."""
    return max(BLOCK_TERMS // max(k * f, 1), MIN_ROWS, -(-rows // most))


def build_dense(
    step: DenseStep, a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_dtype: torch.dtype, b_dtype: torch.dtype, out_dtype: torch.dtype
) -> Multiply:
    """A function ``(a, b, out)`` that fills `out` (contiguous, as `a` and `b`). A product over no rows or of no terms is zero.

    Raises ValueError for an unknown operation.
    """
    dtype = product_dtype(a_dtype, b_dtype, out_dtype)
    rows, k = prod(a_shape[:-1]), a_shape[-1]
    if step.op == "matmul":
        return _matmul(rows, k, step.transpose_b, b_shape, dtype)
    if step.op == "contract_rows":
        return _contract_rows(rows, k, b_shape[-1], dtype)
    raise ValueError(f"unknown dense operation {step.op!r}")


def _product(a: Tensor, b: Tensor, out: Tensor, dtype: torch.dtype) -> None:
    if a.dtype == b.dtype == out.dtype == dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(torch.mm(a.to(dtype), b.to(dtype)))


def _matmul(rows: int, k: int, transposed: bool, b_shape: tuple[int, ...], dtype: torch.dtype) -> Multiply:
    f = b_shape[0] if transposed else b_shape[1]
    size = block_rows(rows, k, f, MAX_BLOCKS)

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        a, out = a.view(rows, k), out.view(rows, f)
        b = (b.t() if transposed else b).to(dtype)

        def blocks(first: int, last: int) -> None:
            with one_thread():
                for i in range(first * size, last * size, size):
                    _product(a[i : i + size], b, out[i : i + size], dtype)

        parallel_for(-(-rows // size), blocks)

    return multiply


def _contract_rows(rows: int, k: int, f: int, dtype: torch.dtype) -> Multiply:
    size = block_rows(rows, k, f, MAX_PARTIALS)
    count = -(-rows // size)
    # Partial sums of half operands are not rounded to half.
    wide = torch.float32 if dtype in HALF and count > 1 else dtype

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        a, b = a.view(rows, k), b.view(rows, f)
        if count <= 1:
            with one_thread():
                _product(a.t(), b, out, dtype)
            return
        partials = torch.empty((count, k, f), dtype=wide, device=out.device)

        def blocks(first: int, last: int) -> None:
            with one_thread():
                for i in range(first, last):
                    _product(a[i * size : (i + 1) * size].t(), b[i * size : (i + 1) * size], partials[i], wide)

        parallel_for(count, blocks)
        total = partials[0]
        for i in range(1, count):
            total += partials[i]
        out.copy_(total)

    return multiply
