"""Documents with marks: ``⟦`` and ``⟧`` enclose an expected range, ``‸`` is the cursor."""

from __future__ import annotations

from collections.abc import Iterable

from nncdbg.textual_repr.language_server.tokens import Span

Range = tuple[int, int, int]
"""Line, first column, and the column after the last."""


def cursor(text: str) -> tuple[str, int, int]:
    """Return the text without the cursor, and the cursor's line and column."""
    before = text[: text.index("‸")]
    line = before.count("\n")
    return text.replace("‸", ""), line, len(before) - (before.rfind("\n") + 1)


def ranges(text: str) -> tuple[str, list[Range]]:
    """Return the text without marks, and the marked ranges."""
    found: list[Range] = []
    lines = []
    for number, line in enumerate(text.split("\n")):
        while "⟦" in line:
            start, end = line.index("⟦"), line.index("⟧") - 1
            line = line.replace("⟦", "", 1).replace("⟧", "", 1)
            found.append((number, start, end))
        lines.append(line)
    return "\n".join(lines), found


def of_spans(spans: Iterable[Span]) -> list[Range]:
    return [(span.line, span.start, span.end) for span in spans]


def of_protocol(responses: Iterable[dict]) -> list[Range]:  # type: ignore[type-arg]
    """Return the ranges in responses of the server; each range is in one line."""
    places = [response.get("range", response) for response in responses]
    return [(r["start"]["line"], r["start"]["character"], r["end"]["character"]) for r in places]
