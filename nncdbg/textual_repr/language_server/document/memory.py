"""Cache across versions of a document: lines, stretches of lines, output of type rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nncdbg.engine.inference.graphs import Answers
from nncdbg.textual_repr.language_server.analysis.events import StatementEntry
from nncdbg.textual_repr.language_server.analysis.stretches import Stretch

_SPARE = 10_000
"""Lines, and outputs of type rules, cached beyond those of the current text, for undo."""


class AnalysisMemory:
    """A cache: `entries` are lines by their text, `stretches` are by the text of their first line."""

    def __init__(self) -> None:
        self.entries: dict[str, StatementEntry] = {}
        self.stretches: dict[str, Stretch] = {}
        self.opsets: Mapping[str, int] = {}
        self.answers: Answers = {}
        self.known_ops: set[str] = set()
        """Ops of these opsets that have a schema or a declaration."""

    def change_opsets(self, opsets: Mapping[str, int], entries: Iterable[StatementEntry]) -> None:
        """Switch to other type rules; `entries` includes the entries of lines with a flaw."""
        self.opsets = dict(opsets)
        for entry in (*self.entries.values(), *entries):
            entry.asked = None
        for stretch in self.stretches.values():
            stretch.answers.clear()
        self.answers.clear()
        self.known_ops.clear()

    def prune(
        self, count: int, entries: Iterable[tuple[str, StatementEntry]], stretches: Iterable[Stretch]
    ) -> None:
        """Evict old entries; the arguments describe the current text, which has `count` lines."""
        most = 2 * count + _SPARE
        if len(self.entries) > most:
            self.entries = {text: entry for text, entry in entries if text in self.entries}
        if sum(len(stretch.lines) for stretch in self.stretches.values()) > most:
            self.stretches = {stretch.lines[0]: stretch for stretch in stretches}
        if len(self.answers) > most:
            self.answers.clear()
