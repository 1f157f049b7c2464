"""`nncdbg diff`: compare models, backends, allocators, element types or golden values, value by value."""

from __future__ import annotations

import json
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nncdbg.opening.command_line import (
    JSON,
    ArgumentParser,
    add_corpus,
    add_kernels,
    add_machine,
    add_opening,
    add_prompt,
    add_states_in_place,
    case_execution,
    check_corpus,
    configuration_of,
    kernels_of,
    one_shot,
    option,
)
from nncdbg.opening.configuration import settings
from nncdbg.presentation.run_progress import note_messages, print_notes, under_way
from nncdbg.terminal.journal.files import is_run

if TYPE_CHECKING:
    from nncdbg.comparison.report import DiffReport
    from nncdbg.ir.records import Program
    from nncdbg.opening.diff import ProgramDiff, SideB
    from nncdbg.opening.diff_corpus_report import DiffCase, DiffCorpusReport
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Compare two programs, or two runs of journals.  Return 0 if they agree, 1 if they differ."""
    if any(map(is_run, arguments)):
        from nncdbg.terminal.journal.diff import main as compare_runs

        return compare_runs(arguments)
    return diff(arguments)


def _check(parser: ArgumentParser, options: Namespace) -> None:
    options.kernels_b = kernels_of(options.kernels_b)
    check_diff_corpus(parser, options)
    another = options.other or options.backend_b or options.allocator_b or options.dtype_b
    another = another or options.kernels_b
    variants = [options.compile_b, options.autocast_b]
    if any(variants) and (another or options.golden or all(variants)):
        parser.error("--compile-b and --autocast-b are the whole side B: use one of them alone")
    if options.compile_b and options.stop:
        parser.error("--stop needs a side B with statements: it cannot be used with --compile-b")
    another = another or any(variants)
    if options.golden is not None and another:
        parser.error("--golden and side B cannot be combined: use one of them")
    if options.names is not None and options.golden is None:
        parser.error("--names maps the names of a golden file: add --golden")
    if options.golden is not None and options.stop:
        parser.error("--stop needs a side B: it cannot be used with --golden")
    if options.golden is None and not another:
        parser.error(
            "both sides are the same: add a second model, --backend-b, --kernel-b, --allocator-b, --dtype-b, "
            "--compile-b or --autocast-b"
        )
    if options.stop and options.json:
        parser.error("--stop opens a prompt, --json prints one document: choose one of them")
    if not options.stop and (options.source or options.record or options.replay):
        parser.error("--source, --record and --replay need the prompt that --stop opens")


@one_shot(
    "nncdbg diff",
    "Compare two runs value by value: the statement that differs, and how the error grows.",
    option("model", metavar="A", help=settings()["program"][1].help),
    option("other", metavar="B", nargs="?", help="second graph (default: A with the options that end in -b)"),
    option("--golden", metavar="FILE.npz", help="compare with recorded values instead of side B"),
    option("--names", metavar="FILE", help="map golden names to value names: JSON, or lines `GOLDEN VALUE`"),
    add_opening,
    add_machine,
    add_kernels,
    add_states_in_place,
    add_corpus,
    option("--backend-b", metavar="BACKEND", help="side B's backend (default: --backend, or its program's)"),
    option(
        "--kernel-b",
        action="append",
        default=[],
        dest="kernels_b",
        metavar="OP|%VALUE|LINE=BACKEND",
        help="on side B, run an op, value or line on another backend",
    ),
    option("--allocator-b", metavar="ALLOCATOR", help="side B's allocator (default: side A's)"),
    option(
        "--dtype-b", metavar="DTYPE", help="cast side B's float weights and inputs to f16, bf16, f32 or f64"
    ),
    option(
        "--compile-b",
        nargs="?",
        const="inductor",
        metavar="BACKEND",
        help="side B: the PyTorch module or recorded step under torch.compile (default: inductor)",
    ),
    option(
        "--autocast-b",
        metavar="DTYPE",
        help="side B: the module or recorded step under autocast to f16 or bf16",
    ),
    option(
        "--rtol", type=float, help="relative tolerance (default: f32 1e-4, f64 1e-7, f16 2e-2, bf16 1e-1)"
    ),
    option(
        "--atol", type=float, help="absolute tolerance (default: f32 1e-5 x largest element, f64 1e-9, ...)"
    ),
    option("--ulp", type=int, help="tolerance in ULPs; alone, it replaces the other tolerances"),
    option("--strict", action="store_true", help="also exit with 1 if only intermediate values differ"),
    option("--all", action="store_true", help="print all causes, differences and rows of the table"),
    JSON,
    option("--stop", action="store_true", help="open the prompt on side A, after the first divergence"),
    add_prompt,
    check=_check,
    usage="nncdbg diff A [B] [options]\n       nncdbg diff FILE.db#RUN FILE.db#RUN [options]",
    epilog="exit code: 0 if the outputs agree, 1 if they differ (--strict: if any value differs)\n\n"
    "FILE.db#RUN is a run of a journal; for the options, see `nncdbg diff FILE.db#RUN --help`",
)
def diff(options: Namespace) -> int:
    """Return 0 if the outputs agree, 1 if they differ, else the exit code of a side's failure."""
    from nncdbg.presentation.screen import Screen

    run = _diff if options.inputs_dir is None else compare_corpus
    return run(options, Screen(), options.typed)


def _diff(options: Namespace, screen: Screen, arguments: Sequence[str]) -> int:
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.opening.diff import diff_of_golden, diff_of_sides, diff_of_variant
    from nncdbg.opening.programs import open_program

    tolerance = Tolerance(options.rtol, options.atol, options.ulp, options.autocast_b)
    asked = configuration_of(options)
    is_variant = bool(options.compile_b or options.autocast_b)
    if is_variant:
        from nncdbg.torch.variants import variant_sides

        sides = variant_sides(asked, options.compile_b or "", options.autocast_b)
    else:
        opened = open_program(asked)
    start = time.perf_counter()
    if is_variant:
        comparison = diff_of_variant(sides, tolerance)
    elif options.golden is not None:
        comparison = diff_of_golden(opened, options.golden, options.names, tolerance)
    else:
        comparison = diff_of_sides(opened, asked, _side_b(options), tolerance)
    if comparison.b is not None and not is_variant:
        note_messages(comparison.b, screen, "side B: ")
        screen.name_values(comparison.a.program, comparison.b.program)
    note_messages(comparison.a, screen, "side A: ")
    print_notes([*comparison.a.notes, *comparison.notes], screen)
    with under_way(comparison.a, screen, comparison.pause):
        report = comparison.run()
    if options.json:
        print(json.dumps(_document(options, comparison, report, time.perf_counter() - start)))
    else:
        _print(screen, options, report, arguments)
    if options.stop and not report.equal and comparison.b is not None:
        _converse(options, screen, comparison, report)
    return int(report.trips(strict=options.strict))


def _side_b(options: Namespace) -> SideB:
    from nncdbg.opening.diff import SideB

    own = {name: getattr(options, f"{name}_b") for name in ("backend", "allocator", "dtype", "kernels")}
    return SideB(program=options.other, **own)


def _converse(options: Namespace, screen: Screen, diff: ProgramDiff, report: DiffReport) -> None:
    """Open the prompt on side A at the first divergence, with side B available."""
    from nncdbg.commands.session import CommandSession
    from nncdbg.target.opened import SideA
    from nncdbg.terminal.repl import converse

    target = SideA(diff)
    session = CommandSession(target, options.model, screen)
    session.companion = target.side_b

    def greet() -> None:
        stop = target.go_to(report.first.a.tick if report.first is not None else report.ops[0])
        screen.put("side A has stopped after this statement; `diff %value` compares a value with side B")
        session.arrived(stop, written=stop.reason != "end")

    converse(session, options, greet)


# -- output ------------------------------------------------------------------------------------------


def _document(options: Namespace, diff: ProgramDiff, report: DiffReport, seconds: float) -> dict[str, Any]:
    a, b = diff.configurations
    notes = [*diff.a.notes, *diff.notes]
    sides = {
        "a": {
            "model": options.model,
            "backend": a.backend,
            "kernels": a.kernels,
            "allocator": a.allocator,
            "dtype": None,
        },
        "b": {
            "model": options.other or options.model,
            "backend": options.backend_b or b.backend,
            "kernels": {**b.kernels, **options.kernels_b},
            "allocator": options.allocator_b or b.allocator,
            "dtype": options.dtype_b,
        },
    }
    if options.compile_b or options.autocast_b:
        sides["b"] |= {"compile": options.compile_b, "autocast": options.autocast_b}
    if options.golden is not None:
        sides["b"] = {"golden": options.golden, "names": options.names}
    tolerance = {name: getattr(options, name) for name in ("rtol", "atol", "ulp")}
    return {**report.as_dict(), "sides": sides, "tolerance": tolerance, "seconds": seconds, "notes": notes}


def _print(screen: Screen, options: Namespace, report: DiffReport, arguments: Sequence[str]) -> None:
    from nncdbg.presentation.divergence import print_report

    print_report(screen, report, everything=options.all)
    if not report.equal and not (options.stop or options.golden or options.compile_b):
        screen.note(f"to stop there and compare values: nncdbg diff {shlex.join(arguments)} --stop")


_SINGLE = ("golden", "compile_b", "autocast_b", "stop")
"""Options of comparisons of one run."""


def check_diff_corpus(parser: ArgumentParser, options: Namespace) -> None:
    """Raise UsageError for options that cannot be combined."""
    check_corpus(parser, options)
    if options.inputs_dir is None:
        for name in ("jobs", "budget"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} needs several inputs: add --inputs-dir DIR")
        return
    for name in _SINGLE:
        if getattr(options, name):
            flag = name.replace("_", "-")
            parser.error(f"--inputs-dir and --{flag} cannot be combined: compare one input with --{flag}")


def compare_corpus(options: Namespace, screen: Screen, arguments: Sequence[str]) -> int:
    """Print the comparison of each case, and return the exit code."""
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.opening.corpus.source import CorpusProgram
    from nncdbg.opening.diff_corpus import DiffTask, run_diff_corpus
    from nncdbg.opening.programs import open_program
    from nncdbg.presentation.corpus_divergence import print_corpus_report
    from nncdbg.presentation.run_progress import case_progress

    asked = configuration_of(options)
    sides = [asked] if options.other is None else [asked, replace(asked, program=options.other)]
    opened = [open_program(each) for each in sides]
    programs = [CorpusProgram(each, side.program) for each, side in zip(sides, opened, strict=True)]
    task = DiffTask(
        programs[0],
        programs[1] if len(programs) > 1 else None,
        _side_b(options),
        Tolerance(options.rtol, options.atol, options.ulp),
    )
    start = time.perf_counter()
    with case_progress(screen) as progress:
        report = run_diff_corpus(task, options.inputs_dir, case_execution(options), progress)
    if options.json:
        print(json.dumps(_corpus_document(options, report, time.perf_counter() - start)))
    else:
        for note in report.notes:
            screen.note(note)
        print_corpus_report(screen, report)
        command = _corpus_command(options, opened[0].program, report.differing, arguments)
        if command:
            screen.note(f"the complete report of {report.differing[0].name}: {command}")
    return report.exit_code(strict=options.strict)


def _corpus_document(options: Namespace, report: DiffCorpusReport, seconds: float) -> dict[str, Any]:
    tolerance = {name: getattr(options, name) for name in ("rtol", "atol", "ulp")}
    sides = {
        "a": {"model": options.model},
        "b": {
            "model": options.other or options.model,
            "backend": options.backend_b,
            "allocator": options.allocator_b,
            "dtype": options.dtype_b,
        },
    }
    return {
        **report.as_dict(),
        "sides": sides,
        "tolerance": tolerance,
        "seconds": seconds,
        "notes": report.notes,
    }


def _corpus_command(
    options: Namespace, program: Program, differing: Sequence[DiffCase], arguments: Sequence[str]
) -> str:
    """Return the command that compares the first case that differs; "" if its inputs have no spelling."""
    from nncdbg.opening.corpus.cases import case_files, case_inputs

    if not differing:
        return ""
    case = next(each for each in case_files(options.inputs_dir)[0] if each.name == differing[0].name)
    inputs = case_inputs(case, program.graphs[program.entry])
    if not all(isinstance(data, str) for data in inputs.values()):
        return ""
    given = [word for name, data in inputs.items() for word in ("--input", f"{name}={data}")]
    return f"nncdbg diff {shlex.join([*_of_one_input(arguments), *given])}"


def _of_one_input(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options of a corpus."""
    kept, rest = [], iter(arguments)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in ("--inputs-dir", "--jobs", "--executor", "--budget"):
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept
