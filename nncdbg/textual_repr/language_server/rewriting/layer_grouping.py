"""Move selected statements into a new graph and call it (outlining); results are unchanged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lsprotocol import types

from nncdbg.engine.text.lexemes import PREFIX_END, name_text
from nncdbg.engine.text.types import value_text
from nncdbg.ir.names import fresh_name
from nncdbg.ir.records import Node, Type, Value
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.analysis.events import BlockEnded, Left, StatementEntry
from nncdbg.textual_repr.language_server.document.document import Document
from nncdbg.textual_repr.language_server.document.line_edits import insert_below, replace_lines
from nncdbg.textual_repr.language_server.features.symbols import last_line
from nncdbg.textual_repr.language_server.rewriting.layer_flattening import CannotMove


@dataclass(frozen=True, slots=True)
class Selection:
    """Lines `first` to `last`, which are whole statements of `block`."""

    first: int
    last: int
    block: Block

    def __contains__(self, line: int) -> bool:
        return self.first <= line <= self.last


def selected(analysis: Analysis, first: int, last: int) -> Selection | None:
    """Return the statements in these lines if they are complete, free of errors, and can form a graph."""
    lines = analysis.lines
    while first <= last and not lines[first].strip():
        first += 1
    while last >= first and not lines[last].strip():
        last -= 1
    if first > last:
        return None
    block = analysis.block_at(first)
    if block is None or analysis.block_at(last) is not block or block.end == 0:
        return None
    if any(p.severity == "error" and first <= p.span.line <= last for p in analysis.problems):
        return None
    return Selection(first, last, block) if _is_whole(analysis, first, last, block) else None


def _is_whole(analysis: Analysis, first: int, last: int, block: Block) -> bool:
    """Return True if every block opened in the lines is closed there, and no line ends or leaves `block`."""
    depth = computed = 0
    for line in range(first, last + 1):
        text = analysis.lines[line].strip()
        if not text or text.startswith("#"):
            continue
        closes = text.startswith("}")
        if closes and depth == 0:
            return False
        event = analysis.event_at(line)
        around = analysis.block_at(line)
        if event is None or around is None:
            return False
        if depth == 0 and (around is not block or isinstance(event, (BlockEnded, Left))):
            return False
        depth += (analysis.block_opened_at(line) is not None) - closes
        computed += not (isinstance(event, StatementEntry) and not isinstance(event.content, Node))
    return depth == 0 and computed > 0


def group(document: Document, selection: Selection) -> list[types.TextEdit]:
    """Return edits that move the selected statements into a graph below their own, and call it.

    Raises CannotMove if this is not possible.
    """
    analysis = document.analysis
    inputs = _inputs(analysis, selection)
    outputs = _outputs(analysis, selection)
    name = name_text(_free_name(analysis))
    text = document.lines[selection.first]
    indent = text[: len(text) - len(text.lstrip())]
    spell = analysis.prefixes.spell
    results = ", ".join(value_text(value, spell) for value in outputs)
    formals = ", ".join(value_text(value, spell) for value in inputs)
    arguments = ", ".join(f"%{spell(value.name)}" for value in inputs)
    call = f"{indent}{results}{' = ' if results else ''}@{name}({arguments})"
    graph = [
        "",
        f"graph @{name}({formals}) -> ({results}) {{",
        *_indented(document.lines[selection.first : selection.last + 1], indent),
        f"  return {', '.join(f'%{spell(value.name)}' for value in outputs)}".rstrip(),
        "}",
    ]
    below = last_line(analysis.chunk_at(selection.first))
    return [
        replace_lines(document, selection.first, selection.last, [call]),
        insert_below(document, below, graph),
    ]


def _indented(lines: Sequence[str], indent: str) -> list[str]:
    """Return the lines with the indentation of a graph body."""
    return ["  " + text.removeprefix(indent) if text.strip() else "" for text in lines]


def _inputs(analysis: Analysis, selection: Selection) -> list[Value]:
    """Return the outer values used by the statements, in the order of their first use."""
    found: dict[str, Type | None] = {}
    for line in range(selection.first, selection.last + 1):
        for mention in analysis.mentions(line):
            definition = analysis.definition_of(line, mention)
            if definition is None:
                raise CannotMove
            if definition.span.line not in selection:
                found.setdefault(definition.name, definition.type)
    return [Value(name, known) for name, known in found.items()]


def _outputs(analysis: Analysis, selection: Selection) -> list[Value]:
    """Return the values of the statements that are used elsewhere, in the order of their definitions."""
    chunk = analysis.chunk_at(selection.first)
    number = {name: chunk.line_of(line) for name, line in selection.block.names.items()}
    own = {name for name, line in number.items() if line in selection}
    used: set[str] = set()
    # A quoted or prefixed name can be spelled in several ways.
    may_use = re.compile("|".join(['"', PREFIX_END, *map(re.escape, own)])).search
    for offset, text in enumerate(chunk.lines):
        line = chunk.start + offset
        if line in selection or not may_use(text):
            continue
        for mention in analysis.mentions(line):
            if mention.name in own - used:
                definition = analysis.definition_of(line, mention)
                if definition is not None and definition.block is selection.block:
                    used.add(mention.name)
    return [Value(name, chunk.types.of(selection.block, name)) for name in number if name in used]


def _free_name(analysis: Analysis) -> str:
    """Return ``layer``, or ``layer`` with a number."""
    labels = {block.name for chunk in analysis.chunks for block in chunk.reading.opened}
    return fresh_name("layer", labels, mark="_")
