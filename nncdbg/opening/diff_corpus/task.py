"""What a worker does with a case of a comparison of two programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.divergence.call import counterpart, inputs_of_side
from nncdbg.engine.divergence.casting import cast_program
from nncdbg.engine.divergence.lockstep import compared
from nncdbg.engine.errors import NncdbgError, UnsupportedOp
from nncdbg.opening.corpus.cases import FAILED, UNSUPPORTED, Case, CaseResult, CaseRun
from nncdbg.opening.corpus.source import CorpusProgram, check_machine, inputs_of_case
from nncdbg.opening.corpus.worker import reading_inputs
from nncdbg.opening.diff_corpus.report import DiffCase
from nncdbg.opening.programs import OpenedProgram


@dataclass(frozen=True, slots=True)
class DiffTask:
    """Two programs, or one and how side B runs it, for all cases.

    Without `b`, side B is the program `a` with another backend, allocator or element type.
    """

    a: CorpusProgram
    b: CorpusProgram | None = None
    backend_b: str | None = None
    allocator_b: str | None = None
    dtype_b: str | None = None
    tolerance: Tolerance = Tolerance()
    kernels_b: Mapping[str, str] = field(default_factory=dict)
    """The backends of single statements of side B."""

    def open(self) -> OpenedDiff:
        """Load both programs; raises the errors that affect every case."""
        a = self.a.opened()
        b = a if self.b is None else self.b.opened()
        configuration = b.configuration if b.program.saved.origin else a.configuration
        program = b.program if self.dtype_b is None else cast_program(b.program, self.dtype_b)
        other = replace(
            configuration,
            backend=self.backend_b or b.configuration.backend,
            allocator=self.allocator_b or configuration.allocator,
            kernels={**configuration.kernels, **self.kernels_b},
            dims={},
        )
        sides = OpenedDiff(self, a, OpenedProgram(program, other))
        for side in (sides.a, sides.b):
            check_machine(side)
        return sides


@dataclass(frozen=True, slots=True)
class OpenedDiff:
    """A comparison in a worker."""

    task: DiffTask
    a: OpenedProgram
    b: OpenedProgram

    def run(self, job: CaseRun, boxes: Path | None) -> CaseResult:
        """Compare the runs of a case."""
        with reading_inputs():
            a, b, notes = self._sides(job, boxes)
        comparison = compared(a, b, self.task.tolerance, same_places=True if self.task.b is None else None)
        started = time.perf_counter()
        try:
            report = comparison.run()
        except NncdbgError as error:
            status = UNSUPPORTED if isinstance(error, UnsupportedOp) else FAILED
            seconds = time.perf_counter() - started
            return CaseResult(job.index, Case(job.name, status, seconds=seconds, error=str(error)))
        case = DiffCase(
            job.name,
            report.status,
            sum(report.ops),
            time.perf_counter() - started,
            cause=report.cause,
            first=report.first,
            worst=report.worst,
            diverging=report.diverging,
        )
        return CaseResult(job.index, case, notes)

    def _sides(self, job: CaseRun, boxes: Path | None) -> tuple[Debugger, Debugger, tuple[str, ...]]:
        given = inputs_of_case(self.a, job)
        inputs = {**self.a.configuration.inputs, **given}
        with inputs_of_side("A"):
            a = self.a.debugger(inputs=inputs, statistics=False, boxes=boxes)
        # Another program folder keeps its own inputs, except those of the case and the call.
        shared = self.task.a.configuration.inputs.keys() | given.keys()
        _, others, notes = counterpart(self.b.program, a, None, shared)
        with inputs_of_side("B"):
            b = self.b.debugger(inputs=others, statistics=False, boxes=boxes)
        return a, b, (*map(str, a.notes), *notes, *(f"side B: {note}" for note in b.notes))
