"""The built-in folds written directly in numpy, from their meaning and not from their monoids: what the oracle believes.

Each takes the part's name, the messages (``[E, *dims]`` float64, dims aligned), the row of every edge and the number of rows,
and gives ``[rows, *dims]``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from .ops import Array

Index = npt.NDArray[np.int64]
Direct = Callable[[str, list[Array], Index, int], Array]


def _full(m: Array, rows: int, value: float) -> Array:
    return np.full((rows, *m.shape[1:]), value)


def _sum(m: Array, index: Index, rows: int) -> Array:
    out = _full(m, rows, 0.0)
    np.add.at(out, index, m)
    return out


def _degree(m: Array, index: Index, rows: int) -> Array:
    """Edges of a row, shaped to broadcast with a row value."""
    return np.bincount(index, minlength=rows).astype(np.float64).reshape((rows,) + (1,) * (m.ndim - 1))


def _top(m: Array, index: Index, rows: int) -> Array:
    out = _full(m, rows, -np.inf)
    np.maximum.at(out, index, m)  # a NaN wins
    return out


def _first(hit: Array, index: Index, rows: int) -> Array:
    """The lowest edge of a row where `hit` holds, -1 where none does."""
    edges = np.arange(len(index)).reshape((-1,) + (1,) * (hit.ndim - 1))
    out = np.full((rows, *hit.shape[1:]), len(index), np.int64)
    np.minimum.at(out, index, np.where(hit, edges, len(index)))
    return np.where(out == len(index), -1, out)


def _fold_sum(_part: str, args: list[Array], index: Index, rows: int) -> Array:
    return _sum(args[0], index, rows)


def _fold_mean(_part: str, args: list[Array], index: Index, rows: int) -> Array:
    return _sum(args[0], index, rows) / np.maximum(_degree(args[0], index, rows), 1)


def _extremum(sign: float) -> Direct:
    def fold(part: str, args: list[Array], index: Index, rows: int) -> Array:
        m = sign * args[0]
        top = _top(m, index, rows)
        if part == "arg":
            return _first((m == top[index]) | (np.isnan(m) & np.isnan(top[index])), index, rows)
        return np.where(_degree(m, index, rows) > 0, sign * top, 0.0)

    return fold


def _fold_prod(part: str, args: list[Array], index: Index, rows: int) -> Array:
    m = args[0]
    if part == "zeros":
        return _sum((m == 0).astype(np.float64), index, rows)
    out = _full(m, rows, 1.0)
    np.multiply.at(out, index, np.where(m == 0, 1.0, m) if part == "nonzero" else m)
    return out


def _fold_moments(part: str, args: list[Array], index: Index, rows: int) -> Array:
    # Two passes, centred on the row's first message, so that equal messages have exactly their own mean and variance 0.
    m = args[0]
    n = np.maximum(_degree(m, index, rows), 1)
    lead = _first(np.ones(m.shape, bool), index, rows)
    first = np.take_along_axis(m, np.maximum(lead, 0), axis=0) if len(index) else _full(m, rows, 0.0)
    first = np.where(lead < 0, 0.0, first)
    mean = first + _sum(m - first[index], index, rows) / n
    if part == "mean":
        return mean
    var = _sum((m - mean[index]) ** 2, index, rows) / n
    return np.sqrt(var) if part == "std" else var


def _shifted(s: Array, index: Index, rows: int) -> tuple[Array, Array, Array]:
    """(shift of each row, exponentials, their sums). A row of -inf alone is not shifted: its sum is 0."""
    top = _top(s, index, rows)
    shift = np.where(top == -np.inf, 0.0, top)
    p = np.exp(s - shift[index])
    return shift, p, _sum(p, index, rows)


def _fold_logsumexp(part: str, args: list[Array], index: Index, rows: int) -> Array:
    shift, _, z = _shifted(args[0], index, rows)
    if part == "lse":
        return shift + np.log(z)
    return np.where(np.isposinf(shift), shift, shift + np.log(z))


def _fold_softmax_sum(part: str, args: list[Array], index: Index, rows: int) -> Array:
    s, v = args
    shift, p, z = _shifted(s, index, rows)
    if part == "lse":
        return shift + np.log(z)
    weighted = p * v
    return np.where(_degree(weighted, index, rows) > 0, _sum(weighted, index, rows) / z, 0.0)


DIRECT: dict[str, Direct] = {
    "sum": _fold_sum,
    "mean": _fold_mean,
    "max": _extremum(1.0),
    "min": _extremum(-1.0),
    "maxonly": _extremum(1.0),
    "minonly": _extremum(-1.0),
    "prod": _fold_prod,
    "moments": _fold_moments,
    "logsumexp": _fold_logsumexp,
    "softmax_sum": _fold_softmax_sum,
}
