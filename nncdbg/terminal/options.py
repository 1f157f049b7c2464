"""Options that commands share, and the way from them to a debugger.  Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from nncdbg.engine.errors import LoadError, UsageError

if TYPE_CHECKING:
    from nncdbg.engine.graph import Program
    from nncdbg.engine.session import Debugger
    from nncdbg.terminal.screen import Screen

T = TypeVar("T")

INPUT_FORMS = "NAME=FILE.npy, NAME=FILE.npz:KEY, or NAME=zeros|ones|normal|uniform|arange"


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors have the shape of all others."""

    def __init__(self, prog: str, description: str, **fields: object) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **fields,  # type: ignore[arg-type]
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists what there is")


def add_model(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a graph: FILE.onnx or FILE.nnc (graph text)")
    parser.add_argument("--flat", action="store_true", help="one graph, instead of layers that are called")


def add_machine(parser: Parser) -> None:
    """Inputs, and how the graph is run."""
    add = parser.add_argument
    add("--input", action="append", default=[], metavar="NAME=DATA", help=f"{INPUT_FORMS} (repeatable)")
    add("--dim", action="append", default=[], metavar="NAME=SIZE", help="a symbolic size (repeatable)")
    add("--seed", type=int, default=0, help="of inputs not given and of random ops (0)")
    add("--backend", default="numpy", help="numpy")
    add("--allocator", default="debug", help="debug, arena, poison or plain (debug)")
    add("--history", metavar="BYTES", help="memory for old values, such as 500MB or 4GiB (a quarter of RAM)")


def load_program(path: str, *, flat: bool = False) -> Program:
    """The program in a file.  Raises what `nncdbg.load` raises."""
    if not os.path.exists(path):
        raise LoadError(
            f"there is no file {path}", hint=f"looked in {os.path.dirname(os.path.abspath(path))}"
        )
    from nncdbg.engine.frontends import load

    return load(path, flat=flat)


def make_debugger(options: argparse.Namespace, program: Program, *, statistics: bool = True) -> Debugger:
    """A debugger for the options of `add_machine`."""
    from nncdbg.engine.inputs import parse_dim, parse_spec
    from nncdbg.engine.session import Debugger

    return Debugger(
        program,
        _each_once(map(parse_spec, options.input), "input"),
        backend=options.backend,
        allocator=options.allocator,
        dims=_each_once(map(parse_dim, options.dim), "dim"),
        seed=options.seed,
        history=options.history,
        statistics=statistics,
    )


def _each_once(pairs: Iterable[tuple[str, T]], option: str) -> dict[str, T]:
    given: dict[str, T] = {}
    for name, value in pairs:
        if name in given:
            raise UsageError(f'--{option} gives "{name}" twice')
        given[name] = value
    return given


def say_notes(screen: Screen, debugger: Debugger) -> None:
    """What the user should know of the inputs, on standard error."""
    for note in debugger.notes:
        screen.note(note)
