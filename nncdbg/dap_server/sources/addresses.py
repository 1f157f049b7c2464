"""Statement references in the client's form, hexadecimal numbers of `BlockAddresses`, and definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.dap_server import protocol
from nncdbg.dap_server.handles import BITS

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Place


STATEMENTS = 1 << 31
"""The address of the first statement of a recorded step in the view of its source."""


def address_of(session: Session, place: Place) -> int:
    """The address of a statement: (number of its block << 20) | pc.

    In the source of a recorded step, addresses are numbers of statements in the order in which they run.
    """
    source = session.program.source
    if source is not None and place.micro is None:
        return STATEMENTS + source.order.number(place.path, max(place.pc, 0))
    return _first(session, place) + place.pc


def _first(session: Session, place: Place) -> int:
    """The address of the first statement of a block."""
    return session.blocks.number(session.program.target, place) << BITS


def reference_of(session: Session, place: Place) -> str:
    """The address of a statement as text, the same throughout the session."""
    return f"{address_of(session, place):#x}"


def parse_reference(reference: str) -> int | None:
    """Parse the address in a reference, hexadecimal with ``0x`` or decimal; None if it is invalid."""
    try:
        address = int(reference, 0)
    except ValueError:
        return None
    return address if address >= 0 else None


def statement_at(session: Session, reference: str, offset: int = 0) -> Place | None:
    """The statement `offset` statements after a reference; None if there is none."""
    address = parse_reference(reference)
    if address is not None and statement_number(session, address) is not None:
        return statement_at_address(session, address + offset)
    found = None if address is None else statement_at_address(session, address)
    if found is None or not 0 <= found.pc + offset <= len(found.graph.nodes):
        return None
    return found.at(found.pc + offset)


def statement_at_address(session: Session, address: int) -> Place | None:
    """The statement at an address; None if there is none."""
    source, number = session.program.target.source, statement_number(session, address)
    if source is not None and number is not None:
        return session.program.target.place(*source.order.places[number])
    return session.blocks.at(session.program.target, address)


def statement_number(session: Session, address: int) -> int | None:
    """The number of the statement of a recorded step at an address; None for other addresses."""
    source = session.program.target.source
    number = address - STATEMENTS
    return number if source is not None and 0 <= number < len(source.order.places) else None


@dataclass(frozen=True, slots=True)
class DefinitionPlace:
    """Where the value `name` is defined, as seen from the block that begins at `address`.

    `model`: in the user's own model instead of the text of the program.
    """

    address: int
    name: str
    model: bool


def definition_reference(session: Session, block: Place, name: str) -> int:
    """A reference for `locations`: the line that defines a value visible in a block."""
    return session.handles.number(DefinitionPlace(_first(session, block), name, model=False))


def model_reference(session: Session, block: Place, name: str) -> int | None:
    """A reference for `locations`: the line of the user's model that a value comes from; None if unknown."""
    home = session.program.target.definition(block, name)
    location = None if home is None else home.location
    if location is None or session.program.sources.of_model(location[0]).path is None:
        return None
    return session.handles.number(DefinitionPlace(_first(session, block), name, model=True))


def definition_at(session: Session, reference: int) -> tuple[protocol.Source, int] | None:
    """The text and the line, counted from 1, of a reference; None if it is no longer valid."""
    place = session.handles.place(reference)
    if not isinstance(place, DefinitionPlace):
        return None
    block = statement_at_address(session, place.address)
    home = None if block is None else session.program.target.definition(block, place.name)
    if home is None:
        return None
    sources = session.program.sources
    if not place.model:
        return sources.of_place(home), _line(home, place.name)
    location = home.location
    return None if location is None else (sources.of_model(location[0]), location[1])


def _line(home: Place, name: str) -> int:
    """The line that defines a value."""
    if home.pc >= 0:
        return home.line
    listing, header = home.listing, home.line
    # Constants are between the header and the first statement, inputs in the header.
    written = listing.prefixes.within(str(home.path[0])).spell(name)
    starts = (f"%{written}:", f"%{written} =")
    lines = range(header + 1, listing.line(home.path, 0))
    return next((line for line in lines if listing.lines[line - 1].lstrip().startswith(starts)), header)
