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

_plain = re.compile(
    rf"[ \t]*%({BARE})(?:: ([a-z][a-z0-9]*\[[^\]\"]*\]))? = ({OP})\("
    rf"%({BARE}(?:, %{BARE})*)(?:, ({OP}=[^\"()#%]+))?\)"
    r'(?: loc\((?:"([^"\\]*)":([0-9]{1,9})(?:, node "([^"\\]*)")?|node "([^"\\]*)")\))?'
).fullmatch


def read_plain(lines: Sequence[str], index: int, block: Block) -> int:
    """Append to `block` the plain statements from ``lines[index]`` on; the index of the first line left.

    Stops before a line of any other shape, and before one whose names are not in order.
    """
    names = block.names
    add_node = block.nodes.append
    add_line = block.lines.append
    nested = block.parent is not None
    for at in range(index, len(lines)):
        match = _plain(lines[at])
        if match is None:
            return at
        name, type_text, op, operand_text, attribute_text, file, line, node, only_node = match.groups()
        operands = tuple(operand_text.split(", %"))
        if name in names or op in RESERVED or (nested and block.sees(name)):
            return at
        for operand in operands:
            if operand not in names and not (nested and block.sees(operand)):
                return at
        try:
            type = parse_type(type_text) if type_text else None
            attributes = attributes_of(attribute_text).copy() if attribute_text else {}
        except Flaw:
            return at
        location = (
            Location(file, int(line), node)
            if line
            else Location(None, None, only_node)
            if only_node
            else None
        )
        names[name] = at + 1
        add_node(Node(op, operands, (Value(name, type),), attributes, (), location))
        add_line(at + 1)
    return len(lines)
