"""Signature help for the op or graph call around the cursor, with the active argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.ops.schema import OpSignature, label, one_line
from nncdbg.engine.text.lexemes import op_text
from nncdbg.textual_repr.language_server.analysis.calls import OpenCall, open_call
from nncdbg.textual_repr.language_server.document.positions import ColumnEncoding
from nncdbg.textual_repr.language_server.features.signatures import signature

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place


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
