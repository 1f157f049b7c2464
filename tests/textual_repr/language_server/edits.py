"""Apply edits of the protocol to a text, and read selections from marks."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types


def applied(text: str, edits: Sequence[types.TextEdit]) -> str:
    """Return the text after edits that do not overlap; columns count ASCII or BMP characters."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def offset(position: types.Position) -> int:
        assert position.character <= len(lines[position.line])
        return starts[position.line] + position.character

    places = sorted(((offset(e.range.start), offset(e.range.end), e.new_text) for e in edits), reverse=True)
    for (_, end, _), (start, _, _) in zip(places[1:], places, strict=False):
        assert end <= start, "edits overlap"
    for start, end, new in places:
        text = text[:start] + new + text[end:]
    return text


def selected_lines(text: str) -> tuple[str, int, int]:
    """Return the text without marks, and the first and last line between ``⟦`` and ``⟧`` or at ``‸``."""
    if "‸" in text:
        line = text[: text.index("‸")].count("\n")
        return text.replace("‸", ""), line, line
    first = text[: text.index("⟦")].count("\n")
    last = text[: text.index("⟧")].count("\n")
    return text.replace("⟦", "").replace("⟧", ""), first, last
