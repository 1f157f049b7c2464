"""Hover: the type and producer of a value, the documentation of an op or attribute, a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.ops.schema import AttributeFormal, label, one_line, op_signature, schema, version_of
from nncdbg.expression.functions import FUNCTIONS, function_name
from nncdbg.ir.records import Constant, Inline
from nncdbg.text.lexemes import name_text
from nncdbg.text.types import print_type, value_text
from nncdbg.textual_repr.language_server.analysis import Chunk
from nncdbg.textual_repr.language_server.tokens import (
    Definition,
    Span,
    Token,
    kind_of_line,
    stream_at,
    tokens,
)
from nncdbg.textual_repr.resolution import shown

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place

# -- documentation of ops --------------------------------------------------------------------------

_LONGEST_DOCUMENTATION = 6000
"""Maximum number of characters of a document: those of Loop and Scan are several pages long."""


def attribute_markdown(op: str, key: str, opsets: Mapping[str, int]) -> str | None:
    """Return the documentation of one attribute; None if the op has no such attribute."""
    found = op_signature(op, version_of(op, opsets))
    attribute = found.attribute(key) if found is not None else None
    return f"{_attribute_line(attribute)}\n\nan attribute of `{op}`" if attribute is not None else None


def op_markdown(op: str, opsets: Mapping[str, int]) -> str | None:
    """Return the documentation of an op in the opset in use; None if there is none."""
    version = version_of(op, opsets)
    found, declared = op_signature(op, version), schema(op, version)
    if found is None or declared is None:
        return None
    parts = [
        f"```nnc\n{label(replace(found, attributes=()))}\n```",
        f"since opset {declared.since}; opset {version} is in use",
    ]
    if found.attributes:
        attributes = sorted(found.attributes, key=lambda attribute: attribute.name)
        lines = (f"- {_attribute_line(attribute)}" for attribute in attributes)
        parts.append("**Attributes**\n\n" + "\n".join(lines))
    if found.doc:
        doc = (
            found.doc
            if len(found.doc) <= _LONGEST_DOCUMENTATION
            else found.doc[:_LONGEST_DOCUMENTATION].rsplit("\n", 1)[0] + "\n…"
        )
        parts.append("---\n" + doc)
    return "\n\n".join(parts)


def _attribute_line(attribute: AttributeFormal) -> str:
    """Return the line of one attribute: its kind, default and meaning."""
    default = f"default `{attribute.default}`" if attribute.default is not None else ""
    facts = ", ".join(
        fact for fact in (attribute.kind, "required" if attribute.required else default) if fact
    )
    words = one_line(attribute.doc)
    return f"`{attribute.name}`" + (f" ({facts})" if facts else "") + (f": {words}" if words else "")


# -- hover -----------------------------------------------------------------------------------------

_ROLES = {
    "input": "an input of the graph",
    "constant": "a constant",
    "result": "",
    "carried": "carried by a loop",
    "counter": "counts a loop's iterations, from 0",
}

_WORDS = {
    "data": 'a constant in a store: `data("key")`, or `data("key", store=1)`',
    "while": "a loop: `while @body (%s: T = %first) count %i times %n {`, ended by `next`",
    "if": "two branches that see the values around them; each ends in `yield`",
    "else": "the second branch of an `if`",
    "break": "`break unless %go` leaves a loop unless its operand is true",
    "next": "assigns all carried values of a loop at once, then names the collected values",
    "collect": "values that a loop stacks on a new first axis, one for each iteration",
    "yield": "the results of a branch",
    "return": "the results of a graph: the names in its header",
    "loc": "source position in the user's model",
    "track": "a number that each step computes: `track accuracy = mean(argmax(%y, 1) == %t)`, after the line "
    "of its `run` or `evaluate`; a name that no graph computes is data, given with `--input`",
    "store": "a file with the tensors of `data(...)`; its path is relative to this file",
    "prefix": 'a prefix that names share: after `prefix enc "/encoder/"`, `%enc::x` is `%/encoder/x`',
    "stream": 'the device of a stream: `stream s2 "cuda:0"`',
    "host": "the host executes this line itself, and issues the next one after it",
    "wait": "the stream waits for the latest record of these events before it runs the statement",
    "begin": "these streams wait for this one before their next statement",
    "workspace": "the scratch memory of the kernel: kernels with the same name share it",
    "record": "records events that are reached when the statement ends",
    "free": "gives back the memory of these values after the statement",
    "opset": "the version of a domain's operators; without it, the newest known version is used",
    "_": "an omitted operand or an unused output",
}

_LONGEST = 300


def register(server: NncServer) -> None:
    """Register hover."""

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        place = server.place(params.text_document.uri, params.position)
        token = place.analysis.token_at(place.line, place.column) if place is not None else None
        if place is None or token is None:
            return None
        words = _hover_text(place, token)
        if words is None:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, words)
        return types.Hover(content, place.range(Span(place.line, token.start, token.end)))


def _hover_text(place: Place, token: Token) -> str | None:
    analysis = place.analysis
    if token.kind == "value":
        mention = analysis.mention_at(place.line, token.start)
        found = analysis.definition_of(place.line, mention) if mention is not None else None
        return _value(place, found) if found is not None else None
    if token.kind == "graph":
        chunk = analysis.graphs.get(token.name)
        return _graph(place, chunk) if chunk is not None else None
    if token.kind == "op":
        return op_markdown(token.name, analysis.opsets)
    if token.kind == "attribute":
        op = next((t.name for t in tokens(analysis.lines[place.line]) if t.kind == "op"), "")
        return attribute_markdown(op, token.name, analysis.opsets)
    if token.kind == "word" and kind_of_line(analysis.lines[place.line]) == "track":
        name = function_name(token.name)
        return f"```nnc\n{FUNCTIONS[name].usage(name)}\n```\n\n{FUNCTIONS[name].help}" if name else None
    if token.kind == "number":
        return _stream(place, token)
    return _WORDS.get(token.name) if token.kind == "keyword" else None


def _stream(place: Place, token: Token) -> str | None:
    """Return the number and the device of a stream in a margin, and of its logical stream."""
    found = stream_at(place.analysis.lines[place.line], token.start)
    if found is None:
        return None
    logical, number = found
    device = place.analysis.streams.get(number)
    on = f"stream {number}" + (f", on {device}" if device else "")
    return on if logical is None else f"logical stream {logical}, bound to {on}"


def _value(place: Place, found: Definition) -> str:
    """Return ``%h: f32[2]``, the role of the value, and the line that defines it."""
    head = shown(found.name) if found.type is None else f"{shown(found.name)}: {print_type(found.type)}"
    parts = [f"```nnc\n{head}\n```"]
    if found.written is not None and found.type is not None and found.written != found.type:
        parts.append(f"written as `{print_type(found.written)}`")
    elif found.written is None and found.type is not None:
        parts.append("inferred")
    role = _ROLES[found.role]
    line = found.span.line
    parts.append(f"{role + ', ' if role else ''}line {line + 1}")
    parts.append(f"```nnc\n{_short(place.analysis.lines[line].strip())}\n```")
    constant = place.analysis.constant_at(line)
    if constant is not None:
        parts.append(_data(place, constant))
    return "\n\n".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _data(place: Place, constant: Constant) -> str:
    """Return the statistics of data in the text, or the location of data outside it."""
    data = constant.data
    if isinstance(data, Inline):
        from nncdbg.stats.summary import summarize_plain

        return str(summarize_plain(data.array))
    stores = place.analysis.chunks[0].reading.stores
    file = (
        f"`{stores[data.store]}`"
        if data.store < len(stores)
        else f"store {data.store}, which is not declared"
    )
    return f"`{data.key}` in {file}"


def _graph(place: Place, chunk: Chunk) -> str:
    """Return the header of a graph, its comment, and its number of calls."""
    analysis = place.analysis
    signature = chunk.signature
    if signature is None:
        return f"```nnc\n{_short(chunk.lines[0].strip())}\n```"
    inputs = ", ".join(map(value_text, signature.inputs))
    outputs = ", ".join(map(value_text, signature.outputs))
    parts = [f"```nnc\ngraph @{name_text(chunk.name)}({inputs}) -> ({outputs})\n```"]
    parts.extend(_comment(place, chunk))
    count = sum(1 for _ in analysis.calls_of(chunk.name))
    entry = next(iter(analysis.graphs)) == chunk.name
    parts.append("the entry" if entry else f"called {count} time{'' if count == 1 else 's'}")
    return "\n\n".join(parts)


def _comment(place: Place, chunk: Chunk) -> list[str]:
    """Return the ``##`` lines right above a graph."""
    found: list[str] = []
    for line in range(chunk.start - 1, -1, -1):
        text = place.analysis.lines[line].strip()
        if not text.startswith("##"):
            break
        found.append(text.removeprefix("##").strip())
    return ["\n".join(reversed(found))] if found else []
