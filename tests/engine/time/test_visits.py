"""The last tick before a statement ran, compared with a record of the run, and moves to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nncdbg
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.execution.undo_log import last_visit
from nncdbg.engine.time import checkpoints

EXAMPLES = Path(__file__).parents[3] / "examples"

Moment = tuple[tuple[str | int, ...], int]


def debugger_of(name: str, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.load(str(EXAMPLES / name)), **options)


def here(debugger: nncdbg.Debugger) -> Moment:
    frame = debugger.control.machine.frames[-1]
    return frame.code.path, frame.pc


def on(path: tuple[str | int, ...]) -> Callable[[Code], bool]:
    return lambda code: code.path == path and code.formula is None


def recorded(debugger: nncdbg.Debugger) -> list[Moment]:
    """The next statement at each tick, recorded by single steps; the last statement occurs twice."""
    found = [here(debugger)]
    while debugger.step_into().reason != "end":
        found.append(here(debugger))
    return [*found, found[-1]]


def check(debugger: nncdbg.Debugger, moments: list[Moment]) -> None:
    """Check the last visit of every statement against the record, at the current tick."""
    now = debugger.control.machine.tick
    for path, pc in set(moments):
        last = max((tick for tick, moment in enumerate(moments[:now]) if moment == (path, pc)), default=None)
        assert last_visit(debugger.control.machine, on(path), pc) == last, (path, pc, now)


@pytest.mark.parametrize("allocator", ["debug", "arena"])
@pytest.mark.parametrize("name", ["first_steps.nnc", "refine_loop.nnc", "attention.nnc"])
def test_the_last_visit_agrees_with_the_record(name: str, allocator: str) -> None:
    debugger = debugger_of(name, allocator=allocator)
    moments = recorded(debugger)
    end = debugger.control.machine.tick
    for tick in (end, end - 1, end // 2, end - 3, end // 3, 1, end // 2 + 1, 0):
        debugger.go_to(tick)
        check(debugger, moments)


def test_visits_before_the_journal_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "UNDO_LIMIT", 4)
    debugger = debugger_of("refine_loop.nnc")
    moments = recorded(debugger)
    floor = debugger.control.machine.floor
    assert floor > 0
    for path, pc in set(moments):
        last = max(tick for tick, moment in enumerate(moments[:-1]) if moment == (path, pc))
        assert last_visit(debugger.control.machine, on(path), pc) == (last if last >= floor else None)


def test_step_back_enters_the_micro_program_only_if_it_was_entered_before() -> None:
    debugger = debugger_of("first_steps.nnc")
    debugger.run_to(line=13)
    debugger.step_into(micro=True)
    inside = debugger.control.machine.frames[-1].code
    assert inside.formula is not None
    debugger.step_out()
    debugger.step_back(micro=True)
    assert debugger.control.machine.frames[-1].code is inside
    debugger.reverse_step_out()
    debugger.step_over()
    debugger.step_back(micro=True)
    assert debugger.stop.line == 13
