"""Formatting of texts with many comments keeps all comments and the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from nncdbg.textual_repr import parse, parse_with_listing
from nncdbg.textual_repr.language_server.formatting import formatted

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = sorted((REPOSITORY / "examples").rglob("*.nnc"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_a_comment_above_each_line_stays_above_it(path: Path) -> None:
    lines = path.read_text("utf-8").rstrip("\n").split("\n")
    # A statement on several lines has a comment above its first one.
    further = parse_with_listing("\n".join(lines))[1].wrapped
    above = [n for n in range(len(lines)) if n + 1 not in further]
    loose = [
        row for n, line in enumerate(lines) for row in ([f" # {n}"] if n in above else []) + [f"  {line}"]
    ]
    tidy = formatted(loose)
    assert parse("\n".join(tidy)) == parse("\n".join(lines))
    kept = [int(row.strip()[2:]) for row in tidy if row.strip()[2:].isdecimal()]
    assert sorted(kept) == above
    assert formatted(tidy) == tidy


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_a_comment_behind_a_line_stays_behind_it(path: Path) -> None:
    tidy = formatted(path.read_text("utf-8").split("\n"))
    in_graph = next(n for n, line in enumerate(tidy) if line.startswith("graph"))
    further = parse_with_listing("\n".join(tidy))[1].wrapped
    behind = [
        f"{line}  # {n}"
        if n >= in_graph and line and not line.lstrip().startswith("#") and n + 2 not in further
        else line
        for n, line in enumerate(tidy)
    ]
    assert formatted([line.replace("  #", " #") for line in behind]) == behind
