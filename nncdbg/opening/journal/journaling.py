"""Writing the run of a debugger to the journal of its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.engine.compilation.tracked_values import tracked_lines
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.time.step_starts import lines_of
from nncdbg.opening.folder_writing import versions_of
from nncdbg.opening.journal.content import kept_configuration, text_of
from nncdbg.opening.journal.inputs import KeptInputs, kept_inputs
from nncdbg.opening.journal.policy import CheckpointPolicy
from nncdbg.opening.journal.recording import StepRecorder
from nncdbg.opening.journal.value_recorder import ValueRecorder

if TYPE_CHECKING:
    from nncdbg.journal import NewRun
    from nncdbg.opening.configuration import RunConfiguration
    from nncdbg.opening.journal.forking import Fork
    from nncdbg.opening.journal.reopening import Restart
    from nncdbg.opening.programs import OpenedProgram


@contextmanager
def journaled(opened: OpenedProgram, debugger: Debugger) -> Iterator[StepRecorder | None]:
    """Write the run of a debugger to the journal of its configuration, if it has one.

    A fork is written to the journal of its parent.  An error while the run is written is reported
    at once, and is `StepRecorder.problem` afterwards.

    Raises UsageError for a program without a ``run`` line, LoadError for a file that is not a journal.
    """
    configuration = opened.configuration
    restart = opened.restart
    path = configuration.journal and Path(configuration.folder or "", configuration.journal)
    if restart is not None:
        path = _file_of_fork(restart, path or None)
    if not path:
        hint = "add --journal FILE" if restart is None else "start a fork of the run with --fork"
        _check_nothing_needs_a_journal(configuration, hint)
        yield None
        return
    if not debugger.program.runs:
        raise UsageError(
            "--journal is for trainings, but the program has no `run` line",
            hint="see docs/TRAINING.md, or leave out --journal",
        )
    _check_names(debugger)
    CheckpointPolicy.of(configuration.checkpoint_every, configuration.checkpoint_budget)
    inputs = kept_inputs(debugger.inputs, configuration)
    values = ValueRecorder.of(debugger, configuration)
    from nncdbg import journal

    file = journal.open(path, write=True)
    recorder = StepRecorder(
        debugger,
        lambda parent: file.start(_description(opened, debugger, inputs, parent)),
        lambda: CheckpointPolicy.of(configuration.checkpoint_every, configuration.checkpoint_budget),
        inputs.tensors,
        restart.parent if restart is not None else None,
        values,
        stops=configuration.on_journal_error == "stop",
    )
    if configuration.note:
        recorder.note(configuration.note)
    try:
        yield recorder
    except NncdbgError:
        recorder.has_failed = True
        raise
    finally:
        recorder.end()
        recorder.attempt(file.close)


_NEED_A_JOURNAL = (
    "checkpoint_every",
    "checkpoint_budget",
    "journal_statistics",
    "journal_values",
    "journal_values_every",
    "journal_codec",
    "on_journal_error",
    "note",
)


def _check_nothing_needs_a_journal(configuration: RunConfiguration, hint: str) -> None:
    """Raise UsageError for a setting of the journal without one."""
    for name in _NEED_A_JOURNAL:
        if name in configuration.given and getattr(configuration, name):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is for a run that is written to a journal", hint=hint)


def _check_names(debugger: Debugger) -> None:
    """Raise UsageError for a track with the name of a result, of which the journal could have only one."""
    runs = lines_of(debugger.control.machine.frames[0].code)
    for line in tracked_lines(debugger.program):
        results = {name for run in runs for name in (run.scalars if line.part == "train" else run.evaluated)}
        for track, _ in line.tracks:
            if track.name in results:
                raise UsageError(
                    f"the track {track.name} has the name of the result %{name_text(track.name)}, which the "
                    "journal contains anyway",
                    hint="leave out the track, or choose another name",
                )


def _file_of_fork(restart: Restart | Fork, path: Path | None) -> Path | None:
    """Return the journal in which a fork is written: that of its parent; None for a run that is repeated."""
    if path is not None and (restart.parent is None or not _is_same(path, restart.journal.path)):
        raise UsageError(
            f"--journal {path}: {restart.address} is in a journal already",
            hint="start a fork with --fork, which is written to the same file",
        )
    return None if restart.parent is None else restart.journal.path


def _is_same(path: Path, other: Path) -> bool:
    return path.exists() and os.path.samefile(path, other)


def _description(
    opened: OpenedProgram, debugger: Debugger, inputs: KeptInputs, parent: tuple[int, int] | None
) -> NewRun:
    from nncdbg.journal import NewRun

    configuration = opened.configuration
    kept = kept_configuration(configuration, debugger.inputs.dims, inputs.files)
    kept["source"] = opened.program.source
    if configuration.changes:
        kept["changes"] = {name: str(value) for name, value in configuration.changes.items()}
    run, step = parent or (None, None)
    return NewRun(
        kind="graph",
        name=opened.program.source or configuration.program,
        program=text_of(opened.program),
        configuration=kept,
        versions=versions_of(str(configuration.backend)),
        seed=configuration.seed,
        command=sys.argv[:],
        parent=run,
        parent_step=step,
    )
