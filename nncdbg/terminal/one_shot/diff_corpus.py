"""`nncdbg diff A B --inputs-dir DIR`: compare two programs with each case of a folder."""

from __future__ import annotations

import json
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nncdbg.opening.command_line import ArgumentParser, configuration_of
from nncdbg.opening.corpus.options import check_corpus, corpus_fields

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.opening.diff_corpus.report import DiffCase, DiffCorpusReport
    from nncdbg.presentation.screen import Screen

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
    from nncdbg.engine.comparison.tolerance import Tolerance
    from nncdbg.opening.corpus.source import CorpusProgram
    from nncdbg.opening.diff_corpus.call import run_diff_corpus
    from nncdbg.opening.diff_corpus.task import DiffTask
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
        options.backend_b,
        options.allocator_b,
        options.dtype_b,
        Tolerance(options.rtol, options.atol, options.ulp),
        options.kernels_b,
    )
    start = time.perf_counter()
    with case_progress(screen) as progress:
        report = run_diff_corpus(task, options.inputs_dir, progress=progress, **corpus_fields(options))
    if options.json:
        print(json.dumps(_document(options, report, time.perf_counter() - start)))
    else:
        for note in report.notes:
            screen.note(note)
        print_corpus_report(screen, report)
        command = _command(options, opened[0].program, report.differing, arguments)
        if command:
            screen.note(f"the complete report of {report.differing[0].name}: {command}")
    return report.exit_code(strict=options.strict)


def _document(options: Namespace, report: DiffCorpusReport, seconds: float) -> dict[str, Any]:
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


def _command(
    options: Namespace, program: Program, differing: Sequence[DiffCase], arguments: Sequence[str]
) -> str:
    """Return the command that compares the first case that differs; "" if its inputs have no spelling."""
    from nncdbg.opening.corpus.files import case_files, case_inputs

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
