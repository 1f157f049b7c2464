"""`nncdbg watch`: the op where the first NaN originates, and why; for CI."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.errors import NncdbgError, StoppedRun, UsageError
from nncdbg.nan_watch.commands.watch_script import script_in, watch_script
from nncdbg.nan_watch.measuring.gates import USUAL, ReportContext, table
from nncdbg.opening.command_line import (
    JSON,
    ArgumentParser,
    add_corpus,
    add_run,
    add_verification,
    case_execution,
    check_corpus,
    check_least,
    configuration_of,
    one_shot,
    option,
)
from nncdbg.opening.progress import RunningProgram
from nncdbg.presentation.run_progress import (
    case_progress,
    hearing,
    note_messages,
    shown,
    under_way,
)

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.ir.records import Program
    from nncdbg.nan_watch.configuration import WatchConfiguration
    from nncdbg.nan_watch.measuring.gates import Gates
    from nncdbg.nan_watch.records import Report
    from nncdbg.nan_watch.watching import WatchCriteria
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen

_CORPUS = "--inputs-dir and --runs"


def _check(parser: ArgumentParser, options: Namespace) -> None:
    check_least(parser, options, "max_findings", "list at least one")
    check_corpus(parser, options)
    check_least(parser, options, "runs", "use 1 or more; --runs 1 runs the program once")
    for name in ("plan", "write_plan"):
        if getattr(options, name) and not options.memory:
            parser.error(f"--{name.replace('_', '-')} needs --memory")
    if options.bundle and (options.kernels or options.kernel_file):
        parser.error("--bundle cannot be combined with --kernel and --kernels: a bundle does not keep them")
    if options.memory:
        for name, given in (
            (_CORPUS, options.inputs_dir or options.runs > 1),
            ("--record and --against", options.record or options.against),
            ("--allocator", options.allocator),
            ("--backend", options.backend not in (None, "numpy")),
            ("--kernel and --kernels", options.kernels or options.kernel_file),
        ):
            if given:
                parser.error(f"--memory cannot be combined with {name}")


_ALL = 1 << 20
"""A limit above any number of findings."""


def _run_watch(
    options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates
) -> tuple[Report, dict[str, Any]]:
    """Return the report of the runs that the options describe, and the inputs of a single run.

    Raises UsageError for a journal of several runs.
    """
    flags = {"--memory": options.memory, "--inputs-dir": options.inputs_dir, "--runs": options.runs > 1}
    several = next((flag for flag, used in flags.items() if used), None)
    if several is not None and (options.journal or opened.restart is not None):
        raise UsageError(
            f"a journal is for one run of a training, and {several} watches several",
            hint=f"leave out {several}",
        )
    if options.memory:
        return _in_memories(options, opened), opened.configuration.inputs
    if options.inputs_dir or options.runs > 1:
        return _corpus(options, screen, opened, _criteria(options, gates)), opened.configuration.inputs
    return _once(options, screen, opened, _criteria(options, gates))


def _most(options: Namespace) -> int:
    """Return the number of findings that a run reports; a baseline needs all of them."""
    return _ALL if options.baseline or options.write_baseline else int(options.max_findings)


def _criteria(options: Namespace, gates: Gates) -> WatchCriteria:
    from nncdbg.nan_watch.call import good_run
    from nncdbg.nan_watch.watching import WatchCriteria

    return WatchCriteria(gates, _most(options), good_run(options.against or None), options.record)


def _once(
    options: Namespace, screen: Screen, opened: OpenedProgram, criteria: WatchCriteria
) -> tuple[Report, dict[str, Any]]:
    """Run once in this process; return the report and the inputs."""
    from nncdbg.nan_watch.watching import usual_allocation, watch_runs
    from nncdbg.opening.journal.recording import journaled

    configuration = opened.configuration
    made: list[Debugger] = []
    interrupted, why = False, ""

    def make(seed: int, statistics: bool) -> Debugger:
        in_place = configuration.in_place_states
        allocator = usual_allocation(configuration.allocator, configuration.backend, statistics, in_place)
        debugger = opened.debugger(allocator=allocator, seed=seed, statistics=statistics)
        note_messages(RunningProgram(debugger), screen)
        made.append(debugger)
        return debugger

    def move(debugger: Debugger) -> Stop:
        def interrupt() -> None:
            nonlocal interrupted, why
            interrupted, why = True, "the run was interrupted"
            debugger.pause()

        def end() -> None:
            nonlocal why
            why = f"the budget of {options.budget:g} s expired"
            debugger.pause()

        with (
            journaled(opened, debugger) as recorder,
            under_way(RunningProgram(debugger), screen, interrupt),
            hearing(signal.SIGTERM, interrupt),
            _bounded(options, end),
        ):
            stop = debugger.run()
        if recorder is not None:
            if recorder.problem is None:
                screen.note(f"wrote {recorder}")
            else:
                screen.complain(recorder.problem)
        return stop

    report = watch_runs(make, criteria, model=options.model, seed=configuration.seed, move=move)
    report.interrupted = interrupted
    if why:
        report.error = StoppedRun(why)
    return report, dict(made[-1].inputs)


@contextmanager
def _bounded(options: Namespace, end: Callable[[], None]) -> Iterator[None]:
    if options.budget is None:
        yield
        return
    timer = threading.Timer(options.budget, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_memories(options: Namespace, opened: OpenedProgram) -> Report:
    from nncdbg.nan_watch.memory.comparison import memory_plan, watch_memory, write_plan

    backend = opened.configuration.backend
    if backend != "numpy":
        raise UsageError(
            f"--memory needs the backend numpy, but {options.model} is saved for {backend}",
            hint="omit --memory, or add --backend numpy",
        )
    names = ("inputs", "dims", "seed", "max_ops", "history", "backend", "in_place_states")
    fields = {name: getattr(opened.configuration, name) for name in names}
    if options.write_plan:
        write_plan(memory_plan(opened.program, **fields), options.write_plan)
    return watch_memory(opened.program, plan=options.plan, max_findings=_most(options), **fields)


def _corpus(options: Namespace, screen: Screen, opened: OpenedProgram, criteria: WatchCriteria) -> Report:
    from nncdbg.nan_watch.corpus import WatchTask, run_corpus
    from nncdbg.opening.corpus.source import CorpusProgram

    task = WatchTask(CorpusProgram(opened.configuration, opened.program), criteria)
    folder, seed = options.inputs_dir, opened.configuration.seed
    with case_progress(screen) as progress:
        return run_corpus(
            task, folder, case_execution(options), runs=options.runs, seed=seed, progress=progress
        )


_GATES = table()
_WIDTH = max(len(gate) for gate, _ in _GATES) + 2

_EPILOG = "\n".join(
    (
        "gates, separated by commas:",
        *(f"  {gate:<{_WIDTH}}{meaning}" for gate, meaning in _GATES),
        "",
        "exit code: 0 fine, 1 a gate tripped, 2 wrong usage, 3 a file could not be read or written,",
        "           4 the graph failed while running, 130 interrupted; of several codes, the highest",
        "",
        "To watch the training of a PyTorch script: nncdbg watch SCRIPT.py --help",
    )
)


def main(arguments: Sequence[str]) -> int:
    """Watch a training in PyTorch if the words name a script, else a model."""
    return (watch_script if script_in(arguments, watch.parser()) else watch)(arguments)


def _add_reports(parser: ArgumentParser) -> None:
    """Add an option for each report that is written to a file."""
    from nncdbg.nan_watch.reports import FILES

    for form in FILES:
        parser.add_argument(f"--{form}", metavar="FILE", help=f"write a {form} report")


@one_shot(
    "nncdbg watch",
    "Run a graph and report the op where the first NaN originates, and why.",
    add_run,
    add_verification,
    option("--fail-on", metavar="GATES", help=f"the gates ({','.join(USUAL)})"),
    option(
        "--assert", action="append", default=[], dest="asserted", metavar="EXPR", help="fail if EXPR is false"
    ),
    option("--strict", action="store_true", help="also fail on findings that do not affect an output"),
    option("--max-findings", type=int, default=20, metavar="N", help="list at most N findings (default: 20)"),
    partial(add_corpus, runs=True),
    option(
        "--memory", action="store_true", help="find memory errors: compare runs with and without memory reuse"
    ),
    option("--plan", metavar="FILE", help="with --memory: check the offsets planned by another framework"),
    option("--write-plan", metavar="FILE", help="with --memory: write nncdbg's own plan of offsets"),
    option("--record", metavar="FILE", help="write the statistics of this run, for --against"),
    option("--against", metavar="FILE", help="compare with the good run recorded in FILE (gate: change)"),
    option(
        "--baseline",
        metavar="FILE",
        help="accept the known findings in FILE; fail only on new findings",
    ),
    option("--write-baseline", metavar="FILE", help="write the current findings as the baseline"),
    option("--bundle", metavar="DIR", help="write a repro of the first finding; `nncdbg DIR` opens it"),
    JSON,
    _add_reports,
    option("--github", action="store_true", help="print annotations for GitHub Actions"),
    check=_check,
    epilog=_EPILOG,
)
def watch(options: Namespace) -> int:
    """Return 0 if no gate tripped, 1 if one did, 3 for a file error, 4 if the graph failed.

    With several of these, the highest code is returned.
    """
    from nncdbg.nan_watch.configuration import watch_configuration
    from nncdbg.opening.programs import open_program
    from nncdbg.presentation.screen import Screen

    screen = Screen()
    opened = open_program(configuration_of(options))
    program = opened.program
    configuration = watch_configuration(opened, options.fail_on, options.strict)
    asserted = [f"range:not ({each})" for each in options.asserted]
    configuration = replace(configuration, fail_on=[*configuration.fail_on, *asserted])
    gates = configuration.gates
    known = None
    if options.baseline:
        from nncdbg.nan_watch.baseline import compare, read_baseline

        known = read_baseline(options.baseline)
        # Before the run, which may take long.
        known.check(options.model, program)
    verified = None
    if options.verify_observers:
        from nncdbg.opening.complete_run import verify_observers

        verified = verify_observers(opened, shown(screen, notes=False))
    report, inputs = _run_watch(options, screen, opened, gates)
    report.model = options.model
    report.observers = verified
    if known is not None:
        report = compare(report, known, program).report
    watched = ReportContext.of(program, gates)
    problems: list[NncdbgError] = []
    if options.write_baseline:
        from nncdbg.nan_watch.baseline import write_baseline

        try:
            write_baseline(options.write_baseline, report, program)
        except NncdbgError as error:
            problems.append(error)
    report.limit(options.max_findings)
    _say(options, screen, report, _on_screen(screen, program, watched))
    from nncdbg.nan_watch.reports import FILES, write

    problems += write(report, {form: file for form in FILES if (file := getattr(options, form))}, watched)
    problems += _bundle(options, screen, opened, configuration, report, inputs)
    for problem in problems:
        screen.complain(problem)
    code = report.exit_code
    if code == 1 and options.write_baseline:
        code = 0
    changed = int(report.observers is not None and not report.observers.ok)
    return code if report.interrupted else max([code, changed, *(each.exit_code for each in problems)])


# -- output ------------------------------------------------------------------------------------------


def _on_screen(screen: Screen, program: Program, watched: ReportContext) -> ReportContext:
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
    from nncdbg.nan_watch.reduction.reducing import bundle_finding

    program = opened.program
    try:
        if finding.case is not None:
            from nncdbg.opening.corpus.cases import case_inputs
            from nncdbg.opening.corpus.running import jobs_of

            jobs, _ = jobs_of(options.inputs_dir, options.runs, configuration.seed)
            job = next(each for each in jobs if each.name == finding.case)
            given = {} if job.case is None else case_inputs(job.case, program.graphs[program.entry])
            configuration = replace(configuration, seed=job.seed)
            case = opened.debugger(inputs={**inputs, **given}, seed=job.seed, statistics=False)
            inputs = dict(case.inputs)
        bundle_finding(Path(options.bundle), program, inputs, finding, configuration, model=options.model)
    except NncdbgError as error:
        return [error]
    screen.note(f"`nncdbg {options.bundle}` opens the finding")
    return []
