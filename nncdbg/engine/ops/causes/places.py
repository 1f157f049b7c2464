"""Where a result is bad, and the elements of the operands at that index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nncdbg.engine.ops.causes import Birth
from nncdbg.engine.ops.causes.numbers import exact, is_float
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import Array
from nncdbg.stats.inspection import bad

Index: TypeAlias = "tuple[int, ...]"
Place: TypeAlias = "Sequence[int | slice]"


def first(mask: Array) -> Index:
    """Return the index of the first true element; at least one is true."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def spot(birth: Birth) -> Index:
    """Return the index of the first bad element of the result."""
    return first(bad(birth.output, birth.kind))


def count(mask: Array) -> int:
    return int(np.count_nonzero(mask))


def many(number: int, word: str, plural: str = "") -> str:
    """`1 element`, `2 elements`."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def infinities(number: int) -> str:
    return many(number, "infinity", "infinities")


def at(index: Sequence[int]) -> str:
    """Format `` at [1, 4]``; empty for the one element of a scalar."""
    return f" at {list(index)}" if index else ""


def under(array: Array, index: Index) -> Index:
    """Return the index in an operand broadcast to the result, for an index of the result."""
    lead = len(index) - array.ndim
    return tuple(i if size > 1 else 0 for i, size in zip(index[lead:], array.shape, strict=True))


def element(array: Array, index: Index) -> Any:
    """Return the element of an operand broadcast to the result, as an int or a float."""
    found = array[under(array, index)]
    return int(found) if array.dtype.kind in "iub" else float(found)


def elements(birth: Birth, index: Index) -> list[Any]:
    """Return the elements of all operands at an index of the result."""
    return [element(array, index) for array in aligned(birth)]


def aligned(birth: Birth) -> list[Array]:
    """Return the operands aligned for NumPy broadcasting; before opset 7 `axis` places the second one."""
    operands = [array for array in birth.inputs if array is not None]
    axis = birth.attributes.get("axis")
    if birth.attributes.get("broadcast") and axis is not None:
        a, b = operands
        operands[1] = b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))
    return operands


def spelled(birth: Birth, number: int) -> str:
    """Return an operand as written in the program text, or its position if it is a literal.

    An operand that is a number among the arguments has the argument's name.
    """
    name = birth.names[number] if number < len(birth.names) else ""
    if isinstance(name, ArgumentName):
        return str(name)
    return f"%{name_text(name)}" if name else f"operand {number + 1}"


class ArgumentName(str):
    """The name of an argument that is a number, instead of an operand's: ``eps`` of ``eps=0.0``."""

    text: str
    """The argument as in the program text, with its number."""

    def __new__(cls, name: str, value: Any) -> ArgumentName:
        """Return the name of an argument with this number."""
        made = super().__new__(cls, name)
        made.text = f"{name}={value}"
        return made


def part(birth: Birth, number: int, place: Place) -> str:
    """Format a part of an operand: `%x[3, :]`, or `%x` for the whole."""
    name = spelled(birth, number)
    if all(isinstance(each, slice) and each == slice(None) for each in place):
        return name
    return f"{name}[{', '.join(map(_written, place))}]"


def _written(place: int | slice) -> str:
    if not isinstance(place, slice):
        return str(place)
    start, stop = ("" if bound is None else str(bound) for bound in (place.start, place.stop))
    return f"{start}:{stop}"


def counted(birth: Birth, number: int, mask: Array, what: str) -> str:
    """Format `3 of 12 elements of %p are negative, the first at [1, 4]: -1.5e-08`.

    The value is left out if `what` already gives it.
    """
    name, found, index = spelled(birth, number), count(mask), first(mask)
    value = "" if what in _VALUES else f": {exact(np.asarray(birth.inputs[number])[index])}"
    given = birth.names[number] if number < len(birth.names) else ""
    if isinstance(given, ArgumentName):
        return given.text if what in _VALUES else f"{given.text} is {what}"
    if mask.size == 1:
        return f"{name} is {what}{value}"
    verb = "is" if found == 1 else "are"
    return f"{found} of {mask.size} elements of {name} {verb} {what}, the first{at(index)}{value}"


_VALUES = frozenset({"0", "NaN", "0 or NaN"})
"""Descriptions of elements that already give their value."""


def has_infinity(birth: Birth) -> bool:
    """Return True if an operand contains an infinity."""
    return any(is_float(array) and bool(np.isinf(array).any()) for array in flat(birth.inputs))


def flat(values: Sequence[Any]) -> list[Any]:
    """Return the operands, with sequences replaced by their elements."""
    found: list[Any] = []
    for value in values:
        found.extend(flat(value) if isinstance(value, (list, tuple)) else [value])
    return found


@dataclass(frozen=True, slots=True)
class ElementRegion:
    """The part of an operand that one element of the result was computed from."""

    values: Array
    words: str


def region(birth: Birth, number: int, place: Place) -> ElementRegion:
    """Return the part of operand `number` at `place`."""
    return ElementRegion(birth.inputs[number][tuple(place)], part(birth, number, place))
