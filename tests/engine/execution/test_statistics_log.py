"""Logged statistics belong to the array in the slot, after any sequence of steps."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg
from nncdbg import stats
from nncdbg.engine.execution.statistics_log import CAPACITY, MASK
from nncdbg.stats import summarize
from nncdbg.stats.inspection import row_of

LOOP = """#nncdbg 1
opset 18

graph @main(%x: f32[3]) -> (%y: f32[3]) {
  while @double (%s: f32[3] = %x) count %i: i64[] times TIMES {
    %t: f32[3] = Mul(%s, 1.5)
    %u: f32[3] = Sub(%t, 1.0)
    next %s = %u
  } -> (%y: f32[3] = %s)
  return %y
}
"""


def debugger(allocator: str = "debug", times: int = 5) -> nncdbg.Debugger:
    text = LOOP.replace("TIMES", str(times))
    return nncdbg.Debugger(nncdbg.parse(text), {"x": np.array([1, 2, 4], np.float32)}, allocator=allocator)


def logged(dbg: nncdbg.Debugger, name: str) -> list[float] | None:
    frame = dbg.control.machine.frames[-1]
    assert dbg.observers.log is not None
    return dbg.observers.log.row_of(frame.slots[frame.code.slot_of[name]])


@pytest.mark.parametrize("allocator", ["debug", "arena", "poison", "plain"])
def test_statistics_after_steps_forward_and_back(allocator: str) -> None:
    dbg = debugger(allocator)
    dbg.step_into()
    for _ in range(7):
        dbg.step_over()
    assert logged(dbg, "t") == row_of(summarize(dbg.value("t")))
    for _ in range(3):
        dbg.step_back()
    assert logged(dbg, "t") == row_of(summarize(dbg.value("t")))
    dbg.step_over()
    assert logged(dbg, "u") == row_of(summarize(dbg.value("u")))


def test_an_edited_value_has_no_logged_statistics() -> None:
    dbg = debugger()
    dbg.step_into()
    dbg.step_over()
    dbg.set_value("t", 7)
    assert logged(dbg, "t") is None
    dbg.step_over()
    assert logged(dbg, "u") == row_of(summarize(np.full(3, 6, np.float32)))


def test_the_ring_buffer_keeps_the_latest_rows() -> None:
    dbg = debugger(times=CAPACITY)
    dbg.break_at(value="%u", when=f"$iter == {CAPACITY - 1}")
    dbg.step_into()
    dbg.step_over()
    first = dbg.control.machine.frames[-1].slots[dbg.control.machine.frames[-1].code.slot_of["t"]]
    assert dbg.observers.log is not None
    assert dbg.observers.log.row_of(first) is not None
    dbg.run()
    assert logged(dbg, "t") == row_of(summarize(dbg.value("t")))
    assert dbg.observers.log.row_of(first) is None
    assert dbg.observers.log.row_of(np.zeros(3)) is None


def test_the_statistics_of_a_numpy_scalar_are_logged_and_its_nan_is_caught() -> None:
    """Without output buffers NumPy returns scalars instead of arrays of rank 0."""
    stats.prepare(wait=True)
    text = "graph @main(%x: f32[]) -> (%b) {\n  %a = Log(%x)\n  %b = Add(%a, %x)\n  return %b\n}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": 2.0}, allocator="plain")
    for _ in range(2):
        # The first run prepares the inspection of the type, the second run uses it.
        debugger.restart()
        debugger.run()
        assert debugger.observers.log is not None
        row = debugger.observers.log.rows[(debugger.observers.log.positions.written - 1) & MASK]
        assert row[0] == debugger.value("b") == np.float32(np.log(np.float32(2))) + np.float32(2)
        assert row[-1] == 1
    debugger.go_to(0)
    debugger.set_value("x", -1.0)
    debugger.catch("nan")
    stop = debugger.run()
    assert stop.finding is not None
    assert stop.finding.kind == "nan"
