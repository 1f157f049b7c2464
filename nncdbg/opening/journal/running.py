"""`nncdbg.run` with a journal: write a run, or repeat, fork or continue one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.values.values import Outputs
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.journaling import journaled
from nncdbg.opening.journal.reproduction import reproducing
from nncdbg.opening.journal_address import read_address
from nncdbg.opening.programs import OpenedProgram, check_not_forked, open_program
from nncdbg.opening.run import failure_of


def run_in_journal(source: ProgramSource, fields: Mapping[str, Any]) -> Outputs:
    """Run a program, or a run in a journal from a step, to the end, and return its outputs.

    `fields` are those of the run configuration that are given.  Raises RunError if a step that is repeated
    differs from the run in the journal, and the errors of `nncdbg.run`.
    """
    given = {name: value for name, value in fields.items() if value not in (None, False, [])}
    # The configuration has the name of a backend.
    kernels = {"backend": given["backend"]} if "backend" in given else {}
    if not isinstance(given.get("backend", ""), str):
        given["backend"] = given["backend"].name
    opened = _opened(source, given)
    debugger = opened.debugger(statistics=False, **kernels)
    with reproducing(opened, debugger) as reproduction, journaled(opened, debugger) as recorder:
        stop = debugger.run()
    unwritten = recorder.problem if recorder is not None else None
    has_stopped = recorder is not None and recorder.has_stopped
    error = unwritten if has_stopped else failure_of(stop, opened.configuration.program) or unwritten
    if error is None and reproduction is not None and reproduction.difference:
        error = RunError(reproduction.difference, hint="compare the versions of the run with those installed")
    if error is not None:
        raise error
    found = debugger.outputs
    assert found is not None
    return found


def _opened(source: ProgramSource, given: dict[str, Any]) -> OpenedProgram:
    if isinstance(source, (str, os.PathLike)) and read_address(os.fspath(source)) is not None:
        given["program"] = os.fspath(source)
        return open_program(RunConfiguration(**given, given=frozenset(given)))
    program = load(source)
    given["program"] = program.source or "MODEL"
    configuration = RunConfiguration(**given, given=frozenset(given))
    check_not_forked(configuration)
    return OpenedProgram(program, configuration.completed({"backend": program.saved.backend}))
