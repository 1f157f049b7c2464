"""Properties of stepping, allocators, backends and time travel over random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import nncdbg
from nncdbg.engine.compilation.code import EVICTED, UNSET
from tests.engine.programs import largest, runnable
from tests.laws import examples

INPUTS = {"x": np.array([0.5, -1.0, 2.0], np.float32), "z": np.array([1.0, 0.0, -0.5], np.float32)}
FEW = examples(40)


def started(text: str, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), INPUTS, **options)


def results(debugger: nncdbg.Debugger) -> list[bytes]:
    assert debugger.outputs is not None
    return [np.asarray(value).tobytes() for value in debugger.outputs.values()]


def finished(text: str, **options: Any) -> list[bytes]:
    debugger = started(text, **options)
    assert debugger.run().reason == "end"
    return results(debugger)


def state(debugger: nncdbg.Debugger) -> list[Any]:
    """The visible state: the stack, and every value computed by now."""
    seen: list[Any] = [debugger.control.machine.ended]
    for frame in debugger.control.machine.frames:
        values = {}
        for slot, content in enumerate(frame.slots):
            held = content is not UNSET and content is not EVICTED
            if (
                held
                and frame.code.definition[slot] < frame.pc
                and not debugger.loaded.allocation.standing(content)
            ):
                values[slot] = None if content is None else np.asarray(content).tobytes()
        seen.append((frame.code.path, frame.pc, frame.iteration, values))
    return seen


@FEW
@given(runnable())
def test_stepping_to_the_end_gives_the_same_outputs_as_running(text: str) -> None:
    whole = finished(text)
    for step in ("step_over", "step_into", "micro"):
        debugger = started(text)
        while not debugger.control.machine.ended:
            stop = debugger.step_into(micro=True) if step == "micro" else getattr(debugger, step)()
            assert stop.error is None, stop.error
        if step == "micro":
            assert debugger.outputs is not None
            expected = [np.frombuffer(data, np.float32) for data in whole]
            for got, want in zip(debugger.outputs.values(), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert results(debugger) == whole


@FEW
@given(runnable())
def test_every_allocator_gives_the_same_bits(text: str) -> None:
    whole = finished(text)
    for allocator in ("plain", "arena", "poison"):
        assert finished(text, allocator=allocator) == whole
    assert finished(text, statistics=False) == whole


WIDE = {name: array.astype(np.float64) for name, array in INPUTS.items()}
LARGEST = 1e4
"""With larger values a difference of two may be rounding error only."""


@FEW
@given(runnable("f64", random=False))
def test_backends_agree(text: str) -> None:
    """Run in f64, so that rounding differences between kernels stay below the tolerance."""
    pytest.importorskip("onnxruntime")
    program = nncdbg.parse(text)
    ours = nncdbg.Debugger(program, WIDE)
    assume(largest(ours) < LARGEST)
    theirs = nncdbg.Debugger(program, WIDE, backend="onnxruntime")
    assert theirs.run().reason == "end"
    assert ours.control.machine.tick == theirs.control.machine.tick
    assert ours.outputs is not None
    assert theirs.outputs is not None
    for name, wanted in ours.outputs.items():
        np.testing.assert_allclose(theirs.outputs[name], wanted, rtol=1e-7, atol=1e-7)


@FEW
@given(runnable("f64", random=False))
def test_on_another_backend_steps_and_allocators_give_the_same_bits(text: str) -> None:
    pytest.importorskip("onnxruntime")
    program = nncdbg.parse(text)

    def opened(allocator: str) -> nncdbg.Debugger:
        return nncdbg.Debugger(program, WIDE, backend="onnxruntime", allocator=allocator)

    whole = []
    for allocator in ("debug", "plain", "arena", "poison"):
        debugger = opened(allocator)
        assert debugger.run().reason == "end"
        whole.append(results(debugger))
    stepped = opened("debug")
    while not stepped.control.machine.ended:
        assert stepped.step_into().error is None
    assert [results(stepped)] * 4 == whole


@FEW
@given(runnable())
def test_going_back_and_forward_restores_the_same_states(text: str) -> None:
    debugger = started(text)
    states = [state(debugger)]
    while not debugger.control.machine.ended:
        debugger.step_into()
        states.append(state(debugger))
    for earlier in reversed(states[:-1]):
        debugger.step_back_into()
        assert state(debugger) == earlier
    for later in states[1:]:
        debugger.step_into()
        assert state(debugger) == later


@FEW
@given(runnable(), st.lists(st.integers(0, 80), min_size=1, max_size=6))
def test_the_state_at_a_tick_does_not_depend_on_earlier_moves(text: str, moments: list[int]) -> None:
    debugger = started(text)
    fresh: dict[int, list[Any]] = {}
    for tick in moments:
        direct = started(text)
        direct.go_to(tick)
        fresh[tick] = state(direct)
    for tick in moments:
        debugger.go_to(tick)
        assert state(debugger) == fresh[tick]


@FEW
@given(runnable())
def test_step_back_undoes_step_over(text: str) -> None:
    debugger = started(text)
    while not debugger.control.machine.ended:
        before, depth = state(debugger), len(debugger.control.machine.frames)
        debugger.step_over()
        if debugger.control.machine.ended or len(debugger.control.machine.frames) == depth:
            frame = debugger.control.machine.frames[-1]
            if frame.iteration == before[-1][2]:
                debugger.step_back()
                assert state(debugger) == before
                debugger.step_over()


@FEW
@given(runnable())
def test_going_back_without_history_gives_the_same_values(text: str) -> None:
    with_history, without_history = started(text), started(text, history=0)
    assert with_history.run().reason == without_history.run().reason == "end"
    without_history.timeline.checkpoints.enforce()
    last = with_history.control.machine.tick
    for tick in range(last - 1, -1, -1):
        with_history.go_to(tick)
        without_history.go_to(tick)
        names = [
            name
            for name in with_history.values.names()
            if with_history.control.machine.frames[0].code.slot_of.get(name)
        ]
        for name in names:
            try:
                wanted = with_history.value(name)
            except nncdbg.NotComputed:
                continue
            np.testing.assert_array_equal(without_history.value(name), wanted)
        if tick % 3 == 0:
            without_history.timeline.checkpoints.enforce()
    assert without_history.run().reason == "end"
    assert with_history.run().reason == "end"
    assert results(without_history) == results(with_history)


@FEW
@given(runnable(), st.integers(1, 40), st.floats(-4, 4, width=32))
def test_an_edit_is_undone_by_going_back_and_applied_again_by_going_forward(
    text: str, ticks: int, number: float
) -> None:
    debugger = started(text)
    untouched = finished(text)
    debugger.go_to(ticks)
    if debugger.control.machine.ended:
        debugger.step_back_into()
    place = debugger.control.machine.tick
    debugger.set_value("x", number, (0,))
    assert debugger.value("x")[0] == np.float32(number)
    edited = state(debugger)
    if place:
        debugger.go_to(place - 1)
        debugger.go_to(place)
        assert state(debugger) == edited
        debugger.restart()
        debugger.run()
        again = results(debugger)
        debugger.go_to(place)
        assert state(debugger) == edited
        debugger.run()
        assert results(debugger) == again
    debugger.timeline.switch(0)
    debugger.run()
    assert results(debugger) == untouched
