"""What a `memoryReference` says.

It is an address in a space of the session's own: every value has a region of 1 TiB, in which its
elements stand in C order.  So the same value at the same place of the stack has the same address at
every stop, and an address plus an offset is an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.presentation.glance import is_tensor
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session

_REGION = 40
"""Bits of an offset within the region of a value."""


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The value called `name` as seen from the frame with the number `frame`."""

    frame: int
    name: str


def memory_reference(session: Session, frame: int, name: str, content: Any) -> str | None:
    """The address of a value; None for what has no bytes (strings, sequences, nothing)."""
    if not is_tensor(content) or content.dtype.kind in "OUST":
        return None
    return address_of(session, MemoryPlace(frame, name), 0)


def address_of(session: Session, place: MemoryPlace, offset: int) -> str:
    """The address of a byte of a value, in hex."""
    return hex((session.handles.number(place) << _REGION) + offset)


def number_in(reference: str) -> int:
    """The number of the place of a value, in the address of its first byte."""
    return int(reference, 16) >> _REGION


def resolved(session: Session, reference: str, offset: int | None) -> tuple[MemoryPlace, int]:
    """(the value, the offset into it) of an address and an offset.  Raises UsageError for what is none."""
    try:
        address = int(reference, 0)
    except ValueError:
        raise UsageError(
            f"{reference!r} is not a memory reference", hint="use the `memoryReference` of a variable"
        ) from None
    # The upper half of a region belongs to the value behind it: there, a little before it, is nothing.
    number = (address + (1 << (_REGION - 1))) >> _REGION
    place = session.handles.place(number)
    if not isinstance(place, MemoryPlace):
        raise UsageError(
            f"unknown or expired memory reference {reference}", hint="request the variables again"
        )
    return place, address - (number << _REGION) + (offset or 0)
