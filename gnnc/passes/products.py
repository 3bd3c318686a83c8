"""Products as multisets of factors: what leaves a fold, what meets at the nodes, what is a known sum.

`flatten` reads a product through multiplications, divisions and reshapes that only add 1s. A factor that is the same for all edges
of a row leaves the fold over that row (`pull`): out of sum and mean whatever it is, out of max and min where it is known
to be positive. A row without edges stays 0 even where the factor is infinite: the result is guarded unless the factor is known there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gnnc.ir.core import Value
from gnnc.ir.types import Dims

from .algebra import Algebra, aligned, only_ones_moved
from .facts import harmless_when_empty, is_positive
from .hoist import Site, merge_pays

MOST_FACTORS = 64
LINEAR = ("sum", "mean")
EXTREMA = ("max", "min")


@dataclass(frozen=True)
class Factor:
    """An old value under dims that differ from its own in 1s alone (leading 1s dropped); ``inverse``: it divides."""

    value: Value
    dims: Dims
    inverse: bool = False


def _strip(dims: Dims) -> Dims:
    while dims and dims[0] == 1:
        dims = dims[1:]
    return dims


def _under(dims: Dims, old: Dims, new: Dims) -> Dims:
    """A factor's dims after a reshape of the product from `old` to `new`, which differ in 1s alone."""
    full = aligned(dims, len(old))
    kept = [f for f, d in zip(full, old, strict=True) if d != 1]
    return _strip(tuple(1 if d == 1 else kept.pop(0) for d in new))


def flatten(site: Site, v: Value, deep: bool = False) -> tuple[list[Factor], int]:
    """The factors of `v` in order, and its sign. Unless `deep`, a product with other readers is a factor as it is; so is whatever
    would make them more than `MOST_FACTORS`."""
    found: list[Factor] = []
    sign = 1
    stack: list[tuple[Value, tuple[tuple[Dims, Dims], ...], bool]] = [(v, (), False)]
    while stack:
        u, path, inverse = stack.pop()
        opens = (u is v or deep or site.only_user(u) is not None) and u.type.space != "param" and len(found) + len(stack) < MOST_FACTORS
        if opens and u.op == "neg":
            sign = -sign
            stack.append((u.operands[0], path, inverse))
        elif opens and u.op in ("mul", "div"):
            stack.append((u.operands[1], path, inverse != (u.op == "div")))
            stack.append((u.operands[0], path, inverse))
        elif opens and u.op == "broadcast":
            stack.append((u.operands[0], path, inverse))
        elif u.op == "reshape" and u.type.space != "param" and only_ones_moved(u.operands[0].type.dims, u.type.dims):
            inside = u.operands[0]
            path = ((inside.type.dims, u.type.dims), *path)
            if opens:
                stack.append((inside, path, inverse))
            else:
                found.append(_factor(inside, path, inverse))
        else:
            found.append(_factor(u, path, inverse))
    return found, sign


def _factor(v: Value, path: tuple[tuple[Dims, Dims], ...], inverse: bool) -> Factor:
    """`v` behind the reshapes of `path`, the innermost first."""
    dims = _strip(v.type.dims)
    for old, new in path:
        dims = _under(dims, old, new)
    return Factor(v, dims, inverse)


def multiply(a: Algebra, terms: list[tuple[Value, bool]]) -> Value:
    """The product of (value, inverse), narrow ones first so that little is computed at full width."""
    total: Value | None = None
    for v, inverse in sorted(terms, key=lambda t: (t[1], t[0].type.size, a.key(t[0]))):
        if total is None:
            total = a.op("div", a.b.const_like(v, 1.0), v) if inverse else v
        else:
            total = a.op("div" if inverse else "mul", total, v)
    assert total is not None
    return total


def _on_edges(site: Site, factors: list[Factor]) -> Value:
    return multiply(site.a, [(site.a.reshape(site.env[f.value], f.dims), f.inverse) for f in factors])


def _on_nodes(site: Site, factors: list[Factor]) -> Value:
    return multiply(site.a, [(site.a.reshape(site.at_nodes(f.value), f.dims), f.inverse) for f in factors])


# ---- folds


def pull(site: Site, v: Value) -> Value | None:
    """A fold without the factors (of max and min: also the addends) that are the same for all edges of a row. None: nothing leaves."""
    if v.op != "fold" or v.attr("monoid") not in (*LINEAR, *EXTREMA) or any(m.name == v.attr("monoid") for m in site.func.monoids):
        return None
    m = v.operands[0]
    if m in site.results or any(u.op != "fold" or u.attr("to") != v.attr("to") for u in site.users[m]):
        return None
    if v.attr("monoid") in EXTREMA:
        found = _pull_positive(site, v)
        return found if found is not None else _pull_addends(site, v)
    found = _pull_linear(site, v)
    return found if found is not None else _pull_matmul(site, v)


def _guarded(a: Algebra, x: Value, scale: Value, end: str) -> Value:
    return x if harmless_when_empty(scale, end) else a.guard(x, end)


def _pull_linear(site: Site, v: Value) -> Value | None:
    a, end = site.a, v.attr("to")
    factors, sign = flatten(site, v.operands[0])
    out = [f for f in factors if site.side[f.value] in (end, "param")]
    kept = [f for f in factors if site.side[f.value] not in (end, "param")]
    if not out or not _all_pull(site, v.operands[0], out):
        return None
    scale = _on_nodes(site, out)
    if kept:
        total = a.mul(a.op("fold", _on_edges(site, kept), **dict(v.attrs)), scale)
    elif v.attr("monoid") == "sum":
        degree = a.b.degree(end, v.type.dtype)
        total = a.mul(scale, a.reshape(degree, (1,) * len(scale.type.dims)) if scale.type.dims else degree)
    else:
        return a.conform(a.guard(scale if sign > 0 else a.neg(scale), end), v.type)
    return a.conform(_guarded(a, total if sign > 0 else a.neg(total), scale, end), v.type)


def _all_pull(site: Site, m: Value, out: list[Factor]) -> bool:
    """Whether every fold of `m` lets these factors go: else their product would be computed twice an edge."""
    extrema = [u for u in site.users[m] if u.attr("monoid") not in LINEAR]
    return all(u.attr("monoid") in EXTREMA for u in extrema) and (not extrema or all(is_positive(f.value) for f in out))


def _pull_positive(site: Site, v: Value) -> Value | None:
    a, end = site.a, v.attr("to")
    factors, sign = flatten(site, v.operands[0])
    out = [f for f in factors if site.side[f.value] in (end, "param") and is_positive(f.value)]
    kept = [f for f in factors if f not in out]
    if not out or not kept or not _all_pull(site, v.operands[0], out):
        return None
    if site.join([site.side[f.value] for f in kept]) == "param":
        return None
    message = _on_edges(site, kept)
    best = a.op("fold", message if sign > 0 else a.neg(message), **dict(v.attrs))
    if v.attr("part") != "value":
        return a.conform(best, v.type)
    scale = _on_nodes(site, out)
    return a.conform(_guarded(a, a.mul(best, scale), scale, end), v.type)


def _addends(site: Site, v: Value) -> list[tuple[Value, int]]:
    """The terms of a sum nobody else reads the parts of, each with its sign."""
    found: list[tuple[Value, int]] = []
    stack = [(v, 1)]
    while stack:
        u, sign = stack.pop()
        if u.op in ("neg", "add", "sub") and (u is v or site.only_user(u) is not None):
            last = -sign if u.op in ("neg", "sub") else sign
            stack.append((u.operands[-1], last))
            if len(u.operands) == 2:
                stack.append((u.operands[0], sign))
        else:
            found.append((u, sign))
    return found


def _total(a: Algebra, terms: list[tuple[Value, int]]) -> Value:
    first, *more = sorted(terms, key=lambda t: -t[1])
    total = first[0] if first[1] > 0 else a.neg(first[0])
    for x, sign in more:
        total = a.op("add" if sign > 0 else "sub", total, x)
    return total


def _pull_addends(site: Site, v: Value) -> Value | None:
    a, end, m = site.a, v.attr("to"), v.operands[0]
    if not v.type.dtype.is_float and v.attr("part") == "value":
        return None
    if any(u.attr("monoid") not in EXTREMA for u in site.users[m]):
        return None
    terms = _addends(site, m)
    out = [t for t in terms if site.side[t[0]] in (end, "param")]
    kept = [t for t in terms if site.side[t[0]] not in (end, "param")]
    if not out or not kept:
        return None
    best = a.op("fold", _total(a, [(site.env[x], s) for x, s in kept]), **dict(v.attrs))
    if v.attr("part") != "value":
        return a.conform(best, v.type)
    return a.conform(a.guard(a.add(best, _total(a, [(site.at_nodes(x), s) for x, s in out])), end), v.type)


def _pull_matmul(site: Site, v: Value) -> Value | None:
    """``sum(a * (m @ w))`` as ``sum(a * m) @ w`` where m is an edge value of its own: one product a row in place of one an edge."""
    a, end = site.a, v.attr("to")
    factors, sign = flatten(site, v.operands[0])
    dense = [f for f in factors if f.value.op == "matmul" and not f.inverse and site.side[f.value] == "edge"]
    if len(dense) != 1 or dense[0].dims != _strip(dense[0].value.type.dims):
        return None
    product = dense[0].value
    rest = [f for f in factors if f is not dense[0]]
    if any(f.dims and f.dims[-1] != 1 for f in rest) or any(
        u not in _chain(site, v.operands[0]) and u is not v for u in site.users[product]
    ):
        return None
    x, w = product.operands
    terms = [(site.env[x], False), *((a.reshape(site.env[f.value], f.dims), f.inverse) for f in rest)]
    total = a.op("matmul", a.op("fold", multiply(a, terms), **dict(v.attrs)), site.env[w])
    return a.conform(a.guard(total if sign > 0 else a.neg(total), end), v.type)


def _chain(site: Site, v: Value) -> set[Value]:
    """The operations that `flatten` looks through."""
    found: set[Value] = set()
    stack = [v]
    while stack:
        u = stack.pop()
        if u.op in ("mul", "div", "neg", "reshape", "broadcast") and (u is v or site.only_user(u) is not None):
            found.add(u)
            stack.extend(u.operands)
    return found


# ---- sums that exist already


@dataclass(frozen=True)
class KnownSum:
    """A fold that is ``sum over an axis (row factors * partner)`` for another fold of the function."""

    partner: Value
    row: tuple[Factor, ...]
    axis: int
    sign: int
    dims: Dims


def known_sums(site: Site) -> dict[Value, KnownSum]:
    """Folds ``sum(a * (gather(q) * v).sum(-1))`` next to a fold ``sum(a * v)``, which make them ``(q * sum(a * v)).sum(-1)``: the
    flash identity ``sum(alpha * dalpha) = dout . out``, found by comparing factors."""
    sums = [v for v in site.func.body if v.op == "fold" and v.attr("monoid") == "sum"]
    by_factors: dict[tuple[str, frozenset[tuple[Factor, int]]], tuple[Value, int]] = {}
    for v in sums:
        factors, sign = flatten(site, v.operands[0], deep=True)
        by_factors.setdefault((v.attr("to"), frozenset(Counter(factors).items())), (v, sign))
    found = {}
    for v in sums:
        known = _known_sum(site, v, by_factors)
        if known is not None and known.partner is not v:
            found[v] = known
    return found


def _known_sum(site: Site, v: Value, by_factors: dict[tuple[str, frozenset[tuple[Factor, int]]], tuple[Value, int]]) -> KnownSum | None:
    end = v.attr("to")
    factors, sign = flatten(site, v.operands[0], deep=True)
    inner = [f for f in factors if f.value.op == "reduce_sum" and not f.inverse]
    if len(inner) != 1 or inner[0].dims != _strip(v.operands[0].type.dims):
        return None
    total = inner[0].value
    axis, product = total.attr("axis"), total.operands[0]
    if total.attr("keepdim"):
        return None
    under, sign2 = flatten(site, product, deep=True)
    row = [f for f in under if site.side[f.value] == end]
    rest = [f for f in under if site.side[f.value] != end]
    if not row:
        return None
    # The outer factors, as they stand under the sum: with the summed axis as a 1.
    for f in factors:
        if f is not inner[0]:
            back = (
                _under(f.dims, v.operands[0].type.dims, total.type.dims)
                if only_ones_moved(v.operands[0].type.dims, total.type.dims)
                else None
            )
            if back is None:
                return None
            at = len(product.type.dims) + axis
            full = aligned(back, len(total.type.dims))
            rest.append(Factor(f.value, _strip((*full[:at], 1, *full[at:])), f.inverse))
    hit = by_factors.get((end, frozenset(Counter(rest).items())))
    return None if hit is None else KnownSum(hit[0], tuple(row), axis, sign * sign2 * hit[1], product.type.dims)


def use_known_sum(site: Site, v: Value, known: KnownSum) -> Value:
    """The fold `v` through its partner, which is rebuilt already."""
    a, end = site.a, v.attr("to")
    scale = _on_nodes(site, list(known.row))
    partner = site.env[known.partner]
    product = a.mul(partner, scale)
    product = a.broadcast(product, known.dims)
    total = a.op("reduce_sum", product, axis=known.axis)
    total = _guarded(a, total if known.sign > 0 else a.neg(total), scale, end)
    return a.conform(a.reshape(total, v.type.dims), v.type)


# ---- products on the edges


def _continues(site: Site, v: Value) -> bool:
    """Whether `v` is an inner part of a larger product."""
    user = site.only_user(v)
    while user is not None and user.op == "reshape" and only_ones_moved(user.type.dims, user.operands[0].type.dims):
        user = site.only_user(user)
    return user is not None and user.op in ("mul", "div", "neg")


def regroup(site: Site, v: Value) -> Value | None:
    """A product on the edges with the factors of one end multiplied at the nodes, where that gathers less. None otherwise."""
    if v.op not in ("mul", "div") or v.type.space != "edge" or site.side[v] != "edge" or _continues(site, v):
        return None
    a = site.a
    factors, sign = flatten(site, v)
    merged: list[tuple[Value, bool]] = []
    used: list[Factor] = []
    for end in ("src", "dst"):
        group = [f for f in factors if f.value.op == "gather" and site.side[f.value] == end and site.only_user(f.value) is not None]
        for some in _merge(site, group):
            merged.append((a.gather(_on_nodes(site, some), end), False))
            used += some
    if not used:
        return None
    rest = [f for f in factors if f not in used]
    terms = [*merged, *((a.reshape(site.env[f.value], f.dims), f.inverse) for f in rest)]
    total = multiply(a, terms)
    return a.conform(total if sign > 0 else a.neg(total), v.type)


def _merge(site: Site, group: list[Factor]) -> list[list[Factor]]:
    """Which of the factors gathered at one end to multiply there: equal dims always, a narrow one with a wide one by price."""
    by_dims: dict[Dims, list[Factor]] = {}
    for f in group:
        by_dims.setdefault(f.dims, []).append(f)
    buckets = [by_dims[d] for d in sorted(by_dims, key=lambda d: (_size(d), d))]
    if not buckets:
        return []
    wide = buckets[-1]
    for narrow in list(buckets[:-1]):
        fits = (
            all(n in (1, w) for n, w in zip(aligned(narrow[0].dims, len(wide[0].dims)), wide[0].dims, strict=True))
            if len(narrow[0].dims) <= len(wide[0].dims)
            else False
        )
        freed = sum(site.bytes(f.value) for f in [*narrow, *wide])
        if fits and merge_pays(site, freed, site.bytes(wide[0].value), wide[0].value):
            wide = [*narrow, *wide]
            buckets = [b for b in buckets[:-1] if b is not narrow] + [wide]
    return [b for b in buckets if len(b) > 1]


def _size(dims: Dims) -> int:
    n = 1
    for d in dims:
        n *= d
    return n
