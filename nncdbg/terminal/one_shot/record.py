"""`nncdbg record`: record a training step of a PyTorch script, and save it as a program folder."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import LoadError, RunError, UsageError
from nncdbg.opening.command_line import ArgumentParser, add_script, one_shot, option
from nncdbg.process.ranks import folder_of_rank
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.torch.journal.recreation import Recreation
    from nncdbg.torch.script import ScriptStep


def _step_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"--step {text}: not a step", hint="use a number from 1: --step 1 is the first step")
    return number


def _check(parser: ArgumentParser, options: Namespace) -> None:
    if not options.module and not options.script:
        raise UsageError("there is no script", hint="nncdbg record train.py")
    if options.at is not None and options.step is not None:
        raise UsageError("--step and --at both name the step to record", hint="leave out one of them")


@one_shot(
    "nncdbg record",
    "Run a PyTorch script until the end of a training step, and save the step as a folder.\n"
    "The script needs no change.  `nncdbg DIR` opens the folder.",
    add_script,
    option("--step", type=_step_number, metavar="N", help="the step to record, from 1 (default: 1)"),
    option("--at", metavar="RUN.db@N", help="re-create a step of a journal, such as run.db@38 or run.db@nan"),
    option(
        "-o", "--output", metavar="DIR", help="the folder to write (default: stepN, or beside the journal)"
    ),
    option(
        "--no-source",
        dest="source",
        action="store_false",
        help="save digests of the source files, without their text and names",
    ),
    check=_check,
    runs_script=True,
    usage="nncdbg record [--step N | --at RUN.db@N] [-o DIR] [--no-source] SCRIPT [ARGUMENT ...]\n"
    "       nncdbg record [--step N | --at RUN.db@N] [-o DIR] [--no-source] -m MODULE [ARGUMENT ...]",
    epilog="A step ends when the method `step` of an optimizer ends; each optimizer counts, and so\n"
    "does a step that GradScaler skips.  Step 1 begins with the first call of a module, a later\n"
    "step at the end of the step before.  The script ends with the recorded step.\n\n"
    "With --at, the script continues at the last checkpoint of its journal before the step, and\n"
    "ends with that step.  Its flight recorder writes nothing.  The exit code is 1 if a loss\n"
    "differs from that in the journal.\n\n"
    "--step, --at, -o and --no-source may also follow SCRIPT.  All other arguments there, and\n"
    "all after --, are for the script.",
)
def main(options: Namespace) -> int:
    """Return 0 if the step was saved, 1 if a loss of a re-created step differs from its journal.

    Raises UsageError for a script without that step, LoadError for one that cannot be read, and RunError for
    one that fails, after saving the part of the step that ran.
    """
    if not options.module:
        check_script(options.script)
    from nncdbg.torch.script import script_runner

    run = script_runner(options.script, options.module, options.arguments)
    script = options.module or options.script
    return _record_at(options, script, run) if options.at else _record_step(options, script, run)


def _record_step(options: Namespace, script: str, run: Callable[[], None]) -> int:
    """Record the step `--step`, and return 0."""
    folder = Path(folder_of_rank(options.output or f"step{options.step or 1}"))
    from nncdbg.opening.folder_writing import check_folder

    check_folder(folder)
    from nncdbg.torch.script import ScriptRecorder, record_script

    return record_script(
        script, run, ScriptRecorder(options.step or 1), partial(_save, folder, options.source)
    )


def _record_at(options: Namespace, script: str, run: Callable[[], None]) -> int:
    """Re-create the step `--at`, and return 0; 1 if a loss differs from the journal."""
    from nncdbg.opening.folder_writing import check_folder
    from nncdbg.presentation.screen import Screen
    from nncdbg.torch.journal.recreation import RecreatedStepRecorder, recreation_of
    from nncdbg.torch.ranks import await_ranks
    from nncdbg.torch.script import record_script

    recreation = recreation_of(options.at)
    # Beside the journal of the rank, which has another name on each rank.
    folder = Path(folder_of_rank(options.output)) if options.output else _folder_beside(recreation)
    check_folder(folder)

    def save(recorded: ScriptStep) -> int:
        try:
            _save(folder, options.source, recorded)
        finally:
            problem = await_ranks()
            if problem is not None:
                Screen().note(problem)
        return 1 if recreation.first_different else 0

    return record_script(script, run, RecreatedStepRecorder(recreation), save)


def _folder_beside(recreation: Recreation) -> Path:
    """Return the folder of the step beside its journal, where its address opens it.

    Raises UsageError if it is there: the step was recorded before, or while the training ran.
    """
    from nncdbg.opening.journal.ranks import bundle_folder

    saved = recreation.saved
    folder = bundle_folder(saved.address.file, saved.run, recreation.step)
    if folder.exists():
        at = f"{saved.address.file}#{saved.run}@{recreation.step}"
        raise UsageError(
            f"step {recreation.step} is recorded already, in {folder}",
            hint=f"open it with `nncdbg {shlex.quote(at)}`, or use another folder: -o DIR",
        )
    return folder


def _save(folder: Path, source: bool, recorded: ScriptStep) -> int:
    """Save a step, print what it has, and return 0.

    Raises the failure that ended it, and RunError for a step without operators that can be recorded.
    """
    from rich.filesize import decimal

    from nncdbg.presentation.screen import Screen

    program = recorded.step.program
    statements = sum(len(graph.nodes) for graph in program.graphs.values())
    if not statements and program.notes:
        raise RunError(
            f"the step cannot be recorded: {program.notes[0]}", hint="record a step on tensors with data"
        )
    recorded.step.save(folder, title=recorded.title, notes=recorded.notes, source=source)
    screen = Screen()
    for note in (*recorded.step.notes, *recorded.notes):
        screen.note(note)
    inputs, graphs = counted(len(program.graph.inputs), "input"), counted(len(program.graphs), "graph")
    size = decimal(sum(array.nbytes for array in recorded.step.inputs.values()))
    screen.note(
        f"{recorded.title}: {counted(statements, 'statement')} in {graphs}, "
        f"{counted(len(program.states), 'state')} and {inputs} with {size}"
    )
    screen.note(f"saved in {folder}; open it with `nncdbg {shlex.quote(str(folder))}`")
    if recorded.failure is not None:
        raise recorded.failure
    return 0


def check_script(script: str) -> None:
    """Raise LoadError unless the path is a file."""
    if os.path.isdir(script):
        raise LoadError(f"{script} is a folder", hint="use a Python file")
    if not os.path.exists(script):
        raise LoadError(
            f"there is no file {script}", hint=f"searched {os.path.dirname(os.path.abspath(script))}"
        )
