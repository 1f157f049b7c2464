"""Forks: a new run that begins at the start of a step of another run, which stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.time.step_starts import lines_of, restored
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.changes import changed
from nncdbg.opening.journal.content import program_of
from nncdbg.opening.journal.earlier_tracks import add_earlier_tracks
from nncdbg.opening.journal.steps import Steps
from nncdbg.opening.journal_address import Address

if TYPE_CHECKING:
    from nncdbg.engine.graph import Program
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

    @property
    def place(self) -> Address:
        """The address of the step at which the fork begins."""
        return Address(self.address.file, *self.parent)

    def apply(self, debugger: Debugger) -> None:
        """Move a debugger at its first statement to the step.  Raises UsageError for its allocator."""
        debugger.move(partial(self._go, debugger))
        add_earlier_tracks(debugger, self.journal, *self.parent)
        debugger.notes.clear()

    def _go(self, debugger: Debugger) -> Stop:
        control, timeline = debugger.control, debugger.timeline
        if timeline.overwrites:
            raise UsageError(
                f"a fork cannot begin with {debugger.loaded.allocation.name}, which reuses memory",
                hint="use --allocator debug",
            )
        states = timeline.checkpoints.states
        lines = lines_of(control.machine.frames[0].code)
        states[0] = restored(states[0], lines, self.position, self.tensors, debugger.backend.to_device)
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
    text = restart.journal.program(restart.run)
    assert text is not None
    states = {key.partition("/")[2]: each for key, each in tensors.items() if _is_state(key)}
    folder = Path(configuration.folder) if configuration.folder else None
    found = changed(reopened.program, text, configuration.changes, states, folder)
    for name, value in found.states.items():
        tensors[f"state/{name}" if f"state/{name}" in tensors else f"moment/{name}"] = value
    program = reopened.program
    if found.text != text:
        first = restart.journal.read(restart.records[0]).tensors
        program = program_of(found.text, program.source, first)
    inputs = {**reopened.configuration.inputs, **found.inputs}
    fork = Fork(
        restart.journal,
        restart.address,
        (restart.run.number, restart.step),
        None if configuration.changes else restart.run,
        position,
        tensors,
    )
    return program, replace(reopened.configuration, inputs=inputs), fork


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
