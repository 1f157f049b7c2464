"""What is kept of the texts that a document has had, for the next: lines, stretches of lines, type rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nncdbg.engine.graph import Inline, Node, Type
from nncdbg.textual_repr.language_server.analysis.checking import check
from nncdbg.textual_repr.language_server.analysis.events import Answers, Entry
from nncdbg.textual_repr.language_server.analysis.stretches import Stretch

_SPARE = 10_000
"""Lines, and answers of type rules, that are remembered beyond those of the text, for undo."""


class Memory:
    """`entries` are lines by their text, `stretches` by that of their first line."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.stretches: dict[str, Stretch] = {}
        self.opsets: Mapping[str, int] = {}
        self._forms: dict[str, Answers] = {}
        self._count = 0

    def ask(self, entry: Entry, text: str, types: tuple[Type | None, ...]) -> None:
        """Have in `entry` what the rule of its op says of operands of these types."""
        if entry.asked == types:
            return
        entry.asked = types
        answers = self._answers_of(entry)
        found = answers.get(types) if answers is not None else None
        if found is not None:
            entry.results, entry.problems = found, ()
            return
        entry.results, entry.problems = check(entry, text, types, self.opsets)
        if answers is not None and not entry.problems:
            answers[types] = entry.results
            self._count += 1

    def _answers_of(self, entry: Entry) -> Answers | None:
        if entry.answers is None and isinstance(entry.content, Node):
            form = _form(entry.content)
            entry.answers = self._forms.setdefault(form, {}) if form is not None else None
        return entry.answers

    def change_opsets(self, opsets: Mapping[str, int], entries: Iterable[Entry]) -> None:
        """Other type rules hold from here on; `entries` are those of lines with a flaw, too."""
        self.opsets = dict(opsets)
        for entry in (*self.entries.values(), *entries):
            entry.asked = None
        for stretch in self.stretches.values():
            stretch.answers.clear()
        self._forget_answers()

    def prune(self, count: int, entries: Iterable[tuple[str, Entry]], stretches: Iterable[Stretch]) -> None:
        """Forget what is long gone; these are the lines and the stretches of the text, `count` lines long."""
        most = 2 * count + _SPARE
        if len(self.entries) > most:
            self.entries = {text: entry for text, entry in entries if text in self.entries}
        if sum(len(stretch.lines) for stretch in self.stretches.values()) > most:
            self.stretches = {stretch.lines[0]: stretch for stretch in stretches}
        if self._count > most:
            self._forget_answers()

    def _forget_answers(self) -> None:
        for answers in self._forms.values():
            answers.clear()
        self._count = 0


def _form(node: Node) -> str | None:
    """What a type rule can see of a statement beside its operands' types; None where that is a tensor."""
    attributes = repr(dict(node.attributes))
    if Inline.__name__ in attributes:
        return None
    inputs = ["%" if isinstance(operand, str) else repr(operand) for operand in node.inputs]
    outputs = [(bool(value.name), value.type) for value in node.outputs]
    return f"{node.op} {inputs} {attributes} {outputs}"
