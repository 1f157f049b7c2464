"""Memory references: addresses in an address space of the session.

Every value has a region of 1 TiB, with its elements in C order.  So the same value at the same place of the
stack has the same address at every stop, and an address plus an offset is an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.variables.value_text import is_tensor
from nncdbg.engine.errors import UsageError
from nncdbg.presentation.elements import is_text

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

_REGION = 40
"""Bits of an offset within the region of a value."""


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The value `name` as seen from the frame with the number `frame`."""

    frame: int
    name: str


def memory_reference(session: Session, frame: int, name: str, content: Any) -> str | None:
    """The address of a value; None for a value without bytes (strings, sequences, absent optionals)."""
    if not is_tensor(content) or is_text(content):
        return None
    return address_of(session, MemoryPlace(frame, name), 0)


def address_of(session: Session, place: MemoryPlace, offset: int) -> str:
    """The address of a byte of a value, in hex."""
    return hex((session.handles.number(place) << _REGION) + offset)


def number_in(reference: str) -> int:
    """The number of a value's place, from the address of its first byte."""
    return int(reference, 16) >> _REGION


def resolved(session: Session, reference: str, offset: int | None) -> tuple[MemoryPlace, int]:
    """(value, offset into it) of an address plus an offset.  Raises UsageError for an invalid address."""
    try:
        address = int(reference, 0)
    except ValueError:
        raise UsageError(
            f"{reference!r} is not a memory reference", hint="use the `memoryReference` of a variable"
        ) from None
    # The upper half of a region belongs to the next value: addresses shortly before it hold nothing.
    number = (address + (1 << (_REGION - 1))) >> _REGION
    place = session.handles.place(number)
    if not isinstance(place, MemoryPlace):
        raise UsageError(
            f"unknown or expired memory reference {reference}", hint="request the variables again"
        )
    return place, address - (number << _REGION) + (offset or 0)
