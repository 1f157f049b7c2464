"""Random sequences of moves against a model: the state is a function of the branch and the tick.

The model stores the position (branch, tick), the fork of each branch and the marks.  The expected states
come from new debuggers that only step forward.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nncdbg
from tests.engine.programs import runnable
from tests.engine.test_laws import started, state
from tests.laws import examples

MOVES = st.one_of(
    st.tuples(st.sampled_from(["next", "back", "over", "back over", "back out", "restart", "run"])),
    st.tuples(st.just("set"), st.integers(0, 9), st.floats(-4, 4, width=32)),
    st.tuples(st.just("go"), st.integers(0, 60)),
    st.tuples(st.just("mark"), st.integers(0, 3)),
    st.tuples(st.just("goto"), st.integers(0, 3)),
    st.tuples(st.just("branch"), st.integers(0, 9)),
    st.tuples(st.just("reverse continue"), st.integers(0, 60)),
)
WALKS = examples(25)


@dataclass
class Oracle:
    """The states of one branch, computed by a debugger that only steps forward."""

    text: str
    options: dict[str, Any]
    edits: tuple[tuple[int, str, float], ...] = ()
    states: list[Any] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        debugger = started(self.text, **self.options)
        while True:
            for tick, name, number in self.edits:
                if tick == debugger.control.machine.tick:
                    debugger.set_value(name, number, (0,))
            self.states.append(state(debugger))
            frame = debugger.control.machine.frames[-1]
            self.places.append(
                (len(debugger.control.machine.frames), debugger.loaded.line(frame.code, frame.pc) or 0)
            )
            if debugger.control.machine.ended:
                return
            assert debugger.step_into().error is None

    @property
    def end(self) -> int:
        return len(self.states) - 1


@dataclass
class Model:
    """The position (branch, tick), the branches and the marks of a sequence of moves."""

    text: str
    options: dict[str, Any]
    branch: int = 0
    tick: int = 0
    left: dict[int, int] = field(default_factory=dict)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)
    known: dict[int, Oracle] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known[0] = Oracle(self.text, self.options)

    @property
    def here(self) -> Oracle:
        return self.known[self.branch]

    def fork(self, name: str, number: float) -> None:
        """Start a new branch with the edits of the current one up to this tick."""
        kept = tuple(edit for edit in self.here.edits if edit[0] <= self.tick)
        self.left[self.branch] = self.tick
        self.branch = len(self.known)
        self.known[self.branch] = Oracle(self.text, self.options, (*kept, (self.tick, name, number)))

    def switch(self, branch: int) -> None:
        if branch != self.branch:
            self.left[self.branch] = self.tick
            self.branch, self.tick = branch, self.left[branch]


def move(debugger: nncdbg.Debugger, model: Model, kind: str, *given: Any) -> None:
    """Apply one move to the debugger and to the model."""
    at_start, at_end = model.tick == 0, debugger.control.machine.ended
    if kind == "next" and not at_end:
        debugger.step_into()
        model.tick += 1
    elif kind == "back" and not at_start:
        debugger.step_back_into()
        model.tick -= 1
    elif kind == "over" and not at_end:
        depth = len(debugger.control.machine.frames)
        debugger.step_over()
        model.tick += 1
        while model.tick < model.here.end and model.here.places[model.tick][0] > depth:
            model.tick += 1
    elif kind in ("back over", "back out") and not at_start:
        debugger.step_back() if kind == "back over" else debugger.reverse_step_out()
        # The new tick depends on the stack; the caller compares the state at this tick.
        assert debugger.control.machine.tick < model.tick
        model.tick = debugger.control.machine.tick
    elif kind == "restart":
        debugger.restart()
        model.tick = 0
    elif kind == "run" and not at_end:
        assert debugger.run().reason == "end"
        model.tick = model.here.end
    elif kind == "set":
        name = _settable(debugger, given[0])
        try:
            debugger.set_value(name, given[1], (0,))
        except nncdbg.RunError:
            # A dependent of the value needs memory that the arena has reused, so the edit was refused.
            if debugger.loaded.allocation.retains:
                raise
        else:
            model.fork(name, given[1])
    elif kind == "go":
        debugger.go_to(given[0])
        model.tick = min(given[0], model.here.end)
    elif kind == "mark":
        debugger.mark(f"m{given[0]}")
        model.marks[given[0]] = model.branch, model.tick
    elif kind == "goto" and given[0] in model.marks:
        debugger.go_to(f"m{given[0]}")
        branch, tick = model.marks[given[0]]
        model.switch(branch)
        model.tick = tick
    elif kind == "branch" and given[0] < len(model.known):
        debugger.timeline.switch(given[0])
        model.switch(given[0])
    elif kind == "reverse continue" and not at_start:
        _reverse_continue(debugger, model, given[0])


def _settable(debugger: nncdbg.Debugger, number: int) -> str:
    """The name of a vector computed in the innermost frame or the entry graph."""
    found = ["x", "z"]
    for name in debugger.control.machine.frames[-1].code.slot_of:
        with suppress(nncdbg.NncdbgError):
            value = debugger.value(name)
            is_in_frame = debugger.values.place(name).depth is not None
            if name and is_in_frame and value.shape == (3,) and value.dtype == np.float32:
                found.append(name)
    return found[-1 - number % len(found)]


def _reverse_continue(debugger: nncdbg.Debugger, model: Model, at: int) -> None:
    """Set a breakpoint at the line of an earlier tick and go back to its last hit."""
    line = model.here.places[min(at, model.tick - 1)][1]
    if not line or debugger.loaded.listing.next_site(line) is None:
        return
    breakpoint = debugger.break_at(line=line)
    hits = [tick for tick in range(model.tick) if model.here.places[tick][1] in breakpoint.lines]
    debugger.reverse_continue()
    debugger.delete(breakpoint.number)
    model.tick = hits[-1] if hits else 0


@pytest.mark.parametrize(
    "options",
    [{}, {"allocator": "plain"}, {"allocator": "arena"}, {"history": 0}],
    ids=["debug", "plain", "arena", "no history"],
)
def test_the_state_is_a_function_of_branch_and_tick(options: dict[str, Any]) -> None:
    reference = {key: value for key, value in options.items() if key != "history"}
    if reference.get("allocator") == "arena":
        # The model reads every value; the arena keeps only some of them, with the same bits.
        reference = {"allocator": "plain"}

    @WALKS
    @given(runnable(), st.lists(MOVES, min_size=5, max_size=25))
    def walk(text: str, moves: list[tuple[Any, ...]]) -> None:
        debugger = started(text, **options)
        model = Model(text, reference)
        for each in moves:
            move(debugger, model, *each)
            assert (debugger.timeline.branch, debugger.control.machine.tick) == (model.branch, model.tick)
            assert sorted(debugger.timeline.branches) == sorted(model.known)
            wanted = model.here.states[model.tick]
            assert _agree(state(debugger), wanted, whole=not options), each

    walk()


def _agree(seen: list[Any], wanted: list[Any], *, whole: bool) -> bool:
    """Whether two states are equal; unless `whole`, freed values may be missing."""
    if whole:
        return seen == wanted
    if seen[0] != wanted[0] or len(seen) != len(wanted):
        return False
    return all(
        now[:3] == then[:3] and all(then[3].get(slot) == value for slot, value in now[3].items())
        for now, then in zip(seen[1:], wanted[1:], strict=True)
    )


MICRO = """opset 18
graph @main(%x: f32[3], %z: f32[3]) -> (%y: f32[3]) {
  %a = Softmax(%x)
  %b = Mul(%a, %z)
  %y = Softmax(%b)
  return %y
}
"""


def test_a_replay_applies_an_edit_after_a_micro_program_at_its_statement() -> None:
    debugger = started(MICRO)
    debugger.step_into(micro=True)
    debugger.step_out()
    debugger.set_value("a", 0.5)
    edited = state(debugger)
    debugger.step_over()
    debugger.restart()
    assert [each.name for each in debugger.timeline.ahead] == ["a"]
    stop = debugger.step_over()
    assert (stop.line, stop.reason) == (4, "step"), "the micro program is run as one statement"
    assert state(debugger) == edited
    debugger.restart()
    assert debugger.step_into().line == 4


def test_a_replay_applies_an_edit_inside_a_micro_program() -> None:
    debugger = started(MICRO)
    debugger.step_into(micro=True)
    debugger.step_over()
    name = debugger.control.machine.frames[-1].code.nodes[0].outputs[0].name
    debugger.set_value(name, 2.0)
    edited = state(debugger)
    debugger.run()
    ended = debugger.outputs
    debugger.restart()
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    assert ended is not None
    assert debugger.outputs["y"].tobytes() == ended["y"].tobytes()
    debugger.restart()
    debugger.step_into(micro=True)
    debugger.step_over()
    assert state(debugger) == edited


def test_a_micro_program_entered_before_an_edit_delays_it() -> None:
    debugger = started(MICRO)
    debugger.run_to(line=5)
    debugger.set_value("b", 1.0)
    debugger.restart()
    debugger.step_into(micro=True)
    inside = debugger.control.machine.frames[-1]
    while debugger.control.machine.frames[-1] is inside:
        assert debugger.timeline.ahead, "not applied inside the micro program"
        debugger.step_over()
    debugger.run_to(line=5)
    assert debugger.value("b").tolist() == [1.0] * 3
    debugger.step_back()
    assert debugger.timeline.ahead
    debugger.restart()
    debugger.run_to(line=5)
    assert debugger.value("b").tolist() == [1.0] * 3


def test_going_back_drops_a_micro_program_without_later_edits() -> None:
    debugger = started(MICRO)
    debugger.step_into(micro=True)
    debugger.step_out()
    debugger.restart()
    debugger.step_over()
    assert debugger.control.machine.tick == 1
