"""Editing features work at every position of incomplete and invalid lines."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from lsprotocol import types

from nncdbg.textual_repr.language_server.code_actions import code_actions
from nncdbg.textual_repr.language_server.completion import completions
from nncdbg.textual_repr.language_server.decorations import code_lenses, inlay_hints
from nncdbg.textual_repr.language_server.document import Document, Place
from nncdbg.textual_repr.language_server.documentation import signature_help
from nncdbg.textual_repr.language_server.navigation import document_links, prepared

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.nnc"))
NOISE = [
    "%",
    '"',
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "=",
    ":",
    "@",
    "#",
    "->",
    "\\",
    "\0",
    "é",
    "𝄞",
    "if ",
    "while ",
    "next ",
]


def request_all(document: Document, line: int, column: int) -> None:
    position = Place(document, document.analysis, line, column)
    width = document.units.outwards(document.lines[line], len(document.lines[line]))
    for item in completions(position).items:
        assert isinstance(item.text_edit, types.TextEdit)
        where = item.text_edit.range
        assert where.start.line == where.end.line == line
        assert 0 <= where.start.character <= where.end.character <= width
    signature_help(position)
    prepared(position)
    whole = types.Range(types.Position(max(0, line - 2), 0), types.Position(line, width))
    list(code_actions(document, whole))
    inlay_hints(document, whole)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_features_work_at_every_position_of_an_example(path: Path) -> None:
    lines = path.read_text("utf-8").split("\n")
    quarter = os.environ["NNCDBG_QUARTER"]
    draw = random.Random(f"{path.stem} {quarter}")
    most = 6 if quarter == "all" else 2  # all positions of a line after some days
    for line, text in enumerate(lines):
        for column in draw.sample(range(len(text) + 1), min(most, len(text) + 1)):
            cut = [*lines[:line], text[:column], *lines[line + 1 :]]
            request_all(Document("file:///a.nnc", "\n".join(cut)), line, column)


@pytest.mark.parametrize("seed", range(120))
def test_features_work_in_random_changes_of_an_example(seed: int) -> None:
    draw = random.Random(seed)
    text = EXAMPLES[seed % len(EXAMPLES)].read_text("utf-8")
    for _ in range(draw.randrange(1, 12)):
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(NOISE) + text[at + draw.randrange(4) :]
    document = Document("file:///a.nnc", text)
    list(code_lenses(document))
    list(document_links(document))
    for line in draw.sample(range(len(document.lines)), min(8, len(document.lines))):
        request_all(document, line, draw.randrange(len(document.lines[line]) + 1))
