"""Folds: the direct formulation, the monoid along a row, and the monoid on rows that were split agree, whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnc.ir.builder import Builder
from gnnc.ir.core import Func
from gnnc.ir.direct_folds import DIRECT
from gnnc.ir.interpreter import interpret, run_monoid
from gnnc.ir.monoid import Component, Monoid, builtin_monoids, find_monoid, make_monoid
from gnnc.ir.ops import Array, GraphArrays
from gnnc.ir.types import F16, F32, F64, I64, Type, TypeRuleError
from gnnc.ir.verifier import verify_monoid

INF, NAN = np.inf, np.nan
PARTS = [(m.name, part) for m in builtin_monoids().values() for part, _ in m.parts]
ANY = [0.0, -0.0, 1.0, 1.0, -1.0, 2.5, -2.5, 0.1, INF, -INF, NAN]


def _messages(monoid: Monoid, edges: int, pool: list[float], rng: np.random.Generator) -> list[Array]:
    first = rng.choice(pool, size=(edges, 2, 1 if monoid.arity == 2 else 3))
    return [first] if monoid.arity == 1 else [first, rng.choice(pool, size=(edges, 2, 3))]


def _agree(name: str, part: str, messages: list[Array], index: Array, rows: int) -> None:
    monoid = find_monoid(name)
    with np.errstate(all="ignore"):
        want = DIRECT[name](part, messages, index, rows)
    if name == "moments":  # a row with an infinity has no moments: which of NaN and inf comes out is not defined
        bad = np.zeros((rows, *messages[0].shape[1:]), bool)
        np.logical_or.at(bad, index, ~np.isfinite(messages[0]))
        for how in HOW:
            got = run_monoid(monoid, part, messages, index, rows, **how)
            assert not np.isfinite(got[bad]).any()
            np.testing.assert_allclose(got[~bad], want[~bad], rtol=1e-9, atol=1e-12, err_msg=str(how))
        return
    for how in HOW:
        got = run_monoid(monoid, part, messages, index, rows, **how)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12, err_msg=str(how))


HOW: list[dict[str, object]] = [
    {},
    {"splits": 2},
    {"splits": 3, "from_right": True},
    {"splits": 7},
    {"splits": 3, "strided": True},
    {"splits": 4, "strided": True, "from_right": True},
]


@pytest.mark.parametrize("pool", [[0.3, -1.2, 2.0, 5.0], [1.0, -1.0, 0.0], ANY], ids=["finite", "ties", "any"])
@pytest.mark.parametrize(("name", "part"), PARTS)
def test_direct_is_the_monoid(name: str, part: str, pool: list[float]) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        index = rng.integers(0, 6, size=23)
        index[index == 3] = 2  # row 3 stays empty
        _agree(name, part, _messages(find_monoid(name), 23, pool, rng), index, 7)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ANY), st.sampled_from(ANY)), max_size=9))
def test_direct_is_the_monoid_on_any_row(edges: list[tuple[int, float, float]]) -> None:
    index = np.array([r for r, _, _ in edges], dtype=np.int64)
    columns = [np.array([e[i] for e in edges], dtype=np.float64) for i in (1, 2)]
    for name, part in PARTS:
        _agree(name, part, columns[: find_monoid(name).arity], index, 4)


def test_every_builtin_has_a_direct_form() -> None:
    assert set(DIRECT) == set(builtin_monoids())
    for m in builtin_monoids().values():
        verify_monoid(m)


def _one_row(name: str, part: str, *columns: list[float]) -> float:
    graph = GraphArrays(np.zeros(len(columns[0]), np.int64), np.zeros(len(columns[0]), np.int64), 1, 1)
    b = Builder()
    ms = [b.input(f"m{i}", Type("edge", F64)) for i in range(len(columns))]
    (out,) = interpret(Func("f", tuple(ms), (b.fold(name, *ms, part=part),)), graph, [np.array(c, np.float64) for c in columns])
    return float(out[0])


@pytest.mark.parametrize(
    ("name", "part", "row", "want"),
    [
        ("sum", "value", [], 0.0),
        ("mean", "value", [], 0.0),
        ("max", "value", [], 0.0),
        ("max", "arg", [], -1.0),
        ("min", "value", [], 0.0),
        ("maxonly", "value", [], 0.0),
        ("prod", "value", [], 1.0),
        ("moments", "var", [], 0.0),
        ("moments", "std", [], 0.0),
        ("moments", "mean", [], 0.0),
        ("logsumexp", "value", [], -INF),
        ("max", "value", [-3.0, -2.0], -2.0),
        ("max", "value", [-INF, -INF], -INF),
        ("max", "arg", [-INF, -INF], 0.0),
        ("max", "arg", [1.0, 2.0, 2.0], 1.0),
        ("min", "arg", [1.0, -0.0, 0.0], 1.0),
        ("max", "value", [1.0, NAN, INF], NAN),
        ("max", "arg", [1.0, NAN, INF, NAN], 1.0),
        ("min", "arg", [NAN, NAN], 0.0),
        ("maxonly", "value", [1.0, NAN], NAN),
        ("mean", "value", [1.0, 2.0, 6.0], 3.0),
        ("prod", "value", [2.0, 0.0, 3.0], 0.0),
        ("prod", "nonzero", [2.0, 0.0, 3.0, 0.0], 6.0),
        ("prod", "zeros", [2.0, 0.0, 3.0, 0.0], 2.0),
        ("prod", "value", [INF, 0.0], NAN),
        ("moments", "var", [0.1, 0.1, 0.1], 0.0),
        ("moments", "std", [1e8 + 0.1] * 7, 0.0),
        ("moments", "var", [1.0, 3.0], 1.0),
        ("logsumexp", "value", [1000.0, 1000.0], 1000.0 + np.log(2)),
        ("logsumexp", "value", [-INF, -INF], -INF),
        ("logsumexp", "value", [-INF, 2.0], 2.0),
    ],
)
def test_row(name: str, part: str, row: list[float], want: float) -> None:
    np.testing.assert_allclose(_one_row(name, part, row), want, rtol=1e-15)
    index = np.zeros(len(row), np.int64)
    for how in HOW:
        got = run_monoid(find_monoid(name), part, [np.array(row, np.float64)], index, 1, **how)  # type: ignore[arg-type]
        np.testing.assert_allclose(got[0], want, rtol=1e-15, err_msg=str(how))


@pytest.mark.parametrize(
    ("scores", "want"), [([], 0.0), ([-INF, -INF], NAN), ([0.0, 0.0], 1.5), ([1e4, -1e4], 1.0), ([-INF, 3.0], 2.0), ([NAN, 0.0], NAN)]
)
def test_softmax_sum_of_1_2(scores: list[float], want: float) -> None:
    values = [1.0, 2.0][: len(scores)]
    np.testing.assert_allclose(_one_row("softmax_sum", "value", scores, values), want)


def test_merging_with_an_empty_side_does_not_overflow() -> None:
    huge = np.full(3, 1e200)
    for how in ({"splits": 7}, {"splits": 7, "from_right": True}):
        assert run_monoid(find_monoid("moments"), "var", [huge], np.zeros(3, np.int64), 1, **how)[0] == 0.0  # type: ignore[arg-type]


def test_a_broken_combine_is_seen() -> None:
    """The split forms can fail: a combine that loses its right side gives another sum."""
    good = find_monoid("sum")
    b = Builder()
    x, y = (b.input(n, Type("edge", F32)) for n in "ab")
    bad = Monoid("bad", 1, good.components, good.step, Func("combine", (x, y), (x,), stage="scalar"), good.parts)
    messages, index = [np.arange(1.0, 5.0)], np.zeros(4, np.int64)
    assert run_monoid(bad, "value", messages, index, 1)[0] == 10.0
    assert run_monoid(bad, "value", messages, index, 1, splits=2)[0] == 3.0


def _rms() -> Monoid:
    """A user's fold: root of the mean square, and the last edge's id."""
    return make_monoid(
        "rms",
        [Component("square", 0.0), Component("last", -1, "index")],
        lambda b, s, _last, m, e: [b.add(s, b.mul(m, m)), e],
        lambda b, s, last, s2, last2: [b.add(s, s2), b.op("maximum", last, last2)],
        {
            "value": lambda b, s, last, deg: b.op("sqrt", b.div(s, b.op("maximum", deg, b.const(1.0)))),
            "last": lambda b, s, last, deg: last,
            "degree": lambda b, s, last, deg: deg,
        },
        uses_edge_id=True,
    )


def test_a_users_fold_runs_by_its_monoid() -> None:
    rms = _rms()
    verify_monoid(rms)
    b = Builder(monoids=(rms,))
    m = b.input("m", Type("edge", F32, (2,)))
    outs = tuple(b.fold("rms", m, part=p) for p in ("value", "last", "degree"))
    assert [str(v.type) for v in outs] == ["dst<f32, 2>", "dst<i32, 2>", "dst<f32>"]
    graph = GraphArrays(np.array([0, 0, 0]), np.array([2, 0, 2]), 1, 3)
    value, last, degree = interpret(Func("f", (m,), outs, monoids=(rms,)), graph, [np.array([[3.0, 1], [2, 2], [4, 7]])])
    np.testing.assert_allclose(value, [[2, 2], [0, 0], [np.sqrt(12.5), 5]])
    assert last.tolist() == [[1, 1], [-1, -1], [2, 2]]
    assert degree.tolist() == [1.0, 0.0, 2.0]


def test_a_functions_own_fold_goes_before_a_builtin_of_its_name() -> None:
    rms = _rms()
    own = Monoid("sum", rms.arity, rms.components, rms.step, rms.combine, rms.parts, True)
    b = Builder(monoids=(own,))
    m = b.input("m", Type("edge", F64))
    graph = GraphArrays(np.zeros(2, np.int64), np.zeros(2, np.int64), 1, 1)
    (out,) = interpret(Func("f", (m,), (b.fold("sum", m),), monoids=(own,)), graph, [np.array([3.0, 4.0])])
    np.testing.assert_allclose(out, np.sqrt(12.5))


def test_states_and_needed_components() -> None:
    context = Builder(index_dtype=I64).context
    top = find_monoid("max")
    assert [str(t) for t in top.state_types([Type("edge", F16, (3,))], context)] == ["edge<f32, 3>", "edge<i64, 3>"]
    soft = find_monoid("softmax_sum")
    scores = [Type("edge", F32, (4, 1)), Type("edge", F64, (4, 8))]
    assert [str(t) for t in soft.state_types(scores, context)] == ["edge<f64, 4, 1>", "edge<f64, 4, 1>", "edge<f64, 4, 8>"]
    assert soft.part_type("lse", scores, context) == (F64, (4, 1))
    assert soft.needed(["lse"]) == [0, 1]
    assert soft.needed(["value"]) == [0, 1, 2]
    assert top.needed(["value"]) == [0, 1]
    assert find_monoid("moments").needed(["mean"]) == [0, 1]
    assert find_monoid("prod").needed(["zeros"]) == [1]
    with pytest.raises(TypeRuleError, match="fold sum has no part 'arg'"):
        find_monoid("sum").part("arg")
