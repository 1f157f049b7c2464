"""The slow oracle: a micro program runs beside each kernel of a composite op, and both must agree.

The micro program defines the op in terms of simple ops. It runs on NumPy, on a separate machine, so the
program's state is not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nncdbg.comparison.check_results import (
    FAILED,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CheckResult,
    not_checked,
)
from nncdbg.comparison.measure import measure
from nncdbg.comparison.report import Match, ValueSite
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Binding, Execute
from nncdbg.engine.execution.loaded import MicroPrograms
from nncdbg.engine.observers.statement_checks import is_random
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Program, type_of
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A value from the kernel that differs from the one of the micro program."""

    statement: Statement
    name: str
    kernel: Any
    micro: Any
    detail: str


@dataclass(slots=True)
class Coverage:
    """The checked statements and runs; and by op, the number of statements that were not checked."""

    statements: set[tuple[Code, int]] = field(default_factory=set)
    runs: int = 0
    without: dict[str, set[tuple[Code, int]]] = field(default_factory=dict)
    """Ops without a micro program: primitives, and composites that draw random numbers."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why the micro program of an op could not run."""
    differing: set[str] = field(default_factory=set)
    """The ops whose kernel and micro program disagreed."""

    @property
    def checks(self) -> list[CheckResult]:
        """Return the result of the comparison, and of each op without one."""
        if self.differing:
            first = CheckResult("micro", FAILED, f"{', '.join(sorted(self.differing))} differs")
        elif self.statements:
            first = CheckResult("micro", PASSED)
        else:
            first = CheckResult("micro", NOT_APPLICABLE, "no statement ran beside a micro program")
        left = [CheckResult(f"micro {op}", NOT_CHECKED, why) for op, why in self.failed.items()]
        none = "the op has no micro program, or draws random numbers"
        return [first, *left, *(CheckResult(f"micro {op}", NOT_APPLICABLE, none) for op in self.without)]

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name, as JSON values."""
        return {
            "statements": len(self.statements),
            "runs": self.runs,
            "without": {op: len(seen) for op, seen in self.without.items()},
            "failed": dict(self.failed),
            "checks": [each.as_dict() for each in self.checks],
        }

    def __str__(self) -> str:
        checked = counted(len(self.statements), "statement")
        parts = [f"micro programs ran beside {checked}, {counted(self.runs, 'time')}"]
        if self.without:
            counts = Counter({op: len(seen) for op, seen in self.without.items()})
            parts.append(f"no micro program: {', '.join(f'{op} {n}' for op, n in counts.most_common())}")
        parts += [f"not checked: {each}" for each in not_checked(self.checks)]
        return "; ".join(parts)


class MicroCheck:
    """Compares kernels with micro programs.

    `report` is called with disagreements; `quiet` returns whether to skip the check.
    """

    def __init__(
        self,
        program: Program,
        text: Listing,
        report: Report,
        to_host: Callable[[Any], Any],
        quiet: Callable[[], bool],
    ) -> None:
        self.report, self.to_host, self.quiet = report, to_host, quiet
        self.coverage = Coverage()
        self.disagreement: Disagreement | None = None
        """The latest disagreement."""
        self._micro_programs = MicroPrograms(program, text)

    def wrap(self, binding: Binding, execute: Execute) -> Execute:
        """Return an instruction that runs the micro program and the kernel, and compares the results."""
        if binding.code.formula is not None:
            return execute

        def checked(*inputs: Any) -> Any:
            # Before the kernel: with reused memory, its operands may be overwritten after it.
            expected = None if self.quiet() else self._expected(binding, inputs)
            results = execute(*inputs)
            if expected is not None:
                self._compare(binding, inputs, results if binding.several else (results,), expected)
            return results

        return checked

    def _expected(self, binding: Binding, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Return the results of the micro program; None without one, or if it fails."""
        statement, op = (binding.code, binding.pc), binding.node.op
        operands = [self.to_host(value) for value in inputs]
        try:
            formula = self._micro_programs.of(binding.code, binding.pc, operands)
            if formula is None or binding.op.random or is_random(formula):
                self.coverage.without.setdefault(op, set()).add(statement)
                return None
            expected = self._micro_programs.run(formula, operands)
        except NncdbgError as error:
            self.coverage.failed[op] = error.message
            return None
        self.coverage.statements.add(statement)
        self.coverage.runs += 1
        return expected

    def _compare(
        self, binding: Binding, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        for index, (value, given, wanted) in enumerate(
            zip(binding.node.outputs, results, expected, strict=False)
        ):
            if not value.name:
                continue
            host = self.to_host(given)
            site = ValueSite(value.name, binding.node.op, str(type_of(host)), None, "", (), "", 0)
            match = measure(site, site, "place", (host, wanted), Tolerance())
            if match.diverges:
                detail = _disagreement(match)
                self.coverage.differing.add(binding.node.op)
                # A copy, because the buffer may be reused.
                kernel = np.array(host) if isinstance(host, np.ndarray) else host
                self.disagreement = Disagreement(
                    Statement(binding.code, binding.pc), value.name, kernel, wanted, detail
                )
                self.report(Finding("micro", binding, detail, inputs, index))
                return


def _disagreement(match: Match) -> str:
    name, op = match.a.value, match.a.op
    start = f"%{name_text(name)}: the kernel of {op} and its micro program disagree"
    if match.elements is None:
        return f"{start}: {match.detail}"
    kernel, micro = match.elements
    where = list(match.excess.where or ())
    return f"{start} in {counted(match.excess.count, 'element')}, most at {where}: {kernel} and {micro}"
