"""The machine: undo restores the previous state, clones run independently, each statement counts once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import Position
from tests.engine.programs import runnable
from tests.engine.test_laws import results, started
from tests.laws import examples

FEW = examples(40)

TRANSFERS = """
graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3], %all: f32[N,3]) {
  %a = @layer(%x)
  %zero = ReduceSum(%z, keepdims=0)
  %go = Less(%zero, 100.0)
  if %go {
    %more = Add(%a, %z)
    yield %more
  } else {
    yield %a
  } -> (%b)
  while @scan (%s: f32[3] = %b) count %i: i64[] times 4 {
    %go_on = Less(%i, 2)
    break unless %go_on
    %t = Softmax(%s)
    next %s = %t collect %t
  } -> (%y = %s, %all = collect[0])
  return %y, %all
}

graph @layer(%h: f32[3]) -> (%k: f32[3]) {
  %k = Relu(%h)
  return %k
}
"""


def frame_state(frame: Frame) -> tuple[Any, ...]:
    """The state of a frame, with the identities of all computed values."""
    computed = [
        (slot, id(content))
        for slot, content in enumerate(frame.slots)
        if frame.code.definition[slot] < frame.pc
    ]
    collected = [[*map(id, items)] for items in frame.collected]
    return frame, frame.code, frame.pc, frame.iteration, frame.entered, frame.times, computed, collected


def machine_state(machine: Machine) -> tuple[Any, ...]:
    return machine.tick, machine.ended, [*map(frame_state, machine.frames)]


def positions(machine: Machine) -> list[Position]:
    return [(frame.code, frame.pc) for frame in machine.frames]


def check_undo(machine: Machine, *, micro: nncdbg.Debugger | None = None) -> Counter[str]:
    """Run to the end with an undo and a repeat of every statement, then undo all of them."""
    states, stacks, kinds = [], [], Counter[str]()
    while not machine.ended:
        states.append(machine_state(machine))
        stacks.append(positions(machine))
        for repeat in (True, False):
            formula = micro.control.micro_program() if micro is not None else None
            if formula is None:
                assert getattr(machine.step(), "error", None) is None
            else:
                machine.push_formula(formula)
            transfer = machine.last_transfer
            if transfer is not None and repeat:
                stack = positions(machine)
                transfer.undo_position(stack, stack[-1][1])
                assert stack == stacks[-1]
            if repeat:
                machine.undo()
                assert machine_state(machine) == states[-1]
        kinds[type(transfer).__name__] += 1
    while states:
        machine.undo()
        assert machine_state(machine) == states.pop()
    assert not machine.undo_log
    assert not machine.can_undo
    return kinds


@FEW
@given(runnable())
def test_undo_restores_the_state_before_every_statement(text: str) -> None:
    check_undo(started(text, allocator="plain").control.machine)


def test_undo_restores_the_state_before_every_kind_of_transfer() -> None:
    debugger = started(TRANSFERS, allocator="plain")
    kinds = check_undo(debugger.control.machine)
    assert kinds["FramePushed"] == kinds["FramePopped"] == 3
    assert kinds["IterationEnded"] == 2
    assert kinds["ProgramEnded"] == 1
    micro = started(TRANSFERS, allocator="plain")
    assert check_undo(micro.control.machine, micro=micro)["FramePushed"] > 3


def test_undo_on_a_clone_does_not_change_the_original() -> None:
    debugger = started(TRANSFERS, allocator="plain")
    machine = debugger.control.machine
    start = machine_state(machine)[0], positions(machine)
    while not machine.ended:
        machine.step()
    clone = machine.clone()
    clone.become(machine.clone(), [each.copy() for each in machine.undo_log], machine.floor)
    end = machine_state(machine)
    while clone.can_undo:
        clone.undo()
    assert (clone.tick, positions(clone)) == start
    assert machine_state(machine) == end
    while machine.can_undo:
        machine.undo()
    assert (machine.tick, positions(machine)) == start


@FEW
@given(runnable(), st.integers(0, 60))
def test_a_clone_gives_the_same_results_as_the_original(text: str, ticks: int) -> None:
    debugger = started(text)
    debugger.go_to(ticks)
    clone = debugger.control.machine.clone()
    while not clone.ended:
        clone.step()
    if not debugger.control.machine.ended:
        debugger.run()
    slots = clone.frames[0].code.operands[-1]
    assert [np.asarray(clone.frames[0].slots[slot]).tobytes() for slot in slots] == results(debugger)


@pytest.mark.parametrize("allocator", ["debug", "plain"])
def test_the_machine_counts_each_statement_once(allocator: str) -> None:
    text = """
    graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
      while @w (%s: f32[3] = %x) times 5 {
        %t = Add(%s, %z)
        next %s = %t
      } -> (%y: f32[3] = %s)
      return %y
    }"""
    debugger = started(text, allocator=allocator)
    debugger.run()
    # The loop's own statement, five times two statements, and the return.
    assert debugger.control.machine.tick == 1 + 5 * 2 + 1
