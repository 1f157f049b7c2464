"""`nncdbg diff FILE#1 FILE#2`: compare two runs of journals."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.command_line import JSON, one_shot, option
from nncdbg.terminal.journal.files import chosen_run, open_journal, run_address

if TYPE_CHECKING:
    from nncdbg.opening.run_comparison import ComparedRun, FirstStatement, RunComparison
    from nncdbg.presentation.screen import Screen


@one_shot(
    "nncdbg diff",
    "Compare two runs of journals: configurations, programs, tracks, states, and the first statement.",
    option("a", metavar="FILE#RUN", help="a run of a journal, as run.db#1"),
    option("b", metavar="FILE#RUN", nargs="?", help="another run"),
    option("--rtol", type=float, help="relative tolerance (default: f32 1e-4, f64 1e-7)"),
    option("--atol", type=float, help="absolute tolerance (default: f32 1e-5 x largest element, f64 1e-9)"),
    option("--ulp", type=int, help="tolerance in ULPs; alone, it replaces the other tolerances"),
    option("--strict", action="store_true", help="also exit with 1 if the runs differ within the tolerance"),
    JSON,
    usage="nncdbg diff FILE#RUN [FILE#RUN] [options]",
    epilog="without a second run, a fork is compared with its parent",
)
def main(options: Namespace) -> int:
    """Return 0 if the runs agree within the tolerance, else 1; with --strict, 1 if any bit differs."""
    from nncdbg.presentation.screen import Screen

    return _diff(options, Screen())


def _diff(options: Namespace, screen: Screen) -> int:
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.opening.run_comparison import compare_runs
    from nncdbg.presentation.journal.run_difference import comparison_document, print_comparison

    tolerance = Tolerance(options.rtol, options.atol, options.ulp)
    with ExitStack() as opened:
        a, b = _sides(options, opened)
        comparison = compare_runs(a, b, tolerance)
        if options.json:
            statement = _statement_fields(*_first_statement(comparison, screen))
            print(comparison_document(comparison, statement=statement))
        else:
            print_comparison(screen, comparison)
            _print_statement(screen, comparison)
        return int(comparison.status == "diverged" or (options.strict and comparison.status != "equal"))


def _sides(options: Namespace, opened: ExitStack) -> tuple[ComparedRun, ComparedRun]:
    from nncdbg.opening.run_comparison import ComparedRun, same_runs

    a = _side(options.a, opened)
    if options.b is not None:
        b = _side(options.b, opened)
    elif a.run.parent is None:
        raise UsageError(
            f"{a.title} is not a fork: name a second run", hint=f"nncdbg diff {a.title} FILE#RUN"
        )
    else:
        parent = a.journal.run(a.run.parent)
        a, b = ComparedRun(f"{a.journal.path}#{parent.number}", a.journal, parent), a
    if same_runs(a, b):
        raise UsageError(
            f"{a.title} and {b.title} are the same run", hint="name two runs, as run.db#1 run.db#2"
        )
    return a, b


def _side(text: str, opened: ExitStack) -> ComparedRun:
    from nncdbg.opening.run_comparison import ComparedRun

    address = run_address(text)
    journal = opened.enter_context(open_journal(address))
    run = chosen_run(journal, address)
    return ComparedRun(f"{address.file}#{run.number}", journal, run)


# -- the first statement -----------------------------------------------------------------------


def _first_statement(comparison: RunComparison, screen: Screen) -> tuple[FirstStatement | None, str]:
    """Run both runs again from an equal checkpoint; return the first difference, or why there is none."""
    from nncdbg.opening.run_comparison import rerun
    from nncdbg.presentation.run_progress import under_way

    if comparison.status == "equal" or comparison.ranks is not None:
        return None, ""
    try:
        again = rerun(comparison)
        first = again.first(lambda run: under_way(run, screen))
    except NncdbgError as error:
        return None, f"statements are not compared: {error.message}"
    if first is not None:
        return first, ""
    return None, (
        f"run again from step {again.start}, no statement differs up to step {again.last}: an edit at a "
        "stop, another machine or a kernel that is not deterministic may be the cause"
    )


def _print_statement(screen: Screen, comparison: RunComparison) -> None:
    from nncdbg.presentation.divergence import print_match

    first, why = _first_statement(comparison, screen)
    if first is not None:
        place = "" if first.step is None else f", in step {first.step}"
        difference = first.difference
        print_match(screen, f"first statement that differs{place}", difference.match, difference.causes)
    elif why:
        screen.note(why)


def _statement_fields(first: FirstStatement | None, why: str) -> dict[str, Any]:
    if first is None:
        return {"first": None, "note": why}
    difference = first.difference
    fields = {"step": first.step, "causes": [*difference.causes], **difference.match.as_dict()}
    return {"first": fields, "note": why}
