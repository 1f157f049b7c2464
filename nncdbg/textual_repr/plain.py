"""The short way for the commonest line, ``%y: f32[2] = Op(%x, %w, name=value) loc("net.py":12)``.

One regular expression reads the whole line.  What it does not match, or what has any fault, is
left to the parser proper, which reads the same lines to the same nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nncdbg.engine.graph import Location, Node, Value
from nncdbg.textual_repr.blocks import Block
from nncdbg.textual_repr.lexemes import BARE, OP, RESERVED, Flaw, parse_type
from nncdbg.textual_repr.statements import attributes_of

SEPARATOR = ", %"
"""What stands between the names of two operands."""

_plain = re.compile(
    rf"[ \t]*%({BARE})(?:: ([a-z][a-z0-9]*\[[^\]\"]*\]))? = ({OP})\("
    rf"%({BARE}(?:, %{BARE})*)(?:, ({OP}=[^\"()#%]+))?\)"
    r'(?: loc\((?:"([^"\\]*)":([0-9]{1,9})(?:, node "([^"\\]*)")?|node "([^"\\]*)")\))?'
).fullmatch


def plain_statement(line: str) -> tuple[Node, tuple[str, ...], re.Match[str]] | None:
    """The statement of a plain line, and its operands; None where the parser proper has to look at it.

    Of the match, group 1 is the output, 3 the op, 4 what stands from the first operand's name to the last's.
    """
    match = _plain(line)
    if match is None:
        return None
    name, type_text, op, operand_text, attribute_text, file, number, node, only_node = match.groups()
    if op in RESERVED:
        return None
    try:
        type = parse_type(type_text) if type_text else None
        attributes = attributes_of(attribute_text).copy() if attribute_text else {}
    except Flaw:
        return None
    location = (
        Location(file, int(number), node)
        if number
        else Location(None, None, only_node)
        if only_node
        else None
    )
    operands = tuple(operand_text.split(SEPARATOR))
    return Node(op, operands, (Value(name, type),), attributes, (), location), operands, match


def read_plain(lines: Sequence[str], index: int, block: Block) -> int:
    """Append to `block` the plain statements from ``lines[index]`` on; the index of the first line left.

    Stops before a line of any other shape, and before one whose names are not in order.
    """
    names = block.names
    add_node = block.nodes.append
    add_line = block.lines.append
    nested = block.parent is not None
    for at in range(index, len(lines)):
        found = plain_statement(lines[at])
        if found is None:
            return at
        node, operands, match = found
        name = match[1]
        if name in names or (nested and block.sees(name)):
            return at
        for operand in operands:
            if operand not in names and not (nested and block.sees(operand)):
                return at
        names[name] = at + 1
        add_node(node)
        add_line(at + 1)
    return len(lines)
