"""`nncdbg watch`: the op where the first NaN originates, and why; for CI."""

from __future__ import annotations

import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import NncdbgError, StoppedRun
from nncdbg.opening.command_line import (
    Parser,
    add_machine,
    add_model,
    add_verification,
    configuration_of,
    errors_in_json,
)
from nncdbg.presentation.run_progress import hearing, under_way, verify_observers

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.graph import Program
    from nncdbg.engine.stopping.control import Stop
    from nncdbg.nan_watch.baselines.recording import Recording
    from nncdbg.nan_watch.configuration import WatchConfiguration
    from nncdbg.nan_watch.measuring.gates import Gates
    from nncdbg.nan_watch.records import Report
    from nncdbg.nan_watch.watched import Watched
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen

_FILES = ("junit", "sarif", "markdown")
"""Reports that go to a file, each an option of its name."""

_CORPUS = "--inputs-dir and --runs"

_ALL = 1 << 20
"""More findings than there are."""

_EXIT_CODES = """exit code: 0 fine, 1 a gate tripped, 2 wrong usage, 3 a file could not be read or written,
           4 the graph failed while running, 130 interrupted; of several codes, the highest"""


def main(arguments: Sequence[str]) -> int:
    """0 if no gate tripped, 1 if one did, 3 if a file could not be read or written, 4 if the graph failed.

    If several of these happened, the highest.
    """
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    with errors_in_json(options):
        return _watch(options, Screen())


def _options(arguments: Sequence[str]) -> Namespace:
    from nncdbg.nan_watch.measuring.gates import USUAL, table

    width = max(len(gate) for gate, _ in table()) + 2
    gates = "\n".join(f"  {gate:<{width}}{meaning}" for gate, meaning in table())
    parser = Parser(
        "nncdbg watch",
        "Run a graph and report the op where the first NaN originates, and why.",
        epilog=f"gates, separated by commas:\n{gates}\n\n{_EXIT_CODES}",
    )
    add_model(parser)
    add_machine(parser)
    add_verification(parser)
    add = parser.add_argument
    add(
        "--fail-on",
        metavar="GATES",
        help=f"the gates ({','.join(USUAL)})",
    )
    add(
        "--assert", action="append", default=[], dest="asserted", metavar="EXPR", help="fail if EXPR is false"
    )
    add("--strict", action="store_true", help="also fail on findings that do not affect an output")
    add("--max-findings", type=int, default=20, metavar="N", help="list at most N findings (default: 20)")
    add("--inputs-dir", metavar="DIR", help="run each file or folder in DIR as a case")
    add("--runs", type=int, default=1, metavar="N", help="run with N seeds, starting at --seed (default: 1)")
    add("--jobs", type=int, metavar="N", help="number of parallel processes (default: one per core)")
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="stop after SECONDS and report the findings so far",
    )
    add(
        "--memory", action="store_true", help="find memory errors: compare runs with and without memory reuse"
    )
    add("--plan", metavar="FILE", help="with --memory: check the offsets planned by another framework")
    add("--write-plan", metavar="FILE", help="with --memory: write nncdbg's own plan of offsets")
    add("--record", metavar="FILE", help="write the statistics of this run, for --against")
    add("--against", metavar="FILE", help="compare with the good run recorded in FILE (gate: change)")
    add(
        "--baseline",
        metavar="FILE",
        help="accept the known findings in FILE; fail only on new findings",
    )
    add("--write-baseline", metavar="FILE", help="write the current findings as the baseline")
    add("--bundle", metavar="DIR", help="write a repro of the first finding; `nncdbg DIR` opens it")
    add("--json", action="store_true", help="print one JSON document on standard output")
    for form in _FILES:
        add(f"--{form}", metavar="FILE", help=f"write a {form} report")
    add("--github", action="store_true", help="print annotations for GitHub Actions")
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def _check(parser: Parser, options: Namespace) -> None:
    if options.max_findings < 1:
        parser.error(f"--max-findings {options.max_findings}: list at least one")
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget {options.budget}: use seconds, such as --budget 60")
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: use 1 or more; --runs 1 runs the program once")
    for name in ("plan", "write_plan"):
        if getattr(options, name) and not options.memory:
            parser.error(f"--{name.replace('_', '-')} needs --memory")
    if options.memory:
        for name, given in (
            (_CORPUS, options.inputs_dir or options.runs > 1),
            ("--record and --against", options.record or options.against),
            ("--allocator", options.allocator),
            ("--backend", options.backend not in (None, "numpy")),
        ):
            if given:
                parser.error(f"--memory cannot be combined with {name}")


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
    inputs = opened.configuration.inputs
    if options.memory:
        report = _in_memories(options, opened)
    elif options.inputs_dir or options.runs > 1:
        report = _corpus(options, screen, opened, gates)
    else:
        report, inputs = _once(options, screen, opened, gates)
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
    """The baseline, read and found to be this model's before anything runs."""
    if not options.baseline:
        return None
    from nncdbg.nan_watch.baselines.baseline import read_baseline

    known = read_baseline(options.baseline)
    known.check(options.model, program)
    return known


def _most(options: Namespace) -> int:
    """Findings that a run has to tell: a baseline needs all that trip, not those that have room."""
    return _ALL if options.baseline or options.write_baseline else int(options.max_findings)


def _exit_code(options: Namespace, report: Report, problems: list[NncdbgError]) -> int:
    """The highest of the report's, of files that could not be written, and of observers that changed bits."""
    code = report.exit_code
    if code == 1 and options.write_baseline:
        code = 0
    changed = int(report.observers is not None and not report.observers.ok)
    return code if report.interrupted else max([code, changed, *(each.exit_code for each in problems)])


# -- running -----------------------------------------------------------------------------------------


def _once(
    options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates
) -> tuple[Report, dict[str, Any]]:
    """One run in this process; and the inputs that it had."""
    from nncdbg.nan_watch.runs import watch_runs
    from nncdbg.nan_watch.watching import usual_allocation

    configuration = opened.configuration
    made: list[Debugger] = []
    stopped = _Stopped()

    def make(seed: int, statistics: bool) -> Debugger:
        allocator = usual_allocation(configuration.allocator, configuration.backend, gates, statistics)
        debugger = opened.debugger(allocator=allocator, seed=seed, statistics=statistics)
        made.append(debugger)
        return debugger

    def move(debugger: Debugger) -> Stop:
        def interrupt() -> None:
            stopped.heard, stopped.why = True, "the run was interrupted"
            debugger.pause()

        def end() -> None:
            stopped.why = f"the budget of {options.budget:g} s expired"
            debugger.pause()

        with (
            under_way(debugger, screen, interrupt),
            hearing(signal.SIGTERM, interrupt),
            _bounded(options, end),
        ):
            return debugger.run()

    report = watch_runs(
        make,
        gates,
        model=options.model,
        seed=configuration.seed,
        max_findings=_most(options),
        good=_good(options),
        record_to=options.record,
        move=move,
    )
    report.interrupted = stopped.heard
    if stopped.why:
        report.error = StoppedRun(stopped.why)
    return report, dict(made[-1].inputs)


@dataclass(slots=True)
class _Stopped:
    """Whether somebody asked to stop, and why the run was stopped ("" if it was not)."""

    heard: bool = False
    why: str = ""


@contextmanager
def _bounded(options: Namespace, end: Callable[[], None]) -> Iterator[None]:
    """The program is stopped, by `end`, when the budget is spent."""
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


def _good(options: Namespace) -> Recording | None:
    """The recorded good run to compare with."""
    if not options.against:
        return None
    from nncdbg.nan_watch.baselines.recording import read

    return read(options.against)


def _in_memories(options: Namespace, opened: OpenedProgram) -> Report:
    from nncdbg.nan_watch.memory.comparison import memory_plan, watch_memory, write_plan

    names = ("inputs", "dims", "seed", "max_ops", "history")
    fields = {name: getattr(opened.configuration, name) for name in names}
    if options.write_plan:
        write_plan(memory_plan(opened.program, **fields), options.write_plan)
    return watch_memory(opened.program, plan=options.plan, max_findings=_most(options), **fields)


def _corpus(options: Namespace, screen: Screen, opened: OpenedProgram, gates: Gates) -> Report:
    from nncdbg.nan_watch.corpus.corpus import run_corpus
    from nncdbg.nan_watch.corpus.worker import Task

    task = Task(opened.configuration, gates, max_findings=_most(options), good=_good(options))
    with _bar(screen) as progress:
        return run_corpus(
            task,
            options.inputs_dir,
            runs=options.runs,
            seed=opened.configuration.seed,
            jobs=options.jobs,
            budget=options.budget,
            record_to=options.record,
            progress=progress,
        )


@contextmanager
def _bar(screen: Screen) -> Iterator[Any]:
    """A bar on a terminal while cases are run."""
    if not screen.err.is_terminal or screen.err.is_dumb_terminal:
        yield lambda done, total: None
        return
    from rich.progress import Progress

    with Progress(console=screen.err, transient=True) as bar:
        task = bar.add_task("cases", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _on_screen(screen: Screen, program: Program, watched: Watched) -> Watched:
    """The parts of a watch for a report whose lines are fitted to the screen."""
    if not screen.shortens:
        return watched
    from nncdbg.presentation.short_statements import FittedText

    return replace(watched, screen=FittedText(program, program.as_listing(), screen.out.width))


# -- telling -----------------------------------------------------------------------------------------


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
        # The one document of --json stays the one; GitHub reads both.
        stream = screen.err.file if options.json else screen.out.file
        stream.write(FORMS["github"](report, watched))
        stream.flush()


def _write(options: Namespace, report: Report, watched: Any) -> list[NncdbgError]:
    """Write what is to be written; what could not be."""
    from nncdbg.nan_watch.reports import write

    forms = {form: getattr(options, form) for form in _FILES if getattr(options, form)}
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
    """Write the repro of the finding that began it."""
    if not options.bundle:
        return []
    finding = next((each for each in report.findings if each.trips), None)
    if finding is None:
        screen.note("no gate tripped, so no bundle was written")
        return []
    from pathlib import Path

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
    """The seed of a case of the corpus, and what its file gives."""
    from nncdbg.nan_watch.corpus.corpus import jobs_of
    from nncdbg.nan_watch.corpus.files import case_inputs

    jobs, _ = jobs_of(options.inputs_dir, options.runs, seed)
    job = next(each for each in jobs if each.name == name)
    given = {} if job.case is None else case_inputs(job.case, program.graphs[program.entry])
    return job.seed, given
