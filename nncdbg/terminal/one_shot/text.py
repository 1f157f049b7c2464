"""`nncdbg print`: a program as text or as an ONNX model, or with --json its inputs and outputs."""

from __future__ import annotations

import json
import os
import stat
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_model,
    add_schedule,
    configuration_of,
    one_shot,
    option,
    scheduled_program,
)
from nncdbg.opening.minimizing import add_minimize_options, check_minimize_options, minimized
from nncdbg.opening.program_text import grant_stores, shown_text, signature, stores_from, write_text
from nncdbg.opening.schedule_file import schedule_text
from nncdbg.presentation.screen import Screen

if TYPE_CHECKING:
    from nncdbg.ir.records import Program


def _check(parser: ArgumentParser, options: Namespace) -> None:
    check_minimize_options(options)
    if options.json and options.output:
        raise UsageError(
            "--json and --output cannot be combined", hint="use --json for types, --output for program text"
        )


@one_shot(
    "nncdbg print",
    "Print a program as text, or write it as text or as an ONNX model.",
    add_model,
    option(
        "-o",
        "--output",
        metavar="FILE",
        help="write to FILE.nnc, as an ONNX model to FILE.onnx, or the schedule to FILE.json",
    ),
    option("--full", action="store_true", help="also print locations, and attributes equal to defaults"),
    option("--no-loc", action="store_true", help="with --full, omit locations"),
    option("--full-names", action="store_true", help="write names in full, without prefixes"),
    option("--json", action="store_true", help="print only the types of inputs and outputs"),
    add_minimize_options,
    add_schedule,
    check=_check,
)
def main(options: Namespace) -> int:
    """Print the text, or write text or a model to a file; paths of stores are relative to its folder."""
    from nncdbg.opening.programs import open_program

    # A program without a run has no number of steps; the training that is made of it has one.
    steps = options.steps if options.minimize else None
    options.steps = None if options.minimize else options.steps
    program = open_program(configuration_of(options)).program
    if options.minimize:
        program = minimized(program, options, steps)
    program, _ = scheduled_program(program, options)
    if options.json:
        print(json.dumps(signature(program)))
        return 0
    if options.output and Path(options.output).suffix.lower() == ".onnx":
        _write_model(program, options.output)
        return 0
    if options.output and Path(options.output).suffix.lower() == ".json":
        write_text(Path(options.output), schedule_text(program))
        return 0
    target = Path(options.output) if options.output else _file_of_output()
    folder = target.parent if target is not None else Path() if sys.stdout.isatty() else None
    screen = Screen()
    for note in program.notes:
        screen.note(note)
    shown = stores_from(program, folder)
    if options.full_names:
        shown = replace(shown, prefixes={})
    elif not shown.prefixes:
        shown = replace(shown, prefixes=None)
    text = shown_text(shown, full=options.full, locations=not options.no_loc)
    if options.output:
        write_text(Path(options.output), text)
    else:
        # Names may contain any character, even a lone surrogate from a damaged model.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    if target is not None:
        for words in grant_stores(shown.stores, target):
            screen.note(words)
    return 0


def _write_model(program: Program, file: str) -> None:
    """Write the program as an ONNX model."""
    from nncdbg.opening.onnx_export import write_onnx

    screen = Screen()
    for note in program.notes:
        screen.note(note)
    write_onnx(program, file)


def _file_of_output() -> Path | None:
    """Return the file behind standard output; None for a terminal or a pipe."""
    try:
        descriptor = sys.stdout.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        if sys.platform == "darwin":
            import fcntl

            return Path(os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return None
