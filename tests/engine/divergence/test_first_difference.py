"""The first statement with different results, without running both sides to their ends."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg.comparison.report import FirstDifference
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.divergence.lockstep import Lockstep
from tests.engine.divergence.test_divergence import LOOP, NET

EXACT = Tolerance(rtol=0, atol=0)


def _first(text: str, other: str, statements: int = 1000) -> tuple[FirstDifference | None, Lockstep]:
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    inputs = {"x": x.reshape(2, 4) if text == NET else x[:3]}
    a, b = (nncdbg.Debugger(nncdbg.parse(each), inputs, statistics=False) for each in (text, other))
    lockstep = Lockstep(a, b, EXACT)
    machine = a.control.machine
    return lockstep.run_to_difference(lambda: machine.tick < statements), lockstep


TABLE = """
NET  | axis=-1        | axis=0         | s   | Softmax axis -1 / 0
NET  | Mul(%b, 3.0)   | Mul(%b, 3.5)   | y   | B of Mul differs: 3 / 3.5
NET  | Add(%s, %in)   | Sub(%s, %in)   | out | Add computes a different result from the same operands
LOOP | Tanh(%h)       | Erf(%h)        | g   | Tanh computes a different result from the same operands
LOOP | Add(%g, 0.5)   | Add(%g, 0.25)  | n   | B of Add differs: 0.5 / 0.25
"""


@pytest.mark.parametrize("row", TABLE.strip("\n").split("\n"))
def test_the_first_statement_and_what_differs_in_it(row: str) -> None:
    name, before, after, value, cause = (cell.strip() for cell in row.split("|"))
    text = {"NET": NET, "LOOP": LOOP}[name]
    assert text.count(before) == 1
    first, lockstep = _first(text, text.replace(before, after))
    assert first is not None
    assert first.match.a.value == value
    assert first.causes == (cause,)
    # Both sides have stopped there.
    assert [side.debugger.control.machine.tick for side in (lockstep.a, lockstep.b)] == [
        first.match.a.tick
    ] * 2
    assert not lockstep.a.debugger.control.machine.ended


def test_equal_programs_have_no_difference() -> None:
    first, lockstep = _first(NET, NET)
    assert first is None
    assert lockstep.a.debugger.control.machine.ended


def test_the_comparison_ends_at_the_given_moment() -> None:
    text = LOOP.replace("Add(%g, 0.5)", "Add(%g, 0.25)")
    first, lockstep = _first(LOOP, text, statements=1)
    assert first is None
    assert lockstep.a.debugger.control.machine.tick <= 2
    assert _first(LOOP, text)[0] is not None
