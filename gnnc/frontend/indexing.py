"""``v[..., None]``, ``v[..., i]``, ``v[..., a:b]`` and several of them: indices of feature dims, aligned at the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BadIndex, described
from .source import user_loc

if TYPE_CHECKING:
    from .tracing import TracedValue


def _shown(dims: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _parts(v: TracedValue, index: object) -> list[int | slice | None]:
    """The indices behind the ellipsis, checked for kind."""
    given = index if isinstance(index, tuple) else (index,)
    if not given or given[0] is not Ellipsis:
        raise BadIndex(user_loc(), message="the first index is not `...`: the row axis (nodes, edges) cannot be indexed")
    for i in given[1:]:
        if i is Ellipsis:
            raise BadIndex(user_loc(), message="`...` stands once, in front")
        if i is not None and not isinstance(i, slice) and (isinstance(i, bool) or not hasattr(type(i), "__index__")):
            raise BadIndex(user_loc(), message=f"{described(i)} is not an index")
        if hasattr(type(i), "_ir"):
            raise BadIndex(
                user_loc(),
                message="a value of the layer is not an index: it differs from row to row",
                hint="select with where(index == k, a, b), or sum over a comparison: ((index[..., None] == k) * v).sum(-1)",
            )
    return [i if i is None or isinstance(i, slice) else int(i) for i in given[1:]]


def index_value(v: TracedValue, index: object) -> TracedValue:
    """``v[index]``. Raises BadIndex (an IndexError) for what does not start with ``...``, is out of range, or has a step."""
    parts = _parts(v, index)
    dims = v.dims
    taken = sum(p is not None for p in parts)
    if taken > len(dims):
        raise BadIndex(user_loc(), message=f"{taken} indices for feature dims {_shown(dims)}")
    tracer, out = v._tracer, v._ir
    shape = list(dims[: len(dims) - taken])
    axis = -taken
    for p in parts:
        if p is None:
            shape.append(1)
            continue
        size = dims[axis]
        if isinstance(p, slice):
            if p.step not in (None, 1):
                raise BadIndex(user_loc(), message=f"a slice with step {p.step}", hint="slices of a feature dim have step 1: v[..., a:b]")
            start, stop, _ = _bounds(p, size)
            shape.append(stop - start)
        else:
            if not -size <= p < size:
                raise BadIndex(user_loc(), message=f"index {p} of a feature dim of size {size} (feature dims {_shown(dims)})")
            start = p % size
            stop = start + 1
        if (start, stop) != (0, size):
            out = tracer.op("slice", out, axis=axis, start=start, stop=stop)._ir
        axis += 1
    if tuple(shape) != out.type.dims:
        return tracer.op("reshape", out, dims=tuple(shape))
    return type(v)(tracer, out)


def _bounds(s: slice, size: int) -> tuple[int, int, int]:
    try:
        start, stop, step = s.indices(size)
    except TypeError:
        raise BadIndex(user_loc(), message="the bounds of a slice are ints") from None
    return start, max(start, stop), step
