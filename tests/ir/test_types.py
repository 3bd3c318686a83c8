"""Types: dtype promotion as torch does it, broadcasting of feature dims, joining of spaces."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnc.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, Type, TypeRuleError, broadcast_dims, join_space, promote

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}


@pytest.mark.parametrize(("a", "b"), list(product(DTYPES, DTYPES)))
def test_promotion_is_torchs(a: str, b: str) -> None:
    assert TORCH[promote(DTYPES[a], DTYPES[b]).name] == torch.promote_types(TORCH[a], TORCH[b])


def test_arithmetic_dtype() -> None:
    assert [d.acc.name for d in (F16, BF16, F32, F64, I32, BOOL)] == ["f32", "f32", "f32", "f64", "i32", "bool"]


def test_type_text_and_size() -> None:
    t = Type("edge", F16, (4, 16))
    assert (str(t), t.size, t.row_bytes, t.is_node) == ("edge<f16, 4, 16>", 64, 128, False)
    assert str(Type("node", BOOL)) == "node<bool>"
    assert Type("node", BOOL).is_node


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3).map(tuple), min_size=1, max_size=3))
def test_broadcasting_is_numpys(shapes: list[tuple[int, ...]]) -> None:
    try:
        want = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(TypeRuleError):
            broadcast_dims(shapes)
    else:
        assert broadcast_dims(shapes) == want


def test_broadcast_error_text() -> None:
    with pytest.raises(TypeRuleError) as e:
        broadcast_dims([(4, 3), (2,)])
    assert e.value.code == "shape-mismatch"
    assert str(e.value) == (
        "feature dims [4, 3] and [2] do not broadcast: axis -1 has sizes [2, 3] (dims align at the right and a 1 stretches; "
        "add an axis with v[..., None])"
    )


@pytest.mark.parametrize(
    ("spaces", "joined"), [([], "param"), (["param"], "param"), (["param", "edge", "edge"], "edge"), (["dst", "param"], "dst")]
)
def test_spaces_join(spaces: list[str], joined: str) -> None:
    assert join_space(spaces) == joined


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        (["src", "edge"], "operands live in different spaces: edge and src (bring the src value to the edges with g.src(v))"),
        (["edge", "dst"], "operands live in different spaces: dst and edge (bring the dst value to the edges with g.dst(v))"),
        (
            ["node", "edge"],
            "operands live in different spaces: edge and node (bring the node value to the edges with g.src(v) or g.dst(v))",
        ),
        (
            ["src", "dst"],
            "operands live in different spaces: dst and src (bring both to the edges with g.src(v) and g.dst(v), or annotate with Node "
            "if both ends are the same nodes)",
        ),
        (["src", "node"], "operands live in different spaces: node and src (bring both to one space)"),
    ],
)
def test_spaces_that_do_not_join(spaces: list[str], message: str) -> None:
    with pytest.raises(TypeRuleError) as e:
        join_space(spaces)
    assert (e.value.code, str(e.value)) == ("space-mismatch", message)
