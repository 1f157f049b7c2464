"""Sessions with `memo`: an op on the same values is executed once."""

from __future__ import annotations

import numpy as np

import nncdbg

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_repeated_op_is_computed_once() -> None:
    """D11: an op on the same values is computed once."""
    g = nncdbg.eager(memo=True)
    x = g.input("x", X)
    first = g.Softmax(x, axis=1)
    second = g.Softmax(x, axis=1)
    assert (g.hits, g.statements) == (1, 1)
    assert second.value.tobytes() == first.value.tobytes()
    g.Softmax(x, axis=0)
    assert g.hits == 1


def test_a_changed_operand_is_computed_again() -> None:
    """D11: an edit of an operand invalidates the result."""
    g = nncdbg.eager(memo=True)
    x = g.input("x", X)
    before = g.Exp(x)
    x += 1.0
    after = g.Exp(x)
    assert g.hits == 0
    assert after.value.tobytes() == np.exp(X + 1).tobytes()
    assert before.value.tobytes() == np.exp(X).tobytes()


def test_a_freed_result_is_computed_again() -> None:
    g = nncdbg.eager(memo=True)
    x = g.input("x", X)
    g.Exp(x)
    g.Exp(x)
    assert (g.hits, g.statements) == (0, 0)


def test_random_numbers_are_drawn_each_time() -> None:
    g = nncdbg.eager(memo=True)
    first, second = g.RandomNormal(shape=[3]), g.RandomNormal(shape=[3])
    assert g.hits == 0
    assert first.value.tolist() != second.value.tolist()


def test_literals_differ_by_sign_and_kind() -> None:
    g = nncdbg.eager(memo=True)
    x = g.input("x", X)
    results = [x * 0.0, x * -0.0, x * 0.0]
    assert g.hits == 1
    assert np.signbit(results[1].value).all()
    assert not np.signbit(results[2].value).any()
