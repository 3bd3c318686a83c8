"""Does a program fit the ``[H, C]``, ``[H]``, ``[C]``, scalar algebra? Names every value's dims, or says what does not fit.

Axes that must be the same are joined (aligned operands of an elementwise operation, what a reduction keeps, what a reshape only
moves past 1s, the components of one state). A value of two axes puts them in order: heads, then channels. Axes that no value orders
become channels, which vectorise. A program without feature reductions whose values are all of one size runs *flat*: whatever its rank,
it is one row of channels, which may be cut into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...ir.core import Value
from ...ir.types import Dims
from ..cpu.elementwise import ELEMENTWISE
from ..cpu.program import Program, View, contiguous
from ..cpu.views import SHAPE_OPS, view_of
from .ops import const_of

SHAPES = ELEMENTWISE | {"input", "const", "iota", "reshape", "broadcast", "reduce_sum", "reduce_max"}
"""Operations that the fragment path has."""

Flags = tuple[bool, bool]
"""Whether a value has heads and channels."""


class DoesNotFit(Exception):
    """The program needs the general path; the message says why."""


@dataclass
class Fit:
    """``heads`` x ``chans`` is the widest shape; ``flags`` that of every value; ``views``: values read as a part of a wider row."""

    heads: int
    chans: int
    flat: bool
    flags: dict[Value, Flags] = field(default_factory=dict)
    views: dict[Value, View] = field(default_factory=dict)

    def of(self, v: Value) -> Flags:
        return self.flags[v]


def roots_of(p: Program) -> list[Value]:
    """Everything that a program must compute."""
    states = [v for c in p.components for v in (c.step, c.combined)]
    return [*states, *(c.sink.value for c in p.carries), *(s.value for _r, s in p.stores)]


def fit_shapes(p: Program) -> Fit:
    """The shapes of a program. Raises DoesNotFit."""
    views: dict[Value, View] = {}
    values = _values(p, views)
    for v in values:
        if v.op not in SHAPES and v not in views:
            raise DoesNotFit(f"{v.op} of feature dims {list(v.type.dims)}")
        if v.type.size == 0:
            raise DoesNotFit("a feature dim of size 0")
    for c in p.carries:
        if c.sink.target.strides != contiguous(c.type.dims) or c.sink.value.type.dims != c.type.dims:
            raise DoesNotFit("contract_rows of edge or row values")
    flat = _flat(values, views)
    if flat is not None:
        try:
            return _with_views(p, flat, views)
        except DoesNotFit:
            pass  # parts of rows that are no single run: heads may still lie apart
    return _with_views(p, _two_axes(p, values, views), views)


def _with_views(p: Program, fit: Fit, views: dict[Value, View]) -> Fit:
    """``fit`` with its views. Raises DoesNotFit where a view or a store cannot be walked with its layout."""
    fit.views = views
    for v, view in views.items():
        check_strides(fit, fit.of(v), v, view)
    for _region, s in p.stores:
        if s.target.strides != contiguous(s.value.type.dims):
            check_strides(fit, fit.of(s.value), s.value, s.target)
    return fit


def _values(p: Program, views: dict[Value, View]) -> list[Value]:
    """Every value of the program, operands first. A slice of a buffer counts as a load; those found are put into ``views``."""
    out: list[Value] = []
    seen: set[Value] = set()
    for root in roots_of(p):
        stack: list[tuple[Value, bool]] = [(root, False)]
        while stack:
            v, ready = stack.pop()
            if ready:
                out.append(v)
                continue
            if v in seen:
                continue
            seen.add(v)
            stack.append((v, True))
            view = _leaf_view(p, v) if v.op == "slice" else None
            if view is not None:
                views[v] = view
            else:
                stack += [(o, False) for o in reversed(v.operands)]
    return out


def _leaf_view(p: Program, v: Value) -> View | None:
    """Where ``v`` lies in a buffer, if it is made of one by shape operations alone."""
    chain = []
    while v.op in SHAPE_OPS:
        chain.append(v)
        v = v.operands[0]
    if p.leaves.get(v, ("", 0))[0] not in ("row", "other", "edge", "param"):
        return None
    view: View | None = View(p.leaves[v], v.type.dtype, 0, contiguous(v.type.dims))
    for step in reversed(chain):
        view = view_of(step, view) if view is not None else None
    return view


def head_stride(fit: Fit, flags: Flags, v: Value, view: View) -> int:
    """Elements between the heads of a view, 0 where it has none or they lie as channels do."""
    if fit.flat or not flags[0]:
        return 0
    return next(s for d, s in zip(v.type.dims, view.strides, strict=True) if d != 1)


def check_strides(fit: Fit, flags: Flags, v: Value, view: View) -> None:
    """Raises DoesNotFit where neighbouring channels do not lie side by side."""
    wide = [(d, s) for d, s in zip(v.type.dims, view.strides, strict=True) if d != 1]
    runs = wide if fit.flat else wide[-1:] if flags[1] else []
    step = 1
    for d, s in reversed(runs):
        if s != step:
            raise DoesNotFit(f"{v.op} whose elements are {s} apart")
        step *= d


def _flat(values: Sequence[Value], views: dict[Value, View]) -> Fit | None:
    wide = {v.type.size for v in values if v.type.size > 1 and const_of(v) is None}
    if len(wide) > 1:
        return None
    size = wide.pop() if wide else 1
    for v in values:
        if v in views:
            continue
        if v.op in ("reduce_sum", "reduce_max") and v.operands[0].type.size != v.type.size:
            return None
        if const_of(v) is not None and v.type.size not in (1, size):
            return None
        if v.op == "iota" and v.type.size not in (1, size):
            return None
        # A flat reading of [a, b] beside [a * b] is right only while nobody aligns the one with the other's axes.
        if v.op in ELEMENTWISE and any(o.type.size == v.type.size and _squeezed(o.type.dims) != _squeezed(v.type.dims) for o in v.operands):
            return None
    return Fit(1, size, True, {v: (v.type.size > 1, v.type.size > 1) for v in values})


def _squeezed(dims: Dims) -> Dims:
    return tuple(d for d in dims if d != 1)


class _Axes:
    """Union-find over (value, position of an axis)."""

    def __init__(self) -> None:
        self.parent: dict[tuple[Value, int], tuple[Value, int]] = {}

    def root(self, a: tuple[Value, int]) -> tuple[Value, int]:
        self.parent.setdefault(a, a)
        while self.parent[a] != a:
            self.parent[a] = self.parent[self.parent[a]]
            a = self.parent[a]
        return a

    def join(self, a: tuple[Value, int], b: tuple[Value, int]) -> None:
        self.parent[self.root(b)] = self.root(a)


def _wide_axes(v: Value) -> list[int]:
    """Negative positions of the axes that are not 1."""
    n = len(v.type.dims)
    return [i - n for i, d in enumerate(v.type.dims) if d != 1]


def _two_axes(p: Program, values: Sequence[Value], views: dict[Value, View]) -> Fit:
    axes = _Axes()
    for v in values:
        if len(_wide_axes(v)) > 2:
            raise DoesNotFit(f"{v.op} has more than two feature dims: {list(v.type.dims)}")
        for o in v.operands if v not in views else ():
            if v.op in ELEMENTWISE or v.op == "broadcast":
                for a in _wide_axes(o):
                    axes.join((v, a), (o, a))
            elif v.op == "reshape":
                if _squeezed(o.type.dims) != _squeezed(v.type.dims):
                    raise DoesNotFit(f"reshape of {list(o.type.dims)} to {list(v.type.dims)}")
                for a, c in zip(_wide_axes(v), _wide_axes(o), strict=True):
                    axes.join((v, a), (o, c))
            else:
                gone, keep = v.attr("axis"), v.attr("keepdim")
                for a in _wide_axes(o):
                    if a != gone:
                        axes.join((v, a if keep or a > gone else a + 1), (o, a))
    _join_states(p, axes)
    ordered: dict[tuple[Value, int], str] = {}
    size: dict[tuple[Value, int], int] = {}
    for v in values:
        mine = [axes.root((v, a)) for a in _wide_axes(v)]
        for a, r in zip(_wide_axes(v), mine, strict=True):
            size[r] = v.type.dims[a]
        for r, kind in zip(mine, "HC", strict=False) if len(mine) == 2 else ():
            if ordered.setdefault(r, kind) != kind:
                raise DoesNotFit("one axis is both the first and the second of two feature dims")
    sizes = {k: {size[r] for r, kind in ordered.items() if kind == k} for k in "HC"}
    for k, found in sizes.items():
        if len(found) > 1:
            raise DoesNotFit(f"{'heads' if k == 'H' else 'channels'} of different sizes: {sorted(found)}")
    heads, chans = (next(iter(sizes[k]), 0) for k in "HC")
    for r, n in size.items():
        if r in ordered:
            continue
        if chans in (0, n):
            ordered[r], chans = "C", n
        elif heads in (0, n):
            ordered[r], heads = "H", n
        else:
            raise DoesNotFit(f"feature dims of three sizes: {sorted({heads, chans, n})}")
    fit = Fit(heads or 1, chans or 1, False)
    for v in values:
        kinds = {ordered[axes.root((v, a))] for a in _wide_axes(v)}
        fit.flags[v] = ("H" in kinds, "C" in kinds)
    return fit


def _join_states(p: Program, axes: _Axes) -> None:
    """A component has one shape in every role, and so has a carry."""
    homes: dict[tuple[str, int], Value] = {}
    pairs: list[tuple[str, int, Value]] = [("state", n, v) for n, c in enumerate(p.components) for v in (c.old, c.step, c.combined)]
    pairs += [("carry", n, c.sink.value) for n, c in enumerate(p.carries)]
    for leaf, (kind, n) in p.leaves.items():
        if kind in ("state", "image", "carry"):
            pairs.append(("carry" if kind == "carry" else "state", n, leaf))
    for kind, n, v in pairs:
        home = homes.setdefault((kind, n), v)
        if home is not v:
            for a, c in zip(_wide_axes(home), _wide_axes(v), strict=True):
                axes.join((home, a), (v, c))
