"""What is kept of the texts that a document has had, for the next: lines, stretches of lines, type rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nncdbg.engine.inference.graphs import Answers
from nncdbg.textual_repr.language_server.analysis.events import Entry
from nncdbg.textual_repr.language_server.analysis.stretches import Stretch

_SPARE = 10_000
"""Lines, and answers of type rules, that are remembered beyond those of the text, for undo."""


class Memory:
    """`entries` are lines by their text, `stretches` by that of their first line."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.stretches: dict[str, Stretch] = {}
        self.opsets: Mapping[str, int] = {}
        self.answers: Answers = {}
        self.known_ops: set[str] = set()
        """Ops of these opsets that have a schema or a declaration."""

    def change_opsets(self, opsets: Mapping[str, int], entries: Iterable[Entry]) -> None:
        """Other type rules hold from here on; `entries` are those of lines with a flaw, too."""
        self.opsets = dict(opsets)
        for entry in (*self.entries.values(), *entries):
            entry.asked = None
        for stretch in self.stretches.values():
            stretch.answers.clear()
        self.answers.clear()
        self.known_ops.clear()

    def prune(self, count: int, entries: Iterable[tuple[str, Entry]], stretches: Iterable[Stretch]) -> None:
        """Forget what is long gone; these are the lines and the stretches of the text, `count` lines long."""
        most = 2 * count + _SPARE
        if len(self.entries) > most:
            self.entries = {text: entry for text, entry in entries if text in self.entries}
        if sum(len(stretch.lines) for stretch in self.stretches.values()) > most:
            self.stretches = {stretch.lines[0]: stretch for stretch in stretches}
        if len(self.answers) > most:
            self.answers.clear()
