"""Makes values: infers types, interns equal operations, and rebuilds functions for passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .core import Attr, Attrs, Func, Loc, Value, topological
from .ops import RuleContext, get_op
from .types import BOOL, F32, I32, Dims, DType, Type, TypeRuleError

if TYPE_CHECKING:
    from .monoid import Monoid


def attr_key(attr: Attr) -> object:
    """Attributes by value *and* kind: 1, 1.0 and True are different, so are 0.0 and -0.0; nan equals itself."""
    if isinstance(attr, tuple):
        return tuple(attr_key(a) for a in attr)
    return type(attr).__name__, repr(attr)


class Builder:
    """Makes interned values of one function. Not thread-safe; cheap to create.

    `square`: node spaces are one (``node``). `index_dtype`: the dtype of edge ids, i32 or i64. `monoids`: user-defined folds.
    Set `loc` (or use ``with b.at(loc)``) for the source location of what is made next.
    """

    def __init__(self, square: bool = False, index_dtype: DType = I32, monoids: tuple[Monoid, ...] = ()) -> None:
        self.square, self.index_dtype = square, index_dtype
        self.monoids: tuple[Monoid, ...] = monoids
        self.loc: Loc | None = None
        self._interned: dict[object, Value] = {}

    @classmethod
    def like(cls, func: Func, index_dtype: DType = I32) -> Builder:
        """A builder for a function of the same kind as `func`."""
        return cls(func.square, index_dtype, func.monoids)

    @property
    def context(self) -> RuleContext:
        return RuleContext(self.square, self.index_dtype, self.monoids)

    @contextmanager
    def at(self, loc: Loc | None) -> Iterator[None]:
        """Values made inside get this location."""
        before, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = before

    # ---- making values

    def _intern(self, op: str, operands: tuple[Value, ...], attrs: Attrs, type: Type) -> Value:
        key = (op, operands, tuple((k, attr_key(v)) for k, v in attrs), type)
        if key not in self._interned:
            self._interned[key] = Value(op, operands, attrs, type, self.loc)
        return self._interned[key]

    def input(self, name: str, type: Type) -> Value:
        """A parameter of the function; one value a name."""
        key = ("input", name)
        if key not in self._interned:
            self._interned[key] = Value("input", (), (("name", name),), type, self.loc)
        v = self._interned[key]
        assert v.type == type, f"input {name} is {v.type}, not {type}"
        return v

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """One operation. Raises TypeRuleError when the table's rule refuses the operands."""
        entry = get_op(name)
        if entry.arity is not None and entry.arity != len(operands):
            raise TypeRuleError("arity", f"{name} takes {entry.arity} operands, not {len(operands)}")
        full = entry.complete({k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()})
        type = entry.infer([o.type for o in operands], full, self.context)
        return self._intern(name, tuple(operands), tuple(full.items()), type)

    def const(self, value: float | int | bool, dtype: DType = F32) -> Value:
        return self.op("const", value=float(value) if dtype.is_float else value, dtype=dtype.name)

    def const_like(self, like: Value, value: float) -> Value:
        """A constant that does not change the dtype of arithmetic with `like` (f32 or f64 for floats; an integer stays one, a bool
        where the value is 0 or 1). A value that `like`'s dtype cannot hold takes the narrowest of i32 and f32 that can."""
        d = like.type.dtype.acc
        if not d.is_float and float(value) != int(value):
            d = F32
        if d is BOOL and value not in (0, 1):
            d = I32
        return self.const(value if d.is_float else bool(value) if d is BOOL else int(value), d)

    def add(self, x: Value, y: Value) -> Value:
        return self.op("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.op("sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.op("mul", x, y)

    def div(self, x: Value, y: Value) -> Value:
        return self.op("div", x, y)

    def neg(self, x: Value) -> Value:
        return self.op("neg", x)

    def where(self, cond: Value, x: Value, y: Value) -> Value:
        return self.op("where", cond, x, y)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.op("cast", x, dtype=dtype.name)

    def reshape(self, x: Value, dims: Dims) -> Value:
        """`x` under other feature dims; `x` itself when they are its own. A reshape of a reshape is one reshape."""
        if x.type.dims == tuple(dims):
            return x
        if x.op == "reshape":
            return self.reshape(x.operands[0], dims)
        return self.op("reshape", x, dims=tuple(dims))

    def broadcast(self, x: Value, dims: Dims) -> Value:
        return x if x.type.dims == tuple(dims) else self.op("broadcast", x, dims=tuple(dims))

    def sum(self, x: Value, axis: int = -1, keepdim: bool = False) -> Value:
        return self.op("reduce_sum", x, axis=axis, keepdim=keepdim)

    def gather(self, x: Value, end: str) -> Value:
        return self.op("gather", x, end=end)

    def fold(self, monoid: str, *messages: Value, to: str = "dst", part: str = "value") -> Value:
        return self.op("fold", *messages, monoid=monoid, to=to, part=part)

    def degree(self, end: str, dtype: DType = F32) -> Value:
        return self.op("degree", end=end, dtype=dtype.name)

    # ---- copying

    def copy(self, v: Value, operands: tuple[Value, ...]) -> Value:
        """`v` again over other operands (of this builder). Types are inferred anew."""
        if v.op == "input":
            return self.input(v.name, v.type)
        with self.at(v.loc or self.loc):
            return self.op(v.op, *operands, **dict(v.attrs))

    def inline(self, func: Func, args: list[Value]) -> list[Value]:
        """The results of `func` on `args`: its body copied here. Float constants take the arguments' precision."""
        assert len(args) == len(func.params), func.name
        env = dict(zip(func.params, args, strict=True))
        wide = next((a for a in args if a.type.dtype.name == "f64"), None)
        for v in func.body:
            if v.op == "const" and v.type.dtype.is_float and wide is not None:
                env[v] = self.const(v.attr("value"), wide.type.dtype)
            else:
                with self.at(self.loc or v.loc):
                    env[v] = self.op(v.op, *(env[o] for o in v.operands), **dict(v.attrs))
        return [env[r] for r in func.results]


Rule = Callable[[Builder, Value, tuple[Value, ...]], "Value | None"]


def rewrite(func: Func, rule: Rule, builder: Builder | None = None) -> Func:
    """`func` rebuilt bottom-up. `rule(builder, old, new_operands)` gives the replacement, or None to copy as it is."""
    b = builder or Builder.like(func)
    env: dict[Value, Value] = {p: b.input(p.name, p.type) for p in func.params}
    for v in func.body:
        operands = tuple(env[o] for o in v.operands)
        with b.at(v.loc):
            new = rule(b, v, operands)
        env[v] = b.copy(v, operands) if new is None else new
    return replace(func, params=tuple(env[p] for p in func.params), results=tuple(env[r] for r in func.results))


def free_inputs(results: tuple[Value, ...]) -> list[Value]:
    """The inputs that the results reach, in topological order."""
    return [v for v in topological(results) if v.op == "input"]
