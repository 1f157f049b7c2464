"""Fast path for the most common line, ``%y: f32[2] = Op(%x, %w, name=value) loc("net.py":12)``.

One regular expression matches the whole line. Lines that do not match, or contain an error, are left to the
full parser, which produces the same nodes for the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from nncdbg.ir.records import Location, Node, Value
from nncdbg.text.lexemes import BARE, OP, PREFIX_END, RESERVED, Flaw
from nncdbg.text.prefixes import NO_PREFIXES, Prefixes, UndeclaredPrefix
from nncdbg.text.types import parse_type
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.statements import attributes_of

SEPARATOR = ", %"
"""The separator of operand names."""

_NAME = rf"{BARE}(?:{PREFIX_END}{BARE})?"
_NODE = rf'"[^"\\]*"|{BARE}{PREFIX_END}{BARE}'
_match_plain = re.compile(
    rf"[ \t]*%({_NAME})(?:: ([a-z][a-z0-9]*\[[^\]\"]*\]))? = ({OP})\("
    rf"%({_NAME}(?:, %{_NAME})*)(?:, ({OP}=[^\"()#%]+))?\)"
    rf'(?: loc\((?:"([^"\\]*)":([0-9]{{1,9}})(?:, node ({_NODE}))?|node ({_NODE}))\))?'
).fullmatch


def plain_statement(
    line: str, prefixes: Prefixes = NO_PREFIXES
) -> tuple[Node, tuple[str, ...], re.Match[str]] | None:
    """Return the statement of a plain line, its operands and its match; None for the full parser.

    Group 1 of the match is the output, group 3 the op, group 4 the operands from the first name to the
    last.
    """
    match = _match_plain(line)
    if match is None:
        return None
    name, type_text, op, operand_text, attribute_text, file, number, node, only_node = match.groups()
    if op in RESERVED:
        return None
    operands = tuple(operand_text.split(SEPARATOR))
    try:
        if PREFIX_END in line:
            name = prefixes.full(name)
            operands = tuple(map(prefixes.full, operands))
        type = parse_type(type_text) if type_text else None
        attributes = attributes_of(attribute_text).copy() if attribute_text else {}
        location = (
            Location(file, int(number), _node_name(node, prefixes))
            if number
            else Location(None, None, _node_name(only_node, prefixes))
            if only_node
            else None
        )
    except (Flaw, UndeclaredPrefix):
        return None
    return Node(op, operands, (Value(name, type),), attributes, (), location), operands, match


def _node_name(spelled: str | None, prefixes: Prefixes) -> str | None:
    return spelled if spelled is None else spelled[1:-1] if spelled[0] == '"' else prefixes.full(spelled)


def read_plain(
    lines: Sequence[str],
    index: int,
    block: Block,
    prefixes: Prefixes = NO_PREFIXES,
    states: Container[str] = (),
) -> int:
    """Append to `block` the plain statements from ``lines[index]`` on; return the index of the next line.

    Stops before a line of any other form, and before a line with names that are not in order.  `states` are
    the names of the states, which every statement may read.
    """
    names = block.names
    add_node = block.nodes.append
    add_line = block.lines.append
    nested = block.parent is not None
    for at in range(index, len(lines)):
        found = plain_statement(lines[at], prefixes)
        if found is None:
            return at
        node, operands, _ = found
        name = node.outputs[0].name
        if name in names or name in states or (nested and block.sees(name)):
            return at
        for operand in operands:
            if operand not in names and operand not in states and not (nested and block.sees(operand)):
                return at
        names[name] = at + 1
        add_node(node)
        add_line(at + 1)
    return len(lines)
