"""Between torch's dtypes and the IR's."""

from __future__ import annotations

import torch

from gnnc.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I8, I16, I32, I64, U8, DType

FROM_TORCH: dict[torch.dtype, DType] = {
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float64: F64,
    torch.int8: I8,
    torch.uint8: U8,
    torch.int16: I16,
    torch.int32: I32,
    torch.int64: I64,
    torch.bool: BOOL,
}


def dtype_named(x: object) -> DType | None:
    """The dtype that a user means: a `DType`, a torch dtype, or a name as gnnc ("f32") or torch ("float32") writes it."""
    if isinstance(x, DType):
        return x
    if isinstance(x, torch.dtype):
        return FROM_TORCH.get(x)
    if isinstance(x, str):
        if x in DTYPES:
            return DTYPES[x]
        found = getattr(torch, x, None)
        return FROM_TORCH.get(found) if isinstance(found, torch.dtype) else None
    return {bool: BOOL, int: I64, float: F32}.get(x) if isinstance(x, type) else None
