"""`nncdbg print`: the program text of a model, to read or to load again."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.engine.errors import UsageError
from nncdbg.terminal.options import Parser, add_model, chosen_program
from nncdbg.terminal.screen import Screen

if TYPE_CHECKING:
    from nncdbg.engine.graph import Program


def main(arguments: Sequence[str]) -> int:
    """Print the text, or write it to a file, from where its stores are found again."""
    from nncdbg.textual_repr.printer import print_program

    options = _options(arguments)
    program = chosen_program(options)
    folder = Path(options.output).parent if options.output else Path()
    screen = Screen()
    for note in program.notes:
        screen.note(note)
    text = print_program(stores_from(program, folder), locations=not options.no_loc)
    if options.output:
        write_text(Path(options.output), text)
    else:
        # Names may hold any character, also half of a surrogate pair out of a damaged model.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    return 0


def _options(arguments: Sequence[str]) -> Namespace:
    parser = Parser("nncdbg print", "Print the program text of a graph.")
    add_model(parser)
    parser.add_argument("-o", "--output", metavar="FILE.nnc", help="write to a file instead")
    parser.add_argument("--no-loc", action="store_true", help="leave out where the model says it; lines stay")
    return parser.parse_args(arguments)


def stores_from(program: Program, folder: Path) -> Program:
    """The program with the paths of its stores as seen from `folder`."""
    source = Path(program.source).parent if program.source else Path()
    stores = [Path(os.path.relpath(source / store, folder)).as_posix() for store in program.stores]
    return replace(program, stores=tuple(stores))


def write_text(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder", hint="name a file in it")
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_bytes(text.encode("utf-8", "surrogateescape"))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
