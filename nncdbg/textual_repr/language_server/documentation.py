"""Hover (the definition of a value, the documentation of an op, a graph), and help with signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.inference.types import common_type
from nncdbg.engine.ops.schema import (
    AttributeFormal,
    Formal,
    OpSignature,
    label,
    one_line,
    op_signature,
    schema,
    version_of,
)
from nncdbg.expression.functions import FUNCTIONS, function_name
from nncdbg.ir.records import Constant, Inline, TensorType, Type
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import ELLIPSIS, Prefixes, name_text, op_text
from nncdbg.text.torch_names import with_overload
from nncdbg.text.types import print_type, value_text
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.document import ColumnEncoding, Place
from nncdbg.textual_repr.language_server.tokens import (
    Definition,
    Span,
    Token,
    kind_of_line,
    split_arguments,
    stream_at,
    tokens,
)
from nncdbg.textual_repr.passed_values import Listed
from nncdbg.textual_repr.resolution import shown

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

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
        doc = found.doc
        if len(doc) > _LONGEST_DOCUMENTATION:
            doc = doc[:_LONGEST_DOCUMENTATION].rsplit("\n", 1)[0] + "\n…"
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
    "state": "a state",
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
    "states": "the states of a module: `states layers.0 { %.w: f32[2] = data }`, `%.w` is `%layers.0.w`",
    "_": "an omitted operand or an unused output",
}

_LONGEST = 300


def register(server: NncServer) -> None:
    """Register hover and signature help."""
    server.on_place(types.TEXT_DOCUMENT_HOVER, _hover)
    options = types.SignatureHelpOptions(trigger_characters=["(", ","], retrigger_characters=["=", ")"])
    server.on_place(
        types.TEXT_DOCUMENT_SIGNATURE_HELP, lambda place, _: signature_help(place), options=options
    )


def _hover(place: Place, _: types.HoverParams) -> types.Hover | None:
    token = place.analysis.token_at(place.line, place.column)
    words = hover_text(place)
    if token is None or words is None:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, words)
    return types.Hover(content, place.range(Span(place.line, token.start, token.end)))


def hover_text(place: Place) -> str | None:
    """Return what an editor shows about the token under a cursor; None for no token and most words."""
    analysis = place.analysis
    token = analysis.token_at(place.line, place.column)
    if token is None:
        return None
    if token.kind == "value":
        mention = analysis.mention_at(place.line, token.start)
        definition = analysis.definition_of(place.line, mention) if mention is not None else None
        return _value(place, definition) if definition is not None else None
    if token.name == ELLIPSIS and token.kind == "operator":
        return _group(place, token)
    if token.kind == "graph":
        chunk = analysis.graphs.get(token.name)
        return _graph(place, chunk) if chunk is not None else None
    if token.kind == "op":
        return op_markdown(with_overload(token.name), analysis.opsets)
    if token.kind == "attribute":
        op = next((t.name for t in tokens(analysis.lines[place.line]) if t.kind == "op"), "")
        op = with_overload(op)
        return attribute_markdown(op, token.name, analysis.opsets)
    if token.kind == "word" and kind_of_line(analysis.lines[place.line]) == "track":
        name = function_name(token.name)
        return f"```nnc\n{FUNCTIONS[name].usage(name)}\n```\n\n{FUNCTIONS[name].help}" if name else None
    if token.kind == "number" and (found := stream_at(analysis.lines[place.line], token.start)) is not None:
        logical, number = found
        device = analysis.streams.get(number)
        on = f"stream {number}" + (f", on {device}" if device else "")
        return on if logical is None else f"logical stream {logical}, bound to {on}"
    return _WORDS.get(token.name) if token.kind == "keyword" else None


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


_MOST_NAMES = 60
"""Maximum number of values in the list of a group."""


def _group(place: Place, token: Token) -> str | None:
    """Return the list of the values that ``...`` stands for; None where it stands for none."""
    analysis, line = place.analysis, place.line
    found = analysis.tokens(line)
    at = found.index(token)
    called = next((other.name for other in found if other.kind == "graph"), analysis.chunk_at(line).name)
    in_call = analysis.block_opened_at(line) is None and any(other.kind == "graph" for other in found)
    before = [other.name for other in found[:at] if other.kind == "operator"]
    outputs = (
        "=" not in before if in_call else "->" in before or kind_of_line(analysis.lines[line]) == "return"
    )
    values = analysis.passed.outputs(called) if outputs else analysis.passed.inputs(called)
    if not values:
        return None
    spell = analysis.prefixes_at(line).spell
    lines = [value_text(value, spell) for value in values[:_MOST_NAMES]]
    if len(values) > _MOST_NAMES:
        lines.append(f"# {len(values) - _MOST_NAMES} more")
    what = "output" if outputs else "input"
    head = f"{counted(len(values), what)} of @{name_text(called)} under their own names"
    return "\n".join([head, "", "```nnc", *lines, "```"])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _data(place: Place, constant: Constant) -> str:
    """Return the statistics of data in the text, or the location of data outside it."""
    data = constant.data
    if isinstance(data, Inline):
        from nncdbg.stats.summary import summarize_plain

        return str(summarize_plain(data.array))
    file, stores = f"store {data.store}, which is not declared", place.analysis.chunks[0].reading.stores
    if data.store < len(stores):
        file = f"`{stores[data.store]}`"
    return f"`{data.key}` in {file}"


def _graph(place: Place, chunk: Chunk) -> str:
    """Return the header of a graph, its comment, and its number of calls."""
    analysis = place.analysis
    signature = chunk.signature
    if signature is None:
        return f"```nnc\n{_short(chunk.lines[0].strip())}\n```"
    group = (chunk.block.listed if chunk.block is not None else None) or Listed()
    inputs, outputs = (
        ", ".join([*map(value_text, values), *([] if count is None else [ELLIPSIS])])
        for values, count in ((signature.inputs, group.inputs), (signature.outputs, group.outputs))
    )
    parts = [f"```nnc\ngraph @{name_text(chunk.name)}({inputs}) -> ({outputs})\n```"]
    above = (text.strip() for text in reversed(analysis.lines[: chunk.start]))
    comment = [
        text.removeprefix("##").strip() for text in takewhile(lambda text: text.startswith("##"), above)
    ]
    if comment:
        parts.append("\n".join(reversed(comment)))
    count = sum(1 for _ in analysis.calls_of(chunk.name))
    entry = next(iter(analysis.graphs)) == chunk.name
    parts.append("the entry" if entry else f"called {counted(count, 'time')}")
    return "\n\n".join(parts)


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
            name = f"@{token.name}" if token.kind == "graph" else with_overload(token.name)
            return _open(name, found[at + 2 :], column)
    return None


def _open(name: str, found: Sequence[Token], column: int) -> OpenCall | None:
    parts, commas, close = split_arguments(found)
    commented = any(token.kind == "comment" and token.start < column for token in parts[-1])
    if commented or (close is not None and close.start < column):
        return None
    here = sum(comma < column for comma in commas)
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


def signature_help(place: Place) -> types.SignatureHelp | None:
    """Return operands in order, then attributes; None outside of a known call."""
    call = open_call(place.text, place.column, place.analysis.prefixes_at(place.line))
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
    for word, doc in [*formals, *((attribute.text(), attribute.doc) for attribute in found.attributes)]:
        end = start + len(word)
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
