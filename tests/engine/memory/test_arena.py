"""Runs in reused memory: equal results, freed values are not readable, time travel by replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.memory.arena import ArenaAllocation
from nncdbg.engine.memory.buffers import address_of
from tests.engine.programs import runnable
from tests.laws import examples

INPUTS = {"x": np.array([0.5, -1.0, 2.0], np.float32), "z": np.array([1.0, 0.0, -0.5], np.float32)}
FEW = examples(30)
ARENAS = ("arena", "poison")

CHAIN = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Add(%x, %z)
  %b = Neg(%a)
  %c = Exp(%b)
  %d = Sub(%c, %z)
  %y = Mul(%d, 2.0)
  return %y
}"""


def started(text: str, allocator: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), INPUTS, allocator=allocator)


def results(debugger: nncdbg.Debugger) -> list[bytes]:
    assert debugger.outputs is not None
    return [np.asarray(value).tobytes() for value in debugger.outputs.values()]


def finished(text: str, allocator: Any) -> nncdbg.Debugger:
    debugger = started(text, allocator)
    stop = debugger.run()
    assert stop.reason == "end", stop
    return debugger


def entry_values(debugger: nncdbg.Debugger) -> int:
    """The number of entry-frame slots that may hold a block at the end."""
    return len(set(debugger.control.machine.frames[0].code.operands[-1]))


@FEW
@given(runnable(), st.integers(0, 60), st.booleans())
def test_an_arena_gives_the_same_bits_as_debug_by_running_replaying_and_stepping(
    text: str, ticks: int, micro: bool
) -> None:
    whole = results(finished(text, "debug"))
    assert results(finished(text, "plain")) == whole
    for allocator in ARENAS:
        debugger = finished(text, allocator)
        assert results(debugger) == whole
        debugger.go_to(ticks)
        if not debugger.control.machine.ended:
            assert debugger.run().reason == "end"
        assert results(debugger) == whole
        debugger.restart()
        while not debugger.control.machine.ended:
            stop = debugger.step_into(micro=micro)
            assert stop.reason in ("step", "end"), stop
        if not micro:
            assert results(debugger) == whole
        # Only values that the entry frame returns are live; everything else was freed.
        assert debugger.loaded.allocation.live_bytes() <= 128 * entry_values(debugger)


@FEW
@given(runnable())
def test_stepping_back_restores_the_same_states_as_debug(text: str) -> None:
    debug, arena = started(text, "debug"), started(text, "arena")
    while not debug.control.machine.ended:
        debug.step_into()
        arena.step_into()
    for _ in range(6):
        if not arena.control.machine.tick:
            break
        debug.step_back_into()
        arena.step_back_into()
        assert arena.control.machine.tick == debug.control.machine.tick
        assert arena.control.machine.frames[-1].code.path == debug.control.machine.frames[-1].code.path
        for name in arena.control.machine.frames[-1].code.slot_of:
            try:
                value = arena.value(name)
            except nncdbg.NotComputed:
                continue
            np.testing.assert_array_equal(value, debug.value(name))


def test_the_text_is_the_same_under_every_allocator() -> None:
    texts = {name: finished(CHAIN, name).loaded.listing.lines for name in ("plain", "debug", *ARENAS)}
    assert all(lines == texts["plain"] for lines in texts.values())


def peak_bytes(debugger: nncdbg.Debugger) -> int:
    assert isinstance(debugger.loaded.allocation, ArenaAllocation)
    return debugger.loaded.allocation.heap.peak_bytes


def test_memory_is_reused() -> None:
    debugger = started(CHAIN, "arena")
    addresses = []
    while not debugger.control.machine.ended:
        frame = debugger.control.machine.frames[0]
        pc = frame.pc
        debugger.step_over()
        if pc < len(frame.code.nodes):
            (result,) = frame.code.results_of(pc, frame.slots)
            addresses.append(address_of(result))
    assert len(set(addresses)) == 2 < len(addresses)
    assert peak_bytes(debugger) == 2 * 128


@pytest.mark.parametrize("allocator", ARENAS)
def test_a_freed_value_is_not_shown(allocator: str) -> None:
    debugger = started(CHAIN, allocator)
    debugger.step_over()
    np.testing.assert_array_equal(debugger.value("a"), [1.5, -1.0, 1.5])
    debugger.step_over()
    with pytest.raises(nncdbg.NotComputed) as error:
        debugger.value("a")
    assert error.value.message == "%a is no longer valid: its memory was freed after %b = Neg (line 3)"
    assert "debug" in (error.value.hint or "")
    debugger.step_over()
    with pytest.raises(nncdbg.NotComputed, match=r"line 3\) and reused by %c \(Exp, line 4\)"):
        debugger.value("a")
    debugger.step_back()
    debugger.step_back()
    np.testing.assert_array_equal(debugger.value("a"), [1.5, -1.0, 1.5])


def test_a_returned_value_is_a_copy() -> None:
    debugger = started(CHAIN, "arena")
    debugger.step_over()
    shown = debugger.value("a")
    debugger.run()
    result = debugger.outputs
    np.testing.assert_array_equal(shown, [1.5, -1.0, 1.5])
    debugger.restart()
    debugger.step_over()
    assert result is not None
    assert result["y"].tobytes() == results(finished(CHAIN, "debug"))[0]


def test_another_moment_is_replayed_in_separate_memory() -> None:
    debugger = started(CHAIN, "poison")
    for _ in range(3):
        debugger.step_over()
    held = debugger.value("c")
    live = debugger.loaded.allocation.live_bytes()
    other = debugger.timeline.diversion(1)
    np.testing.assert_array_equal(other.frames[0].slots[other.frames[0].code.slot_of["a"]], [1.5, -1.0, 1.5])
    while not other.ended:
        other.step()
    assert debugger.loaded.allocation.live_bytes() == live
    np.testing.assert_array_equal(debugger.value("c"), held)
    assert debugger.run().reason == "end"
    assert results(debugger) == results(finished(CHAIN, "debug"))


@pytest.mark.parametrize("allocator", ARENAS)
def test_an_edit_persists_and_both_branches_can_be_visited(allocator: str) -> None:
    debugger, debug = started(CHAIN, allocator), started(CHAIN, "debug")
    for each in (debugger, debug):
        each.step_over()
        each.step_over()
        each.mark("before")
        each.set_value("b", 3.0)
        each.mark("edited")
        assert each.run().reason == "end"
    assert results(debugger) == results(debug)
    for mark in ("before", "edited", "before"):
        for each in (debugger, debug):
            each.go_to(mark)
        np.testing.assert_array_equal(debugger.value("b"), debug.value("b"))
        debugger.run()
        debug.run()
        assert results(debugger) == results(debug)


def test_an_edit_that_depends_on_a_freed_value_is_an_error() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Neg(%z)
  %b = Add(%x, %a)
  %c = Neg(%x)
  %y = Mul(%b, %c)
  return %y
}"""
    debugger = started(text, "arena")
    for _ in range(3):
        debugger.step_over()
    with pytest.raises(nncdbg.NncdbgError, match=r"%a is no longer valid"):
        debugger.set_value("x", 1.0)
    assert debugger.run().reason == "end"
    assert results(debugger) == results(finished(text, "debug"))


def test_sequences_own_their_tensors(declare_op: Callable[..., str]) -> None:
    pack = declare_op(lambda xp, x: [x, x])
    unpack = declare_op(lambda xp, xs: xs[0])
    text = f"""graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {{
  %a = Neg(%x)
  %s = {pack}(%a)
  %b = Add(%x, %x)
  %c = Mul(%b, %b)
  %d = {unpack}(%s)
  %y = Add(%d, %c)
  return %y
}}"""
    for allocator in ARENAS:
        assert results(finished(text, allocator)) == results(finished(text, "debug"))


def test_values_collected_by_a_loop_are_live_until_stacked() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%ys: f32[5,3], %y: f32[3]) {
  while @w (%s: f32[3] = %x) times 5 {
    %t = Add(%s, %z)
    %u = Neg(%t)
    next %s = %t collect %u
  } -> (%y: f32[3] = %s, %ys: f32[5,3] = collect[0])
  return %ys, %y
}"""
    for allocator in ARENAS:
        debugger = finished(text, allocator)
        assert results(debugger) == results(finished(text, "debug"))
        # The stacked result is a separate array; %y is the only live block.
        assert debugger.loaded.allocation.live_bytes() == 128


def test_a_failed_statement_keeps_no_memory() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[2]) {
  %a = Neg(%x)
  %y = Reshape(%a, [2])
  return %y
}"""
    debugger = started(text, "arena")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("exception", 3)
    assert stop.error is not None
    assert debugger.loaded.allocation.live_bytes() == 128


def test_uninitialized_memory_contains_old_data_in_the_arena_and_nan_when_poisoned() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Add(%x, %z)
  %b = Neg(%a)
  %e = nncdbg.Empty(shape=[3], init="none")
  %y = Add(%e, %b)
  return %y
}"""
    seen = {}
    for allocator in ARENAS:
        debugger = started(text, allocator)
        stop = debugger.run()
        assert (stop.reason, stop.line) == ("exception", 5)
        debugger.step_back()
        seen[allocator] = debugger.value("e")
    np.testing.assert_array_equal(seen["arena"], [1.5, -1.0, 1.5])
    assert np.isnan(seen["poison"]).all()


def test_a_loop_needs_the_memory_of_two_iterations() -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  while @w (%s: f32[3] = %x) times 500 {
    %t = Add(%s, %z)
    %u = Mul(%t, 0.5)
    next %s = %u
  } -> (%y: f32[3] = %s)
  return %y
}"""
    for allocator in ARENAS:
        debugger = finished(text, allocator)
        assert peak_bytes(debugger) <= 3 * 128


def test_an_allocation_object_can_be_passed() -> None:
    given = ArenaAllocation(poison=True)
    debugger = started(CHAIN, given)
    assert debugger.loaded.allocation is given
    assert given.name == "poison"
    with pytest.raises(nncdbg.UsageError, match="unknown allocator 'heap'"):
        started(CHAIN, "heap")


@pytest.mark.parametrize("allocator", ["debug", *ARENAS])
def test_reverse_continue_stops_where_a_nan_originates(allocator: str) -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Neg(%z)
  %b = Sqrt(%x)
  %c = Mul(%b, %a)
  %d = Neg(%c)
  %y = Exp(%d)
  return %y
}"""
    debugger = started(text, allocator)
    assert debugger.run().reason == "end"
    debugger.catch("nan")
    stop = debugger.reverse_continue()
    assert (stop.reason, stop.line) == ("exception", 3)
    assert debugger.reverse_continue().reason == "entry"


@pytest.mark.parametrize("allocator", ["debug", *ARENAS])
def test_breakpoints_and_conditions_work_in_an_arena(allocator: str) -> None:
    text = """graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  while @w (%s: f32[3] = %x) times 6 {
    %t = Add(%s, %z)
    %u = Mul(%t, 2.0)
    next %s = %u
  } -> (%y: f32[3] = %s)
  return %y
}"""
    debugger = started(text, allocator)
    debugger.break_at(line=4, when="max(%t) > 30")
    debugger.watch_value("y")
    stop = debugger.run()
    assert (stop.reason, stop.line) == ("breakpoint", 4)
    assert debugger.value("t").max() == 39.0
    assert debugger.evaluate("$iter") == 4
    debugger.delete(1)
    assert debugger.run().reason == "data"
    assert debugger.run().reason == "end"
