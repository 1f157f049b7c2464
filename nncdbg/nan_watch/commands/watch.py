"""`nncdbg watch`: the op where the first NaN originates, and why; for CI."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.nan_watch.commands.watch_options import FILES, watch_options, watch_parser
from nncdbg.nan_watch.commands.watch_runs import run_watch
from nncdbg.nan_watch.commands.watch_script import main as watch_script
from nncdbg.nan_watch.commands.watch_script import script_in
from nncdbg.opening.command_line import configuration_of, errors_in_json
from nncdbg.presentation.run_progress import verify_observers

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.nan_watch.configuration import WatchConfiguration
    from nncdbg.nan_watch.records import Report
    from nncdbg.nan_watch.watched import Watched
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Return 0 if no gate tripped, 1 if one did, 3 for a file error, 4 if the graph or script failed.

    With several of these, the highest code is returned.
    """
    from nncdbg.presentation.screen import Screen

    if script_in(arguments, watch_parser()):
        return watch_script(arguments)
    options = watch_options(arguments)
    with errors_in_json(options):
        return _watch(options, Screen())


def _watch(options: Namespace, screen: Screen) -> int:
    from nncdbg.nan_watch.configuration import watch_configuration
    from nncdbg.nan_watch.watched import Watched
    from nncdbg.opening.programs import open_program

    opened = open_program(configuration_of(options))
    program = opened.program
    configuration = watch_configuration(opened, options.fail_on, options.strict)
    asserted = [f"range:not ({each})" for each in options.asserted]
    configuration = replace(configuration, fail_on=[*configuration.fail_on, *asserted])
    gates = configuration.gates
    known = _known(options, program)
    verified = verify_observers(opened, screen) if options.verify_observers else None
    report, inputs = run_watch(options, screen, opened, gates)
    report.model = options.model
    report.observers = verified
    if known is not None:
        from nncdbg.nan_watch.baselines.baseline import compare

        report = compare(report, known, program).report
    watched = Watched.of(program, gates)
    problems = _write_baseline(options, report, program)
    report.limit(options.max_findings)
    _say(options, screen, report, _on_screen(screen, program, watched))
    problems += _write(options, report, watched)
    problems += _bundle(options, screen, opened, configuration, report, inputs)
    for problem in problems:
        screen.complain(problem)
    return _exit_code(options, report, problems)


def _known(options: Namespace, program: Program) -> Any:
    """Return the baseline, read and checked against the model before the run."""
    if not options.baseline:
        return None
    from nncdbg.nan_watch.baselines.baseline import read_baseline

    known = read_baseline(options.baseline)
    known.check(options.model, program)
    return known


def _exit_code(options: Namespace, report: Report, problems: list[NncdbgError]) -> int:
    """Return the highest exit code of the report, failed writes, and observers that changed bits."""
    code = report.exit_code
    if code == 1 and options.write_baseline:
        code = 0
    changed = int(report.observers is not None and not report.observers.ok)
    return code if report.interrupted else max([code, changed, *(each.exit_code for each in problems)])


# -- output ------------------------------------------------------------------------------------------


def _on_screen(screen: Screen, program: Program, watched: Watched) -> Watched:
    """Return the context for a report whose lines are fitted to the screen."""
    from nncdbg.presentation.elements import Layout

    screen.name_values(program)
    watched = replace(watched, unicode=Layout.of(screen.out).unicode)
    if not screen.shortens:
        return watched
    from nncdbg.presentation.short_statements import FittedText

    return replace(watched, screen=FittedText(program, screen.out.width))


def _say(options: Namespace, screen: Screen, report: Report, watched: Any) -> None:
    from nncdbg.nan_watch.reports import FORMS
    from nncdbg.nan_watch.reports.text import lines

    if options.json:
        print(FORMS["json"](report, watched).rstrip())
        sys.stdout.flush()
        screen.err.print(*lines(report, watched), sep="\n", soft_wrap=True)
    else:
        for line in lines(report, watched):
            screen.put_wrapped(line)
    if options.github:
        # --json prints exactly one document on stdout; GitHub reads annotations on stderr too.
        stream = screen.err.file if options.json else screen.out.file
        stream.write(FORMS["github"](report, watched))
        stream.flush()


def _write(options: Namespace, report: Report, watched: Any) -> list[NncdbgError]:
    """Write the requested files; return the errors of those that could not be written."""
    from nncdbg.nan_watch.reports import write

    forms = {form: getattr(options, form) for form in FILES if getattr(options, form)}
    return write(report, forms, watched)


def _write_baseline(options: Namespace, report: Report, program: Program) -> list[NncdbgError]:
    if not options.write_baseline:
        return []
    from nncdbg.nan_watch.baselines.baseline import write_baseline

    try:
        write_baseline(options.write_baseline, report, program)
    except NncdbgError as error:
        return [error]
    return []


def _bundle(
    options: Namespace,
    screen: Screen,
    opened: OpenedProgram,
    configuration: WatchConfiguration,
    report: Report,
    inputs: dict[str, Any],
) -> list[NncdbgError]:
    """Write a repro bundle of the finding at the origin; return the errors."""
    if not options.bundle:
        return []
    finding = next((each for each in report.findings if each.trips), None)
    if finding is None:
        screen.note("no gate tripped, so no bundle was written")
        return []
    from nncdbg.nan_watch.records import REUSE

    if finding.kind == REUSE:
        return [
            UsageError(
                "no bundle was written: the statements of a bundle update no state in place",
                hint=f"`nncdbg {options.model} --in-place-states`, then `continue`, stops at the statement",
            )
        ]
    from nncdbg.nan_watch.bundles.excerpt import bundle_finding

    program = opened.program
    try:
        if finding.case is not None:
            seed, given = _of_case(options, program, configuration.seed, finding.case)
            configuration = replace(configuration, seed=seed)
            case = opened.debugger(inputs={**inputs, **given}, seed=seed, statistics=False)
            inputs = dict(case.inputs)
        bundle_finding(Path(options.bundle), program, inputs, finding, configuration, model=options.model)
    except NncdbgError as error:
        return [error]
    screen.note(f"`nncdbg {options.bundle}` opens the finding")
    return []


def _of_case(options: Namespace, program: Program, seed: int, name: str) -> tuple[int, dict[str, Any]]:
    """Return the seed of a case of the corpus, and the inputs in its file."""
    from nncdbg.opening.corpus.files import case_inputs
    from nncdbg.opening.corpus.running import jobs_of

    jobs, _ = jobs_of(options.inputs_dir, options.runs, seed)
    job = next(each for each in jobs if each.name == name)
    given = {} if job.case is None else case_inputs(job.case, program.graphs[program.entry])
    return job.seed, given
