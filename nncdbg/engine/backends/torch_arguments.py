"""Where the arguments of a PyTorch operator come from: the operands and the attributes of a statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nncdbg.engine.ops.aten.signatures import COUNT, Argument, ArgumentKind, Signature, decode
from nncdbg.errors import GraphError
from nncdbg.text.torch_names import OPERAND


@dataclass(frozen=True, slots=True)
class ArgumentSource:
    """Where an argument comes from: operand `start`, operands `start` to `stop`, or `constant`.

    With `numbers`, the operands are numbers: that from `start` on take the place of each "?" in `constant`.
    """

    start: int = -1
    stop: int = -1
    constant: Any = None
    written: bool = False
    several: bool = False
    numbers: bool = False

    @property
    def is_constant(self) -> bool:
        return self.start < 0

    def take(self, operands: Sequence[Any]) -> Any:
        """Return the argument."""
        if self.numbers:
            return self._numbers(operands)
        return list(operands[self.start : self.stop]) if self.several else operands[self.start]

    def _numbers(self, operands: Sequence[Any]) -> Any:
        if not self.several:
            return operands[self.start].item()
        rest = iter(operands[self.start : self.stop])
        return [next(rest).item() if each == OPERAND else each for each in self.constant]


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The sources of the arguments of an operator."""

    positional: tuple[ArgumentSource, ...]
    keywords: Mapping[str, ArgumentSource]

    @property
    def all(self) -> tuple[ArgumentSource, ...]:
        return (*self.positional, *self.keywords.values())


def arguments_of(found: Signature, attributes: Mapping[str, Any], given: int) -> CallArguments:
    """Return the sources of the arguments of a statement with `given` operands.

    Raises GraphError for a missing operand, and for an attribute that does not fit.
    """
    positional: list[ArgumentSource] = []
    keywords: dict[str, ArgumentSource] = {}
    position = 0
    numbers = sum(_tensors_of(argument, attributes) for argument in found.arguments)
    for argument in found.arguments:
        value = attributes.get(argument.name)
        source: ArgumentSource | None
        if _has_numbers(value, argument):
            source, numbers = _numbers_of(value, numbers)
            position += _tensors_of(argument, attributes)
        else:
            source, position = _source(argument, attributes, position, given)
        if argument.keyword_only:
            if source is not None or argument.required:
                keywords[argument.name] = source or ArgumentSource()
        else:
            positional.append(source or ArgumentSource(constant=argument.default))
    if position < numbers > given:
        raise GraphError(f"the operator needs {numbers} operands, one for each {OPERAND!r} after the tensors")
    return CallArguments(tuple(positional), keywords)


def _tensors_of(argument: Argument, attributes: Mapping[str, Any]) -> int:
    """Return how many operands an argument has among the tensors."""
    if argument.kind is ArgumentKind.TENSORS:
        return attributes.get(COUNT + argument.name) or 0
    return int(argument.kind is ArgumentKind.TENSOR)


def _has_numbers(value: Any, argument: Argument) -> bool:
    """Return whether operands give an attribute or items of it."""
    is_text = argument.type.removeprefix("Optional[").startswith(("str", "List[str"))
    return not is_text and (value == OPERAND or (isinstance(value, tuple) and OPERAND in value))


def _numbers_of(value: Any, start: int) -> tuple[ArgumentSource, int]:
    if value == OPERAND:
        return ArgumentSource(start, numbers=True), start + 1
    end = start + value.count(OPERAND)
    return ArgumentSource(start, end, constant=value, several=True, numbers=True), end


def _source(
    argument: Argument, attributes: Mapping[str, Any], position: int, given: int
) -> tuple[ArgumentSource | None, int]:
    """Return where an argument comes from, None for its default, and the next operand's position."""
    if argument.kind is ArgumentKind.TENSOR:
        if attributes.get(argument.name) is not None:
            return ArgumentSource(constant=decode(attributes[argument.name], argument)), position + 1
        if position >= given:
            if argument.required and not argument.optional:
                raise GraphError(f"the operator needs its operand {argument.name}", operand=position)
            return None, position + 1
        return ArgumentSource(position, written=argument.written), position + 1
    if argument.kind is ArgumentKind.TENSORS:
        count = attributes.get(COUNT + argument.name)
        if count is None:
            return None, position
        end = position + count
        return ArgumentSource(position, end, written=argument.written, several=True), end
    value = attributes.get(argument.name)
    return (None if value is None else ArgumentSource(constant=decode(value, argument))), position
