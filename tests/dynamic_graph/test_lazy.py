"""Lazy sessions: forming a graph is apart from executing it, and an inspection waits."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nncdbg

_CALLED: list[Callable[[], Any]] = []
"""What the kernel of `eagertest.Called` calls."""


@nncdbg.op("eagertest.Called", infer=lambda attributes, types: [types[0]])
def called(xp: Any, x: Any) -> Any:
    """The operand plus 1, after calls of a test."""
    for each in _CALLED:
        each()
    return x + 1


X = np.ones((256, 1024), np.float32)


def test_a_lazy_variable_allocates_nothing_until_it_is_inspected() -> None:
    """D3: types are known before values."""
    g = nncdbg.eager(lazy=True)
    x = g.input("x", X)
    warm = g.Relu(x)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    y = g.Relu(x)
    z = y + 1.0
    formed = tracemalloc.get_traced_memory()[0] - before
    assert z.shape == (256, 1024)
    assert g.syncs == 0
    assert z.value[0, 0] == 2
    inspected = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert warm.type == y.type
    assert formed < 10_000
    assert inspected > X.nbytes


def test_a_session_waits_for_inspections_and_branches_only() -> None:
    """D13: syncs are inspections plus branches."""
    g = nncdbg.eager(lazy=True)
    x = g.input("x", X)
    inspections = branches = 0
    y = x
    for _ in range(3):
        y = y * 0.5 + 0.25
        branches += 1
        if g.ReduceMax(y, keepdims=0) > 0.9:
            y = y - 0.1
    inspections += 1
    assert np.asarray(y).shape == X.shape
    inspections += 1
    assert y.value.shape == X.shape
    assert g.syncs == inspections + branches


def test_an_inspection_runs_only_the_statements_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(f"{__name__}._CALLED", [lambda: ran.append(1)])
    g = nncdbg.eager(lazy=True)
    x = g.input("x", np.zeros(2, np.float32))
    needed = g.op("eagertest.Called", x)
    other = g.op("eagertest.Called", x)
    result = needed * 2.0
    assert ran == []
    assert result.value.tolist() == [2.0, 2.0]
    assert len(ran) == 1
    assert needed.value.tolist() == [1.0, 1.0]
    assert len(ran) == 1
    assert other.value.tolist() == [1.0, 1.0]
    assert len(ran) == 2


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_kernel_that_inspects_a_lazy_value_is_refused(
    in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: an inspection inside a kernel does not block."""
    g = nncdbg.eager(lazy=True)
    x = g.input("x", np.zeros(2, np.float32))
    inner = x + 1.0
    failures: list[nncdbg.NncdbgError] = []

    def inspect() -> None:
        try:
            np.asarray(inner)
        except nncdbg.NncdbgError as error:
            failures.append(error)

    def inspect_in_thread() -> None:
        # The kernel waits for a thread that waits for the kernel.
        thread = threading.Thread(target=inspect, daemon=True)
        thread.start()
        thread.join(timeout=30)
        assert not thread.is_alive()

    monkeypatch.setattr(f"{__name__}._CALLED", [inspect_in_thread if in_thread else inspect])
    assert g.op("eagertest.Called", x).value.tolist() == [1.0, 1.0]
    (failure,) = failures
    assert "inspects a lazy value" in failure.message
    assert inner.value.tolist() == [1.0, 1.0]


def test_a_size_that_only_the_run_determines_waits() -> None:
    g = nncdbg.eager(lazy=True)
    places = g.NonZero(g.input("x", np.array([0, 1, 2], np.float32)))
    assert str(places.type) == "i64[1,?]"
    assert places.shape == (1, 2)
    assert g.syncs == 1


def test_random_numbers_are_drawn_once() -> None:
    g = nncdbg.eager(lazy=True)
    noise = g.RandomNormal(shape=[4])
    first = (noise + 1.0).value
    assert (noise + 1.0).value.tobytes() == first.tobytes()
