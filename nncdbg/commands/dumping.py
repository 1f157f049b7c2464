"""`dump`: export values and expressions to files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.commands.command_lines import separated
from nncdbg.commands.table import command, needs
from nncdbg.errors import ExpressionError, UsageError
from nncdbg.expression.nodes import Name
from nncdbg.presentation.tensor_files import FORMATS, write_tensors
from nncdbg.process.files import new_file

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession

_FILE = re.compile(r"""(?P<what>.*?)\s+(?P<file>"[^"]+"|'[^']+'|\S+)$""", re.DOTALL)
_BREAKPOINTS = re.compile(r"""breakpoints\s+(?P<file>"[^"]+"|'[^']+'|\S+)\s*""")
_SUFFIX = re.compile(rf"(?P<what>.+)(?P<suffix>{'|'.join(map(re.escape, FORMATS))})$", re.IGNORECASE)


@command(
    "dump", "save", group="changing", arguments="EXPR FILE | breakpoints FILE", completes=("value", "file")
)
def dump(session: CommandSession, text: str) -> None:
    """Write a value to a .npy, .npz, .csv, .txt or .png file.

      dump %h h.npy             dump mean(%h, axis=0) means.csv
      dump %h, %w both.npz      dump %h.png (to h.png)
    A .png file shows the last two axes as a picture, and the other axes side by side.  NaN, Inf and
    -Inf have their own colors.  A .csv file needs one or two axes.
    `save breakpoints FILE` writes the breakpoints and catches, with their commands; `source FILE` sets them.
    """
    if (listed := _BREAKPOINTS.fullmatch(text)) is not None:
        path = Path(listed["file"].strip("\"'"))
        with new_file(path) as file:
            file.write("".join(f"{line}\n" for line in session.stop_commands()).encode())
        session.screen.put(f"saved to {path}")
        return
    expressions, path = _split(session, needs("dump", text))
    scope = session.target.scope()
    tensors = {}
    for expression in expressions:
        value = session.target.evaluate(expression)
        if isinstance(value, str | tuple) or value is None:
            raise UsageError(f"`{expression}` is not a tensor", hint="show it with `print`")
        root = scope.read(expression).root
        tensors[root.name if isinstance(root, Name) else expression] = value
    session.screen.put(f"saved to {write_tensors(path, tensors)}")


def _split(session: CommandSession, text: str) -> tuple[list[str], Path]:
    """Return the expressions and the file; the file of `%h.png` is named after the value."""
    match = _FILE.fullmatch(text)
    if match is not None and _parses(session, match["what"]):
        return separated(match["what"]), Path(match["file"].strip("\"'"))
    named = _SUFFIX.fullmatch(text)
    if named is not None and _parses(session, named["what"]):
        return [named["what"]], Path(_file_name(named["what"]) + named["suffix"])
    for expression in separated(match["what"] if match is not None else text):
        session.target.scope().read(expression)
    raise UsageError("the file is missing", hint="dump %h FILE.npy")


def _parses(session: CommandSession, text: str) -> bool:
    try:
        for expression in separated(text):
            session.target.scope().read(expression)
    except ExpressionError:
        return False
    return True


def _file_name(expression: str) -> str:
    """Return `h_0_2` for `%h[0, 2]`."""
    return re.sub(r"\W+", "_", expression).strip("_") or "value"
