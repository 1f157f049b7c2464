"""Statements with the short names of a screen, fitted to its columns: the op is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nncdbg.presentation.elements import cells
from nncdbg.text.lexemes import BARE, LOCAL, STRING, Flaw, quote, unquote
from nncdbg.text.short_names import ELLIPSIS, ShortNames, names_of

if TYPE_CHECKING:
    from nncdbg.ir.records import Program

_BRIEF = 2
"""Maximum number of lines of other statements."""

_GUTTER = 8
"""Columns before a statement quoted in a report."""

_WHOLE = 6
"""Maximum number of lines of a statement shown whole."""

_NAME = re.compile(rf"%(?P<name>{STRING})|(?P<data>\bdata\()(?P<key>{STRING})|{STRING}|%(?P<bare>(?=[^\s%]))")
_OUTPUT = re.compile(rf"%(?:{BARE}|{LOCAL}|{STRING})")
_LOCATION = re.compile(rf'\s+loc\((?:[^"()]|{STRING})*\)(?P<brace> \{{)?$')
_CALL = re.compile(
    rf"(?P<lead>\s*)(?P<outputs>(?:[^\"=]|{STRING})*?)(?P<call> = (?:@?(?:{BARE}|{STRING}))\()(?P<rest>.*)\)"
    rf"(?P<types> : (?:[^()\"]|\([^()]*\)|{STRING})*)?$"
)
_ATTRIBUTE = re.compile(rf"(?:[A-Za-z_][\w.]*|{STRING})=")


def brief(statement: str, names: ShortNames, room: int) -> list[str]:
    """Return a statement with short names in `room` columns, without types and attributes if necessary.

    Uses two lines if the operands need more room, or more for long names, and omits the last operands beyond
    that.
    """
    text = statement
    for text in _shorter(statement, names):
        if cells(text) <= room:
            return [text]
    lines = _wrap(text, room)
    # A name of more than half a line leaves no room for another one.
    longest = max((cells(each) for each in re.findall(rf"%(?:{STRING}|[^\s,()]+)", text)), default=0)
    most = _WHOLE if longest > room // 2 else _BRIEF
    for fewer in _fewer_operands(text):
        if len(lines) <= most:
            break
        lines = _wrap(fewer, room)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], " ".join([lines[most - 1], *map(str.strip, lines[most:])])]


def in_one_line(statement: str, names: ShortNames, room: int) -> str:
    """Return a statement without types in `room` columns, without its last operands if necessary.

    Its result and its op are kept, even if they need more room.
    """
    shorter = [*_shorter(_without_types(without_location(statement)), names)]
    texts = [*shorter, *_fewer_operands(shorter[-1])]
    return next((each for each in texts if cells(each) <= room), texts[-1])


def without_location(statement: str) -> str:
    """Return a statement without its `loc(...)`."""
    return _LOCATION.sub(lambda match: match["brace"] or "", statement)


def whole(statement: str, names: ShortNames, room: int) -> list[str]:
    """Return a statement with short names, on several lines if it does not fit `room` columns."""
    bare = without_location(statement)
    for text in (named(statement, names), short := named(bare, names)):
        if cells(text) <= room:
            return [text]
    for text in (short, _without_types(short)):
        lines = _wrap(text, room)
        if len(lines) <= _WHOLE and max(map(cells, lines)) <= room:
            return lines
    return brief(statement, names, room)


class FittedText:
    """The statements of a report on a program, with its short names."""

    def __init__(self, program: Program, width: int) -> None:
        self._names = names_of(program)
        self._width = width

    def statement(self, text: str) -> str:
        first, *rest = brief(text, self._names, self._width - _GUTTER - 2)
        return f"{first} {ELLIPSIS}" if rest else first


def named(statement: str, names: ShortNames) -> str:
    """Return a statement or a sentence with the short names of values."""
    for start, end, shown in reversed([*renamed(statement, names)]):
        statement = statement[:start] + shown + statement[end:]
    return statement


def renamed(text: str, names: ShortNames) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, name) of each value in a text that is written in another way on the screen."""
    for match in _NAME.finditer(text):
        start, end = match.span()
        name = None
        if match["bare"] is not None:
            name = names.at(text, end)
            end += len(name or "")
        elif written := match["name"] or match["key"]:
            with suppress(Flaw):
                name = unquote(written)
        if name is None or not names.has(name):
            continue
        keyed = match["key"] is not None
        shown = f"{match['data']}{quote(names.short(name))}" if keyed else names.spelled(name)
        if shown != text[start:end]:
            yield start, end, shown


@dataclass(frozen=True)
class _Call:
    """The parts of a statement `lead outputs call(operands, attributes) : types`."""

    lead: str
    outputs: tuple[str, ...]
    call: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    types: str = ""

    def __str__(self) -> str:
        arguments = ", ".join([*self.operands, *self.attributes])
        return f"{self.lead}{', '.join(self.outputs)}{self.call}{arguments}){self.types}"

    def without_types(self) -> _Call:
        return replace(self, outputs=tuple(map(_name_alone, self.outputs)), types="")


def _shorter(statement: str, names: ShortNames) -> Iterator[str]:
    """Yield the statement in ever fewer characters, with all its operands."""
    yield named(statement, names)
    statement = named(without_location(statement), names)
    yield statement
    call = _read_call(statement)
    if call is None:
        return
    call = call.without_types()
    yield str(call)
    if call.attributes:
        call = replace(call, attributes=(ELLIPSIS,))
        yield str(call)
    if len(call.outputs) > 2:
        yield str(replace(call, outputs=(call.outputs[0], f"{ELLIPSIS}{len(call.outputs) - 1} more")))


def _without_types(statement: str) -> str:
    call = _read_call(statement)
    return statement if call is None else str(call.without_types())


def _fewer_operands(statement: str) -> Iterator[str]:
    """Yield the statement without its last operands, from one omitted to all."""
    call = _read_call(statement)
    for kept in range(len(call.operands) - 1 if call else -1, -1, -1):
        assert call is not None
        yield str(replace(call, operands=call.operands[:kept], attributes=(ELLIPSIS,)))


def _read_call(statement: str) -> _Call | None:
    match = _CALL.fullmatch(statement)
    if match is None:
        return None
    arguments = _split(match["rest"])
    return _Call(
        match["lead"],
        tuple(_split(match["outputs"])),
        match["call"],
        tuple(each for each in arguments if not _ATTRIBUTE.match(each) and each != ELLIPSIS),
        tuple(each for each in arguments if _ATTRIBUTE.match(each) or each == ELLIPSIS),
        match["types"] or "",
    )


def _name_alone(output: str) -> str:
    """Return `%h` of `%h: f32[2]`."""
    match = _OUTPUT.match(output)
    return match.group() if match is not None else output


def _split(text: str) -> list[str]:
    """Split a list at commas, outside of strings and brackets."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"{STRING}|[\[\](){{}},]", text):
        symbol = match.group()
        if symbol in "[({":
            depth += 1
        elif symbol in "])}":
            depth -= 1
        elif symbol == "," and not depth:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [part for part in [*parts, text[start:].strip()] if part]


def _wrap(text: str, room: int) -> list[str]:
    """Wrap the text at spaces outside of strings, and behind brackets if a part is wider than the room.

    Continuation lines are indented.
    """
    lead = " " * (len(text) - len(text.lstrip()))
    lines = [lead]
    for piece in re.findall(rf"(?:{STRING}|[^\s\"]|\")+", text):
        head, bracket, operand = piece.partition("(")
        wide = cells(lead) + 4 + cells(piece) > room
        for part, gap in ((f"{head}{bracket}", " "), (operand, "")) if wide else ((piece, " "),):
            if lines[-1].strip() and cells(lines[-1]) + len(gap) + cells(part) > room:
                lines.append(lead + "    ")
            lines[-1] += f"{gap}{part}" if lines[-1].strip() else part
    return lines
