"""A front-end: reads `.calc` files, with one statement per line, as programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import nncdbg
from nncdbg.ir.records import Location

SOFT_CLIP = "org.example.calculator.SoftClip"

OPS = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div"}


def load(path: Path, *, flat: bool = False, stores: Sequence[Path] = ()) -> nncdbg.Program:
    """Return the program in a `.calc` file.  Raises LoadError or GraphError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise nncdbg.LoadError(f"cannot read {path}: {error.strerror}") from error
    b = nncdbg.Builder(source=str(path))
    values = {}
    with b.graph("main"):
        for number, line in enumerate(lines, start=1):
            # Errors and the debugger show this line, not that of Python.
            b.location = Location(str(path), number)
            match line.split():
                case ["input", name]:
                    values[name] = b.input(name, "f32[]")
                case [name, "=", left, operator, right] if operator in OPS:
                    operands = [values[word] if word in values else float(word) for word in (left, right)]
                    values[name] = b.op(OPS[operator], *operands, name=name)
                case [name, "=", "softclip", word]:
                    values[name] = b.op(SOFT_CLIP, values[word], name=name, limit=10.0)
                case ["output", *names]:
                    b.returns(*(values[name] for name in names))
                case [_, *_]:
                    raise nncdbg.LoadError(f"{path}:{number}: not a statement: {line}")
    return b.program()
