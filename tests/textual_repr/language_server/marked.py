"""Documents with marks: ``⟦`` and ``⟧`` stand around what an answer is about, ``‸`` is the cursor."""

from __future__ import annotations

from collections.abc import Iterable

from nncdbg.textual_repr.language_server.document.records import Span

Range = tuple[int, int, int]
"""Line, first column, column behind the last."""


def cursor(text: str) -> tuple[str, int, int]:
    """The text without its cursor; the cursor's line and column."""
    before = text[: text.index("‸")]
    line = before.count("\n")
    return text.replace("‸", ""), line, len(before) - (before.rfind("\n") + 1)


def ranges(text: str) -> tuple[str, list[Range]]:
    """The text without its marks, and what they mark."""
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


def of_protocol(answers: Iterable[dict]) -> list[Range]:  # type: ignore[type-arg]
    """The ranges in answers of the server, all of which lie in one line."""
    places = [answer.get("range", answer) for answer in answers]
    return [(r["start"]["line"], r["start"]["character"], r["end"]["character"]) for r in places]
