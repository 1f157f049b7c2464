"""Values and statements live as long as a variable depends on them."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

import nncdbg

X = np.arange(6, dtype=np.float32)


def test_statements_without_a_variable_are_freed() -> None:
    """D6: the trace has no statement that no variable depends on."""
    g = nncdbg.eager()
    x = g.input("x", X)
    y = g.Relu(x) * 2.0
    z = y + 1.0
    assert g.statements == 3
    del y
    assert g.statements == 3
    del z
    assert g.statements == 0
    assert g.program.graph.nodes == ()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_freeing_in_any_order_keeps_the_other_values(seed: int, lazy: bool) -> None:
    """D7: variables are freed in any order."""
    chance = random.Random(seed)
    g = nncdbg.eager(lazy=lazy)
    held = [(g.input("x", X), X)]
    for _ in range(60):
        (a, a_value), (b, b_value) = chance.choice(held), chance.choice(held)
        held.append((a * 0.5 + b, a_value * np.float32(0.5) + b_value))
        if len(held) > 3 and chance.random() < 0.6:
            del held[chance.randrange(len(held))]
    del a, b
    chance.shuffle(held)
    while held:
        variable, expected = held.pop()
        assert variable.value.tobytes() == expected.tobytes()
        del variable
    assert g.statements == 0


def test_a_chain_of_100_000_statements_is_freed() -> None:
    g = nncdbg.eager()
    x = g.input("x", np.float32(0))
    for _ in range(100_000):
        x = x + 1.0
    assert x.item() == 100_000
    assert g.statements == 100_000
    del x
    assert g.statements == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_evaluations_without_gradient_need_constant_memory(lazy: bool) -> None:
    """D8: 1000 evaluations under `no_grad` need no memory."""
    g = nncdbg.eager(lazy=lazy)
    w = g.input("w", np.ones(1000, np.float32), requires_grad=True)

    def evaluate(times: int) -> None:
        for _ in range(times):
            with g.no_grad():
                w.assign(w * 0.5 + 1.0)
                assert w.value.shape == (1000,)

    evaluate(20)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    evaluate(1000)
    growth = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert growth < 20_000
    assert g.statements == 0
    assert w.requires_grad
