"""Questions about the structure of IR: are two functions equal, how wide are a function's edge ids."""

from __future__ import annotations

from .builder import attr_key
from .core import Func, Value, topological
from .monoid import Monoid, find_monoid
from .ops import RuleContext
from .sweep import PlanSpec, StepSpec, SweepSpec
from .types import I32, I64, DType, TypeRuleError


def structurally_equal(f: Func, g: Func) -> bool:
    """Whether two functions compute the same by the same operations: names, parameters, results, stage, monoids and every
    operation with its attributes and type. Locations do not count, nor does sharing (a value computed twice equals one used twice).
    """
    if (f.name, f.square, f.stage, f.result_names) != (g.name, g.square, g.stage, g.result_names):
        return False
    if [(p.name, p.type) for p in f.params] != [(p.name, p.type) for p in g.params]:
        return False
    if len(f.monoids) != len(g.monoids) or not all(map(monoids_equal, f.monoids, g.monoids)):
        return False
    table: dict[object, int] = {}
    return _numbers(f, table) == _numbers(g, table)


def _numbers(func: Func, table: dict[object, int]) -> list[int]:
    """A number for each result; equal structure, equal number (`table` is shared between functions)."""
    number: dict[Value, int] = {}
    for v in topological(func.results):
        key = (v.op, tuple(number[o] for o in v.operands), tuple((k, attr_key(a)) for k, a in v.attrs), v.type)
        number[v] = table.setdefault(key, len(table))
    return [number[r] for r in func.results]


def monoids_equal(m: Monoid, n: Monoid) -> bool:
    """Whether two folds are the same data (`vjp`, a Python function, does not count)."""
    if (m.name, m.arity, m.uses_edge_id, m.doc) != (n.name, n.arity, n.uses_edge_id, n.doc):
        return False
    mine, theirs = ([(c.name, attr_key(c.init), c.kind, c.like) for c in x.components] for x in (m, n))
    if mine != theirs or [k for k, _ in m.parts] != [k for k, _ in n.parts] or (m.grad is None) != (n.grad is None):
        return False
    return all(structurally_equal(a, b) for (_, a), (_, b) in zip(monoid_funcs(m), monoid_funcs(n), strict=True))


def monoid_funcs(m: Monoid) -> list[tuple[str, Func]]:
    """(role, function) of a fold: step, combine, each ``part <name>``, grad."""
    out = [("step", m.step), ("combine", m.combine), *((f"part {k}", f) for k, f in m.parts)]
    return out if m.grad is None else [*out, ("grad", m.grad)]


def plans_equal(p: PlanSpec, q: PlanSpec) -> bool:
    """Whether two plans are the same steps over the same buffers."""
    if (p.name, p.params, p.results, p.square) != (q.name, q.params, q.results, q.square) or len(p.steps) != len(q.steps):
        return False
    return all(_steps_equal(s, t) for s, t in zip(p.steps, q.steps, strict=True))


def _steps_equal(s: StepSpec, t: StepSpec) -> bool:
    if type(s) is not type(t) or s.name != t.name or not structurally_equal(s.func, t.func):
        return False
    if isinstance(s, SweepSpec) and isinstance(t, SweepSpec):
        mine, theirs = ((x.grouped_by, x.rows, x.family, x.reason, x.schedule) for x in (s, t))
        return mine == theirs
    return True


def index_dtype_of(func: Func) -> DType:
    """The dtype of edge ids in `func`: i64 where one of its values is an edge id of that width, else i32."""
    for v in func.body:
        if v.op == "edge_id":
            return v.type.dtype
        if v.op == "fold" and v.type.dtype is I64:
            try:
                monoid = find_monoid(v.attr("monoid"), func.monoids)
                wide, _ = monoid.part_type(v.attr("part"), [o.type for o in v.operands], RuleContext(func.square, I64, func.monoids))
            except (TypeRuleError, KeyError):
                continue  # the verifier says what is wrong
            if wide is I64:
                return I64
    return I32


def rule_context(func: Func) -> RuleContext:
    """What type rules may ask of `func`."""
    return RuleContext(func.square, index_dtype_of(func), func.monoids)
