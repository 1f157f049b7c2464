"""Program text files, with weight paths relative to their folder, and the types of a program for JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.frontends.text import forget_printed, note_printed, without_defaults
from nncdbg.engine.inputs.binding import symbolic_sizes
from nncdbg.process.files import new_file

if TYPE_CHECKING:
    from nncdbg.ir.records import Program, Value


def stores_from(program: Program, folder: Path | None) -> Program:
    """Return the program with store paths relative to `folder`; absolute if the folder is unknown."""
    source = Path(program.source).parent if program.source else Path()
    stores = [
        (source / store).resolve().as_posix()
        if folder is None
        else Path(os.path.relpath(source / store, folder)).as_posix()
        for store in program.stores
    ]
    return replace(program, stores=tuple(stores))


def shown_text(program: Program, *, full: bool, locations: bool) -> str:
    """Return the text of a program as its listing, or with `full` with all attributes and `locations`."""
    return program.text(locations=locations) if full else without_defaults(program).text(locations=False)


def write_text(path: Path, text: str) -> None:
    """Write the file atomically. Raises UsageError if it cannot be written."""
    with new_file(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))


def grant_stores(stores: Sequence[str], text: Path) -> list[str]:
    """Let this user open a printed text with data outside of its folder; return notes on these data."""
    folder = text.parent.resolve()
    paths = [(folder / store).resolve() for store in stores]
    outside = [path for path in paths if not path.is_relative_to(folder)]
    if not outside:
        forget_printed(text)
        return []
    moved = " as another user or after moving it" if note_printed(text, outside) else ""
    return [
        f"the text reads data from {path}; to open the text{moved}, use "
        f"--allow-store {shlex.quote(str(path.parent))}"
        for path in outside
    ]


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
