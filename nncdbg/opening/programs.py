"""The path from a run configuration to a program, and to a debugger at its first statement."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.crash_log import CrashLog
from nncdbg.engine.frontends import load
from nncdbg.engine.frontends.program_folder import ProgramFolder, open_program_folder
from nncdbg.engine.frontends.run_steps import with_tracks
from nncdbg.engine.inputs.data_specs import data_file
from nncdbg.engine.ops.library import load_op_library
from nncdbg.errors import LoadError, UsageError
from nncdbg.extensions import FRONTENDS
from nncdbg.extensions import find as find_extension
from nncdbg.opening.configuration import RunConfiguration, settings
from nncdbg.opening.journal_address import Address, read_address, resumed_by_script
from nncdbg.opening.python_programs import is_python_name, load_python_name
from nncdbg.process.json_document import DocumentKind
from nncdbg.text.file_names import is_program_folder

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.opening.journal.forking import Fork
    from nncdbg.opening.journal.reopening import Restart
    from nncdbg.opening.schedule_logs.programs import ScheduleLog

# -- kernel files ----------------------------------------------------------------------------------
# Kernel files: the backends of statements, as `nncdbg autotune` writes them and `--kernels` reads them.
#
# A kernel file is JSON::
#
#     {"nncdbg_kernels": 1, "kernels": {"%h": "torch", "@layer.%y": "numpy", "12 Conv": "numpy"}}
#
# Its other keys are the measurements behind the choice.

VERSION = 1


class _File(msgspec.Struct):
    nncdbg_kernels: int
    kernels: dict[str, str]


_KIND = DocumentKind(
    "kernel file", _File, "nncdbg_kernels", "write one: nncdbg autotune MODEL -o FILE", VERSION
)


def read_kernels(kernel_file: str | os.PathLike[str]) -> dict[str, str]:
    """Return the argument `kernels` of a run from a kernel file: backends by op, value or line.

    `kernel_file` is a file that `nncdbg autotune` wrote.  Raises UsageError for other files.
    """
    return _KIND.read(kernel_file).kernels


def kernel_file_text(measured: Mapping[str, Any]) -> str:
    """Return the text of a kernel file; `measured` is a tuning as a dictionary, with its `kernels`."""
    return json.dumps({"nncdbg_kernels": VERSION, **measured}, indent=1) + "\n"


_SCHEDULE_LOGS = (".json", ".jsonl", ".json.gz", ".dot")
"""Suffixes of files that may be schedule logs."""

# -- programs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenedProgram:
    """A program with its run configuration; `folder` is the program folder that contains it, or None."""

    program: Program
    configuration: RunConfiguration
    folder: ProgramFolder | None = None
    restart: Restart | Fork | None = None
    """The step of a run in a journal, at which the program was opened."""
    log: ScheduleLog | None = None
    """The schedule log that the program was read from."""

    def debugger(self, *, boxes: Path | None = None, **changes: Any) -> Debugger:
        """Return a debugger at the first statement, or at the step of a run in a journal.

        `changes` override the configuration, `boxes` is the folder of the black box.  Raises the errors of
        Debugger, LoadError for a damaged journal, and UsageError for a schedule log.
        """
        if self.log is not None:
            log = self.configuration.program
            raise UsageError(
                f"{log} is a schedule log, which cannot run: it does not contain the kernels",
                hint=f"check it with `nncdbg races {log}`, or print it with `nncdbg print {log}`",
            )
        black_box = CrashLog(self.configuration.program, boxes)
        debugger = start(self.program, self.configuration, black_box=black_box, **changes)
        if self.restart is not None:
            self.restart.apply(debugger)
        return debugger


def start(program: Program, configuration: RunConfiguration, **changes: Any) -> Debugger:
    """Return a debugger of a program at its first statement; `changes` override the configuration."""
    arguments = {
        name: getattr(configuration, name)
        for name, (_, setting) in settings().items()
        if setting.parameter == "Debugger" and name != "program"
    }
    folder = configuration.folder
    return Debugger(program, **{**arguments, "folder": folder and Path(folder), **changes})


def input_files(configuration: RunConfiguration) -> Iterator[str]:
    """Yield the files that the inputs of a configuration name."""
    for value in configuration.inputs.values():
        file = data_file(value) if isinstance(value, str) else None
        if file is not None:
            yield str(file.path)


def open_program(
    configuration: RunConfiguration, between: Callable[[], None] = lambda: None
) -> OpenedProgram:
    """Load the op libraries and the program of a configuration.

    A program folder supplies the fields that are not given.  `between` is called between the steps of the
    work; an exception from it ends the work.

    Raises LoadError, GraphError, ParseError or UsageError.
    """
    path, place = configuration.program, Path(configuration.folder or "")
    if configuration.kernel_file is not None:
        chosen_kernels = read_kernels(place / configuration.kernel_file)
        kernels = {**chosen_kernels, **configuration.kernels}
        configuration = replace(configuration, kernels=kernels, given=configuration.given | {"kernels"})
    address = read_address(path, place)
    if address is not None:
        from nncdbg.opening.journal.ranks import recorded_step

        step = recorded_step(address, place)
        if step is None:
            return _open_run(address, configuration)
        if configuration.forks:
            raise resumed_by_script(address)
        path = str(step)
    check_not_forked(configuration)
    named = is_python_name(path, place)
    if not named and not os.path.exists(path):
        raise LoadError(f"there is no file {path}", hint=f"searched {os.path.dirname(os.path.abspath(path))}")
    is_log = not named and path.lower().endswith(_SCHEDULE_LOGS)
    if is_log and find_extension(FRONTENDS, Path(path).suffix.lower()[1:]) is None:
        from nncdbg.opening.schedule_logs.reading import read_schedule_log

        log = read_schedule_log(path)
        return OpenedProgram(log.program, configuration.completed({"backend": "numpy"}), log=log)
    folder = open_program_folder(Path(path)) if is_program_folder(path) else None
    if folder is not None:
        folder.check_libraries(configuration.op_libraries)
        configuration = configuration.completed(folder.supplied)
        between()
    for library in configuration.op_libraries:
        load_op_library(library)
        between()
    chosen: dict[str, Any] = {name: getattr(configuration, name) for name in ("steps", "training", "tracks")}
    if folder is not None:
        program = load(folder.program, **chosen)
        return OpenedProgram(_prepared(program, configuration), configuration, folder)
    if named:
        program = load(load_python_name(path, place, flat=configuration.flat), **chosen)
    else:
        program = load(path, flat=configuration.flat, stores=configuration.stores, **chosen)
    return OpenedProgram(
        _prepared(program, configuration), configuration.completed({"backend": program.saved.backend})
    )


def check_not_forked(configuration: RunConfiguration) -> None:
    """Raise UsageError for a fork of a program that is not a run in a journal."""
    if configuration.forks:
        raise UsageError(
            f"{configuration.program} is not a run in a journal, which --fork, --set and --continue are for",
            hint="write one with --journal run.db, and fork it: nncdbg run run.db@STEP --fork",
        )


def _open_run(address: Address, configuration: RunConfiguration) -> OpenedProgram:
    """Return the program of a run in a journal at a step, or a fork of it."""
    from nncdbg.opening.journal.forking import fork_of
    from nncdbg.opening.journal.reopening import reopen

    if configuration.order is not None:
        raise UsageError(
            f"{configuration.program} is a run in a journal, which already has the order of its steps",
            hint="leave out the order",
        )
    found = reopen(address, configuration)
    program = with_tracks(found.program, configuration.tracks)
    opened = OpenedProgram(program, found.configuration, restart=found.restart)
    if not (configuration.fork or configuration.resume):
        return opened
    parent = replace(configuration, allocator=None)
    debugger = replace(opened, configuration=parent.completed(found.supplied)).debugger(statistics=False)
    program, settings_, fork = fork_of(found, debugger, configuration)
    return OpenedProgram(with_tracks(program, configuration.tracks), settings_, restart=fork)


def _prepared(program: Program, configuration: RunConfiguration) -> Program:
    if configuration.states is not None:
        from nncdbg.opening.state_file import load_states

        file = Path(configuration.folder or "", configuration.states)
        found = load_states(program, file, strict_states=configuration.strict_states)
        program = replace(found.program, notes=(*found.program.notes, str(found)))
    if configuration.order is None:
        return program
    from nncdbg.engine.schedules.player import in_order

    return in_order(program, configuration.order)
