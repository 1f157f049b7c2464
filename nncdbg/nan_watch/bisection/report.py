"""`nncdbg.bisect`: the statements that must stay f32 in half precision, as one call and one report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.comparison.tolerance import Tolerance
from nncdbg.engine.execution.check_results import NOT_CHECKED, PASSED, CheckResult
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.text.counting import counted
from nncdbg.ir.records import Program
from nncdbg.nan_watch.bisection.bisection import Bisection
from nncdbg.nan_watch.bisection.narrow_trial import Kept
from nncdbg.nan_watch.configuration import WatchConfiguration


@dataclass(frozen=True, slots=True)
class BisectReport:
    """The statements that must keep their types when all others run in `dtype`.

    `kept` is in execution order, `program` is the mixed program, `statements` the number of statements
    that compute with floats, `runs` the number of programs run, `notes` sentences about the search.  A report
    prints as `nncdbg bisect` does.
    """

    kept: tuple[Kept, ...]
    program: Program
    dtype: str
    statements: int
    runs: int
    notes: tuple[str, ...] = ()

    @property
    def checks(self) -> list[CheckResult]:
        """Return what was checked of the mixed program."""
        return search_checks()

    def __str__(self) -> str:
        return "\n".join(kept_lines(self.kept, self.statements, self.dtype))


def search_checks(*, interrupted: bool = False) -> list[CheckResult]:
    """Return what a search has checked of the mixed program: its outputs, and its minimal set."""
    least = CheckResult("minimal set", PASSED)
    if interrupted:
        least = CheckResult("minimal set", NOT_CHECKED, "the search was interrupted")
    return [CheckResult("outputs", PASSED), least]


def kept_lines(kept: tuple[Kept, ...], total: int, dtype: str) -> Iterator[str]:
    """Return the lines about the statements that keep their types."""
    if not kept:
        yield f"all {counted(total, 'statement')} can run in {dtype}"
        return
    yield f"{len(kept)} of {counted(total, 'statement')} must keep their types; all others run in {dtype}:"
    for each in kept:
        yield f"{each.site.line or '':>5} | {each.site.text or each.site.op}"
        said = "; ".join(part for part in (each.detail, each.hint) if part)
        if said:
            yield f"        {each.reason}: {said}"


def bisect(
    program: ProgramSource,
    inputs: Mapping[str, Any] | None = None,
    *,
    dtype: str = "f16",
    rtol: float | None = None,
    atol: float | None = None,
    backend: str | None = None,
    fallback: bool | None = None,
    allocator: str = "plain",
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    max_ops: int | None = None,
) -> BisectReport:
    """Find the statements that must stay f32 when all others run in f16 or bf16 (`dtype`).

    `rtol` and `atol` are the tolerances of the outputs against the run in the declared types (by default
    f16 2e-2 and 5e-3, bf16 1e-1 and 3e-2).  The other arguments are as for Debugger.

    Raises UsageError for an unknown `dtype`, a program without floats, or a run whose outputs already have
    NaN; and the errors of Debugger.
    """
    program = load(program)
    arguments = program.saved.completed(backend=backend, fallback=fallback, seed=seed, max_ops=max_ops)
    configuration = WatchConfiguration(allocator=allocator, **arguments)
    drawn = configuration.debugger(program, inputs, dims=dims).inputs
    search = Bisection(program, drawn, configuration, dtype, Tolerance(rtol, atol))
    places = search.run()
    return BisectReport(
        tuple(search.reasons(places)),
        search.mixed(places),
        dtype,
        len(search.alone),
        search.runs,
        tuple(search.notes),
    )
