"""Comments that are no part of a program, carried over to its print: ``#``, and ``##`` before other lines.

Each is tied to the line that it stands above or behind, by what that line is in its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from nncdbg.engine.graph import Constant
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.document import Document
from nncdbg.textual_repr.language_server.events import Closed, Ended, Entry, Event, Left, Opened
from nncdbg.textual_repr.language_server.tokens import tokens

Anchor: TypeAlias = "tuple[object, ...]"


def with_comments(printed: Sequence[str], text: Sequence[str]) -> list[str]:
    """The lines of the print of `text`, with the comments that the print leaves out."""
    above, behind = _loose(text)
    if not above and not behind:
        return list(printed)
    places = dict(_anchors(printed))
    found: list[str] = []
    for line, own in enumerate(printed):
        anchor = places.get(line)
        inner = anchor is not None and (anchor[0] == "close" or anchor[2:] == ("else",))
        indent = own[: len(own) - len(own.lstrip())] + ("  " if inner else "")
        loose = [indent + comment for comment in above.pop(anchor, ())] if anchor is not None else []
        # What belongs to the statement stays next to it.
        kept = len(found)
        while loose and found[kept - 1].lstrip().startswith("##"):
            kept -= 1
        found[kept:kept] = loose
        found.append(own + (f"  {behind[anchor]}" if anchor in behind else ""))
    rest = [comment for comments in above.values() for comment in comments]
    return [*found[:-1], *rest, found[-1]] if rest else found


def _loose(text: Sequence[str]) -> tuple[dict[Anchor | None, list[str]], dict[Anchor | None, str]]:
    """Comments above lines and behind lines, by the anchors of the lines."""
    places = dict(_anchors(text))
    above: dict[Anchor | None, list[str]] = {}
    behind: dict[Anchor | None, str] = {}
    waiting: list[str] = []
    for line, own in enumerate(text):
        anchor = places.get(line)
        stripped = own.strip()
        if stripped.startswith("#"):
            if not (line == 0 and stripped.startswith("#nncdbg")) and not stripped.startswith("##!"):
                waiting.append(stripped)
            continue
        if anchor is not None:
            kept = anchor[0] == "statement" or (anchor[0] == "open" and anchor[2] != "else")
            loose = [each for each in waiting if not (kept and each.startswith("##"))]
            if loose:
                above[anchor] = loose
            waiting = []
            last = tokens(own)[-1]
            if last.kind == "comment":
                behind[anchor] = own[last.start :].rstrip()
    if waiting:
        above[None] = waiting
    return above, behind


def _anchors(lines: Sequence[str]) -> Iterator[tuple[int, Anchor]]:
    """Per line with a statement, a constant or a brace: what it is, the same in a text and in its print."""
    for chunk in Document("", "\n".join(lines)).analysis.chunks:
        counts: Counter[Block] = Counter()
        reading = chunk.reading
        for own, (event, block) in enumerate(zip(reading.events, reading.blocks, strict=False)):
            anchor = _anchor(event, block, counts, chunk.lines[own])
            if anchor is not None:
                yield chunk.start + own, anchor


def _anchor(event: Event, block: Block | None, counts: Counter[Block], text: str) -> Anchor | None:
    if isinstance(event, Opened):
        return "open", event.block.path, event.block.kind
    if block is None:
        return None
    if isinstance(event, Entry) and isinstance(event.content, Constant):
        return "constant", block.path, event.content.value.name
    if isinstance(event, (Entry, Left)):
        counts[block] += 1
        return "statement", block.path, counts[block]
    if isinstance(event, Ended):
        return "end", block.path
    if isinstance(event, Closed) and block.parent is not None:
        counts[block.parent] += 1
    return ("close", block.path) if text.lstrip().startswith("}") else None
