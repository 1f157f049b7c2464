"""Opening a run of a journal at the start of a step."""

from __future__ import annotations

import os
import shlex
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg import journal as journals
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.frontends import load
from nncdbg.engine.ops.library import load_op_library
from nncdbg.engine.stopping.stops import Stop
from nncdbg.engine.time.step_starts import NumberedRun, lines_of, restored
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Program
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.content import check_files, program_of, supplied
from nncdbg.opening.journal.forking import resumed
from nncdbg.opening.journal.ranks import BAD_KINDS, recorded_step
from nncdbg.opening.journal.steps import add_earlier_tracks, run_to_step
from nncdbg.opening.journal_address import Address, read_address, resumed_by_script

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.journal import CheckpointRecord, Journal, Run

FIXED = {
    "inputs": "--input",
    "dims": "--dim",
    "seed": "--seed",
    "steps": "--steps",
    "states": "--states",
    "outputs": "--output",
}
"""Fields of the run configuration that are those of the run, with their flags."""


_POSITION = frozenset({"tick", "pc", "outer"})
"""Keys of the position of each checkpoint that a run of a program writes."""


@dataclass(frozen=True, slots=True, eq=False)
class Restart:
    """The start of a step of a run in a journal, to which `apply` moves a debugger of the run's program.

    `run` is the run whose steps those are: steps before a fork are steps of its parent.
    """

    journal: Journal
    address: Address
    run: Run
    step: int
    records: tuple[CheckpointRecord, ...]
    """The checkpoints of the run itself, by step."""

    parent: None = None
    """The run is repeated: no other run is written."""

    @property
    def repeats(self) -> Run:
        """The run whose steps are computed again."""
        return self.run

    @property
    def place(self) -> Address:
        """The address of the step, with the number of the run."""
        return Address(self.address.file, self.run.number, self.step)

    def apply(self, debugger: Debugger) -> None:
        """Move a debugger at its first statement to the step.

        Raises LoadError for a damaged checkpoint, UsageError for an allocator that cannot begin there.
        """
        check_files(self.run.configuration, debugger.inputs, self.run.number)
        debugger.move(partial(self._go, debugger))
        add_earlier_tracks(debugger, self.journal, self.run.number, self.step)
        debugger.notes.clear()

    def _go(self, debugger: Debugger) -> Stop:
        timeline, control = debugger.timeline, debugger.control
        lines = lines_of(control.machine.frames[0].code)
        states = timeline.checkpoints.states
        if not timeline.overwrites:
            if self.run.parent is not None:
                # The time of a fork begins with its first checkpoint.
                start = self._machine(self.records[0], states[0], lines, debugger)
                assert start is not None
                states[0] = start
                control.no_past = self._no_past(self.records[0])
            record = next(each for each in reversed(self.records) if each.step <= self.step)
            machine = self._machine(record, states[0], lines, debugger)
            if machine is None:
                machine = self._machine(record, states[0], lines, debugger, tick=0)
                assert machine is not None
                states[0] = machine
                control.no_past = self._no_past(record)
            elif machine.tick > states[-1].tick:
                states.append(machine)
            control.machine.become(states[-1].clone())
            timeline.checkpoints.earlier = partial(self._earlier, states[0], lines, debugger)
        elif self.run.parent is not None:
            raise UsageError(
                f"the allocator {debugger.loaded.allocation.name} computes all steps from the first one, and "
                f"run {self.run.number} is a fork",
                hint="use --allocator debug",
            )
        return run_to_step(debugger, lines, self.step)

    def _no_past(self, record: CheckpointRecord) -> tuple[str, str]:
        if self.run.parent is None:
            return (
                f"the steps before {record.step} cannot be computed again from here",
                f"open an earlier step: {replace(self.address, step=max(0, record.step - 1), nan=False)}",
            )
        before = replace(self.address, run=self.run.parent, step=self.run.parent_step, epoch=None, nan=False)
        return f"run {self.run.number} begins here, as a fork", f"open its parent: {before}"

    def _machine(
        self,
        record: CheckpointRecord,
        start: Machine,
        lines: tuple[NumberedRun, ...],
        debugger: Debugger,
        tick: int | None = None,
    ) -> Machine | None:
        """Return the machine of a checkpoint; None if its moment is not known and no `tick` is given."""
        checkpoint = self.journal.read(record)
        position = checkpoint.position
        if tick is not None:
            position = {**position, "tick": tick, "entered": 0}
        if position["tick"] is None:
            return None
        return restored(start, lines, position, checkpoint.tensors, debugger.backend.to_device)

    def _earlier(
        self, start: Machine, lines: tuple[NumberedRun, ...], debugger: Debugger, above: int, tick: int
    ) -> Machine | None:
        """Return the last checkpoint above one tick and up to another; None if there is none."""
        ticks = [self.journal.read(record).position["tick"] for record in self.records]
        if None in ticks:
            return None
        number = bisect_right(ticks, tick) - 1
        if number < 0 or ticks[number] <= above:
            return None
        return self._machine(self.records[number], start, lines, debugger)


# -- opening -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ReopenedRun:
    """The program of a run with its configuration, and the restart at a step."""

    program: Program
    configuration: RunConfiguration
    restart: Restart
    supplied: Mapping[str, Any]
    """The fields of the configuration that the journal supplies."""


def reopen(address: Address, configuration: RunConfiguration) -> ReopenedRun:
    """Return the program of a run in a journal, and the restart at a step.

    Raises UsageError for a run or step that the journal does not have, LoadError for a file that is damaged.
    """
    given = {name for name in configuration.given if getattr(configuration, name) not in ({}, [], None)}
    fixed = [flag for name, flag in FIXED.items() if name in given]
    if fixed:
        raise UsageError(
            f"{address} has the inputs and settings of its run: {', '.join(fixed)} cannot change them",
            hint="start a fork with other values: --fork --set NAME=VALUE",
        )
    if not (configuration.resume or address.at_step):
        raise UsageError(f"{address} is a journal: name a step", hint=f"for example {address}@0")
    if configuration.changes and not configuration.fork:
        raise UsageError(
            "--set is for a fork: a run in a journal does not change", hint="add --fork, or leave out --set"
        )
    if configuration.fork_program and not configuration.forks:
        raise UsageError("--program is for a fork: a run in a journal does not change", hint="add --fork")
    journal = journals.open(Path(configuration.folder or "", address.file))
    if configuration.forks and journal.run(address.run).kind != "graph":
        raise resumed_by_script(address)
    if configuration.fork and address.run is None:
        address = replace(address, run=_root(journal).number)
    if configuration.resume:
        address = resumed(journal, address)
    run = journal.run(address.run)
    check_graph_run(run, address)
    step = step_of(journal, run, address)
    run, records = _owner(journal, run, step)
    first = journal.read(records[0])
    if not _POSITION.issubset(first.position):
        raise LoadError(
            f"run {run.number} of {address.file} cannot be opened: another program wrote its checkpoints",
            hint="`nncdbg run MODEL --journal FILE` writes checkpoints that can be opened",
        )
    text = journal.program(run)
    if text is None:
        raise LoadError(f"run {run.number} of {address.file} has no program")
    _load_libraries(run.configuration, configuration)
    program = program_of(text, run.configuration.get("source"), first.tensors)
    kept = supplied(run.configuration, first.tensors)
    restart = Restart(journal, address, run, step, records)
    return ReopenedRun(program, configuration.completed(kept), restart, kept)


def _root(journal: Journal) -> Run:
    """Return the run at the start of the chain of forks that the last run is in."""
    runs = {each.number: each for each in journal.runs()}
    run = journal.run()
    while run.parent is not None:
        run = runs[run.parent]
    return run


def check_graph_run(run: Run, address: Address) -> None:
    """Raise UsageError for a PyTorch training, which has no program."""
    if run.kind != "graph":
        script = run.command[1] if len(run.command) > 1 and run.command[1].endswith(".py") else "train.py"
        at = shlex.quote(str(address if address.at_step else f"{address}@{max(0, run.steps - 1)}"))
        raise UsageError(
            f"run {run.number} of {address.file} is a PyTorch training, not a program",
            hint=f"re-create the step in its script: nncdbg record {shlex.quote(script)} --at {at}",
        )


def _owner(journal: Journal, run: Run, step: int) -> tuple[Run, tuple[CheckpointRecord, ...]]:
    """Return the run whose step it is, a parent for a step before a fork, and the run's checkpoints."""
    while run.parent is not None and step < (run.parent_step or 0):
        run = journal.run(run.parent)
    records = tuple(each for each in journal.checkpoints(run) if each.run == run.number)
    if not records:
        raise LoadError(
            f"run {run.number} has no checkpoint: it ended before the first one was written",
            hint="start the training again",
        )
    if records[0].step > step:
        raise UsageError(
            f"run {run.number} begins with an edit in step {step}: it can be opened from step "
            f"{records[0].step}",
            hint=f"open the step without the edit in run {run.parent}",
        )
    return run, records


def _load_libraries(kept: Mapping[str, Any], configuration: RunConfiguration) -> None:
    """Load the op libraries that are given.  Raises UsageError if the run needs some and none are given."""
    needed = kept.get("op_libraries") or []
    if needed and not configuration.op_libraries:
        raise UsageError(
            f"the run needs custom kernels: {', '.join(needed)}",
            hint="review the Python file, then pass it with --op-library FILE.py",
        )
    for library in configuration.op_libraries:
        load_op_library(library)


def step_of(journal: Journal, run: Run, address: Address) -> int:
    """Return the step of an address.  Raises UsageError if the run does not have it."""
    if address.nan:
        return _first_nan(journal, run)
    if address.epoch is not None:
        steps = journal.steps(run)
        found = steps["step"][steps["epoch"] == address.epoch]
        if not len(found):
            raise UsageError(
                f"run {run.number} has no epoch {address.epoch}", hint=f"it has {_range(run.epochs, 'epoch')}"
            )
        return int(found[0])
    assert address.step is not None
    if address.step > run.steps:
        raise UsageError(f"run {run.number} has no step {address.step}", hint=f"it has {steps_of(run)}")
    return address.step


def steps_of(run: Run) -> str:
    """Return the steps that a run has: ``the steps 0 to 299``."""
    return _range(run.steps, "step")


def _range(count: int, word: str) -> str:
    return f"the {word}s 0 to {count - 1}" if count > 1 else f"{count} {word}{'s' * (count != 1)}"


def _first_nan(journal: Journal, run: Run) -> int:
    """Return the first step with a NaN or Inf in a tracked value, or with a finding."""
    found = [each.step for each in journal.events(run) if each.kind in BAD_KINDS and each.step is not None]
    for name, part in journal.tracks(run):
        steps, numbers = journal.values(run, name, part)
        bad = steps[~np.isfinite(numbers)]
        found += [int(bad[0])] if len(bad) else []
    if not found:
        raise UsageError(
            f"run {run.number} has no NaN or Inf in its {len(journal.tracks(run))} tracked values",
            hint="`nncdbg watch` inspects every statement",
        )
    return min(found)


# -- loading by address ----------------------------------------------------------------------------


def journal_frontend(path: Path) -> Callable[..., Program] | None:
    """Return the front-end of an address, such as ``run.db@nan``; None for another path.

    Raises UsageError for an address that is malformed, LoadError for a file that is not a journal.
    """
    address = read_address(os.fspath(path))
    if address is None:
        return None

    def loaded(_: Path, **options: Any) -> Program:
        return _load(address)

    return loaded


def _load(address: Address) -> Program:
    """Return the program of the recorded step at an address.

    Raises UsageError for a step that was not recorded, and for a run of a program in graph text.
    """
    if not address.at_step:
        raise UsageError(f"{address} is a journal: name a step", hint=f"for example {address}@0")
    folder = recorded_step(address, Path())
    if folder is not None:
        return load(folder)
    with journals.open(address.file) as journal:
        check_graph_run(journal.run(address.run), address)
    raise UsageError(
        f"{address} cannot be loaded as a program: it is a step of a run, whose states are in the journal",
        hint=f"nncdbg.run({str(address)!r}) repeats the run from there; `nncdbg {address}` stops there",
    )
