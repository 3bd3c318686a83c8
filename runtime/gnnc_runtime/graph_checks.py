"""What a graph may be made of: the checks of its front doors, each with an error that names what was given."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from .errors import GraphError, GraphTypeError, IndexRangeError

INDEX_DTYPES = (torch.int32, torch.int64)
ENDS = {"src": "sources", "dst": "destinations"}


def describe(x: object) -> str:
    """A value in an error: its type; dtype, shape and whatever is unusual of a tensor."""
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    unusual = f" {str(x.layout)[6:]}" if x.layout != torch.strided else " meta" if x.is_meta else ""
    return f"a {str(x.dtype)[6:]}{unusual} tensor {list(x.shape)}"


def check_index_tensor(x: object, name: str, shape: str, dims: int) -> Tensor:
    """`x` if it is a dense tensor of int32 or int64 with this many dimensions, any strides. Raises GraphTypeError, GraphError.

    A wrapper that offers its tensor as ``as_tensor()`` (PyG's ``EdgeIndex``) gives that tensor.
    """
    if isinstance(x, Tensor) and type(x) is not Tensor and hasattr(x, "as_tensor"):
        x = x.as_tensor()
    if not isinstance(x, Tensor) or x.dtype not in INDEX_DTYPES or x.layout != torch.strided or x.is_meta:
        raise GraphTypeError(f"{name} must be a dense tensor {shape} of int32 or int64, not {describe(x)}")
    if x.dim() != dims:
        raise GraphError(f"{name} must have shape {shape}, not {list(x.shape)}")
    return x


def check_edge_index(edge_index: object) -> Tensor:
    """``edge_index`` if it is a dense int32 or int64 tensor [2, E], any strides. Raises GraphTypeError, GraphError."""
    ei = check_index_tensor(edge_index, "edge_index", "[2, E]", 2)
    if ei.shape[0] != 2:
        mend = "; pass edge_index.t()" if ei.shape[1] == 2 else ""
        raise GraphError(f"edge_index must have shape [2, E] (row 0 sources, row 1 destinations), not {list(ei.shape)}{mend}")
    return ei


def check_count(name: str, n: object) -> int:
    """`n` as an int. Raises GraphTypeError for what is no integer (a bool is none), GraphError for a negative one."""
    if isinstance(n, bool) or not isinstance(n, SupportsIndex):
        raise GraphTypeError(f"{name} must be an int, not {describe(n)}")
    try:
        count = index(n)
    except TypeError:
        raise GraphTypeError(f"{name} must be an int, not {describe(n)}") from None
    if count < 0:
        raise GraphError(f"{name} must not be negative, is {count}")
    return count


def check_counts(num_src: int | None, num_dst: int | None) -> tuple[int, int]:
    """Both counts; one that is not given takes the other's. Raises GraphError when there is none: highest numbers say nothing of nodes
    without edges, so counts are never guessed."""
    if num_src is None and num_dst is None:
        raise GraphError(
            "give num_src or num_dst (one stands for both), such as num_src=x.shape[0]: an edge_index does not say how many nodes"
        )
    src = check_count("num_src", num_dst if num_src is None else num_src)
    return src, check_count("num_dst", num_src if num_dst is None else num_dst)


def check_range(ids: Tensor, end: str, count: int, name: str) -> None:
    """Raises IndexRangeError naming the first of `ids` [E] that is no node of this end; ``name`` has ``{}`` for its position."""
    if ids.numel() == 0:
        return
    low, high = (int(x) for x in torch.aminmax(ids))
    if low < 0 or high >= count:
        at = int(((ids < 0) | (ids >= count)).nonzero()[0])
        rule = f"{ENDS[end]} are numbered 0 .. {count - 1}" if count else f"there are no {ENDS[end]}"
        raise IndexRangeError(f"{name.format(at)} is {int(ids[at])}, but {rule} (num_{end} is {count})")


def check_indptr(indptr: Tensor, num_edges: int) -> None:
    """Raises GraphError unless ``indptr`` (int64) rises from 0 to the number of edges."""
    last = len(indptr) - 1
    if last < 0:
        raise GraphError("indptr must have one element more than there are rows, but is empty")
    if int(indptr[0]) != 0:
        raise GraphError(f"indptr[0] must be 0, is {int(indptr[0])}")
    falls = (indptr[1:] < indptr[:-1]).nonzero()
    if len(falls):
        at = int(falls[0]) + 1
        raise GraphError(f"indptr must not fall, but indptr[{at}] is {int(indptr[at])} after {int(indptr[at - 1])}")
    if int(indptr[last]) != num_edges:
        raise GraphError(f"indptr[{last}] must be the number of indices, {num_edges}, is {int(indptr[last])}")


def check_edge_ids(edge_ids: Tensor, num_edges: int) -> None:
    """Raises GraphError unless ``edge_ids`` (int64) is a permutation of the edges."""
    rule = f"edge_ids must be a permutation of 0 .. {num_edges - 1}" if num_edges else "edge_ids must be empty, as indices are"
    if len(edge_ids) != num_edges:
        raise GraphError(f"{rule}, but has {len(edge_ids)} elements")
    bad = ((edge_ids < 0) | (edge_ids >= num_edges)).nonzero()
    if len(bad):
        raise GraphError(f"{rule}, but edge_ids[{int(bad[0])}] is {int(edge_ids[bad[0]])}")
    twice = (torch.bincount(edge_ids, minlength=num_edges) > 1).nonzero()
    if len(twice):
        raise GraphError(f"{rule}, but {int(twice[0])} comes more than once")
