"""The heaviest common subsequence of statements."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nncdbg.engine.divergence.pairing import Unit, common_subsequence
from tests.laws import examples


def units(*entries: tuple[str, str]) -> list[Unit]:
    return [
        Unit(index, ((("main",), index),), op, (name,), (op, (4,)), "", (), True, False)
        for index, (op, name) in enumerate(entries)
    ]


def test_units_with_equal_name_endings_are_aligned() -> None:
    a = units(("Conv", "net/1/Conv"), ("Relu", "net/1/Relu"), ("Conv", "net/2/Conv"), ("Relu", "net/2/Relu"))
    b = units(("Conv", "m.2.Conv"), ("Relu", "m.2.Relu"))
    assert [(one.number, other.number) for one, other in common_subsequence(a, b)] == [(2, 0), (3, 1)]


ops = st.lists(st.sampled_from(["Add", "Mul", "Relu"]), max_size=12)


@given(ops, ops)
@examples(60)
def test_alignment_is_one_to_one_in_order_and_of_equal_ops(left: list[str], right: list[str]) -> None:
    a = units(*((op, f"a{i}") for i, op in enumerate(left)))
    b = units(*((op, f"b{i}") for i, op in enumerate(right)))
    pairs = [(one.number, other.number) for one, other in common_subsequence(a, b)]
    assert pairs == sorted(pairs)
    assert len({other for _, other in pairs}) == len(pairs)
    assert all(left[i] == right[j] for i, j in pairs)
    assert len(pairs) == _longest_common(left, right)


def _longest_common(a: list[str], b: list[str]) -> int:
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1][j + 1] = best[i][j] + 1 if x == y else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]
