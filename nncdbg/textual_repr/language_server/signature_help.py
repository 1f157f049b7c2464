"""Signature help for the op or graph call around the cursor, with the active argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.inference.types import common_type
from nncdbg.engine.ops.schema import Formal, OpSignature, label, one_line, op_signature, version_of
from nncdbg.ir.records import TensorType, Type
from nncdbg.text.lexemes import name_text, op_text
from nncdbg.text.prefixes import Prefixes
from nncdbg.text.types import print_type
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.document import ColumnEncoding
from nncdbg.textual_repr.language_server.tokens import Token, tokens

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place

# -- the call around a cursor ----------------------------------------------------------------------


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


# -- signatures ------------------------------------------------------------------------------------


def signature(analysis: Analysis, name: str) -> OpSignature | None:
    """Return the signature of an op, or of ``@graph``, in a text; None if it is unknown."""
    if name.startswith("@"):
        return _graph_signature(analysis, name[1:])
    return op_signature(name, version_of(name, analysis.opsets))


def _graph_signature(analysis: Analysis, name: str) -> OpSignature | None:
    chunk = analysis.graphs.get(name)
    if chunk is None or chunk.signature is None:
        return None
    formals = [
        tuple(
            Formal(f"%{name_text(v.name)}", print_type(v.type) if v.type else "", type=v.type) for v in values
        )
        for values in (chunk.signature.inputs, chunk.signature.outputs)
    ]
    comment = "\n".join(chunk.block.comment) if chunk.block is not None else ""
    return OpSignature(f"@{name}", formals[0], formals[1], (), comment)


def fits(formal: Formal, given: Type | None, bound: Mapping[str, str]) -> bool | None:
    """Return whether a value of this type matches a formal; None if this is unknown.

    `bound` maps type variables to the element types determined by other operands.
    """
    if given is None:
        return None
    if formal.type is not None:
        return common_type(formal.type, given) is not None
    if not isinstance(given, TensorType):
        return formal.dtypes == frozenset() or None
    if formal.dtypes is not None and given.dtype not in formal.dtypes:
        return False
    wanted = bound.get(formal.kind)
    if wanted is not None:
        return given.dtype == wanted
    return True if formal.dtypes is not None else None


# -- signature help --------------------------------------------------------------------------------


def register(server: NncServer) -> None:
    """Register signature help."""
    options = types.SignatureHelpOptions(trigger_characters=["(", ","], retrigger_characters=["=", ")"])

    @server.feature(types.TEXT_DOCUMENT_SIGNATURE_HELP, options)
    def signature_help_(params: types.SignatureHelpParams) -> types.SignatureHelp | None:
        place = server.place(params.text_document.uri, params.position, typing=True)
        return signature_help(place) if place is not None else None


def signature_help(place: Place) -> types.SignatureHelp | None:
    """Return operands in order, then attributes; None outside of a known call."""
    call = open_call(place.document.lines[place.line], place.column, place.analysis.prefixes)
    found = signature(place.analysis, call.name) if call is not None else None
    if call is None or found is None:
        return None
    shown = types.SignatureInformation(
        label(found),
        types.MarkupContent(types.MarkupKind.Markdown, found.doc) if found.doc else None,
        _parameters(found),
        _active(call, found),
    )
    return types.SignatureHelp([shown], 0, shown.active_parameter)


def _parameters(found: OpSignature) -> list[types.ParameterInformation]:
    """Return the parameters with their offsets in the label, always in UTF-16 units."""
    text = label(found)
    units = ColumnEncoding()
    start = len(op_text(found.name)) + 1
    parameters = []
    formals = [(formal.text(), formal.doc) for formal in found.inputs]
    for shown, doc in [*formals, *((attribute.text(), attribute.doc) for attribute in found.attributes)]:
        end = start + len(shown)
        offsets = units.outwards(text, start), units.outwards(text, end)
        parameters.append(types.ParameterInformation(offsets, one_line(doc) or None))
        start = end + len(", ")
    return parameters


def _active(call: OpenCall, found: OpSignature) -> int | None:
    """Return the index of the parameter under the cursor; None if there is none."""
    if call.key:
        known = [attribute.name for attribute in found.attributes]
        return len(found.inputs) + known.index(call.key) if call.key in known else None
    if call.argument < len(found.inputs):
        return call.argument
    if found.inputs and found.inputs[-1].variadic:
        return len(found.inputs) - 1
    return len(found.inputs) if found.attributes else None
