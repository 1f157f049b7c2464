"""Plans: an op bound to its kernel for operands of given types, found again without any typing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from nncdbg.engine.building.values import attribute_of, literal_data
from nncdbg.engine.inference.types import literal_array
from nncdbg.ir.records import (
    Array,
    Attribute,
    Inline,
    Literal,
    Node,
    SequenceType,
    TensorType,
    Type,
    type_of,
)

UNKNOWN = -1
"""The number of a type that only the run determines."""

_MOST_LITERALS = 256
"""The most arrays of literals that a plan keeps per operand."""

_NUMBERS = frozenset({int, float})


class TypeNumbers:
    """Numbers types, so that a key of operand types is a tuple of small integers."""

    def __init__(self) -> None:
        self.by_form: dict[Any, int] = {}
        """``(dtype, shape)`` of an array, or a Type, to the number of its type."""
        self._types: list[Type] = []

    def __getitem__(self, number: int) -> Type | None:
        return None if number == UNKNOWN else self._types[number]

    def of(self, value: Any) -> int:
        """Return the number of the type of an array, or of a list of arrays.

        Raises KeyError for a dtype that a graph cannot hold.
        """
        if isinstance(value, (list, tuple)):
            elements = {known.dtype for known in map(type_of, value) if known is not None}
            return self.number(SequenceType(TensorType(elements.pop()))) if len(elements) == 1 else UNKNOWN
        form = value.dtype, value.shape
        if form not in self.by_form:
            known = type_of(value)
            assert known is not None
            self.by_form[form] = self.number(known)
        return self.by_form[form]

    def number(self, type_: Type | None) -> int:
        """Return the number of a type."""
        if type_ is None:
            return UNKNOWN
        if type_ not in self.by_form:
            self.by_form[type_] = len(self._types)
            self._types.append(type_)
        return self.by_form[type_]


class OpPlan(Struct, eq=False):
    """An op with attributes, bound to its kernel for operands of given types."""

    node: Node
    """The statement; its operands are placeholders."""
    run: Callable[..., Any]
    results: tuple[int, ...]
    """The numbers of the types of the results, as far as the operand types determine them."""
    exact: bool
    """True if they determine all sizes."""
    literals: tuple[tuple[int, str, dict[Any, Array]], ...] = ()
    """The operands that are literals: position, element type, and the arrays of those seen before."""
    random: bool = False
    once: bool = False
    """True if a second execution has other results: the op draws random numbers, or updates states."""

    def executed(self, values: list[Any]) -> Any:
        """Return the result for these operands; literals among them become arrays."""
        for index, dtype, arrays in self.literals:
            given = values[index]
            # 0.0 finds the array of -0.0 as well, and a list has no hash.
            key = given if given and given.__class__ in _NUMBERS else repr(given)
            array = arrays.get(key)
            if array is None:
                array = literal_array(Literal(literal_data(given)), dtype)
                if len(arrays) < _MOST_LITERALS:
                    arrays[key] = array
            values[index] = array
        return self.run(*values)


class Attributes(Struct, eq=False):
    """The attributes of a call, with a key: equal for equal attributes, None if it would need their data."""

    values: Mapping[str, Attribute]
    key: str | None

    @staticmethod
    def of(values: Mapping[str, Attribute]) -> Attributes:
        """Return the attributes of a statement."""
        tensors = any(value.__class__ is Inline for value in values.values())
        return Attributes(values, None if tensors else repr(values))


NO_ATTRIBUTES = Attributes({}, "")


class CallAttributes:
    """Converts the keywords of a call to attributes, each form once."""

    def __init__(self) -> None:
        self._known: dict[str, Attributes] = {}

    def of(self, keywords: Mapping[str, Any]) -> Attributes:
        """Return keywords as attributes; None is an omitted attribute."""
        if not keywords:
            return NO_ATTRIBUTES
        text = repr(keywords)
        known = self._known.get(text)
        if known is None:
            values = {key: attribute_of(value) for key, value in keywords.items() if value is not None}
            known = Attributes.of(values)
            if known.key is not None:
                self._known[text] = known
        return known


def literal_key(given: Any) -> Any:
    """Return what the type of a literal depends on, for a key of plans."""
    if isinstance(given, (list, tuple)):
        return (len(given), *map(literal_key, given))
    return None if given is None else given.__class__


def literal(given: Any) -> Literal | None:
    """Return an operand that is no value, as a statement has it; None for an omitted one."""
    return None if given is None else Literal(literal_data(given))
