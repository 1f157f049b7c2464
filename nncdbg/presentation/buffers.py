"""The memory of values: address, size, origin, and the values that share it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.values.computed import named_contents
from nncdbg.expression import spelled
from nncdbg.presentation.elements import type_of
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.execution.loaded import Loaded
    from nncdbg.ir.records import Array

_WORK = 10_000
"""Limit for the exact test of whether two strided tensors have common elements."""


def buffer_text(loaded: Loaded, code: Code, slot: int, content: Any) -> str:
    """Return address, size, type and origin of a value's memory."""
    if not isinstance(content, np.ndarray):
        return f"unknown memory: {type(content).__name__} is not a NumPy array"
    origin = _origin(loaded, code, slot)
    return f"{address_of(content):#x}, {content.nbytes} bytes, {type_of(content)}, {origin}"


def _origin(loaded: Loaded, code: Code, slot: int) -> str:
    pc = code.definition[slot]
    return f"computed by {code.nodes[pc].op} at line {loaded.line(code, pc)}" if pc >= 0 else "given"


def sharers(debugger: Debugger, code: Code, slot: int, content: Array) -> Iterator[str]:
    """Yield a line for each other value with memory of `content`: an alias, a view, or an overlap.

    A value whose memory was freed and reused is listed with that reason.  Repeated visits of one value
    with the same memory are one line.
    """
    seen = {(code, slot, address_of(content), content.nbytes)}
    for home, other, array in named_contents(debugger.values):
        if not isinstance(array, np.ndarray) or not np.may_share_memory(content, array):
            continue
        key = home, other, address_of(array), array.nbytes
        relation = _relation(content, array)
        captured = any(other == inner for _, inner in home.captures)
        if key in seen or captured or not relation:
            continue
        seen.add(key)
        gone = debugger.timeline.standing(array)
        state = f", no longer valid: {gone}" if gone else ""
        name = f"{spelled(home.names[other])} of @{name_text(str(home.path[0]))}"
        yield f"{name}: {relation}, {_origin(debugger.loaded, home, other)}{state}"


def _relation(content: Array, other: Array) -> str:
    """Return how the memory of `other` relates to that of `content`; "" if no byte is common."""
    distance = address_of(other) - address_of(content)
    same_order = content.strides == other.strides and content.shape == other.shape
    if not distance and content.dtype == other.dtype and same_order:
        return "same elements"
    if not distance and content.nbytes == other.nbytes:
        return f"same memory, as {type_of(other)}"
    try:
        shares = np.shares_memory(content, other, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return f"its {other.nbytes} bytes at offset {distance} may overlap"
    return f"its {other.nbytes} bytes at offset {distance} overlap" if shares else ""
