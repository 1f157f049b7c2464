"""A run that reuses the block layout of an earlier run leaves the arena in the same state as the first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg

LINE = """
opset 18
graph @main(%x: f32[4], %w: f32[64]) -> (%out: f32[4]) {
  %a = Add(%x, %x)
  %b = Mul(%a, %a)
  %c = Add(%w, %w)
  %d = Add(%a, %b)
  %e = Mul(%d, %d)
  %parts0, %parts1 = Split(%e, num_outputs=2)
  %f = Concat(%parts1, %parts0, axis=0)
  %g = Relu(%f)
  %out = Add(%g, %d)
  return %out
}
"""
NAMES = ["a", "b", "c", "d", "e", "f", "g", "out"]


def started(allocator: str) -> nncdbg.Debugger:
    inputs = {"x": np.arange(4, dtype=np.float32), "w": np.ones(64, np.float32)}
    return nncdbg.Debugger(nncdbg.parse(LINE), inputs, allocator=allocator)


def state(debugger: nncdbg.Debugger) -> list[Any]:
    """The block of each value: location, holders, the statement that freed it, the next owner."""
    allocation: Any = debugger.loaded.allocation
    frame = debugger.control.machine.frames[0]
    rows: list[Any] = [allocation.live_bytes(), allocation.heap.peak_bytes, allocation.heap.layout]
    for name in NAMES:
        block = allocation.block_of(frame.slots[frame.code.slot_of[name]])
        if block is not None:
            freed, after = block.freed, block.successor
            rows.append((name, block.number, block.start, block.span, block.size, block.holders))
            rows.append((freed and freed.pc, after and (after.value, after.statement.pc), block.taken))
    return rows


def bytes_of(debugger: nncdbg.Debugger) -> bytes:
    allocation: Any = debugger.loaded.allocation
    return b"".join(bytes(raw) for raw in allocation.heap.raw)


@pytest.mark.parametrize("allocator", ["arena", "poison"])
def test_a_run_leaves_the_arena_as_the_first_one_did(allocator: str) -> None:
    debugger = started(allocator)
    debugger.run()
    first, memory = state(debugger), bytes_of(debugger)
    assert len(first) > 3
    for _ in range(3):
        debugger.restart()
        assert debugger.run().reason == "end"
        assert bytes_of(debugger) == memory
        assert state(debugger) == first


@pytest.mark.parametrize("allocator", ["arena", "poison"])
def test_reading_the_state_between_steps_changes_nothing(allocator: str) -> None:
    debugger = started(allocator)
    debugger.run()
    first, memory = state(debugger), bytes_of(debugger)
    states: list[list[Any]] = []
    for _ in range(3):
        debugger.restart()
        states.append([])
        while debugger.step_over().reason != "end":
            states[-1].append(state(debugger))
        assert (state(debugger), bytes_of(debugger)) == (first, memory)
    assert states[0] == states[1] == states[2]
