"""The program of a corpus, as workers receive it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from nncdbg.engine.backends import backend as backend_of
from nncdbg.engine.backends.kernel_choice import KernelChoice
from nncdbg.engine.compilation.states import rebound
from nncdbg.engine.diagnosis.instrumentation import allocation_on
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops.library import load_op_library, loaded_op_libraries
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program, SavedRun
from nncdbg.opening.configuration import RunConfiguration, settings
from nncdbg.opening.corpus.cases import CaseRun, case_inputs
from nncdbg.opening.programs import OpenedProgram, open_program


@dataclass(frozen=True, slots=True)
class CorpusProgram:
    """A run configuration, and its program if this process has loaded it.

    Workers open the program of the configuration themselves, or with `sent` receive the loaded one.
    """

    configuration: RunConfiguration
    program: Program | None = None
    sent: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return CorpusProgram, (self.configuration, self.program if self.sent else None, self.sent)

    def opened(self) -> OpenedProgram:
        """Load the op libraries, and return the program; raises what `open_program` raises."""
        if self.program is None:
            opened = open_program(self.configuration)
        else:
            for library in self.configuration.op_libraries:
                load_op_library(library)
            opened = OpenedProgram(self.program, self.configuration)
        # All debuggers of the program share the same text.
        program = replace(opened.program, listing=opened.program.as_listing())
        return replace(opened, program=program)


def called_program(
    source: ProgramSource, inputs: Mapping[str, Any] | None, arguments: Mapping[str, Any]
) -> tuple[CorpusProgram, Program]:
    """Return the program of a call from Python, with the arguments of Debugger that are not None.

    Workers open a path themselves, and receive another source as a program.  They load the op libraries that
    this process has loaded.  Raises UsageError for an argument that cannot be sent, TypeError for an unknown
    one, and what `nncdbg.load` raises.
    """
    named = {name: value for name, value in arguments.items() if value is not None}
    for name, value in named.items():
        if name not in settings() or settings()[name][1].parameter != "Debugger":
            raise TypeError(f"unexpected argument {name!r} with inputs_dir")
        if name in ("backend", "allocator") and not isinstance(value, str):
            raise UsageError(
                f"the {name} of a corpus must be a name, not a {type(value).__name__}",
                hint=f"use a name, such as {name}='{'numpy' if name == 'backend' else 'debug'}'",
            )
    named["inputs"] = dict(inputs or {})
    given = frozenset(named)
    libraries = [*map(str, loaded_op_libraries())]
    program = load(source)
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        configuration = RunConfiguration(program=path, op_libraries=libraries, given=given, **named)
        return CorpusProgram(configuration, program), program
    saved = {each.name for each in fields(SavedRun)} & settings().keys() - {"inputs", "op_libraries"}
    configuration = RunConfiguration(
        program=program.source or "", op_libraries=libraries, given=given, **named
    ).completed({name: getattr(program.saved, name) for name in saved})
    return CorpusProgram(configuration, program, sent=True), program


def check_machine(opened: OpenedProgram, allocator: str | Allocation | None = None) -> None:
    """Raise UsageError for an unknown backend, allocator or kernel, or one that does not fit the program.

    `allocator` replaces that of the configuration.
    """
    configuration = opened.configuration
    in_place = rebound(opened.program) if configuration.in_place_states else ()
    holding = backend_of(configuration.backend)
    allocation_on(holding, allocator or configuration.allocator, in_place)
    if configuration.kernels:
        KernelChoice(configuration.kernels, opened.program, holding)


def inputs_of_case(opened: OpenedProgram, job: CaseRun) -> dict[str, Any]:
    """Return the inputs in the file of a case; raises LoadError or UsageError."""
    program = opened.program
    return {} if job.case is None else case_inputs(job.case, program.graphs[program.entry])
