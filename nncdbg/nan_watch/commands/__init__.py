"""Commands that watch, reduce and bisect a model, or check its schedule: what their declarations share."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.opening.command_line import ArgumentParser, add_machine, add_model, errors_in_json

if TYPE_CHECKING:
    from nncdbg.ir.records import Program
    from nncdbg.presentation.screen import Screen

INTERRUPTED = 130


def model_parser(command: str, description: str, epilog: str) -> ArgumentParser:
    """Return the parser of a command that opens a model and runs it."""
    parser = ArgumentParser(f"nncdbg {command}", description, epilog=epilog)
    add_model(parser)
    add_machine(parser)
    return parser


def check_least(parser: ArgumentParser, options: Namespace, name: str, words: str = "use 1 or more") -> None:
    """Raise UsageError for a number below 1."""
    number = getattr(options, name)
    if number is not None and number < 1:
        parser.error(f"--{name.replace('_', '-')} {number}: {words}")


def execute(options: Namespace, command: Callable[[Namespace, Screen], int]) -> int:
    """Execute a command with its options, and return its exit code."""
    from nncdbg.presentation.screen import Screen

    with errors_in_json(options):
        return command(options, Screen())


def terminable() -> AbstractContextManager[None]:
    """Treat SIGTERM as an interruption, like Ctrl-C, so that the progress is kept."""
    from nncdbg.presentation.run_progress import hearing

    def interrupt() -> None:
        raise KeyboardInterrupt

    return hearing(signal.SIGTERM, interrupt)


def write_program(program: Program, file: str) -> None:
    """Write the text of a program.  Raises UsageError if the file cannot be written."""
    from nncdbg.opening.program_text import stores_from, write_text

    path = Path(file)
    write_text(path, stores_from(program, path.absolute().parent).text())
