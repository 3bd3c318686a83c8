"""Which functions are legal at a stage. Runs between passes: a function that breaks a rule is the pass's fault, and is shown.

Every stage runs all type rules again and compares; what else differs between stages is the table `STAGE_OPS` and, for sweeps,
the shape of the program (`verify_sweep`). A plan is legal when its steps are and every buffer is defined before it is read
(`verify_plan`).
"""

from __future__ import annotations

from collections.abc import Iterator

from .builder import attr_key
from .core import Func, Value, topological
from .monoid import Monoid
from .ops import OPS, get_op
from .printer import name_text, op_text, symbol, value_names
from .structure import monoid_funcs, rule_context
from .sweep import DenseSpec, PlanSpec, Region, SweepSpec, regions
from .types import DTYPES, NODE_SPACES, Type, TypeRuleError

_ALL = frozenset(OPS)
_SCALAR = frozenset(n for n, d in OPS.items() if d.kind == "elementwise") | {"const", "input"}

# Operations that are legal at each stage.
STAGE_OPS: dict[str, frozenset[str]] = {
    "layer": _ALL,
    "lowered": _ALL - {"softmax"},
    "sweep": _ALL - {"softmax"},
    "scalar": _SCALAR,
}

# Folds that only passes make: not legal at stage layer. They are cheaper forms of layer folds and have no gradient.
INTERNAL_FOLDS = frozenset({"softmax_sum", "maxonly", "minonly"})

CARRIES = ("reduce_rows", "contract_rows")


class VerifyError(Exception):
    """IR that is illegal at its stage. ``stage``, ``op`` (the operation's text, or "") and ``why`` say what is wrong; ``where`` is the
    caller's name for the place (a pass, a plan's step)."""

    def __init__(self, stage: str, func: str, op: str, why: str, where: str = "") -> None:
        self.stage, self.func, self.op, self.why, self.where = stage, func, op, why, where
        place = f" {where}" if where else ""
        super().__init__(f"illegal IR at stage {stage} in {symbol(func)}{place}: {why}" + (f"\n  {op}" if op else ""))


class _Check:
    """The rules over one function, with its texts for errors."""

    def __init__(self, func: Func, where: str) -> None:
        self.func, self.where = func, where
        self.names = value_names(func)

    def fail(self, why: str, v: Value | None = None) -> VerifyError:
        return VerifyError(self.func.stage, self.func.name, op_text(v, self.names) if v is not None else "", why, self.where)

    # ---- any stage

    def run(self) -> None:
        func = self.func
        if func.stage not in STAGE_OPS:
            raise self.fail(f"unknown stage {func.stage!r}, one of {', '.join(STAGE_OPS)}")
        self.params()
        for kind, found in (("result", list(func.result_names)), ("monoid", [m.name for m in func.monoids])):
            if (twice := first_repeated(found)) is not None:
                raise self.fail(f"two {kind}s are called {twice!r}")
        for m in func.monoids:
            self.monoid(m)
        context = rule_context(func)
        seen: dict[object, Value] = {}
        for v in func.body:
            if v.op not in OPS:
                raise self.fail(f"unknown operation {v.op!r}", v)
            if v.op not in STAGE_OPS[func.stage]:
                raise self.fail(f"{v.op} is not legal at this stage", v)
            entry = get_op(v.op)
            if entry.arity is not None and entry.arity != len(v.operands):
                raise self.fail(f"{v.op} takes {entry.arity} operands, not {len(v.operands)}", v)
            try:
                if tuple(entry.complete(dict(v.attrs)).items()) != v.attrs:
                    raise self.fail("attributes are not complete and in the table's order", v)
                type = entry.infer([o.type for o in v.operands], dict(v.attrs), context)
            except TypeRuleError as e:
                raise self.fail(str(e), v) from None
            if type != v.type:
                raise self.fail(f"the type rule gives {type}", v)
            self.space(v)
            key = (v.op, v.operands, tuple((k, attr_key(a)) for k, a in v.attrs))
            if seen.setdefault(key, v) is not v:
                raise self.fail(f"not interned: equal to {self.names[seen[key]]}", v)
            self.at_stage(v)
        for p in func.params:
            self.space(p)
            self.at_stage(p)

    def params(self) -> None:
        func = self.func
        for p in func.params:
            if p.op != "input":
                raise self.fail("a parameter that is no input", p)
        if (twice := first_repeated([p.name for p in func.params])) is not None:
            raise self.fail(f"two parameters are called {twice!r}")
        own = set(func.params)
        for v in topological(func.results):
            if v.op == "input" and v not in own:
                raise self.fail(f"%{name_text(v.name)} is an input but no parameter of the function")

    def space(self, v: Value) -> None:
        s = v.type.space
        if s in NODE_SPACES and (s == "node") != self.func.square:
            kind = "square" if self.func.square else "bipartite"
            raise self.fail(f"space {s} in a {kind} function", v)

    def at_stage(self, v: Value) -> None:
        stage = self.func.stage
        if stage == "layer" and v.op == "fold" and v.attr("monoid") in INTERNAL_FOLDS:
            own = {m.name for m in self.func.monoids}
            if v.attr("monoid") not in own:
                raise self.fail(f"the fold {v.attr('monoid')} is made by passes only", v)
        if stage == "scalar" and (v.type.dims or v.type.space not in ("edge", "param")):
            raise self.fail("a fold's function works on single numbers: space edge or param, no feature dims", v)

    # ---- folds

    def monoid(self, m: Monoid) -> None:
        n = len(m.components)
        if not n:
            raise self.fail(f"monoid {m.name} has no component")
        if (twice := first_repeated([c.name for c in m.components])) is not None:
            raise self.fail(f"monoid {m.name}: two components are called {twice!r}")
        for c in m.components:
            if c.kind not in ("acc", "index"):
                raise self.fail(f"monoid {m.name}: component {c.name} has the unknown kind {c.kind!r}")
            if any(not 0 <= i < m.arity for i in c.like):
                raise self.fail(f"monoid {m.name}: component {c.name} is like a message that is not there")
        if (twice := first_repeated([k for k, _ in m.parts])) is not None:
            raise self.fail(f"monoid {m.name}: two parts are called {twice!r}")
        takes = {"step": n + m.arity + m.uses_edge_id, "combine": 2 * n, "grad": m.arity + 2 * n}
        gives = {"step": n, "combine": n, "grad": m.arity}
        for role, f in monoid_funcs(m):
            if f.stage != "scalar":
                raise self.fail(f"monoid {m.name}: {role} is at stage {f.stage}, not scalar")
            want = takes.get(role, n + 1), gives.get(role, 1)
            found = len(f.params), len(f.results)
            if found != want:
                raise self.fail(f"monoid {m.name}: {role} takes {found[0]} values and gives {found[1]}, expected {want[0]} and {want[1]}")
            verify(f, where=f"(monoid {m.name}, {role})")


def verify(func: Func, *, where: str = "") -> None:
    """Checks `func` against the rules of its stage. `where` is put into the message. Raises VerifyError."""
    _Check(func, where).run()


def verify_monoid(monoid: Monoid) -> None:
    """Checks one fold's functions. Raises VerifyError."""
    _Check(Func(monoid.name, (), (), stage="scalar"), "").monoid(monoid)


# ---- sweeps


class _SweepCheck(_Check):
    """The shape of a sweep's program; the rules stand in `sweep.py`."""

    def __init__(self, spec: SweepSpec, where: str) -> None:
        super().__init__(spec.func, where)
        self.spec = spec
        self.region = regions(spec.func)

    def shape(self) -> None:
        spec, func = self.spec, self.func
        if func.stage != "sweep":
            raise self.fail("a sweep's function is at stage sweep")
        if spec.grouped_by not in ("dst", "src", None):
            raise self.fail(f"a sweep is grouped by dst, src or nothing, not {spec.grouped_by!r}")
        sides = [spec.grouped_by] if spec.grouped_by else ["dst", "src"]
        legal = ["node"] if func.square else sides
        if spec.grouped_by is None:
            legal = [*legal, "param"]
        if spec.rows not in legal:
            raise self.fail(f"rows {spec.rows!r} do not fit, expected {' or '.join(legal)}")
        far = {v.operands[0] for v in func.body if v.op == "gather" and v.attr("end") != spec.grouped_by}
        for v in [*func.body, *func.params]:
            self.value(v, far)
        for r in func.results:
            self.result(r)

    def value(self, v: Value, far: set[Value]) -> None:
        spec, region = self.spec, self.region
        space = v.type.space
        if spec.grouped_by is None and (space == "edge" or v.op == "degree"):
            raise self.fail("a map over rows reads no edges", v)
        if space in NODE_SPACES and space != spec.rows and not (v.op == "input" and v in far):
            raise self.fail(f"the rows of this sweep are {spec.rows}; another node table is only read by a gather", v)
        if v.op == "gather":
            table = v.operands[0]
            if v.attr("end") != spec.grouped_by:
                if table.op != "input":
                    raise self.fail(f"a gather at the other end reads a parameter, not the result of {table.op}", v)
            elif region[table] > Region.ROW:
                raise self.fail("a gather at the grouped end reads a value that hangs on a fold of this sweep", v)
        if v.op == "fold" and v.attr("to") != spec.grouped_by:
            raise self.fail(f"a fold to {v.attr('to')} in a sweep grouped by {spec.grouped_by}", v)
        if v.op == "degree" and v.attr("end") != spec.grouped_by:
            raise self.fail(f"the degree at {v.attr('end')} is a table here: read it from a parameter", v)
        for o in v.operands:
            if region[o] is Region.CARRY and not self.is_sum(v):
                raise self.fail("a sum over all rows is known only after the sweep; nothing but a cast may read it", v)
            if space == "edge" and v.op != "gather" and region[o] > Region.EDGE:
                raise self.fail("an edge value hangs on a value known after the row's edges", v)

    def is_sum(self, v: Value) -> bool:
        """Whether `v` is a sum over all rows, perhaps behind casts."""
        while v.op == "cast":
            v = v.operands[0]
        return v.op in CARRIES

    def result(self, r: Value) -> None:
        space = r.type.space
        if space == "edge" or space == self.spec.rows:
            return
        if space != "param" or not self.is_sum(r):
            raise self.fail("a sweep's result is a row value, an edge value or a sum over all rows", r)


def verify_sweep(spec: SweepSpec, *, where: str = "") -> None:
    """Checks a sweep: its function at stage ``sweep`` and the shape that `sweep.py` states. Raises VerifyError."""
    check = _SweepCheck(spec, where)
    check.run()
    check.shape()


def verify_dense(spec: DenseSpec, *, where: str = "") -> None:
    """Checks a dense step: one product of row values, perhaps of a transpose, casts around it. Raises VerifyError."""
    check = _Check(spec.func, where)
    check.run()
    if spec.func.stage != "lowered":
        raise check.fail("a dense step's function is at stage lowered")
    if len(spec.func.results) != 1:
        raise check.fail(f"a dense step has one result, not {len(spec.func.results)}")
    r = spec.func.results[0]
    while r.op == "cast":
        r = r.operands[0]
    if r.op not in ("matmul", "contract_rows"):
        raise check.fail("a dense step's result is a matmul or contract_rows, perhaps behind a cast", spec.func.results[0])
    for i, o in enumerate(r.operands):
        while o.op == "cast" or (o.op == "transpose" and r.op == "matmul" and i == 1):
            o = o.operands[0]
        if o.op != "input":
            raise check.fail(f"a dense step multiplies parameters, not the result of {o.op}", r)
        if o.type.space == "edge":
            raise check.fail("a dense step multiplies node or parameter values", r)


# ---- plans


def graph_buffer(name: str, square: bool) -> Type | None:
    """The type of a buffer that the graph owns: ``$in_degree`` and ``$out_degree``, f32 or with the dtype behind a colon."""
    base, _, dtype = name.partition(":")
    side = {"$in_degree": "dst", "$out_degree": "src"}.get(base)
    if side is None or (dtype or "f32") not in DTYPES:
        return None
    return Type("node" if square else side, DTYPES[dtype or "f32"])


def verify_plan(plan: PlanSpec) -> None:
    """Checks every step and that each buffer is defined once, before it is read, with one type. Raises VerifyError."""

    def fail(why: str) -> VerifyError:
        return VerifyError("plan", plan.name, "", why)

    defined: dict[str, Type] = {}
    for name, type in plan.params:
        if name in defined:
            raise fail(f"two parameters are called {name!r}")
        defined[name] = type
    if (twice := first_repeated([s.name for s in plan.steps])) is not None:
        raise fail(f"two steps are called {twice!r}")
    for step in plan.steps:
        where = f"(step {symbol(step.name)})"
        if step.func.square != plan.square:
            raise fail(f"step {symbol(step.name)} and the plan differ in being square")
        if isinstance(step, SweepSpec):
            verify_sweep(step, where=where)
        else:
            verify_dense(step, where=where)
        for p in step.func.params:
            have = graph_buffer(p.name, plan.square) if p.name.startswith("$") else defined.get(p.name)
            if have is None:
                raise fail(f"step {symbol(step.name)} reads {p.name!r} before it is defined")
            if have != p.type:
                raise fail(f"step {symbol(step.name)} reads {p.name!r} as {p.type}, it is {have}")
        for name, r in zip(step.func.result_names, step.func.results, strict=True):
            if name in defined or name.startswith("$"):
                raise fail(f"step {symbol(step.name)} writes {name!r}, which is defined already")
            defined[name] = r.type
    for name, type in plan.results:
        if name not in defined:
            raise fail(f"the result {name!r} is never written")
        if defined[name] != type:
            raise fail(f"the result {name!r} is {defined[name]}, declared {type}")


def first_repeated(names: list[str]) -> str | None:
    """The first name that was there before, or None."""
    return next(_repeated(names), None)


def _repeated(names: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for n in names:
        if n in seen:
            yield n
        seen.add(n)
