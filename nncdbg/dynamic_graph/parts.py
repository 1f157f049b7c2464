"""Parts of variables by index: `x[0]`, `x[..., 1:3]`, `x[rows]`."""

from __future__ import annotations

from copy import copy
from operator import index as as_index
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from nncdbg.dynamic_graph.plans import NO_ATTRIBUTES
from nncdbg.engine.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.variable import EagerVariable

_END = {True: 2**62, False: -(2**62)}
"""The end of an open slice, by whether its step is positive."""


def is_operand(other: object) -> bool:
    """Return whether `==` compares with this object element by element."""
    return (
        isinstance(other, (bool, int, float))
        or (hasattr(other, "shape") and hasattr(other, "type"))
        or (hasattr(other, "dtype") and hasattr(other, "shape"))
    )


def part_of(variable: EagerVariable, index: Any, frame: FrameType) -> EagerVariable:
    """Return the part of a variable at an index: one Slice, then the removed and the new axes.

    Raises UsageError for an index of another form, IndexError for one that is out of range.
    """
    session = variable._session
    if hasattr(index, "dtype") or (hasattr(index, "_symbol") and index.shape):
        return session.execute("Gather", (variable, index), NO_ATTRIBUTES, frame)
    parts = _parts(variable, index if isinstance(index, tuple) else (index,), frame)
    slices: list[tuple[int, int, int, int]] = []
    removed: list[int] = []
    added: list[int] = []
    axis = place = 0
    for part in parts:
        if part is None:
            added.append(place)
            place += 1
        elif isinstance(part, slice):
            if part != slice(None):
                start, end, step = _bounds(variable, part, frame)
                slices.append((start, end, axis, step))
            axis, place = axis + 1, place + 1
        else:
            number = _checked(variable, part, axis, frame)
            slices.append((number, number + 1, axis, 1))
            removed.append(axis)
            axis += 1
    made = variable
    if slices:
        columns = [list(each) for each in zip(*slices, strict=True)]
        made = session.execute("Slice", (made, *columns), NO_ATTRIBUTES, frame)
    if removed:
        made = session.execute("Squeeze", (made, removed), NO_ATTRIBUTES, frame)
    if added:
        made = session.execute("Unsqueeze", (made, added), NO_ATTRIBUTES, frame)
    return made if made is not variable else copy(variable)


def _parts(variable: EagerVariable, index: tuple[Any, ...], frame: FrameType) -> list[Any]:
    """Return one part per axis of the variable, and None per new axis."""
    dots = [at for at, part in enumerate(index) if part is Ellipsis]
    given = sum(part is not None and part is not Ellipsis for part in index)
    if given > variable.ndim or len(dots) > 1:
        raise IndexError(f"too many indices for %{name_text(variable.name)}, which has {variable.ndim} axes")
    at = dots[0] if dots else len(index)
    rest = [slice(None)] * (variable.ndim - given)
    return [*index[:at], *rest, *index[at + 1 :]]


def _checked(variable: EagerVariable, part: Any, axis: int, frame: FrameType) -> int:
    if isinstance(part, (bool, np.bool_)) or not hasattr(part, "__index__"):
        _refuse(variable, part, frame)
    number, size = as_index(part), variable.shape[axis]
    if not -size <= number < size:
        raise IndexError(
            f"index {number} is out of range for axis {axis} of %{name_text(variable.name)}, of size {size}"
        )
    return number % size


def _bounds(variable: EagerVariable, part: slice, frame: FrameType) -> tuple[int, int, int]:
    step = 1 if part.step is None else as_index(part.step)
    if step == 0:
        variable._session.fail("the step of a slice cannot be 0", None, frame)
    first = (0 if step > 0 else 2**62) if part.start is None else as_index(part.start)
    return first, _END[step > 0] if part.stop is None else as_index(part.stop), step


def _refuse(variable: EagerVariable, part: Any, frame: FrameType) -> NoReturn:
    hint = "use integers, slices, ... and None; Gather, GatherND and Where select elements"
    variable._session.fail(f"%{name_text(variable.name)} has no part at {part!r}", hint, frame)
