"""The training that `--minimize` makes of a program, and its options."""

from __future__ import annotations

import inspect
from argparse import Namespace
from dataclasses import replace
from typing import Any

from nncdbg.errors import UsageError
from nncdbg.ir.records import Program
from nncdbg.opening.command_line import ArgumentParser

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
