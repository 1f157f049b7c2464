"""Names of statements and blocks in tables of times and in timelines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dtypes import NUMPY
from nncdbg.escaping import printable_line
from nncdbg.ir.records import TensorType
from nncdbg.presentation.source_files import short_path
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.ir.records import Node, Type
    from nncdbg.target.records import Place


Types: TypeAlias = "Mapping[str, Type | None]"
"""The types of the values of a block that are known before the run."""


def result_names(place: Place) -> str:
    """Return the results of a statement, as `%q, %k`; empty for none."""
    names = [value.name for value in _node(place).outputs if value.name]
    return printable_line(", ".join(f"%{name_text(name)}" for name in names))


def op_name(place: Place) -> str:
    """Return the op of a statement, as in the program text."""
    return printable_line(place.op)


def shapes(place: Place, types: Types) -> str:
    """Return the sizes of operands and results known before the run, as `[2,4] [4,3] -> [2,3]`."""
    node = _node(place)
    operands = [_shape(types, name) for name in node.inputs if isinstance(name, str) and name]
    results = [_shape(types, value.name) for value in node.outputs if value.name]
    return f"{' '.join(operands)} -> {' '.join(results)}".strip()


def _node(place: Place) -> Node:
    """Return the statement at a place, which is not the end of a block."""
    return place.graph.nodes[place.pc]


def _shape(types: Types, name: str) -> str:
    known = types.get(name)
    return str(known)[len(known.dtype) :] if isinstance(known, TensorType) else "[...]"


def result_bytes(place: Place, types: Types) -> int | None:
    """Return the bytes of the results of a statement; None if a size is not known before the run."""
    total = 0
    for value in _node(place).outputs:
        known = types.get(value.name) if value.name else None
        if not value.name:
            continue
        if not isinstance(known, TensorType) or known.shape is None or known.dtype not in NUMPY:
            return None
        sizes = [size for size in known.shape if isinstance(size, int)]
        if len(sizes) < len(known.shape):
            return None
        total += math.prod(sizes) * NUMPY[known.dtype].itemsize
    return total


def origin(place: Place) -> str:
    """Return the place of a statement in the user's model, else its graph: `net.py:12` or `@layer1`."""
    node = _node(place)
    text = origin_text(node).replace(node.location.place, source_line(place), 1) if node.location else ""
    return printable_line(text or f"@{name_text(str(place.path[0]))}")


def line_title(place: Place) -> str:
    """Return the line of the user's model, as `net.py:12`, else of the listing, as `line 5`."""
    return source_line(place) or f"line {place.line}"


def source_line(place: Place) -> str:
    """Return the line of the user's model that a statement comes from, as `net.py:12`; empty for none."""
    location = _node(place).location
    if location is None or not location.file:
        return ""
    return printable_line(f"{short_path(location.file)}:{location.line}")


def block_title(place: Place) -> str:
    """Return `@layer1` for a graph; for a loop or branch `@refine, line 9`, or `while, line 9`."""
    name, path = f"@{name_text(place.graph.name)}" if place.graph.name else "", place.path
    if len(path) == 1:
        return printable_line(name)
    pc, body = path[-2:]
    line = place.listing.line(path[:-2], int(pc))
    kind = "while" if place.is_loop else "else" if body else "then"
    return printable_line(f"{name or kind}, line {line}")
