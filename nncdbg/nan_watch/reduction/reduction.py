"""Find the smallest program and inputs that still show a finding.

The run up to the finding is recorded as a straight line and cut near the finding; removed statements become
inputs with their values.  Delta debugging then removes statements, and after that elements of the data.
Each step is accepted only if a watch reports the same finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.errors import RunError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.minimizing import minimized
from nncdbg.nan_watch.reduction.sameness import Probe
from nncdbg.nan_watch.reduction.shrinking import shrunk
from nncdbg.nan_watch.reduction.straight_line import Line, flat_line, outer_line

ROUNDS = 4
"""Most passes over statements and data."""


@dataclass(frozen=True, slots=True)
class ReductionProgress:
    """The progress of a reduction."""

    phase: str
    runs: int
    statements: int
    bytes: int


@dataclass(slots=True)
class Reduction:
    """Reduces step by step.  `best` is the smallest case so far, None before the first.

    `kept` is called with every new best case, `on_progress` with the progress.
    """

    probe: Probe
    kept: Callable[[ReducedCase], None] = lambda case: None
    on_progress: Callable[[ReductionProgress], None] = lambda progress: None
    best: ReducedCase | None = None
    phase: str = "looking for the finding"

    def start(self, program: Program, inputs: Mapping[str, Any], finding: WatchFinding) -> None:
        """Find a first case: the smallest surroundings of a watch's finding that show it.

        Raises RunError if the finding does not recur.
        """
        self.probe.asked = lambda runs: self._tell()
        self._enter("cutting near the finding")
        for line in self._lines(program, inputs, finding):
            for kept in _surroundings(line):
                if self._try(line.case(kept)):
                    return
        if not self._try(case_of_program(program, inputs)):
            raise RunError(
                "the finding did not occur again",
                hint="check whether a kernel uses random numbers or the time",
            )

    def finish(self) -> ReducedCase:
        """Make the first case as small as possible."""
        assert self.best is not None
        self.probe.asked = lambda runs: self._tell()
        for _ in range(ROUNDS):
            before = _size(self.best)
            self._fewer_statements()
            self._enter("reducing the data")
            shrunk(self.best, self._try)
            if _size(self.best) == before:
                break
        return self.best

    def _fewer_statements(self) -> None:
        """Remove statements other than the finding's own by delta debugging."""
        assert self.best is not None
        self._enter("reducing the statements")
        finding = self.probe.finding(self.best)
        assert finding is not None
        for line in self._lines(self.best.program(), self.best.inputs, finding):
            everything = line.case(range(len(line.nodes)))
            if everything.statements > self.best.statements or not self.probe(everything):
                continue
            self._minimize(line)
            return

    def _minimize(self, line: Line) -> None:
        kept = [at for at in sorted(line.distances()) if at != len(line.nodes) - 1]
        minimized(kept, lambda part: self._try(line.case(part)))

    def _lines(self, program: Program, inputs: Mapping[str, Any], finding: WatchFinding) -> Iterator[Line]:
        """Return the run up to the finding, first without control flow, then as in the program."""
        traced = self.probe.trace(program, inputs, finding)
        for view in (flat_line, outer_line):
            line = view(traced)
            if line is not None:
                yield line

    def _try(self, case: ReducedCase) -> bool:
        """Return whether a case shows the finding; if it does, make it the best one."""
        if not self.probe(case):
            return False
        self.best = case
        self.kept(case)
        self._tell()
        return True

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._tell()

    def _tell(self) -> None:
        best = self.best
        statements, size = (best.statements, best.bytes) if best is not None else (0, 0)
        self.on_progress(ReductionProgress(self.phase, self.probe.runs, statements, size))


def _size(case: ReducedCase) -> tuple[int, int]:
    return case.statements, case.bytes


def _surroundings(line: Line) -> Iterator[Sequence[int]]:
    """Yield the finding's statement alone, then with those up to 1, 2, 4 ... statements away."""
    distances = line.distances()
    farthest, reach = max(distances.values()), 0
    while True:
        yield [at for at, distance in distances.items() if distance <= reach]
        if reach >= farthest:
            return
        reach = min(2 * reach or 1, farthest)
