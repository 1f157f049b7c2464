"""Statement references in the client's form: hexadecimal numbers of `BlockAddresses`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.dap_server.sources.block_addresses import BITS

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
