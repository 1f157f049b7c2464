"""A schedule as a file: the margin of each statement, for programs whose text has none.

It is JSON, with the margins as in graph text::

    {"nncdbg_schedule": 1,
     "streams": {"1": "cuda:0"},
     "graphs": {"main": {"h": "s0 record e1", "y": "s1 wait e1", "#3": "s1", "return": "host wait e1"},
                "main/5/0": {"t": "s2 wait e1"}}}

* A key of `graphs` is the name of a graph, or of a block in it: statement 5 of ``main``, its body 0, both
  counted from 0.
* A statement is named by its first result; one without a result by its number in the block, ``#3``. ``graph``
  is the first line of a graph, and ``return`` the last line of a graph or block.
* `streams` are the devices of the streams.
* A statement without a margin runs on the host while all streams are idle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from nncdbg.engine.memory.plan_file import key_of
from nncdbg.engine.schedules.validation import margins_of, with_margins
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Path, Placement, Program
from nncdbg.ir.streams import Site
from nncdbg.ir.walk import blocks
from nncdbg.process.json_document import DocumentKind
from nncdbg.text.lexemes import Flaw, nearest
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.printer import margin_text

VERSION = 1


class _File(msgspec.Struct, forbid_unknown_fields=True):
    nncdbg_schedule: int
    graphs: dict[str, dict[str, str]]
    streams: dict[str, str] = {}


_KIND = DocumentKind(
    "schedule",
    _File,
    "nncdbg_schedule",
    'write JSON: {"nncdbg_schedule": 1, "graphs": {"main": {"y": "s1 wait e1"}}}',
    VERSION,
)


def read_schedule(file: str | os.PathLike[str], program: Program) -> Program:
    """Return the program with the schedule in a file, instead of one in its text.

    Raises UsageError for an unreadable file, a file that is not a schedule, and names that do not exist in
    the program.
    """
    document, source = _KIND.read(file), os.fspath(file)
    places = {key_of(path): (path, block) for path, block in blocks(program.graphs)}
    margins: dict[Site, Placement] = {}
    for key, rows in document.graphs.items():
        if key not in places:
            hint = nearest(key, places, "") or f"use one of: {', '.join(list(places)[:5])}"
            raise UsageError(f"{source}: the program has no graph {key!r}", hint=hint)
        path, block = places[key]
        sites = {name: pc for pc, name in _names(block, path)}
        for name, margin in rows.items():
            pc = sites.get(name.removeprefix("%"))
            if pc is None:
                hint = nearest(name.removeprefix("%"), sites, "") or "list the names with `nncdbg print`"
                raise UsageError(f"{source}: {key} has no statement {name}", hint=hint)
            margins[path, pc] = _margin(margin, f"{source}: {name} of {key}")
    streams = {_stream(number, source): device for number, device in document.streams.items()}
    return replace(with_margins(program, margins), streams=streams)


def schedule_text(program: Program) -> str:
    """Return the schedule of a program as the text of a file."""
    margins = margins_of(program)
    parts = []
    for path, block in blocks(program.graphs):
        rows = [
            f"      {json.dumps(name)}: {json.dumps(margin_text(margins[path, pc]).removeprefix(' | '))}"
            for pc, name in _names(block, path)
            if (path, pc) in margins
        ]
        if rows:
            parts.append(f"    {json.dumps(key_of(path))}: {{\n" + ",\n".join(rows) + "\n    }")
    streams = json.dumps({str(number): device for number, device in program.streams.items()})
    body = "{\n" + ",\n".join(parts) + "\n  }" if parts else "{}"
    return f'{{\n  "nncdbg_schedule": {VERSION},\n  "streams": {streams},\n  "graphs": {body}\n}}\n'


def _names(block: Graph, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each line of a block that can have a margin."""
    if len(path) == 1:
        yield -1, "graph"
    for pc, node in enumerate(block.nodes):
        named = node.kind is not Kind.UPDATE and node.outputs and node.outputs[0].name
        yield pc, node.outputs[0].name if named else f"#{pc}"
    yield len(block.nodes), "return"


def _margin(text: str, where: str) -> Placement:
    cursor = Cursor(f"| {text}")
    try:
        margin = cursor.placement()
        cursor.end()
    except Flaw as flaw:
        raise UsageError(f"{where}: {flaw.message}", hint=flaw.hint) from None
    assert margin is not None
    return margin


def _stream(number: str, source: str) -> int:
    digits = number.removeprefix("s")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise UsageError(f"{source}: {number!r} is not the number of a stream", hint='write {"1": "cuda:0"}')
    return int(digits)
