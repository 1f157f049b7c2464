"""Stretches: neighboring statements of a block that are read, and given their types, all at once.

From one key to the next nearly all of a long graph stays as it is.  A stretch whose lines are the same, whose
operands are there and whose names are free says what it said before; where its operands have types that they
had before, so have its values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nncdbg.engine.graph import Constant, Node, Type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.events import Entry, Event

LEAST, MOST = 32, 256
"""Lines of a stretch: with fewer it is no gain, with more too much is read again for a key in it."""

_REMEMBERED = 4
"""Types of the operands for which those of the values are kept: a key and the one that takes it back."""

Types: TypeAlias = "list[Type | None]"


@dataclass(slots=True, eq=False)
class Stretch:
    """Lines without a block, a call, a ``##`` or a flaw; `events` has None for blanks and ``#``."""

    lines: list[str]
    events: list[Event]
    uses: frozenset[str]
    free: tuple[str, ...]
    """Names that come from above."""
    names: tuple[str, ...]
    defined: frozenset[str]
    places: tuple[int, ...]
    """For each of `names` the line, from 0, the first of these."""
    nodes: list[Node]
    node_places: tuple[int, ...]
    constants: list[Constant]
    answers: deque[tuple[Types, Types]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Types of `free` and, where nothing was wrong, those that `names` have then."""

    def fits(self, block: Block) -> bool:
        """True if everything that it uses can be seen in `block` and nothing that it defines."""
        missing: Sequence[str] = self.free
        for each in block.outwards():
            names = each.names
            if each.kind == "broken" or not names.keys().isdisjoint(self.defined):
                return False
            missing = [name for name in missing if name not in names]
        return not missing

    def enter(self, block: Block, number: int) -> None:
        """Take it into `block`; its first line has this number."""
        block.names.update(zip(self.names, [number + place for place in self.places], strict=True))
        block.nodes.extend(self.nodes)
        block.lines.extend([number + place for place in self.node_places])
        block.constants.extend(self.constants)

    def answer(self, asked: Types) -> Types | None:
        """The types of `names` for these of `free`; None where nobody has asked lately."""
        return next((found for known, found in self.answers if known == asked), None)


def stretch_of(lines: list[str], events: list[Event]) -> Stretch | None:
    """A stretch of these lines; None where they are few, or a name is defined twice or used too early."""
    if len(lines) < LEAST:
        return None
    free: dict[str, None] = {}
    places: dict[str, int] = {}
    uses: set[str] = set()
    count = 0
    statements = [(at, event) for at, event in enumerate(events) if isinstance(event, Entry)]
    for place, entry in statements:
        uses.update(entry.uses)
        free.update((name, None) for name in entry.uses if name not in places)
        places.update((name, place) for name in entry.defines)
        count += len(entry.defines)
    if count != len(places) or not places.keys().isdisjoint(free):
        return None
    nodes = [(at, e.content) for at, e in statements if isinstance(e.content, Node)]
    return Stretch(
        lines,
        events,
        frozenset(uses),
        tuple(free),
        tuple(places),
        frozenset(places),
        tuple(places.values()),
        [node for _, node in nodes],
        tuple(at for at, _ in nodes),
        [e.content for _, e in statements if isinstance(e.content, Constant)],
    )
