"""The memory of values: address, size, origin, and the values that share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nncdbg.expression import spelled
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.target.records import Buffer


def buffer_text(buffer: Buffer) -> str:
    """Return address, size, type and origin of a value's memory."""
    if buffer.address is None:
        return f"unknown memory: {buffer.type} is not a NumPy array"
    return f"{buffer.address:#x}, {buffer.size} bytes, {buffer.type}, {_origin(buffer)}"


def _origin(buffer: Buffer) -> str:
    place = buffer.place
    return f"computed by {place.op} at line {place.line}" if place.pc >= 0 else "given"


def sharer_text(buffer: Buffer) -> str:
    """Return a line for a value whose memory is a part of that of another one."""
    state = f", no longer valid: {buffer.gone}" if buffer.gone else ""
    name = f"{spelled(buffer.name)} of @{name_text(str(buffer.place.path[0]))}"
    return f"{name}: {buffer.relation}, {_origin(buffer)}{state}"
