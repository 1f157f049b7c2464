"""The call around a cursor, in a line that may be incomplete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nncdbg.engine.ops.schema import OpSignature
from nncdbg.engine.text.prefixes import Prefixes
from nncdbg.ir.records import TensorType
from nncdbg.textual_repr.language_server.analysis.analysis import Analysis
from nncdbg.textual_repr.language_server.document.records import Token
from nncdbg.textual_repr.language_server.document.tokens import tokens


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call with the cursor inside its parentheses.

    `argument` counts arguments from 0. `attribute` is the attribute with the value under the cursor.
    `values` maps argument numbers to value names, for arguments that are a single value. `attributes` are
    the names of all attributes.
    """

    name: str
    argument: int
    attribute: str | None
    key: str
    """The attribute named in the argument under the cursor, at any position in it; empty for an operand."""
    values: Mapping[int, str]
    attributes: frozenset[str]
    named: bool
    """An attribute precedes the argument under the cursor, which therefore cannot be an operand."""


def open_call(text: str, column: int, prefixes: Prefixes) -> OpenCall | None:
    """Return the op or graph call with character `column` of a line inside its parentheses."""
    found = tokens(text, prefixes)
    for at, token in enumerate(found[:-1]):
        if token.kind in ("op", "graph") and found[at + 1].name == "(" and found[at + 1].end <= column:
            name = f"@{token.name}" if token.kind == "graph" else token.name
            return _open(name, found[at + 2 :], column)
    return None


def _open(name: str, found: Sequence[Token], column: int) -> OpenCall | None:
    parts: list[list[Token]] = [[]]
    here = 0
    depth = 0
    for token in found:
        if token.kind == "operator":
            depth += (token.name in "([") - (token.name in ")]")
            if depth < 0:
                if token.start < column:
                    return None
                break
            if depth == 0 and token.name == ",":
                parts.append([])
                here += token.start < column
                continue
        parts[-1].append(token)
    if any(t.kind == "comment" and t.start < column for t in parts[-1]):
        return None
    return _described(name, parts, here, column)


def _described(name: str, parts: Sequence[Sequence[Token]], here: int, column: int) -> OpenCall:
    keys = {at: part[0].name for at, part in enumerate(parts) if part and part[0].kind == "attribute"}
    values = {at: part[0].name for at, part in enumerate(parts) if len(part) == 1 and part[0].kind == "value"}
    written = here in keys and len(parts[here]) > 1 and parts[here][1].end <= column
    return OpenCall(
        name,
        here,
        keys[here] if written else None,
        keys.get(here, ""),
        values,
        frozenset(keys.values()),
        any(at < here for at in keys),
    )


def bound_variables(call: OpenCall, found: OpSignature, analysis: Analysis, line: int) -> dict[str, str]:
    """Return the element types of the type variables that the other operands determine."""
    bound: dict[str, str] = {}
    for index, name in call.values.items():
        formal = found.operand(index)
        known = analysis.type_of(line, name)
        if index != call.argument and formal is not None and isinstance(known, TensorType):
            bound.setdefault(formal.kind, known.dtype)
    return bound
