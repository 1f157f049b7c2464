"""Statements that take the places of an earlier run leave the arena as a search for places does."""

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
    """Of each value its block: where it is, who holds it, who freed it and who got its bytes."""
    allocation: Any = debugger.loaded.allocation
    frame = debugger.control.machine.frames[0]
    told: list[Any] = [allocation.live_bytes(), allocation.heap.peak_bytes, allocation.heap.layout]
    for name in NAMES:
        block = allocation.block_of(frame.slots[frame.code.slot_of[name]])
        if block is not None:
            freed, after = block.freed, block.successor
            told.append((name, block.number, block.start, block.span, block.size, block.holders))
            told.append((freed and freed.pc, after and (after.value, after.statement.pc), block.taken))
    return told


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
def test_a_look_in_the_middle_changes_nothing(allocator: str) -> None:
    debugger = started(allocator)
    debugger.run()
    first, memory = state(debugger), bytes_of(debugger)
    looks: list[list[Any]] = []
    for _ in range(3):
        debugger.restart()
        looks.append([])
        while debugger.step_over().reason != "end":
            looks[-1].append(state(debugger))
        assert (state(debugger), bytes_of(debugger)) == (first, memory)
    assert looks[0] == looks[1] == looks[2]
