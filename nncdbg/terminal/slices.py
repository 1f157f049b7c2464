"""`why`: the statements of a block that a value was computed from, nearest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from nncdbg.engine.code import UNSET, Code
from nncdbg.engine.machine import Frame
from nncdbg.engine.timeline import EVICTED
from nncdbg.terminal.stops import describe

if TYPE_CHECKING:
    from nncdbg.engine.session import Debugger
    from nncdbg.engine.values import Place
    from nncdbg.terminal.screen import Screen

_MANY = 60
"""Values shown at most."""


@dataclass(frozen=True, slots=True)
class Source:
    """A slot that a value depends on, `distance` statements away; `pc` -1 for what the block was given."""

    slot: int
    pc: int
    distance: int


def sources(code: Code, slot: int, depth: int) -> Iterator[Source]:
    """The slot itself, then breadth first all that it was computed from within the block."""
    seen, level = {slot}, [slot]
    for distance in range(depth + 1):
        following: list[int] = []
        for each in sorted(level, key=lambda one: code.definition[one], reverse=True):
            pc = code.definition[each]
            yield Source(each, pc, distance)
            if pc >= 0:
                read = [one for one in code.operands[pc] if one]
                captured = sorted(code.reads(pc) - set(read))
                for one in (*read, *captured):
                    if one not in seen and one:
                        seen.add(one)
                        following.append(one)
        level = following


def show_slice(screen: Screen, debugger: Debugger, name: str, depth: int) -> None:
    """Print the slice of `name` at this moment.  Raises NotComputed or ExpressionError for the name."""
    place = debugger.values.place(name)
    shown = [source for source in sources(place.code, place.slot, depth) if place.code.names[source.slot]]
    statement = None
    for source in shown[:_MANY]:
        if source.pc >= 0 and source.pc != statement:
            screen.put_line(_statement(debugger, place, source))
        statement = source.pc if source.pc >= 0 else None
        screen.put_line(Text("    ").append_text(_line(screen, debugger, place, source)))
    if len(shown) > _MANY:
        screen.put(f"    and {len(shown) - _MANY} more values")


def _statement(debugger: Debugger, place: Place, source: Source) -> Text:
    listing = debugger.listing_of(Frame(place.code, place.slots))
    line = listing.line(place.code.path, source.pc)
    return Text().append(f"line {line}: ", "bold").append(listing.lines[line - 1].strip())


def _line(screen: Screen, debugger: Debugger, place: Place, source: Source) -> Text:
    content, name = place.slots[source.slot], place.code.names[source.slot]
    if content is EVICTED and place.depth is not None:
        content = debugger.timeline.recompute(place.depth, source.slot)
    if content is UNSET or content is EVICTED:
        return Text(f"%{name} does not stand any more", "dim")
    line = describe(name, content, screen)
    return line if source.pc >= 0 else line.append(f"  ({_given(place.code, source.slot)})", "dim")


def _given(code: Code, slot: int) -> str:
    name = code.names[slot]
    if any(inner == slot for _, inner in code.captures):
        return "from the block around"
    if any(constant.value.name == name for constant in code.graph.constants):
        return "constant"
    return "carried" if code.parent is not None else "input"
