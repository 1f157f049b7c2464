"""Sequences in an arena: their tensors are in blocks, which are freed when the last sequence drops them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.reusing import by_liveness

ALLOCATORS = ["arena", "poison"]

LOOP = """opset 21
state %w: f32[10000] = RandomNormal(seed=1.0, shape=[10000])

graph @train() -> (%l: f32[]) {
  %l: f32[], saved %s = @loss()
  %d_w: f32[10000] = @loss.backward(1.0, %s)
  %w.1: f32[10000] = nncdbg.SGD(%w, %d_w, lr=0.1)
  update %w = %w.1
  return %l
}
graph @loss() -> (%l: f32[]) {
  while @grow (%h: f32[10000] = %w) times 100 {
    %p = Mul(%h, 0.99)
    %q: f32[10000] = Sin(%p)
    next %h = %q
  } -> (%y: f32[10000] = %h)
  %l: f32[] = ReduceMean(%y, keepdims=0)
  return %l
}
backward @loss.backward of @loss by (%w)CHECKPOINTS
run @train steps 2
"""
STATE = 40_000
"""The bytes of the value that the loop carries."""


def ended(
    text: str, allocator: str | ArenaAllocation, **options: bool
) -> tuple[ArenaAllocation, nncdbg.Debugger]:
    """Return the arena and the debugger of a program that has run to its end."""
    debugger = nncdbg.Debugger(nncdbg.parse(text), allocator=allocator)
    assert debugger.run().reason == "end", debugger.stop
    arena = debugger.loaded.allocation
    assert isinstance(arena, ArenaAllocation)
    return arena, debugger


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_checkpoints_lower_the_peak_of_the_arena(allocator: str) -> None:
    """D12: a loop of 100 iterations keeps about 5 values instead of 100."""
    peaks, losses = [], []
    for checkpoints in ("", " checkpoints 5"):
        arena, debugger = ended(LOOP.replace("CHECKPOINTS", checkpoints), allocator)
        assert debugger.outputs is not None
        peaks.append(arena.heap.peak_bytes)
        losses.append(debugger.outputs["l"].tolist())
    assert losses[0] == losses[1]
    assert peaks[0] > 100 * STATE
    assert peaks[1] < 16 * STATE


def test_the_values_of_a_checkpointed_loop_are_not_copied_outside_of_the_arena() -> None:
    """An element of a sequence is the tensor that was put in."""
    text = SEQUENCE.replace("READ", "SequenceAt(%both, 0)")
    debugger = nncdbg.Debugger(nncdbg.parse(text), allocator="arena")
    debugger.break_at(op="SequenceAt")
    debugger.run()
    arena = debugger.loaded.allocation
    assert isinstance(arena, ArenaAllocation)
    slots = debugger.control.stack[-1].slots
    code = debugger.control.stack[-1].code
    one, both = slots[code.slot_of["one"]], slots[code.slot_of["both"]]
    assert both[0] is one[0]
    assert all(block.freed is None for block in arena.blocks_of(both))
    assert len(arena.blocks_of(both)) == 2


SEQUENCE = """opset 21
graph @main() -> (%y: f32[3]) {
  %a = RandomNormal(shape=[3])
  %one = SequenceConstruct(%a)
  %b = Neg(%a)
  %both = SequenceInsert(%one, %b)
  %c = Exp(%b)
  %d = Mul(%c, 2.0)
  %y: f32[3] = READ
  %n = SequenceLength(%one)
  return %y
}
"""


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("position", [0, 1])
def test_an_element_outlives_its_tensor(allocator: str, position: int) -> None:
    text = SEQUENCE.replace("READ", f"SequenceAt(%both, {position})")
    expected = nncdbg.run(nncdbg.parse(text))["y"]
    _, debugger = ended(text, allocator)
    assert debugger.outputs is not None
    assert np.array_equal(debugger.outputs["y"], expected)


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_parts_of_a_split_are_in_the_arena(allocator: str) -> None:
    """Views of an operand are copied: its memory may be reused."""
    text = (
        "opset 21\ngraph @main() -> (%y: f32[4]) {\n  %x = RandomNormal(shape=[3,4])\n  %z = Neg(%x)\n"
        "  %parts = SplitToSequence(%z, 1, axis=0, keepdims=0)\n  %k = Exp(%x)\n  %m = Exp(%k)\n"
        "  %y: f32[4] = SequenceAt(%parts, 2)\n  return %y\n}\n"
    )
    expected = nncdbg.run(nncdbg.parse(text))["y"]
    arena, debugger = ended(text, allocator)
    assert debugger.outputs is not None
    assert np.array_equal(debugger.outputs["y"], expected)
    assert not arena.misreads


def early(code: Code, pc: int) -> Sequence[int]:
    """Free `%both` one statement too early."""
    slot = code.slot_of.get("both")
    slots = [each for each in by_liveness(code, pc) if each != slot]
    if slot is not None and pc < len(code.nodes) and slot in by_liveness(code, pc + 1):
        slots.append(slot)
    return slots


def test_a_read_of_a_sequence_with_a_freed_element_is_reported() -> None:
    text = SEQUENCE.replace("READ", "SequenceAt(%both, 1)").replace("  %d = Mul(%c, 2.0)\n", "")
    debugger = nncdbg.Debugger(nncdbg.parse(text), allocator=ArenaAllocation(early))
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 8)
    assert stop.detail == (
        "SequenceAt reads %both (defined as %b), but its memory was freed after %c = Exp (line 7)"
    )
    with pytest.raises(nncdbg.NncdbgError, match="%both is no longer valid: its memory was freed after"):
        debugger.value("%both")


def test_a_sequence_that_was_read_keeps_its_numbers() -> None:
    text = SEQUENCE.replace("READ", "SequenceAt(%both, 1)")
    debugger = nncdbg.Debugger(nncdbg.parse(text), allocator="poison")
    debugger.break_at(op="SequenceAt")
    debugger.run()
    seen = debugger.value("%both")
    before = [each.copy() for each in seen]
    debugger.run()
    assert all(np.array_equal(one, other) for one, other in zip(seen, before, strict=True))


def test_an_update_in_place_is_seen_in_a_sequence() -> None:
    text = """opset 21
state %w: f32[3] = RandomNormal(seed=1.0, shape=[3])
graph @train() -> (%l: f32[]) {
  %old = SequenceConstruct(%w)
  %h = Mul(%w, 0.5)
  update %w = %h
  %o: f32[3] = SequenceAt(%old, 0)
  %l: f32[] = ReduceSum(%o, keepdims=0)
  return %l
}
run @train steps 2
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), in_place_states=True)
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 7)
    assert "SequenceAt reads %old (defined as %w), but its memory was overwritten" in stop.detail
