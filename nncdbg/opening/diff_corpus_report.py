"""The comparison of two programs over a corpus of inputs, with a JSON form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nncdbg.comparison.report import DifferenceCause, Match, ValueSite
from nncdbg.opening.corpus.cases import CODES, FAILED, Case
from nncdbg.representation import RichOutput, represent

EQUAL = "equal"

VERDICTS = ("diverged", "rounding", "intermediate", EQUAL)
"""The statuses of compared cases, as of a DiffReport; the most severe one is first."""


@dataclass(frozen=True, slots=True)
class DiffCase(Case):
    """A case that ran on both sides; `cause`, `first` and `worst` are those of its DiffReport.

    `status` is `equal`, `intermediate`, `rounding` or `diverged`; `ops` counts the statements of both sides;
    `diverging` is the number of values beyond the tolerance.
    """

    cause: DifferenceCause | None = None
    first: Match | None = None
    worst: Match | None = None
    diverging: int = 0

    @property
    def site(self) -> ValueSite | None:
        """Return the first statement that differs: that of the cause, else of the first value."""
        if self.cause is not None:
            return self.cause.site
        return None if self.first is None else self.first.a

    def as_dict(self) -> dict[str, Any]:
        """Return the case as a JSON object."""
        parts = {name: getattr(self, name) for name in ("cause", "first", "worst")}
        return {
            **Case.as_dict(self),
            "diverging": self.diverging,
            **{name: None if part is None else part.as_dict() for name, part in parts.items()},
        }


@dataclass(frozen=True, slots=True)
class DifferenceGroup:
    """A statement that is the first that differs, in `count` cases; `case` is the first of them."""

    site: ValueSite
    count: int
    case: DiffCase

    def as_dict(self) -> dict[str, Any]:
        """Return the statement as a JSON object."""
        return {"site": self.site.as_dict(), "count": self.count, "case": self.case.name}


@dataclass(slots=True)
class DiffCorpusReport(RichOutput):
    """Two programs compared with each case of a corpus.

    `cases` are in the order of their names.  A case that could not be compared is `failed`, `crashed`,
    `unreadable`, `unfit`, `unsupported` or `not run`.  `unchecked` lists what was not compared, and why;
    `error` is the failure of the executor.
    """

    cases: list[Case] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    error: Exception | None = None
    interrupted: bool = False

    def __str__(self) -> str:
        """Return the text that `nncdbg diff --inputs-dir` prints."""
        return str(represent("diff corpus report", self))

    __repr__ = __str__

    @property
    def seconds(self) -> float:
        """Return the duration of all comparisons, whichever process they ran in."""
        return sum(case.seconds for case in self.cases)

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of cases by status, those of comparisons first."""
        found = Counter(case.status for case in self.cases)
        return {status: found[status] for status in (*VERDICTS, *sorted(found)) if found[status]}

    @property
    def differing(self) -> list[DiffCase]:
        """Return the cases in which a value differs, in order."""
        return [case for case in self.cases if isinstance(case, DiffCase) and case.status != EQUAL]

    @property
    def firsts(self) -> list[DifferenceGroup]:
        """Return the first statements that differ; the one of the most cases is first."""
        found: dict[tuple[Any, ...], list[DiffCase]] = {}
        for case in self.differing:
            if (site := case.site) is not None:
                found.setdefault((site.graph, site.line, site.value), []).append(case)
        groups = [
            DifferenceGroup(cases[0].site, len(cases), cases[0]) for cases in found.values() if cases[0].site
        ]
        return sorted(groups, key=lambda group: -group.count)

    @property
    def status(self) -> str:
        """Return `diverged` if outputs of a case differ, `failed` if another case could not be compared.

        Without these, return the most severe status of the comparisons.
        """
        statuses = {case.status for case in self.cases}
        failed = statuses & CODES.keys() or self.error is not None
        if failed and VERDICTS[0] not in statuses:
            return FAILED
        return next((status for status in VERDICTS if status in statuses), EQUAL)

    @property
    def equal(self) -> bool:
        """Return whether every case was compared and all its values agree."""
        return all(case.status == EQUAL for case in self.cases) and self.error is None

    def trips(self, *, strict: bool = False) -> bool:
        """Return whether outputs differ in a case; with `strict`, if any value differs."""
        return any(strict or case.status == VERDICTS[0] for case in self.differing)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 130 after an interruption, else the highest code that applies.

        1 if outputs differ, 2 if inputs did not fit, 3 for an unreadable file or an op without a kernel, 4 if
        a run or the executor failed.
        """
        if self.interrupted:
            return 130
        codes = [CODES.get(case.status, 0) for case in self.cases]
        return max([int(self.trips(strict=strict)), 4 * int(self.error is not None), *codes])

    def as_dict(self) -> dict[str, Any]:
        """Return the report as `nncdbg diff --inputs-dir --json` prints it."""
        return {
            "status": self.status,
            "counts": self.counts,
            "firsts": [group.as_dict() for group in self.firsts],
            "cases": [case.as_dict() for case in self.cases],
            "unchecked": self.unchecked,
            "error": None if self.error is None else str(self.error),
            "interrupted": self.interrupted,
        }
