"""Forks: a new run that begins at the start of a step of another run, which stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.frontends import load
from nncdbg.engine.inputs.binding import Note
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.time.step_starts import NumberedRun, lines_of, restored
from nncdbg.ir.records import type_of
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.changes import changed
from nncdbg.opening.journal.content import program_of, text_of
from nncdbg.opening.journal.earlier_tracks import add_earlier_tracks
from nncdbg.opening.journal.steps import Steps, run_to_step
from nncdbg.opening.journal_address import Address
from nncdbg.textual_repr.parser import parse

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.journal import Journal, Run
    from nncdbg.opening.journal.reopening import ReopenedRun


@dataclass(frozen=True, slots=True, eq=False)
class Fork:
    """The start of a fork, to which `apply` moves a debugger of its program.

    `repeats` is the parent, if the fork is to compute the same steps: it has no other values.
    """

    journal: Journal
    address: Address
    parent: tuple[int, int]
    """The number of the parent, and its step at which the fork begins."""
    repeats: Run | None
    position: Mapping[str, Any]
    tensors: Mapping[str, Any]
    title: str
    """The parent in words, with the values that its own fork has set."""
    is_edited: bool
    """Whether the program is another one than that of the parent."""

    @property
    def place(self) -> Address:
        """The address of the step at which the fork begins."""
        return Address(self.address.file, *self.parent)

    def apply(self, debugger: Debugger) -> None:
        """Move a debugger at its first statement to the step.  Raises UsageError for its allocator."""
        debugger.move(partial(self._go, debugger))
        add_earlier_tracks(debugger, self.journal, *self.parent)
        debugger.notes[:] = [Note(f"fork of {self.title} at step {self.parent[1]}")]

    def _go(self, debugger: Debugger) -> Stop:
        control, timeline = debugger.control, debugger.timeline
        if timeline.overwrites:
            raise UsageError(
                f"a fork cannot begin with {debugger.loaded.allocation.name}, which reuses memory",
                hint="use --allocator debug",
            )
        states = timeline.checkpoints.states
        lines = lines_of(control.machine.frames[0].code)
        position, tensors = self.position, self.tensors
        if self.is_edited:
            position, tensors = _in_edited(debugger, lines, self.parent[1], tensors)
        states[0] = restored(states[0], lines, position, tensors, debugger.backend.to_device)
        control.machine.become(states[0].clone())
        run, step = self.parent
        control.no_past = (
            f"the fork begins here, at step {step} of run {run}",
            f"open its parent: {replace(self.address, run=run, step=step, epoch=None, nan=False)}",
        )
        return control.here("entry")


def fork_of(
    reopened: ReopenedRun, parent: Debugger, configuration: RunConfiguration
) -> tuple[Program, RunConfiguration, Fork]:
    """Return the program of a fork, its configuration and its start.

    `parent` is a debugger of the parent, at the step where the fork begins.  Raises UsageError for values to
    set that do not fit.
    """
    restart = reopened.restart
    start = Steps(parent, lambda: None, lambda line, iteration, results: None).here()
    tensors = {
        key: [*map(parent.backend.to_host, each)] if isinstance(each, list) else parent.backend.to_host(each)
        for key, each in start.tensors.items()
    }
    position = {**start.position, "tick": 0}
    if "entered" in position:
        position["entered"] = 0
    program, text = reopened.program, restart.journal.program(restart.run)
    edited = configuration.fork_program
    if edited is not None:
        program = load(Path(configuration.folder or "", edited), stores=configuration.stores)
        text = text_of(program)
    assert text is not None
    states = {key.partition("/")[2]: each for key, each in tensors.items() if _is_state(key)}
    folder = Path(configuration.folder) if configuration.folder else None
    found = changed(program, text, configuration.changes, states, folder)
    for name, value in found.states.items():
        tensors[f"state/{name}" if f"state/{name}" in tensors else f"moment/{name}"] = value
    if found.text != text and edited is not None:
        program = replace(
            parse(found.text, file=program.source), readers=program.readers, source=program.source
        )
    elif found.text != text:
        first = restart.journal.read(restart.records[0]).tensors
        program = program_of(found.text, program.source, first)
    inputs = {**reopened.configuration.inputs, **found.inputs}
    fork = Fork(
        restart.journal,
        restart.address,
        (restart.run.number, restart.step),
        None if configuration.changes or edited is not None else restart.run,
        position,
        tensors,
        _title(restart.run),
        edited is not None,
    )
    return program, replace(reopened.configuration, inputs=inputs), fork


def _title(run: Run) -> str:
    """Return a run in words, with the values that were set when it was forked: ``run 2 (lr=0.1)``."""
    changes = run.configuration.get("changes")
    words = (
        ", ".join(f"{name}={value}" for name, value in changes.items()) if isinstance(changes, dict) else ""
    )
    return f"run {run.number} ({words})" if words else f"run {run.number}"


def _in_edited(
    debugger: Debugger, lines: tuple[NumberedRun, ...], step: int, kept: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the position and the tensors of a step in another program than that of the parent.

    The program itself computes what its first ``run`` line reads; the states are those of the parent.  A
    result that the parent does not have is NaN in the steps before.  Raises UsageError for states that do
    not fit.
    """
    if not lines or step >= lines[0].steps:
        raise UsageError(
            f"a fork with another program cannot begin at step {step}, which is not in its first `run` line",
            hint=f"fork at a step below {lines[0].steps}" if lines else "add a `run` line",
        )
    line = lines[0]
    states = {key.partition("/")[2]: each for key, each in kept.items() if _is_state(key)}
    wanted = {value.name: value.type for value in line.body.graph.inputs[1:]}
    misfits = [
        *(f"%{name_text(name)} is only in the run" for name in states if name not in wanted),
        *(f"%{name_text(name)} is not in the run" for name in wanted if name not in states),
        *(
            f"%{name_text(name)} is {found} in the run, and {kind} in the program"
            for name, kind in wanted.items()
            if name in states and kind != (found := type_of(states[name]))
        ),
    ]
    if misfits:
        raise UsageError(
            f"the program does not fit the states of the run: {'; '.join(misfits)}",
            hint="keep the `state` lines of the run, or start a new training",
        )
    run_to_step(debugger, lines, 0)
    start = Steps(debugger, lambda: None, lambda line, iteration, results: None).here()
    tensors = {
        **start.tensors,
        **{key: states[key.partition("/")[2]] for key in start.tensors if _is_state(key)},
    }
    for name in (*line.scalars, *line.evaluated):
        tensors[f"collected/{name}"] = kept.get(f"collected/{name}", np.full(step, np.nan, np.float32))
    return {**start.position, "tick": 0, "entered": 0, "iteration": step}, tensors


def _is_state(key: str) -> bool:
    return key.startswith(("state/", "moment/"))


def resumed(journal: Journal, address: Address) -> Address:
    """Return the address of the last checkpoint of a run that did not end.

    Raises UsageError for a run that has ended or is still running.
    """
    run = journal.run(address.run)
    if run.status in ("ended", "running"):
        state = "has ended" if run.status == "ended" else "is still running"
        raise UsageError(
            f"run {run.number} {state}: there is nothing to continue",
            hint=f"repeat or fork it from a step: {address.file}#{run.number}@STEP --fork",
        )
    last = journal.nearest(run, run.steps)
    if last is None:
        raise UsageError(f"run {run.number} has no checkpoint", hint="start the training again")
    return Address(address.file, run.number, step=last.step)
