"""Completion: the position determines the kind of items, and the best matches come first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.dtypes import NUMPY, ONNX
from nncdbg.engine.ops.schema import (
    AttributeFormal,
    Formal,
    OpSignature,
    label,
    op_names,
    op_signature,
    split,
    version_of,
)
from nncdbg.expression.functions import DERIVATIVES, FUNCTIONS
from nncdbg.ir.records import TensorType, Type, Value
from nncdbg.text.lexemes import ELLIPSIS, key_text, name_text, op_text, quote
from nncdbg.text.types import print_type
from nncdbg.textual_repr.language_server.analysis import Analysis
from nncdbg.textual_repr.language_server.document import Place
from nncdbg.textual_repr.language_server.documentation import (
    OpenCall,
    attribute_markdown,
    bound_variables,
    fits,
    op_markdown,
    open_call,
    signature,
)
from nncdbg.textual_repr.language_server.tokens import MARGIN_WORDS, Span, Token, kind_of_line, tokens
from nncdbg.textual_repr.resolution import ENDS, Block

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer

# -- items -----------------------------------------------------------------------------------------

MOST_VALUES = 200
"""Maximum number of values in a list; the client requests again as the user types."""

_CONDITIONS = ("any(isnan({0}))", "max(abs({0})) > 1e4")
_NEAREST = 3
"""Number of values for which whole conditions are offered."""

_Kind = types.CompletionItemKind


@dataclass(slots=True)
class CompletionTarget:
    """The span that an accepted item replaces; `typed` is its text left of the cursor.

    `before` are the tokens left of it, and `current` is its own. `cut` is set if items were omitted.
    """

    place: Place
    snippets: bool
    before: Sequence[Token]
    current: Token | None
    span: Span = field(init=False)
    range: types.Range = field(init=False)
    typed: str = field(init=False)
    cut: bool = False

    def __post_init__(self) -> None:
        """Find the token, up to the end of its word."""
        column = self.place.column
        start = self.current.start if self.current is not None else column
        self.typed = self.text[start:column]
        rest = (_rest_of_string if '"' in self.typed else _rest_of_word)(self.text, column)
        self.span = Span(self.place.line, start, rest.end() if rest is not None else column)
        self.range = self.place.range(self.span)

    @property
    def text(self) -> str:
        """Return the line of the cursor."""
        return self.place.text

    @property
    def sigil(self) -> str:
        """Return ``%`` or ``@`` if one was typed, else an empty string."""
        return self.typed[:1] if self.typed[:1] in ("%", "@") else ""

    @property
    def prefix(self) -> str:
        """Return the letters that a name must contain, in this order."""
        return self.typed.removeprefix(self.sigil).strip('"')

    def item(
        self,
        text: str,
        kind: types.CompletionItemKind,
        detail: str | None = None,
        *,
        rank: int = 5,
        order: int = 0,
        snippet: str | None = None,
        shown: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> types.CompletionItem:
        """Return an item that inserts `text`, or `snippet` for clients that support snippets."""
        as_snippet = snippet is not None and self.snippets
        written = snippet if as_snippet and snippet is not None else text
        # The client compares this with the typed text, which may lack the sigil.
        filtered = text if self.sigil or text[:1] not in "%@" else text[1:]
        return types.CompletionItem(
            shown or text,
            kind=kind,
            detail=detail,
            sort_text=f"{rank}{order:05d}",
            filter_text=filtered,
            text_edit=types.TextEdit(self.range, written),
            insert_text_format=types.InsertTextFormat.Snippet if as_snippet else None,
            data=data,
        )

    def value(
        self, name: str, known: Type | None, *, after: str = "", rank: int = 0, order: int
    ) -> types.CompletionItem:
        """Return an item that inserts the name of a value."""
        text = f"%{self.place.spell(name)}"
        detail = print_type(known) if known is not None else None
        return self.item(text + after, _Kind.Variable, detail, rank=rank, order=order, shown=text)


# -- values ----------------------------------------------------------------------------------------


def values(
    target: CompletionTarget, formal: Formal, bound: Mapping[str, str]
) -> Iterator[types.CompletionItem]:
    """Yield the values in scope: matching operand types first, then the nearest definition above first."""
    if target.sigil == "@":
        return
    spell = target.place.spell
    letters = re.compile(".*?".join(map(re.escape, target.prefix)), re.IGNORECASE | re.DOTALL)
    ranks: tuple[list[tuple[int, int, str, Type | None]], ...] = ([], [], [])
    for distance, (name, known) in enumerate(_visible(target.place)):
        if letters.search(name) or letters.search(spell(name)):
            fit = fits(formal, known, bound)
            rank = 0 if fit else 1 if fit is None else 2
            ranks[rank].append((rank, distance, name, known))
            if len(ranks[0]) > MOST_VALUES:
                break
    found = [*ranks[0], *ranks[1], *ranks[2]]
    if len(found) > MOST_VALUES:
        target.cut = True
        del found[MOST_VALUES:]
    for rank, distance, name, known in found:
        item = target.value(name, known, rank=rank, order=distance)
        if item.filter_text is not None and not letters.search(spell(name)):
            item.filter_text = f"{target.sigil}{name}"
        yield item


def _visible(place: Place) -> Iterator[tuple[str, Type | None]]:
    """Yield the names and types in scope at the line, the nearest definition above first."""
    chunk = place.analysis.chunk_at(place.line)
    number = place.line - chunk.start + chunk.reading.before + 1
    block = place.analysis.block_at(place.line)
    if block is None:
        return
    outermost = block
    while block is not None:
        known = chunk.types.types.get(block, {})
        for name, defined in reversed(block.names.items()):
            if defined < number:
                yield name, known.get(name)
        outermost, block = block, block.parent
    for name in chunk.reading.deferred_names:
        yield name, chunk.types.of(outermost, name)
    for name in place.analysis.states:
        yield name, place.analysis.states_type(name)


def names(target: CompletionTarget, wanted: Iterable[str], after: str = "") -> Iterator[types.CompletionItem]:
    """Yield these values in this order, regardless of scope."""
    if target.sigil == "@":
        return
    for order, name in enumerate(wanted):
        known = target.place.analysis.type_of(target.place.line, name)
        yield target.value(name, known, after=after, order=order)


def conditions(target: CompletionTarget) -> Iterator[types.CompletionItem]:
    """Yield parts of a breakpoint condition on the line: values, functions, whole conditions."""
    spell = target.place.spell
    visible = [f"%{spell(name)}" for name, _ in islice(_visible(target.place), MOST_VALUES)]
    whole = [text.format(name) for name in visible[:_NEAREST] for text in _CONDITIONS]
    groups = (
        (visible, _Kind.Variable, "value"),
        (whole, _Kind.Value, "condition"),
        (["$iter"], _Kind.Variable, "the number of the iteration"),
        ([f"{name}(" for name in FUNCTIONS], _Kind.Function, "function"),
    )
    for rank, (texts, kind, detail) in enumerate(groups):
        for order, text in enumerate(texts):
            found = target.item(text, kind, detail, rank=rank, order=order)
            # Replaces all of the typed text, the sigil included.
            found.filter_text = text
            yield found


def tracked(target: CompletionTarget) -> Iterator[types.CompletionItem]:
    """Yield the values that a ``track`` line may read, those of its own graph first, and the functions."""
    analysis, line = target.place.analysis, target.place.line
    found: dict[str, Type | None] = {}
    for chunk in analysis.tracked_graphs(line):
        if chunk.block is not None:
            known = chunk.types.types.get(chunk.block, {})
            found = {**{name: known.get(name) for name in chunk.block.names}, **found}
    found |= {
        name: each for name, each in analysis.chunks[0].reading.state_types.items() if name not in found
    }
    for order, (name, type_) in enumerate(found.items()):
        yield target.value(name, type_, order=order)
    if not target.sigil:
        for order, (name, function) in enumerate(FUNCTIONS.items()):
            if name != "prev" and name not in DERIVATIVES:
                yield target.item(
                    name, _Kind.Function, function.help, rank=1, order=order, snippet=f"{name}($0)"
                )


def missing(target: CompletionTarget) -> Iterator[types.CompletionItem]:
    """Yield ``_`` for an optional operand."""
    if not target.sigil:
        yield target.item("_", _Kind.Keyword, "not given", rank=3)


# -- statements ------------------------------------------------------------------------------------

_SNIPPETS = {
    "if": "if %${1:c} @${2:then} {\n  yield $3\n} else @${4:other} {\n  yield $5\n} -> ($0)",
    "while": "while @${1:body} (%${2:s} = %${3:x}) times ${4:10} {\n  next %$2 = %$0\n} -> (%${5:y} = %$2)",
    "graph": "graph @${1:main}($2) -> ($3) {\n  $0\n  return \n}",
    "store": 'store "$1"',
    "track": "track $1 = $0",
    "prefix": 'prefix $1 "$2"',
    "stream": 'stream s$1 "$2"',
    "loc": 'loc("$1":$2)',
}
_WORDS = {
    "graph": "a graph",
    "opset": "the version of a domain's operators",
    "store": "a file with the tensors of data(...)",
    "prefix": "a prefix that names share: %label::rest",
    "stream": "the device of a stream of a schedule",
    "host": "the host executes this line",
    "wait": "events to wait for",
    "begin": "streams that wait for this one",
    "workspace": "scratch memory, by name",
    "record": "events to record",
    "free": "values whose memory is given back",
    "track": "a number of each step: track NAME = EXPR",
    "if": "two branches",
    "while": "a loop",
    "break unless": "leave the loop unless a bool is true",
    "unless": "condition under which the loop continues",
    "else": "the second branch",
    "count": "value that counts the iterations, from 0",
    "times": "maximum number of iterations",
    "collect": "values stacked, one per iteration",
    "loc": "source position in the user's model",
}


def keywords(target: CompletionTarget, words: Sequence[str]) -> Iterator[types.CompletionItem]:
    """Yield keywords that are valid here."""
    if target.sigil:
        return
    for order, word in enumerate(words):
        yield target.item(word, _Kind.Keyword, _WORDS[word], rank=3, order=order, snippet=_SNIPPETS.get(word))


def endings(target: CompletionTarget, word: str, block: Block) -> Iterator[types.CompletionItem]:
    """Yield the last line of a block, with the known values."""
    text = word
    if word == "return":
        spell = target.place.spell
        values = [f"%{spell(value.name)}" for value in block.outputs]
        if block.listed is not None and block.listed.outputs is not None:
            values.append(ELLIPSIS)
        text = f"{word} {', '.join(values)}".rstrip()
    yield target.item(text, _Kind.Keyword, "the last line of the block", rank=2)


def operations(target: CompletionTarget, *, constants: bool = True) -> Iterator[types.CompletionItem]:
    """Yield the right-hand sides of a statement: graph calls, ops, and constants where allowed."""
    analysis = target.place.analysis
    if target.sigil == "%":
        return
    for order, name in enumerate(analysis.graphs):
        found = signature(analysis, f"@{name}")
        if found is not None and analysis.chunk_at(target.place.line).name != name:
            text = f"@{name_text(name)}"
            yield target.item(
                text, _Kind.Function, label(found), rank=1, order=order, snippet=f"{_escaped(text)}($0)"
            )
    if target.sigil:
        return
    if constants:
        yield target.item("data", _Kind.Keyword, "a constant in a store", rank=3, snippet='data("$1")')
    for order, name in enumerate(op_names(frozenset(analysis.opsets.items()))):
        version = version_of(name, analysis.opsets)
        data = {"op": name, "domain": split(name)[0], "version": version}
        text = op_text(name)
        yield target.item(
            text,
            _Kind.Method,
            _op_label(name, version),
            rank=4,
            order=order,
            snippet=f"{_escaped(text)}($0)",
            data=data,
        )


@lru_cache(maxsize=4096)
def _op_label(name: str, version: int) -> str:
    found = op_signature(name, version)
    assert found is not None  # op_names lists only ops that have one
    inputs, outputs = (", ".join(f.text() for f in formals) for formals in (found.inputs, found.outputs))
    return f"({inputs}) -> ({outputs})"


def _escaped(text: str) -> str:
    """Escape the snippet syntax in a text."""
    return re.sub(r"([\\$}])", r"\\\1", text)


def dtypes(target: CompletionTarget) -> Iterator[types.CompletionItem]:
    """Yield element types, for use after a colon."""
    if target.sigil:
        return
    for order, name in enumerate(NUMPY):
        yield target.item(
            name, _Kind.TypeParameter, str(NUMPY[name]), rank=3, order=order, snippet=f"{name}[$0]"
        )
    for name in ("seq", "opt"):
        yield target.item(name, _Kind.TypeParameter, "of another type", rank=4, snippet=f"{name}($0)")


# -- attributes ------------------------------------------------------------------------------------


def attributes(
    target: CompletionTarget, found: OpSignature, call: OpenCall
) -> Iterator[types.CompletionItem]:
    """Yield the attributes not yet written, required ones first."""
    analysis = target.place.analysis
    version = version_of(found.name, analysis.opsets)
    follows = target.text[target.span.end :].lstrip()[:1]
    op = {"op": found.name, "domain": split(found.name)[0], "version": version}
    for order, attribute in enumerate(found.attributes):
        if attribute.name in call.attributes - {call.key}:
            continue
        text = key_text(attribute.name)
        data = op | {"attribute": attribute.name}
        yield target.item(
            text if follows == "=" else f"{text}=",
            _Kind.Property,
            _attribute_detail(attribute),
            rank=1 if attribute.required else 3,
            order=order,
            shown=text,
            data=data,
        )


def _attribute_detail(attribute: AttributeFormal) -> str:
    if attribute.default is not None and not attribute.required:
        return f"{attribute.kind} = {attribute.default}"
    return f"{attribute.kind}, {'required' if attribute.required else 'optional'}".removeprefix(", ")


def attribute_values(
    target: CompletionTarget, call: OpenCall, analysis: Analysis, line: int
) -> Iterator[types.CompletionItem]:
    """Yield values of the attribute before the cursor, its default first."""
    found = signature(analysis, call.name)
    attribute = found.attribute(call.attribute or "") if found is not None else None
    if attribute is None or target.sigil:
        return
    offered: dict[str, str] = {}
    if attribute.default is not None:
        offered[attribute.default] = "the default"
    if attribute.kind == "STRING":
        # The words in ONNX's description are the only place that contains the values.
        words = dict.fromkeys(match[1] or match[2] for match in _quoted.finditer(attribute.doc))
        values = (quote(word) for word in words if len(word) > 1 and word not in (attribute.name, "ONNX"))
        offered.update((value, "") for value in values if value not in offered)
    elif attribute.kind == "INT":
        offered = {**offered, **_integers(attribute, call, analysis, line)}
    for order, (text, detail) in enumerate(offered.items()):
        yield target.item(text, _Kind.EnumMember, detail or None, rank=0, order=order)


_quoted = re.compile(r"[`'\"]+([A-Za-z_][A-Za-z0-9_]*)[`'\"]+|\b([A-Z][A-Z_]{3,})\b")


def _integers(attribute: AttributeFormal, call: OpenCall, analysis: Analysis, line: int) -> dict[str, str]:
    """Map values to labels: element types by number, axes of the first operand, switch values."""
    if attribute.name in ("to", "dtype") or attribute.name.endswith("_dtype"):
        return {str(number): name for name, number in ONNX.items()}
    if attribute.name == "axis":
        known = analysis.type_of(line, call.values[0]) if 0 in call.values else None
        if isinstance(known, TensorType) and known.shape is not None:
            return {str(i): f"of size {'?' if d is None else d}" for i, d in enumerate(known.shape)} | {
                "-1": "the last"
            }
    if attribute.default in ("0", "1"):
        other = "1" if attribute.default == "0" else "0"
        return {other: ""}
    return {}


# -- completion ------------------------------------------------------------------------------------

_BOOL = Formal("condition", dtypes=frozenset({"bool"}))
_INTEGER = Formal("times", dtypes=frozenset({"i64"}))
_ANY = Formal("")

_rest_of_word = re.compile(r"(?:[A-Za-z0-9_/.$]|::)*").match
_rest_of_string = re.compile(r'[^",()\\]*"').match
"""The rest of a word right of the cursor is replaced too."""

_WORD_KINDS = frozenset({"word", "op", "keyword", "attribute", "value", "graph", "label"})


def register(server: NncServer) -> None:
    """Register completion; documentation is sent when an item is selected."""
    options = types.CompletionOptions(
        trigger_characters=["%", "@", "(", "=", ":", '"', ",", "."], resolve_provider=True
    )

    def completion(place: Place, _: types.CompletionParams) -> types.CompletionList:
        text = server.client_capabilities.text_document
        item = text.completion.completion_item if text is not None and text.completion is not None else None
        return completions(place, snippets=bool(item is not None and item.snippet_support))

    server.on_place(types.TEXT_DOCUMENT_COMPLETION, completion, options=options)
    server.feature(types.COMPLETION_ITEM_RESOLVE)(resolved)


def resolved(item: types.CompletionItem) -> types.CompletionItem:
    """Return the item with the documentation of its op or attribute."""
    data = item.data if isinstance(item.data, Mapping) else {}
    op, domain, version = data.get("op"), data.get("domain"), data.get("version")
    if isinstance(op, str) and isinstance(domain, str) and isinstance(version, int):
        opsets = {domain: version}
        attribute = data.get("attribute")
        text = (
            attribute_markdown(op, attribute, opsets)
            if isinstance(attribute, str)
            else op_markdown(op, opsets)
        )
        if text is not None:
            item.documentation = types.MarkupContent(types.MarkupKind.Markdown, text)
    return item


def completions(place: Place, *, snippets: bool = False) -> types.CompletionList:
    """Return the items for a cursor; the list is marked incomplete if values were cut off."""
    text = place.text
    before = list(tokens(text[: place.column], place.analysis.prefixes_at(place.line)))
    current = before[-1] if before and before[-1].end == place.column else None
    if current is not None and current.kind in ("comment", "type", "number"):
        return types.CompletionList(False, [])
    if current is not None and current.kind in (*_WORD_KINDS, "string"):
        before.pop()
    else:
        current = None
    offer = _Offer(place, snippets, before, current)
    found = list(offer.items())
    return types.CompletionList(offer.cut, found)


class _Offer(CompletionTarget):
    """The completion at one cursor, by the tokens before it."""

    def last(self) -> str:
        """Return the token left of the one being typed."""
        return self.before[-1].name if self.before else ""

    def items(self) -> Iterator[types.CompletionItem]:
        analysis, line = self.place.analysis, self.place.line
        call = open_call(self.text, self.place.column, analysis.prefixes_at(line))
        if self.place.column == 0 and self.text.strip() and analysis.block_at(line) is not None:
            # No statement starts at column 0: VS Code completes conditions and log messages there.
            yield from conditions(self)
            return
        if kind_of_line(self.text) == "track" and any(t.name == "=" for t in self.before):
            yield from tracked(self)
            return
        if self.current is not None and self.current.kind == "string":
            if call is not None and call.attribute is not None:
                yield from attribute_values(self, call, analysis, line)
            return
        if any(token.name == "|" and token.kind == "operator" for token in self.before):
            if self.last() != "->":
                yield from keywords(self, MARGIN_WORDS)
                return
            for order, (number, device) in enumerate(sorted(analysis.streams.items())):
                detail = f"stream s{number}, {device}"
                yield self.item(str(number), _Kind.Constant, detail, rank=1, order=order)
            return
        if self.last() == ":" and not any(t.name == "loc" for t in self.before):
            yield from dtypes(self)
        elif call is not None:
            yield from self.argument(call)
        elif analysis.block_at(line) is None and kind_of_line(self.text) != "graph":
            if not self.before:
                more = ("track",) if analysis.tracked_graphs(line) else ()
                yield from keywords(self, ("graph", "opset", "store", "prefix", "stream", *more))
        else:
            yield from self.by_line()

    def argument(self, call: OpenCall) -> Iterator[types.CompletionItem]:
        """Offer an operand, an attribute name or an attribute value."""
        analysis, line = self.place.analysis, self.place.line
        found = signature(analysis, call.name)
        if call.attribute is not None:
            yield from attribute_values(self, call, analysis, line)
            return
        formal = found.operand(call.argument) if found is not None else _ANY
        bound = bound_variables(call, found, analysis, line) if found is not None else {}
        if formal is not None and not call.named:
            yield from values(self, formal, bound)
            if formal.optional:
                yield from missing(self)
        if found is not None and not self.sigil:
            yield from attributes(self, found, call)

    def by_line(self) -> Iterator[types.CompletionItem]:
        """Offer items outside of a call, as determined by the first word of the line."""
        kind = kind_of_line(self.text) if self.before else ""
        if kind in ("if", "while", "break"):
            yield from self.header(kind)
        elif kind in ("next", "yield", "return"):
            yield from self.end(kind)
        elif kind == "}":
            yield from self.close()
        elif not self.before:
            yield from self.statement()
        elif self.last() == "=" and not any(t.name == "(" for t in self.before):
            yield from operations(self)
        elif self.last() == ")" and not any(t.name == "loc" for t in self.before):
            yield from keywords(self, ("loc",))

    def statement(self) -> Iterator[types.CompletionItem]:
        """Offer the first word of a statement, except names, which would be new definitions."""
        block = self.place.analysis.block_at(self.place.line)
        if self.sigil == "%" or block is None:
            return
        if not self.sigil:
            end = ENDS.get(block.kind)
            if end is not None:
                yield from endings(self, end, block)
            words = ("if", "while", "break unless") if block.kind == "body" else ("if", "while")
            yield from keywords(self, words)
        yield from operations(self, constants=False)

    def header(self, kind: str) -> Iterator[types.CompletionItem]:
        """Complete the header of an ``if`` or ``while``, or a ``break``.

        For example, ``if %c @then {``, ``while @body (%s: T = %first) count %i times %n {`` or ``break
        unless %go``.
        """
        last = self.last()
        if kind == "if":
            if len(self.before) == 1:
                yield from values(self, _BOOL, {})
        elif kind == "break":
            if last == "unless":
                yield from values(self, _BOOL, {})
            elif last == "break":
                yield from keywords(self, ("unless",))
        elif last == "times":
            yield from values(self, _INTEGER, {})
        elif last == "=":
            yield from values(self, self.carried_formal(), {})
        elif last == ")":
            yield from keywords(self, ("count", "times"))
        elif last not in ("(", ",", "count", "while", "{") and not self.sigil:
            yield from keywords(self, ("times",))

    def carried_formal(self) -> Formal:
        """Return the formal of an initial carried value: its written type."""
        written = next((t for t in reversed(self.before) if t.kind == "type"), None)
        named = self.before[-2].kind == "type" if len(self.before) > 1 else False
        if written is None or not named:
            return _ANY
        return Formal("", dtypes=frozenset({self.text[written.start : written.end].split("[")[0]}))

    def end(self, kind: str) -> Iterator[types.CompletionItem]:
        """Complete the last line of a block."""
        block = self.place.analysis.block_at(self.place.line)
        if block is None:
            return
        if kind == "return":
            position = sum(token.name == "," for token in self.before)
            wanted = block.outputs[position : position + 1]
            yield from names(self, (value.name for value in wanted))
        elif kind == "yield":
            yield from values(self, _ANY, {})
        elif self.last() == "=":
            yield from values(self, self.next_formal(), {})
        elif any(token.name == "collect" for token in self.before):
            yield from values(self, _ANY, {})
        elif self.last() in ("next", ","):
            given = {t.name for t in self.before if t.kind == "value"}
            carried = (value.name for value in block.inputs[1:] if value.name not in given)
            yield from names(self, carried, " = ")
        if kind == "next" and self.before[-1].kind == "value" and not self.sigil:
            yield from keywords(self, ("collect",))

    def next_formal(self) -> Formal:
        """Return the formal of a next carried value: the same type."""
        carried = self.before[-2] if len(self.before) > 1 else None
        known = self.place.analysis.type_of(self.place.line, carried.name) if carried is not None else None
        return Formal("", dtypes=frozenset({known.dtype})) if isinstance(known, TensorType) else _ANY

    def close(self) -> Iterator[types.CompletionItem]:
        """Complete ``} else {`` or ``} -> (%y = %s)``."""
        chunk = self.place.analysis.chunk_at(self.place.line)
        block = chunk.reading.blocks[self.place.line - chunk.start]
        if block is None or self.sigil == "@":
            return
        if self.last() == "}" and block.kind == "then":
            yield from keywords(self, ("else",))
        elif self.last() == "=" and block.kind == "body":
            carried = block.inputs[1:]
            yield from names(self, (value.name for value in carried))
            if not self.sigil:
                collected: tuple[Value, ...] = (block.results or ())[len(carried) :]
                for index, value in enumerate(collected):
                    yield self.item(
                        f"collect[{index}]",
                        types.CompletionItemKind.Field,
                        f"%{name_text(value.name)}, stacked",
                    )
