"""Statement references in the client's form, hexadecimal numbers of `BlockAddresses`, and definitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nncdbg.dap_server import protocol
from nncdbg.dap_server.handles import BITS

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code


def address_of(session: Session, code: Code, pc: int) -> int:
    """The address of a statement: (number of its block << 20) | pc."""
    return (session.blocks.number(session.program.debugger, code) << BITS) + pc


def reference_of(session: Session, code: Code, pc: int) -> str:
    """The address of a statement as text, the same throughout the session."""
    return f"{address_of(session, code, pc):#x}"


def parse_reference(reference: str) -> int | None:
    """Parse the address in a reference, hexadecimal with ``0x`` or decimal; None if it is invalid."""
    try:
        address = int(reference, 0)
    except ValueError:
        return None
    return address if address >= 0 else None


def statement_at(session: Session, reference: str, offset: int = 0) -> tuple[Code, int] | None:
    """The block and the pc `offset` statements after a reference; None if there is no statement."""
    address = parse_reference(reference)
    found = None if address is None else statement_at_address(session, address)
    if found is None or not 0 <= found[1] + offset <= len(found[0].nodes):
        return None
    return found[0], found[1] + offset


def statement_at_address(session: Session, address: int) -> tuple[Code, int] | None:
    """The block and the pc of an address; None if there is no statement."""
    return session.blocks.at(session.program.debugger, address)


@dataclass(frozen=True, slots=True)
class DefinitionPlace:
    """Where the value `name` is defined, as seen from the block that begins at `address`.

    `model`: in the user's own model instead of the text of the program.
    """

    address: int
    name: str
    model: bool


def definition_reference(session: Session, code: Code, name: str) -> int:
    """A reference for `locations`: the line that defines a value visible in a block."""
    return session.handles.number(DefinitionPlace(address_of(session, code, 0), name, model=False))


def model_reference(session: Session, code: Code, name: str) -> int | None:
    """A reference for `locations`: the line of the user's model that a value comes from; None if unknown."""
    home = _home(code, name)
    if home is None:
        return None
    location = _location(home, name)
    if location is None or session.program.sources.of_model(location[0]).path is None:
        return None
    return session.handles.number(DefinitionPlace(address_of(session, code, 0), name, model=True))


def definition_at(session: Session, reference: int) -> tuple[protocol.Source, int] | None:
    """The text and the line, counted from 1, of a reference; None if it is no longer valid."""
    place = session.handles.place(reference)
    if not isinstance(place, DefinitionPlace):
        return None
    found = statement_at_address(session, place.address)
    home = None if found is None else _home(found[0], place.name)
    if home is None:
        return None
    sources = session.program.sources
    if not place.model:
        return sources.of_code(home), _line(session, home, place.name)
    location = _location(home, place.name)
    return None if location is None else (sources.of_model(location[0]), location[1])


def _home(code: Code, name: str) -> Code | None:
    """The block that defines a value visible in `code`, rather than one that only captures it."""
    found: Code | None = code
    while found is not None:
        slot = found.slot_of.get(name)
        if slot is not None and all(inner != slot for _, inner in found.captures):
            return found
        found = found.parent
    return None


def _location(home: Code, name: str) -> tuple[str, int] | None:
    """(file, line) in the user's model of the statement that defines a value."""
    pc = home.definition[home.slot_of[name]]
    location = home.nodes[pc].location if pc >= 0 else None
    if location is None or location.file is None or location.line is None:
        return None
    return location.file, location.line


def _line(session: Session, home: Code, name: str) -> int:
    listing = session.program.debugger.loaded.listing_of(home)
    pc = home.definition[home.slot_of[name]]
    if pc >= 0:
        return listing.line(home.path, pc)
    header = listing.header_line(home.path)
    first = listing.line(home.path, 0)
    # Constants are between the header and the first statement, inputs in the header.
    written = listing.prefixes.spell(name)
    starts = (f"%{written}:", f"%{written} =")
    lines = range(header + 1, first)
    return next((line for line in lines if listing.lines[line - 1].lstrip().startswith(starts)), header)
