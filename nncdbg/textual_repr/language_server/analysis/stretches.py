"""Stretches: adjacent statements of a block that are parsed and typed as a unit.

Between two keystrokes, most of a long graph is unchanged. A stretch keeps its parse results if its lines
are the same, its operands are defined and its names are free. If its operands have cached types, its values
keep their types too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from nncdbg.ir.records import Constant, Node, Type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.language_server.analysis.events import Event, StatementEntry

LEAST, MOST = 32, 256
"""Lines of a stretch: fewer bring no gain, more make each keystroke in the stretch expensive."""

_REMEMBERED = 4
"""Number of operand type combinations that are cached: one keystroke and its undo need a few."""

Types: TypeAlias = "list[Type | None]"


@dataclass(slots=True, eq=False)
class Stretch:
    """Lines without a block, a call, a ``##`` or a flaw; `events` has None for blanks and ``#``."""

    lines: list[str]
    events: list[Event]
    uses: frozenset[str]
    free: tuple[str, ...]
    """Names that are defined before the stretch."""
    names: tuple[str, ...]
    defined: frozenset[str]
    places: tuple[int, ...]
    """The defining line of each of `names`; 0 is the first line of the stretch."""
    nodes: list[Node]
    node_places: tuple[int, ...]
    constants: list[Constant]
    answers: deque[tuple[Types, Types]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """Maps types of `free` to the types of `names`, for cases without errors."""

    def fits(self, block: Block) -> bool:
        """Return True if `block` provides all names that the stretch uses and none that it defines."""
        missing: Sequence[str] = self.free
        for each in block.outwards():
            names = each.names
            if each.kind == "broken" or not names.keys().isdisjoint(self.defined):
                return False
            missing = [name for name in missing if name not in names]
        return not missing

    def enter(self, block: Block, number: int) -> None:
        """Add the stretch to `block`; `number` is the number of its first line."""
        block.names.update(zip(self.names, [number + place for place in self.places], strict=True))
        block.nodes.extend(self.nodes)
        block.lines.extend([number + place for place in self.node_places])
        block.constants.extend(self.constants)

    def answer(self, asked: Types) -> Types | None:
        """Return the types of `names` for these types of `free`, or None if they are not cached."""
        return next((found for known, found in self.answers if known == asked), None)


def stretch_of(lines: list[str], events: list[Event]) -> Stretch | None:
    """Return a stretch of these lines; None if they are few, or a name is redefined or used too early."""
    if len(lines) < LEAST:
        return None
    free: dict[str, None] = {}
    places: dict[str, int] = {}
    uses: set[str] = set()
    count = 0
    statements = [(at, event) for at, event in enumerate(events) if isinstance(event, StatementEntry)]
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
