"""Moves edge work to the nodes: what hangs on one end of an edge is computed once a node and gathered.

A `Site` is one round of `simplify` over one function: who reads what, which end each edge value hangs on, and the new values made so
far. `hoist` moves a one-sided operation; `distribute` splits a product over parts so that some of them become one-sided.

Prices are in bytes: a gathered row is paid once an edge, a new node table is written and read once a node, and a nominal node
has `MEAN_DEGREE` edges.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnc.ir.core import Func, Value
from gnnc.ir.ops import get_op

from .algebra import Algebra, aligned
from .storage import layer_storage, stored_dtype

MEAN_DEGREE = 16
MOST_PARTS = 64
REDUCING = ("matmul", "reduce_sum", "reduce_max", "argmax")
VIEWS = ("reshape", "broadcast", "slice", "transpose", "pad", "concat")


class Site:
    """One round over ``func``. ``env``: new value of each old one; ``side``: ``param``, ``src``, ``dst`` or ``edge`` (both ends, or data
    of the edge itself) for each old edge or param value."""

    def __init__(self, a: Algebra, func: Func) -> None:
        self.a, self.func = a, func
        self.users = func.users()
        self.results = set(func.results)
        self.order = {v: i for i, v in enumerate(func.values())}
        self.storage = layer_storage(func)
        self.env: dict[Value, Value] = {p: a.b.input(p.name, p.type) for p in func.params}
        self.side: dict[Value, str] = {}
        self.nodes: dict[Value, Value] = {}
        self.hoisted: set[Value] = set()
        for v in func.values():
            self.side[v] = self._side(v)

    def _side(self, v: Value) -> str:
        if v.type.space == "param" or v.op == "spread":
            return "param"
        if v.op == "gather":
            return str(v.attr("end"))
        if v.type.space != "edge" or v.op == "input" or get_op(v.op).kind not in ("elementwise", "feature", "dense"):
            return "edge"
        return self.join([self.side[o] for o in v.operands])

    @staticmethod
    def join(sides: list[str]) -> str:
        rows = {s for s in sides if s != "param"}
        return "param" if not rows else rows.pop() if len(rows) == 1 else "edge"

    def only_user(self, v: Value) -> Value | None:
        """The one operation that reads `v`, if there is just one and `v` is no result."""
        users = self.users[v]
        return users[0] if len(users) == 1 and v not in self.results else None

    def bytes(self, v: Value) -> int:
        return v.type.size * stored_dtype(v, self.storage).bytes

    def at_nodes(self, v: Value) -> Value:
        """The one-sided old value `v` computed at its end: a new value of a node space or a parameter."""
        stack = [v]
        while stack:
            u = stack[-1]
            if u in self.nodes:
                stack.pop()
            elif u.type.space == "param":
                self.nodes[u] = self.env[u]
            elif u.op in ("gather", "spread"):
                self.nodes[u] = self.env[u.operands[0]]
            elif missing := [o for o in u.operands if o not in self.nodes]:
                stack.extend(missing)
            else:
                with self.a.b.at(u.loc):
                    self.nodes[u] = self.a.copy(u, tuple(self.nodes[o] for o in u.operands))
        return self.nodes[v]

    def tables(self, v: Value) -> tuple[list[Value], set[Value]]:
        """What the one-sided `v` reads through gathers (old values, in order), and those of them that nothing but `v` reads."""
        cone: set[Value] = set()
        stack = [v]
        while stack:
            u = stack.pop()
            if u not in cone and u.type.space == "edge" and self.side[u] != "param":
                cone.add(u)
                if u is v or (u.op != "gather" and u not in self.hoisted):
                    stack.extend(u.operands)
        own = {v}
        for u in sorted(cone - {v}, key=self.order.__getitem__, reverse=True):
            if u not in self.results and all(user in own for user in self.users[u]):
                own.add(u)
        leaves = [u for u in sorted(cone - {v}, key=self.order.__getitem__) if u.op == "gather" or u in self.hoisted]
        return leaves, own

    def is_made_here(self, table: Value) -> bool:
        """Whether a gathered value is computed on the nodes by row operations for this gather alone: writing something else in
        its place costs nothing."""
        if table.op != "gather":
            return True
        v = table.operands[0]
        return v.op not in ("input", "matmul", "contract_rows") and v not in self.results and len(self.users[v]) == 1


def _pays(site: Site, v: Value) -> bool:
    leaves, own = site.tables(v)
    owned = [t for t in leaves if t in own]
    freed, cost = sum(map(site.bytes, owned)), site.bytes(v)
    if not owned or freed < cost:
        return False
    if len(leaves) == 1:
        return True
    widest = max(owned, key=site.bytes)
    return merge_pays(site, freed, cost, widest)


def merge_pays(site: Site, freed: int, cost: int, widest: Value) -> bool:
    """Whether gathering one table of `cost` bytes a row is worth a new table in place of gathers of `freed` bytes."""
    return MEAN_DEGREE * (freed - cost) >= 2 * cost or (site.bytes(widest) >= cost and site.is_made_here(widest))


def hoist(site: Site, v: Value) -> Value | None:
    """A one-sided edge operation as a gather of the same at the nodes: always for products with a weight and reductions, for
    elementwise ones where no more bytes are gathered than before. None otherwise."""
    end = site.side[v]
    if v.type.space != "edge" or end not in ("src", "dst") or v.op == "gather" or v.op in VIEWS:
        return None
    if v.op not in REDUCING and not _pays(site, v):
        return None
    site.hoisted.add(v)
    return site.a.gather(site.at_nodes(v), end)


# ---- splitting


@dataclass(frozen=True)
class Part:
    """``sign`` times an old value that covers ``start:stop`` of the contracted axis."""

    value: Value
    sign: int
    start: int
    stop: int


def _parts(site: Site, v: Value, axis: int, size: int) -> list[Part]:
    """`v` as a sum of parts along `axis`, read through sums, differences and concatenations of both ends."""
    found: list[Part] = []
    stack = [Part(v, 1, 0, size)]
    while stack:
        p = stack.pop()
        u = p.value
        if site.side[u] != "edge" or len(found) + len(stack) > MOST_PARTS:
            found.append(p)
        elif u.op in ("neg", "add", "sub"):
            last = -p.sign if u.op in ("neg", "sub") else p.sign
            stack.append(replace(p, value=u.operands[-1], sign=last))
            if len(u.operands) == 2:
                stack.append(replace(p, value=u.operands[0]))
        elif u.op == "concat" and u.attr("axis") == axis:
            at, inner = p.start, []
            for o in u.operands:
                inner.append(Part(o, p.sign, at, at + o.type.dims[axis]))
                at = inner[-1].stop
            stack.extend(reversed(inner))
        else:
            found.append(p)
    return found


def _product(v: Value) -> list[Value]:
    found: list[Value] = []
    stack = [v]
    while stack:
        u = stack.pop()
        if u.op == "mul" and len(found) + len(stack) < MOST_PARTS:
            stack.extend(reversed(u.operands))
        else:
            found.append(u)
    return found


def distribute(site: Site, v: Value) -> Value | None:
    """``concat(xi, xj) @ w`` and ``(att * concat(xi, xj)).sum(axis)`` as sums over the parts, where some parts go to the nodes and less
    is left on the edges. None otherwise."""
    if v.op not in ("matmul", "reduce_sum") or site.side[v] != "edge" or v.get("keepdim"):
        return None  # a kept axis is a view behind the sum in the next round
    axis = -1 if v.op == "matmul" else v.attr("axis")
    whole, rest = v.operands[0], list(v.operands[1:])
    size = whole.type.dims[axis]
    if v.op == "reduce_sum":
        factors = _product(whole)
        spread = [f for f in factors if len(f.type.dims) >= -axis and f.type.dims[axis] == size and len(_parts(site, f, axis, size)) > 1]
        if not spread:
            return None
        whole = spread[0]
        factors.remove(whole)
        rest = factors
    parts = _parts(site, whole, axis, size)
    sides = [Site.join([site.side[p.value], *(site.side[r] for r in rest)]) for p in parts]
    left = {(p.start, p.stop) for p, s in zip(parts, sides, strict=True) if s == "edge"}
    if all(s == "edge" for s in sides) or sum(b - a for a, b in left) >= size or len(parts) == 1:
        return None
    a, total = site.a, None
    for side in ("src", "dst", "param", "edge"):
        here = [p for p, s in zip(parts, sides, strict=True) if s == side]
        done = _contract(site, v, here, rest, axis, side)
        if done is not None:
            at_edge = a.gather(done, side) if side in ("src", "dst") else done
            total = at_edge if total is None else a.add(total, at_edge)
    assert total is not None
    return a.conform(total, v.type)


def _contract(site: Site, v: Value, parts: list[Part], rest: list[Value], axis: int, side: str) -> Value | None:
    """Sum over `parts` of one side of their share of `v`."""
    a = site.a
    new = site.env.__getitem__ if side == "edge" else site.at_nodes
    sums: dict[tuple[int, int], Value] = {}
    for p in parts:
        n, x = p.stop - p.start, new(p.value)
        dims = aligned(x.type.dims, max(len(x.type.dims), -axis))
        i = len(dims) + axis
        x = a.broadcast(x, (*dims[:i], n, *dims[i + 1 :]))
        key = (p.start, p.stop)
        if key in sums:
            sums[key] = a.op("add" if p.sign > 0 else "sub", sums[key], x)
        else:
            sums[key] = x if p.sign > 0 else a.neg(x)
    total = None
    for (start, stop), x in sums.items():
        if v.op == "matmul":
            share = a.op("matmul", x, a.slice(new(rest[0]), -2, start, stop))
        else:
            for r in rest:
                x = a.mul(x, _along(a, new(r), axis, start, stop))
            share = a.op("reduce_sum", x, axis=axis)
        total = share if total is None else a.add(total, share)
    return total


def _along(a: Algebra, x: Value, axis: int, start: int, stop: int) -> Value:
    return a.slice(x, axis, start, stop) if len(x.type.dims) >= -axis and x.type.dims[axis] != 1 else x
