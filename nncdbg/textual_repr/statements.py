"""Readers of the statements of one line, independent of other lines.

Positions (`NameSpan`) are recorded, so that an error about a name can underline it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nncdbg.ir.kinds import called_graph, is_transfer
from nncdbg.ir.names import fresh_name
from nncdbg.ir.records import (
    Attribute,
    BackwardLine,
    GroupLine,
    Literal,
    Node,
    Operand,
    Reference,
    RunLine,
    TrackLine,
    Value,
)
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import BARE, ELLIPSIS, OP, RESERVED, STRING, Flaw, name_text, quote
from nncdbg.text.torch_names import with_overload
from nncdbg.text.types import type_end
from nncdbg.textual_repr.cursor import Cursor
from nncdbg.textual_repr.repairs import GRADS, GROUP_OF_GROUPS, SAVED, close_word, form_of, name_repair


@dataclass(frozen=True, slots=True)
class NameSpan:
    """A name and its span of characters in the line (0-based)."""

    name: str
    start: int
    width: int


@dataclass(slots=True)
class Names:
    """The names that one line uses and defines, in the order of the text."""

    uses: list[NameSpan] = field(default_factory=list)
    defines: list[NameSpan] = field(default_factory=list)
    saved: str | None = None
    """The name after ``saved``: what the call keeps for its backward graph."""
    rest: set[str] = field(default_factory=set)
    """Which lists end in ``...``: ``inputs`` or operands, ``outputs``."""
    grads: str | None = None
    """The name after ``grads``: the group of all results of the call."""
    groups: frozenset[str] = frozenset()
    """The used names that may be groups; elsewhere, a group is an error."""
    results: tuple[str, ...] = ()
    """The results of the statement, after which those of its inline operands are named."""
    inline: list[tuple[Node, NameSpan]] = field(default_factory=list)
    """The statements in the place of operands, in the order of execution, and the places of their ops."""
    depth: int = 0
    """The number of inline operands around the position."""


_call = re.compile(rf"(?:@(?:{BARE}|{STRING})|{OP}|{STRING})[ \t]*\(").match


def at_call(cursor: Cursor) -> bool:
    """Return whether an op or a graph with its parenthesis comes next."""
    return _call(cursor.line, cursor.blank()) is not None


def operand(cursor: Cursor, names: Names) -> Operand:
    """Read ``%name``, ``_`` or a literal."""
    if cursor.at("%"):
        return use(cursor, names)
    if cursor.accept_word("_"):
        return None
    return Literal(cursor.nested(cursor.operand_scalar))


def use(cursor: Cursor, names: Names) -> str:
    """Read ``%name`` as an operand."""
    start = cursor.blank()
    if not cursor.at("%"):
        raise cursor.flaw("expected a value", name_repair(cursor.rest()))
    name = cursor.name("%")
    names.uses.append(NameSpan(name, start, cursor.position - start))
    return name


def definition(cursor: Cursor, names: Names) -> Value:
    """Read ``%name: type`` or ``_`` as a definition."""
    start = cursor.blank()
    if cursor.accept_word("_"):
        return Value("", cursor.type_clause())
    name = cursor.name("%")
    width = cursor.position - start
    names.defines.append(NameSpan(name, start, width))
    end = type_end(cursor.line, cursor.blank())
    if end is not None:
        hint = f"write {cursor.line[start : start + width]}: {cursor.line[cursor.position : end]}"
        raise cursor.flaw("expected ':'", hint)
    return Value(name, cursor.type_clause())


def definitions(cursor: Cursor, names: Names, close: str, rest: str = "") -> tuple[Value, ...]:
    """Read definitions up to `close`, after the opening parenthesis; `rest` names a list with ``...``."""
    values: list[Value] = []

    def one() -> None:
        if not (rest and _ends_in_rest(cursor, names, rest)):
            values.append(definition(cursor, names))

    cursor.sequence(one, close)
    return tuple(values)


def _ends_in_rest(cursor: Cursor, names: Names, rest: str) -> bool:
    """Read ``...`` at the end of the list `rest`."""
    if rest in names.rest:
        raise cursor.flaw("an item after ...", "write ... at the end of the list")
    if not cursor.accept(ELLIPSIS):
        return False
    names.rest.add(rest)
    return True


def outputs(cursor: Cursor, names: Names) -> tuple[Value, ...]:
    """Read the outputs before ``=`` and the ``=``; empty if the statement starts with its op."""
    if cursor.peek_word() == "grads" and not at_call(cursor):
        cursor.accept_word("grads")
        names.grads = definition(cursor, names).name
        cursor.expect("=", GRADS)
        return ()
    if not cursor.at("%") and cursor.peek_word() != "_" and not cursor.at(ELLIPSIS):
        return ()
    values: list[Value] = []
    if not _ends_in_rest(cursor, names, "outputs"):
        values.append(definition(cursor, names))
    while cursor.accept(","):
        if _ends_in_rest(cursor, names, "outputs"):
            continue
        if cursor.accept_word("saved"):
            if not cursor.at("%"):
                raise cursor.flaw("expected a name after saved", SAVED)
            names.saved = definition(cursor, names).name
            break
        values.append(definition(cursor, names))
    cursor.expect("=", "write = after the outputs, as in %y = Relu(%x) : f32[2]")
    return tuple(values)


def typed(cursor: Cursor, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Read the optional types behind a call, ``: f32[2], i64[]``; return its outputs with them."""
    start = cursor.blank()
    types = cursor.types_behind()
    if types is None:
        return values
    if any(value.type is not None for value in values):
        hint = "write the types behind the call, or behind the names"
        raise cursor.flaw_from(start, "the outputs have their types twice", hint)
    if len(types) != len(values):
        count = counted(len(types), "type")
        hint = "write a type for each output, _ for an unknown one"
        raise cursor.flaw_from(start, f"{count} for {counted(len(values), 'output')}", hint)
    return tuple(Value(value.name, type) for value, type in zip(values, types, strict=True))


def arguments(cursor: Cursor, names: Names) -> tuple[tuple[Operand, ...], dict[str, Attribute]]:
    """Read operands, then ``name=value``, up to ``)``, after the ``(``."""
    operands: list[Operand] = []
    attributes: dict[str, Attribute] = {}

    def argument() -> None:
        start = cursor.blank()
        key = cursor.key()
        if key is None:
            if attributes:
                raise cursor.flaw("an operand after an attribute", "write operands before name=value")
            if _ends_in_rest(cursor, names, "inputs"):
                return
            operands.append(
                operand(cursor, names) if cursor.at("%") or not at_call(cursor) else inline(cursor, names)
            )
            return
        if key in attributes:
            raise Flaw(f"the attribute {key} occurs twice", start, len(key), "remove one of them")
        attributes[key] = cursor.nested(cursor.attribute_scalar)

    cursor.sequence(argument, ")")
    return tuple(operands), attributes


MOST_INLINE = 40
"""Maximum nesting depth of inline operands."""


def inline(cursor: Cursor, names: Names) -> str:
    """Read a statement in the place of an operand, as in ``Relu(Conv(%x, %w))``; return its result."""
    start = cursor.blank()
    if cursor.line.startswith("data(", start):
        raise cursor.flaw("expected a value", "define a constant: %c: f32[2] = data(...)")
    if names.depth == MOST_INLINE:
        raise cursor.flaw("operands are nested too deeply", f"use at most {MOST_INLINE} levels")
    op = op_name(cursor)
    width = cursor.position - start
    cursor.expect("(")
    names.depth += 1
    operands, attributes = arguments(cursor, names)
    names.depth -= 1
    name = inline_name(op, names.results, [node for node, _ in names.inline])
    node = Node(op, operands, (Value(name),), attributes, inline=True)
    names.inline.append((node, NameSpan(called_graph(op) or op, start, width)))
    return name


def inline_name(op: str, results: Iterable[str], before: Sequence[Node]) -> str:
    """Return the name of an inline operand of a statement with these results, after those `before` it."""
    base = next(filter(None, results), "")
    word = (called_graph(op) or op).rpartition(".")[2].lower()
    name = f"{base}.{word}" if base else word
    return fresh_name(name, {value.name for node in before for value in node.outputs}, first=2)


def op_name(cursor: Cursor) -> str:
    """Read an op name or ``@graph``; keywords are valid op names only in quotes."""
    start = cursor.blank()
    op = cursor.op()
    quoted = cursor.line[start] == '"'
    if quoted and is_transfer(op):
        raise cursor.flaw_from(start, f"an op cannot be named {op}", f"write {op} without quotes")
    if not quoted and op in RESERVED:
        raise Flaw(f"{op} is a keyword", start, len(op), f'write an op with this name as "{op}"(...)')
    return op if quoted else with_overload(op)


@lru_cache(maxsize=4096)
def attributes_of(text: str) -> dict[str, Attribute]:
    """Parse ``name=value, ...``; the result is shared between calls, so copy it. Raises Flaw."""
    return arguments(Cursor(text + ")"), Names())[1]


def reference(cursor: Cursor, name: str | None = None) -> Reference:
    """Read ``data("key", store=1)``, or ``data`` alone for the key `name`."""
    if not cursor.accept_word("data"):
        raise cursor.flaw("expected data(...)")
    if name is not None and not cursor.at("("):
        return Reference(name)
    cursor.expect("(")
    key = cursor.prefixed_or_string('data needs the key of a tensor: data("conv1.weight")')
    store = 0
    if cursor.accept(","):
        if cursor.key() != "store":
            raise cursor.flaw("expected store=", 'data needs a key and a store: data("key", store=1)')
        store = cursor.integer("stores are numbered from 0 in the order of their lines")
    cursor.expect(")")
    return Reference(key, store)


def label(cursor: Cursor) -> str:
    """Read the optional ``@name`` of a block."""
    return cursor.name("@") if cursor.at("@") else ""


def while_header(
    cursor: Cursor, outer: Names, inner: Names
) -> tuple[str, tuple[Operand, ...], tuple[Value, ...]]:
    """Read ``@body (%s: T = init) count %i: T times %n`` after ``while``.

    Uses belong to the enclosing block, definitions to the body. Return the name, the operands of the loop and
    the inputs of its body: `times` and `count` first.
    """
    name = label(cursor)
    cursor.expect("(")
    carried: list[Value] = []
    initial: list[Operand] = []

    def pair() -> None:
        if not cursor.at("%"):
            raise cursor.flaw("expected a carried value", "it looks like %s: f32[2] = %x")
        carried.append(definition(cursor, inner))
        cursor.expect("=", "a carried value needs its first value: %s: f32[2] = %x")
        initial.append(operand(cursor, outer))

    cursor.sequence(pair, ")")
    counter = definition(cursor, inner) if cursor.accept_word("count") else Value("")
    times = operand(cursor, outer) if cursor.accept_word("times") else None
    return name, (times, *initial), (counter, *carried)


def value_list(cursor: Cursor, names: Names) -> tuple[Value, ...]:
    """Read ``%a, %b`` or nothing, as after ``return``."""
    if cursor.blank() == len(cursor.line) or cursor.at("#") or cursor.at("|"):
        return ()
    values: list[Value] = []

    def one() -> None:
        if not _ends_in_rest(cursor, names, "outputs"):
            values.append(Value(use(cursor, names)))

    cursor.items(one)
    return tuple(values)


def next_values(cursor: Cursor, names: Names, carried: tuple[Value, ...]) -> tuple[Value, ...]:
    """Read ``%s = %v, ... collect %u``: the next carried values in order, then the collected ones."""
    after: dict[str, Value] = {}
    known = {value.name for value in carried}

    def assign() -> None:
        start = cursor.blank()
        name = cursor.name("%")
        if name not in known or name in after:
            fault = "is assigned twice" if name in after else "is not carried by this loop"
            text = ", ".join(f"%{name_text(value.name)}" for value in carried) or "nothing"
            raise cursor.flaw_from(start, f"%{name_text(name)} {fault}", f"the loop carries {text}")
        cursor.expect("=", "write next %s = %v")
        after[name] = Value(use(cursor, names))

    if cursor.at("%"):
        cursor.items(assign)
    missing = [value.name for value in carried if value.name not in after]
    if missing:
        message = f"next omits {', '.join('%' + name_text(name) for name in missing)}"
        raise cursor.whole(message, "assign every carried value; %s = %s keeps a value unchanged")
    collected = value_list(cursor, names) if cursor.accept_word("collect") else ()
    return (*(after[value.name] for value in carried), *collected)


_collect = re.compile(r"collect[ \t]*\[[ \t]*([0-9]{1,6})[ \t]*\]").match


def loop_results(
    cursor: Cursor, names: Names, carried: tuple[Value, ...], collected: int
) -> tuple[Value, ...]:
    """Read ``%y: T = %s, %ys: T = collect[0])``; return values by position, ``Value("")`` if omitted."""
    places = {value.name: index for index, value in enumerate(carried)}
    found: dict[int, Value] = {}

    def result() -> None:
        value = definition(cursor, names)
        cursor.expect("=", "a loop's result looks like %y: f32[2] = %s, or %ys: f32[?,2] = collect[0]")
        start = cursor.blank()
        place = _result_place(cursor, places, collected)
        if place in found:
            raise cursor.flaw_from(start, "this result is used twice", "use the existing name")
        found[place] = value

    cursor.sequence(result, ")")
    return tuple(found.get(index, Value("")) for index in range(len(carried) + collected))


def _result_place(cursor: Cursor, places: dict[str, int], collected: int) -> int:
    start = cursor.blank()
    match = _collect(cursor.line, start)
    if match is not None:
        cursor.position = match.end()
        index = int(match[1])
        if index >= collected:
            hint = f"next collects {collected} value{'' if collected == 1 else 's'}; they are counted from 0"
            raise Flaw(f"collect[{index}] does not exist", start, match.end() - start, hint)
        return len(places) + index
    name = cursor.name("%")
    if name not in places:
        text = ", ".join(f"%{name_text(other)}" for other in places) or "nothing"
        message = f"%{name_text(name)} is not carried by this loop"
        raise cursor.flaw_from(start, message, f"it carries {text}")
    return places[name]


# -- states and runs -------------------------------------------------------------------------------


def updates(
    cursor: Cursor, names: Names, states: Container[str]
) -> tuple[tuple[Value, ...], tuple[NameSpan, ...]]:
    """Read ``%w = %w.1, %m = %m.1``: states, and the names and places of their new values.

    `states` are those of the program.
    """
    targets: list[Value] = []
    values: list[NameSpan] = []

    def update() -> None:
        start = cursor.blank()
        name = cursor.name("%")
        spelled = f"%{name_text(name)}"
        if name not in states:
            hint = f"declare it before the first graph: state {spelled}: f32[] = 0.0"
            raise cursor.flaw_from(start, f"{spelled} is not a state", hint)
        if any(name == value.name for value in targets):
            raise cursor.flaw_from(start, f"{spelled} is updated twice", "write each state once")
        cursor.expect("=")
        targets.append(Value(name))
        names.results = (name,)
        start = cursor.blank()
        value = inline(cursor, names) if at_call(cursor) else use(cursor, names)
        values.append(NameSpan(value, start, cursor.position - start))

    cursor.items(update)
    return tuple(targets), tuple(values)


def group_line(cursor: Cursor) -> tuple[GroupLine, Names]:
    """Read ``%params = %w, %b`` or ``%params = %encoder.*``; return also the names in it."""
    names = Names()
    start = cursor.blank()
    name = cursor.name("%")
    names.defines.append(NameSpan(name, start, cursor.position - start))
    cursor.expect("=")
    cursor.items(lambda: use(cursor, names))
    members = tuple(mark.name for mark in names.uses)
    if not cursor.accept("*"):
        return GroupLine(name, members), names
    if len(members) > 1:
        raise cursor.flaw_from(
            cursor.position - 1, "a prefix is the only member of its group", GROUP_OF_GROUPS
        )
    return GroupLine(name, prefix=members[0]), names


def backward_line(cursor: Cursor) -> tuple[BackwardLine, NameSpan]:
    """Read the rest after ``backward``; return also the place of the differentiated graph."""
    name = cursor.name("@")
    if not cursor.accept_word("of"):
        raise cursor.flaw("expected `of`")
    start = cursor.blank()
    graph = cursor.name("@")
    mark = NameSpan(graph, start, cursor.position - start)
    if not cursor.accept_word("by"):
        raise cursor.flaw("expected `by`")
    cursor.expect("(")
    by: list[str] = []
    cursor.sequence(lambda: by.append(cursor.name("%")), ")")
    if not by:
        raise cursor.flaw("by needs at least one value")
    checkpoints = None
    if cursor.accept_word("checkpoints"):
        place = cursor.blank()
        checkpoints = cursor.integer("write a number after checkpoints")
        if checkpoints < 1:
            raise cursor.flaw_from(place, "checkpoints must be 1 or more", "write checkpoints 8")
    return BackwardLine(name, graph, tuple(by), checkpoints=checkpoints), mark


RUN_NUMBERS = {"batch": 1, "epochs": 1, "shuffle": 0, "steps": 1}
EVALUATE_NUMBERS = {"batch": 1}
"""The least numbers after the words of a line."""


def run_line(cursor: Cursor, least: Mapping[str, int]) -> RunLine:
    """Read the rest after ``run`` or ``evaluate``; `least` are the numbers that it may have."""
    graph, values, sources = _batches(cursor)
    numbers = _run_numbers(cursor, bool(values), least)
    if not values and "steps" in least and "steps" not in numbers:
        raise cursor.flaw("the number of steps is missing", "write steps 100, or for %x in data(...)")
    return RunLine(graph=graph, values=values, sources=sources, **numbers)


_expression = re.compile(rf"(?:[^\"'#]|{STRING}|'(?:[^'\\\\]|\\\\.)*'|[\"'])*").match


def track_line(cursor: Cursor) -> tuple[TrackLine, int]:
    """Read the rest after ``track``; return the line and the column of its expression."""
    start = cursor.blank()
    if cursor.line[start : start + 1] in ("", "=", "#"):
        raise cursor.flaw("expected the name of the track")
    name = cursor.name("")
    cursor.expect("=")
    start = cursor.blank()
    match = _expression(cursor.line, start)
    assert match is not None  # It also matches an empty text.
    text = match[0].rstrip()
    if not text:
        raise cursor.flaw("expected an expression")
    cursor.position = match.end()
    return TrackLine(name, text), start


def _batches(cursor: Cursor) -> tuple[str, tuple[str, ...], tuple[Reference, ...]]:
    """Read ``@train for %x, %t in data("x"), data("t")``: the graph, its inputs and their sources."""
    graph = cursor.name("@")
    values: list[str] = []
    sources: list[Reference] = []
    if cursor.accept_word("for"):
        place = cursor.blank()
        cursor.items(lambda: values.append(cursor.name("%")))
        if cursor.accept_word("in"):
            cursor.items(lambda: sources.append(reference(cursor)))
            if len(sources) != len(values):
                message = f"the number of values is {len(values)}, that of sources {len(sources)}"
                width = len(cursor.line[place : cursor.position].rstrip())
                written = ", ".join(f"data({quote(name)})" for name in values)
                raise Flaw(message, place, width, f"write one source for each value: {written}")
    return graph, tuple(values), tuple(sources)


def _run_numbers(cursor: Cursor, has_data: bool, least: Mapping[str, int]) -> dict[str, Any]:
    """Read ``batch 32 epochs 10 shuffle 1 drop_last steps 500``, in any order; `least` are the least numbers.

    The word ``drop_last`` is for lines that can be shuffled.
    """
    found: dict[str, Any] = {}
    words = (*least, "drop_last") if "shuffle" in least else (*least,)
    while (word := cursor.peek_word()) in words:
        start = cursor.blank()
        if word in found or (not has_data and word != "steps"):
            reason = "occurs twice" if word in found else "needs data: for %x in data(...)"
            raise Flaw(f"{word} {reason}", start, len(word), form_of(cursor.line))
        cursor.accept_word(word)
        if word == "drop_last":
            found[word] = True
            continue
        place = cursor.blank()
        found[word] = cursor.integer(f"write {word} and a number: {word} {least[word] or 1}")
        if found[word] < least[word]:
            message = f"{word} must be {least[word]} or more"
            raise cursor.flaw_from(place, message, f"write {word} {least[word]}")
    near = close_word(cursor.rest(), words)
    if near is not None:
        raise cursor.flaw("expected the end of the statement", near)
    return found
