"""Hypothesis strategies: random graphs, random well-typed layer functions, arguments for them.

What the functions compute is tame on purpose: finite, continuous in every value that is computed (comparisons read inputs only), so that
two ways of computing one function agree to rounding.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func, Value
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.types import F32, Dims, DType, Type, TypeRuleError

FAMILIES: tuple[tuple[Dims, ...], ...] = (((), (3,), (1,)), ((2,), (2, 3), (2, 1), (3,)), ((4,), (2, 4), ()), ((2, 2), (2,), (2, 1), ()))


@st.composite
def graphs(draw: st.DrawFn, square: bool = False) -> GraphArrays:
    """A small graph: often with rows without edges, duplicates and self loops; sometimes without edges or with one node."""
    num_src = draw(st.integers(1, 5))
    num_dst = num_src if square else draw(st.integers(1, 5))
    edges = draw(st.lists(st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1)), max_size=12))
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return GraphArrays(pairs[:, 0].copy(), pairs[:, 1].copy(), num_src, num_dst)


def arguments(func: Func, graph: GraphArrays, seed: int) -> dict[str, Array]:
    """Arguments of `func` by name, rounded to eighths: exact in every float dtype, and with ties."""
    rng = np.random.default_rng(seed)
    out: dict[str, Array] = {}
    for p in func.params:
        shape = p.type.dims if p.type.space == "param" else (graph.rows(p.type.space), *p.type.dims)
        out[p.name] = np.round(np.clip(rng.normal(size=shape), -2, 2) * 8) / 8
    return out


class _Maker:
    """Builds one function by drawing operations over the values made so far."""

    def __init__(self, draw: st.DrawFn, square: bool, dtype: DType) -> None:
        self.draw, self.b, self.square = draw, Builder(square), square
        self.family = draw(st.sampled_from(FAMILIES))
        sides = ["node"] if square else ["src", "dst"]
        spaces = [*sides, *sides, "edge", "param", *draw(st.lists(st.sampled_from(["edge", "param"]), max_size=2))]
        self.params = [self.b.input(f"x{i}", Type(s, dtype, self.dims())) for i, s in enumerate(spaces)]
        self.pool: list[Value] = list(self.params)
        for p in self.params:
            if p.type.is_node:
                self.pool += [self.b.gather(p, end) for end in (["src", "dst"] if square else [p.type.space])]

    def dims(self) -> Dims:
        return self.draw(st.sampled_from(self.family))

    def pick(self, *spaces: str, rank: int = 0) -> Value | None:
        found = [v for v in self.pool if v.type.space in spaces and len(v.type.dims) >= rank]
        if not found:
            return None
        if self.draw(st.booleans()):
            found = found[-4:]  # deep functions: what was made last
        return found[self.draw(st.integers(0, len(found) - 1))]

    def any(self) -> Value:
        found = self.pick("src", "dst", "node", "edge", "param")
        assert found is not None
        return found

    def partner(self, v: Value) -> Value:
        """Another operand for an elementwise operation with `v`."""
        spaces = ("src", "dst", "node", "edge") if v.type.space == "param" else (v.type.space, "param")
        found = self.pick(*spaces)
        return v if found is None else found

    def step(self) -> None:
        often = [self.gather, self.fold, self.binary, self.message, self.attend]
        kinds = [*often, *often, self.unary, self.view, self.reduce, self.dense, self.choose]
        try:
            made = self.draw(st.sampled_from(kinds))()
        except TypeRuleError:
            return
        if made is not None and made.type.size <= 24:
            self.pool.append(made)

    # ---- operations

    def gather(self) -> Value | None:
        v = self.pick("src", "dst", "node")
        if v is None:
            return None
        end = self.draw(st.sampled_from(["src", "dst"])) if self.square else v.type.space
        return self.b.gather(v, str(end))

    def fold(self) -> Value | None:
        m = self.pick("edge")
        if m is None:
            return None
        to = self.draw(st.sampled_from(["dst", "src"]))
        name, part = self.draw(
            st.sampled_from(
                [
                    ("sum", "value"),
                    ("sum", "value"),
                    ("mean", "value"),
                    ("max", "value"),
                    ("min", "value"),
                    ("moments", "var"),
                    ("softmax", ""),
                ]
            )
        )
        if name == "softmax":
            return self.b.op("softmax", m, over=to)
        return self.b.fold(name, m, to=to, part=part)

    def edge(self) -> Value:
        v = self.pick("edge")
        assert v is not None
        return v

    def message(self) -> Value:
        """A fold of a product or sum of several edge values, as layers write it."""
        m = self.edge()
        name = self.draw(st.sampled_from(["mul", "mul", "add", "sub"]))
        for _ in range(self.draw(st.integers(1, 3))):
            m = self.b.op(name, m, self.edge() if self.draw(st.booleans()) else self.partner(m))
        return self.b.fold(self.draw(st.sampled_from(["sum", "sum", "mean", "max"])), m, to=self.draw(st.sampled_from(["dst", "src"])))

    def attend(self) -> Value:
        """A softmax-weighted sum."""
        s, to, b = self.edge(), self.draw(st.sampled_from(["dst", "src"])), self.b
        if s.type.dims:
            s = b.sum(s)
        alpha = b.op("softmax", s, over=to)
        return b.fold("sum", b.mul(b.reshape(alpha, (*alpha.type.dims, 1)), self.edge()), to=to)

    def binary(self) -> Value:
        v = self.any() if self.draw(st.booleans()) else self.edge()
        w = self.partner(v)
        name = self.draw(st.sampled_from(["add", "sub", "mul", "mul", "maximum", "minimum", "div"]))
        if self.draw(st.booleans()):
            v, w = w, v
        if name == "div":  # never near 0
            w = self.b.add(self.b.op("abs", w), self.b.const_like(w, 0.5))
        if name in ("maximum", "minimum"):  # a tie of computed values is one only up to rounding, and so is its gradient
            w = self.b.add(w, self.b.const_like(w, 0.013717))
        return self.b.op(name, v, w)

    def unary(self) -> Value:
        v, b = self.any(), self.b
        name = self.draw(st.sampled_from(["neg", "abs", "relu", "leaky_relu", "tanh", "sigmoid", "exp", "log", "scale", "shift", "clamp"]))
        if name == "exp":
            return b.op("exp", b.op("tanh", v))
        if name == "log":
            return b.op("log", b.add(b.op("abs", v), b.const_like(v, 0.5)))
        if name == "scale":
            return b.mul(b.const_like(v, self.draw(st.sampled_from([-1.0, 0.5, 1.0, 2.0]))), v)
        if name == "shift":
            return b.add(v, b.const_like(v, self.draw(st.sampled_from([0.0, 0.25]))))
        if name == "clamp":
            return b.op("clamp", v, min=-0.75, max=self.draw(st.sampled_from([None, 1.5])))
        return b.op(name, v)

    def view(self) -> Value | None:
        b = self.b
        v = self.any()
        dims = v.type.dims
        name = self.draw(st.sampled_from(["unsqueeze", "flatten", "slice", "broadcast", "concat", "transpose", "pad"]))
        if name == "unsqueeze":
            at = self.draw(st.integers(0, len(dims)))
            return b.reshape(v, (*dims[:at], 1, *dims[at:]))
        if name == "flatten":
            return b.reshape(v, (v.type.size,))
        if name == "broadcast":
            return b.broadcast(v, (2, *dims) if self.draw(st.booleans()) else tuple(3 if d == 1 else d for d in dims))
        if not dims:
            return None
        axis = -self.draw(st.integers(1, len(dims)))
        if name == "slice":
            start = self.draw(st.integers(0, dims[axis]))
            return b.op("slice", v, axis=axis, start=start, stop=self.draw(st.integers(start, dims[axis])))
        if name == "pad":
            return b.op("pad", v, axis=axis, before=self.draw(st.integers(0, 2)), after=self.draw(st.integers(0, 2)))
        if name == "concat":
            return b.op("concat", v, self.partner(v), axis=axis)
        return b.op("transpose", v)

    def reduce(self) -> Value | None:
        v = self.pick("src", "dst", "node", "edge", rank=1)
        if v is None:
            return None
        axis = -self.draw(st.integers(1, len(v.type.dims)))
        name = self.draw(st.sampled_from(["reduce_sum", "reduce_sum", "reduce_max"]))
        return self.b.op(name, v, axis=axis, keepdim=self.draw(st.booleans()))

    def dense(self) -> Value | None:
        v = self.pick("src", "dst", "node", "edge", rank=1)
        if v is None:
            return None
        if v.type.space == "edge" and self.draw(st.booleans()):  # of both ends together, as edge networks write it
            w = self.edge()
            v = self.b.op("concat", v, w, axis=-1) if self.draw(st.booleans()) else self.b.sub(v, w)
            if self.draw(st.booleans()):
                return self.b.sum(self.b.mul(v, self.pick("param") or v))
        k = v.type.dims[-1]
        weight = self.b.input(f"w{k}", Type("param", self.params[0].type.dtype, (k, 2)))
        if weight not in self.params:
            self.params.append(weight)
        return self.b.op("matmul", v, weight)

    def choose(self) -> Value:
        """where(input > 0, a, b): the condition is exact in every way of computing."""
        a = self.any()
        c = self.partner(a)
        known = [v for v in self.params if v.type.space in (a.type.space, "param")]
        test = self.b.op("gt", known[self.draw(st.integers(0, len(known) - 1))] if known else a, self.b.const(0.0, F32))
        return self.b.where(test, a, c)


@st.composite
def funcs(draw: st.DrawFn, dtype: DType = F32, square: bool | None = None, most_steps: int = 16) -> Func:
    """A random layer function of a few operations, verified by construction; one to three results of any space but param."""
    maker = _Maker(draw, draw(st.booleans()) if square is None else square, dtype)
    for _ in range(draw(st.integers(min(4, most_steps), most_steps))):
        maker.step()
    rows = [v for v in maker.pool if v.type.space != "param" and v.op not in ("input", "gather")] or [maker.edge()]
    read = {o for v in rows for o in v.operands}
    ends = [v for v in rows if v not in read][-2:]
    results = [*(ends or rows[-1:]), *(rows[draw(st.integers(0, len(rows) - 1))] for _ in range(draw(st.integers(0, 1))))]
    return Func("random", tuple(maker.params), tuple(results), maker.square)
