"""Unused values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nncdbg.engine.text.prefixes import Prefixes
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.reading import GraphReading
from nncdbg.textual_repr.language_server.document.records import Problem, Span
from nncdbg.textual_repr.language_server.document.tokens import kind_of_line, mentions
from nncdbg.textual_repr.resolution import shown


def unused_values(reading: GraphReading, lines: Sequence[str]) -> Iterator[Problem]:
    """Yield a hint per unused value, except graph inputs and carried values, which belong to an interface."""
    for block in reading.opened:
        if block.kind == "broken":
            continue
        needed = {value.name for value in block.inputs} - _counters(block)
        for name in block.names.keys() - reading.used[block] - needed:
            line = block.names[name] - 1 - reading.before
            yield from _hint(lines[line], reading.prefixes, line, name)


def _counters(block: Block) -> set[str]:
    """Return the loop counter of a block, which may be left unused."""
    return {block.inputs[0].name} if block.kind == "body" and block.inputs else set()


def _hint(text: str, prefixes: Prefixes, line: int, name: str) -> Iterator[Problem]:
    found = mentions(text, prefixes)
    mark = next((m for m in found if m.defines and m.name == name), None)
    if mark is None:
        return
    several = sum(m.defines for m in found) > 1 or kind_of_line(text) == "}"
    hint = "write _ for an unused output" if several else None
    message = f"{shown(name)} is never used"
    yield Problem(Span(line, mark.start, mark.end), message, "unused", "hint", hint)
