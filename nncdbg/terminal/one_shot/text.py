"""`nncdbg print`: a program as text or as an ONNX model, or with --json its inputs and outputs."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import stat
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.frontends.text import forget_printed, note_printed
from nncdbg.engine.inputs.binding import symbolic_sizes
from nncdbg.errors import UsageError
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_model,
    add_schedule,
    configuration_of,
    scheduled_program,
)
from nncdbg.opening.schedule_file import schedule_text
from nncdbg.presentation.program_text import stores_from, write_text
from nncdbg.presentation.screen import Screen

if TYPE_CHECKING:
    from nncdbg.ir.records import Program, Value

_OTHERS = ("parameters", "freeze", "gradient", "optimizer", "batch", "epochs", "shuffle")
"""Options that need --minimize."""

_HINT = "such as --optimizer AdamW,lr=0.01"


def add_minimize_options(parser: ArgumentParser) -> None:
    """Add the options to a parser."""
    group = parser.add_argument_group(
        "a training",
        "Print the training that minimizes a value: gradient, optimizer and update are statements.",
    )
    group.add_argument(
        "--minimize",
        action="append",
        metavar="LOSS",
        help="print a training that minimizes %%LOSS (repeatable)",
    )
    group.add_argument(
        "--parameters", action="append", metavar="PATTERN", help="train these (repeatable; default: all)"
    )
    group.add_argument(
        "--freeze", action="append", metavar="PATTERN", help="do not train these parameters (repeatable)"
    )
    group.add_argument(
        "--gradient", action="append", metavar="INPUT", help="return the gradient of this input (repeatable)"
    )
    group.add_argument(
        "--optimizer",
        metavar="NAME,KEY=NUMBER...",
        help="SGD, RMSProp, Adam, AdamW or LAMB, and its attributes (default: SGD)",
    )
    group.add_argument("--batch", type=int, metavar="N", help="samples per step")
    group.add_argument("--epochs", type=int, metavar="N", help="number of epochs")
    group.add_argument("--shuffle", type=int, metavar="SEED", help="shuffle the samples with this seed")


def check_minimize_options(options: Namespace) -> None:
    """Raise UsageError for an option that needs --minimize, which is missing."""
    given = [name for name in _OTHERS if getattr(options, name) is not None]
    if given and not options.minimize:
        raise UsageError(
            f"--{given[0]} describes a training, but no value is minimized",
            hint="name the loss, such as --minimize %l",
        )


def minimized(program: Program, options: Namespace, steps: int | None) -> Program:
    """Return the training that the options describe; `steps` is the number of its steps, if given.

    Raises UsageError and GraphError as `minimize` does, and for attributes that are no numbers.
    """
    from nncdbg.engine.building.minimizing import minimize

    optimizer, *written = (options.optimizer or "SGD").split(",")
    attributes: dict[str, Any] = dict(map(_attribute, written))
    taken = sorted(attributes.keys() & inspect.signature(minimize).parameters.keys())
    if taken:
        raise UsageError(f"--optimizer: {optimizer} has no attribute {taken[0]!r}", hint=_HINT)
    training = minimize(
        program,
        [name.removeprefix("%") for name in options.minimize],
        [name.removeprefix("%") for name in options.parameters or ["*"]],
        [name.removeprefix("%") for name in options.gradient or ()],
        optimizer=optimizer,
        freeze=[name.removeprefix("%") for name in options.freeze or ()],
        batch=options.batch,
        epochs=options.epochs,
        shuffle=options.shuffle,
        steps=steps,
        **attributes,
    )
    # The paths of the stores are relative to this file.
    return replace(training, source=program.source)


def _attribute(written: str) -> tuple[str, int | float]:
    """Return the name and the number of an attribute such as `lr=0.01`."""
    name, sign, number = written.partition("=")
    if not sign or not name.strip().isidentifier():
        raise UsageError(f"--optimizer: {written!r} is no attribute", hint=_HINT)
    try:
        return name.strip(), int(number)
    except ValueError:
        pass
    try:
        return name.strip(), float(number)
    except ValueError:
        raise UsageError(f"--optimizer: {name.strip()} is not a number: {number!r}", hint=_HINT) from None


def main(arguments: Sequence[str]) -> int:
    """Print the text, or write text or a model to a file; paths of stores are relative to its folder."""
    from nncdbg.opening.programs import open_program

    options = _options(arguments)
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
    text = shown.text(locations=not options.no_loc)
    if options.output:
        write_text(Path(options.output), text)
    else:
        # Names may contain any character, even a lone surrogate from a damaged model.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    if target is not None:
        _note_outside(shown.stores, target, screen)
    return 0


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg print", "Print a program as text, or write it as text or as an ONNX model."
    )
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to FILE.nnc, as an ONNX model to FILE.onnx, or the schedule to FILE.json",
    )
    parser.add_argument("--no-loc", action="store_true", help="omit locations; line numbers stay the same")
    parser.add_argument("--full-names", action="store_true", help="write names in full, without prefixes")
    parser.add_argument("--json", action="store_true", help="print only the types of inputs and outputs")
    add_minimize_options(parser)
    add_schedule(parser)
    chosen = parser.parse_args(arguments)
    check_minimize_options(chosen)
    if chosen.json and chosen.output:
        raise UsageError(
            "--json and --output cannot be combined", hint="use --json for types, --output for program text"
        )
    return chosen


def _write_model(program: Program, file: str) -> None:
    """Write the program as an ONNX model."""
    from nncdbg.opening.onnx_export import write_onnx

    screen = Screen()
    for note in program.notes:
        screen.note(note)
    write_onnx(program, file)


def signature(program: Program) -> dict[str, Any]:
    """Return `inputs` and `outputs` with name and type, and `dims`: the symbolic sizes of the inputs."""
    graph = program.graphs[program.entry]

    def typed(values: Sequence[Value]) -> list[dict[str, Any]]:
        return [{"name": value.name, "type": str(value.type) if value.type else None} for value in values]

    return {
        "inputs": typed(graph.inputs),
        "outputs": typed(graph.outputs),
        "dims": symbolic_sizes(graph),
    }


def _note_outside(stores: Sequence[str], target: Path, screen: Screen) -> None:
    """Report data of a printed text outside its folder, and grant this user access to it."""
    folder = target.parent.resolve()
    paths = [(folder / store).resolve() for store in stores]
    outside = [path for path in paths if not path.is_relative_to(folder)]
    if not outside:
        forget_printed(target)
        return
    moved = " as another user or after moving it" if note_printed(target, outside) else ""
    for path in outside:
        option = f"--allow-store {shlex.quote(str(path.parent))}"
        screen.note(f"the text reads data from {path}; to open the text{moved}, use {option}")


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
