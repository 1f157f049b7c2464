"""Completion: the position determines the kind of items, and the best matches come first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from nncdbg.engine.ops.schema import Formal
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import TensorType, Value
from nncdbg.textual_repr.blocks import ENDS
from nncdbg.textual_repr.language_server.analysis.calls import bound_variables, open_call
from nncdbg.textual_repr.language_server.document.records import Span, Token
from nncdbg.textual_repr.language_server.document.tokens import MARGIN_WORDS, kind_of_line, tokens
from nncdbg.textual_repr.language_server.features import completion_items as items
from nncdbg.textual_repr.language_server.features.completion_items import CompletionTarget
from nncdbg.textual_repr.language_server.features.op_documentation import attribute_markdown, op_markdown
from nncdbg.textual_repr.language_server.features.signatures import signature

if TYPE_CHECKING:
    from nncdbg.textual_repr.language_server.server import NncServer, Place

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
        trigger_characters=["%", "@", "(", "=", ":", '"', ","], resolve_provider=True
    )

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, options)
    def completion(params: types.CompletionParams) -> types.CompletionList | None:
        place = server.place(params.text_document.uri, params.position, typing=True)
        return completions(place, snippets=_takes_snippets(server)) if place is not None else None

    @server.feature(types.COMPLETION_ITEM_RESOLVE)
    def resolve(item: types.CompletionItem) -> types.CompletionItem:
        return resolved(item)


def _takes_snippets(server: NncServer) -> bool:
    text = server.client_capabilities.text_document
    item = text.completion.completion_item if text is not None and text.completion is not None else None
    return bool(item is not None and item.snippet_support)


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
    text = place.document.lines[place.line]
    before = list(tokens(text[: place.column], place.analysis.prefixes))
    current = before[-1] if before and before[-1].end == place.column else None
    if current is not None and current.kind in ("comment", "type", "number"):
        return types.CompletionList(False, [])
    if current is not None and current.kind in (*_WORD_KINDS, "string"):
        before.pop()
    else:
        current = None
    return _Offer(place, text, before, current, snippets).list()


@dataclass(slots=True)
class _Offer:
    """The completion at one cursor: `current` is the token being typed, `before` those left of it."""

    place: Place
    text: str
    before: list[Token]
    current: Token | None
    snippets: bool

    @property
    def target(self) -> CompletionTarget:
        """Return the span that an accepted item replaces: the token, up to the end of its word."""
        column = self.place.column
        start = self.current.start if self.current is not None else column
        typed = self.text[start:column]
        rest = (_rest_of_string if '"' in typed else _rest_of_word)(self.text, column)
        end = rest.end() if rest is not None else column
        return CompletionTarget(self.place, Span(self.place.line, start, end), typed, self.snippets)

    def list(self) -> types.CompletionList:
        target = self.target
        found = list(self.items(target))
        return types.CompletionList(target.cut, found)

    def last(self) -> str:
        """Return the token left of the one being typed."""
        return self.before[-1].name if self.before else ""

    def items(self, target: CompletionTarget) -> Iterator[types.CompletionItem]:
        analysis, line = self.place.analysis, self.place.line
        call = open_call(self.text, self.place.column, analysis.prefixes)
        if self.place.column == 0 and self.text.strip() and analysis.block_at(line) is not None:
            # No statement starts at column 0: VS Code completes conditions and log messages there.
            yield from items.conditions(target)
            return
        if kind_of_line(self.text) == "track" and any(t.name == "=" for t in self.before):
            yield from items.tracked(target)
            return
        if self.current is not None and self.current.kind == "string":
            if call is not None and call.attribute is not None:
                yield from items.attribute_values(target, call, analysis, line)
            return
        if any(token.name == "|" and token.kind == "operator" for token in self.before):
            yield from (
                items.bound_streams(target) if self.last() == "->" else items.keywords(target, MARGIN_WORDS)
            )
            return
        if self.last() == ":" and not any(t.name == "loc" for t in self.before):
            yield from items.dtypes(target)
        elif call is not None:
            yield from self.argument(target)
        elif analysis.block_at(line) is None and kind_of_line(self.text) != "graph":
            if not self.before:
                more = ("track",) if analysis.tracked_graphs(line) else ()
                yield from items.keywords(target, ("graph", "opset", "store", "prefix", "stream", *more))
        else:
            yield from self.by_line(target)

    def argument(self, target: CompletionTarget) -> Iterator[types.CompletionItem]:
        """Offer an operand, an attribute name or an attribute value."""
        analysis, line = self.place.analysis, self.place.line
        call = open_call(self.text, self.place.column, analysis.prefixes)
        assert call is not None
        found = signature(analysis, call.name)
        if call.attribute is not None:
            yield from items.attribute_values(target, call, analysis, line)
            return
        formal = found.operand(call.argument) if found is not None else _ANY
        bound = bound_variables(call, found, analysis, line) if found is not None else {}
        if formal is not None and not call.named:
            yield from items.values(target, formal, bound)
            if formal.optional:
                yield from items.missing(target)
        if found is not None and not target.sigil:
            yield from items.attributes(target, found, call)

    def by_line(self, target: CompletionTarget) -> Iterator[types.CompletionItem]:
        """Offer items outside of a call, as determined by the first word of the line."""
        kind = kind_of_line(self.text) if self.before else ""
        if kind in ("if", "while", "break"):
            yield from self.header(target, kind)
        elif kind in ("next", "yield", "return"):
            yield from self.end(target, kind)
        elif kind == "}":
            yield from self.close(target)
        elif not self.before:
            yield from self.statement(target)
        elif self.last() == "=" and not any(t.name == "(" for t in self.before):
            yield from items.operations(target)
        elif self.last() == ")" and not any(t.name == "loc" for t in self.before):
            yield from items.keywords(target, ("loc",))

    def statement(self, target: CompletionTarget) -> Iterator[types.CompletionItem]:
        """Offer the first word of a statement, except names, which would be new definitions."""
        block = self.place.analysis.block_at(self.place.line)
        if target.sigil == "%" or block is None:
            return
        if not target.sigil:
            end = ENDS.get(block.kind)
            if end is not None:
                yield from items.endings(target, end, block)
            words = ("if", "while", "break unless") if block.kind == "body" else ("if", "while")
            yield from items.keywords(target, words)
        yield from items.operations(target, constants=False)

    def header(self, target: CompletionTarget, kind: str) -> Iterator[types.CompletionItem]:
        """Complete the header of an ``if`` or ``while``, or a ``break``.

        For example, ``if %c @then {``, ``while @body (%s: T = %first) count %i times %n {`` or ``break
        unless %go``.
        """
        last = self.last()
        if kind == "if":
            if len(self.before) == 1:
                yield from items.values(target, _BOOL, {})
        elif kind == "break":
            if last == "unless":
                yield from items.values(target, _BOOL, {})
            elif last == "break":
                yield from items.keywords(target, ("unless",))
        elif last == "times":
            yield from items.values(target, _INTEGER, {})
        elif last == "=":
            yield from items.values(target, self.carried_formal(), {})
        elif last == ")":
            yield from items.keywords(target, ("count", "times"))
        elif last not in ("(", ",", "count", "while", "{") and not target.sigil:
            yield from items.keywords(target, ("times",))

    def carried_formal(self) -> Formal:
        """Return the formal of an initial carried value: its written type."""
        written = next((t for t in reversed(self.before) if t.kind == "type"), None)
        named = self.before[-2].kind == "type" if len(self.before) > 1 else False
        if written is None or not named:
            return _ANY
        return Formal("", dtypes=frozenset({self.text[written.start : written.end].split("[")[0]}))

    def end(self, target: CompletionTarget, kind: str) -> Iterator[types.CompletionItem]:
        """Complete the last line of a block."""
        block = self.place.analysis.block_at(self.place.line)
        if block is None:
            return
        if kind == "return":
            position = sum(token.name == "," for token in self.before)
            wanted = block.outputs[position : position + 1]
            yield from items.names(target, (value.name for value in wanted))
        elif kind == "yield":
            yield from items.values(target, _ANY, {})
        elif self.last() == "=":
            yield from items.values(target, self.next_formal(), {})
        elif any(token.name == "collect" for token in self.before):
            yield from items.values(target, _ANY, {})
        elif self.last() in ("next", ","):
            given = {t.name for t in self.before if t.kind == "value"}
            carried = (value.name for value in block.inputs[1:] if value.name not in given)
            yield from items.names(target, carried, " = ")
        if kind == "next" and self.before[-1].kind == "value" and not target.sigil:
            yield from items.keywords(target, ("collect",))

    def next_formal(self) -> Formal:
        """Return the formal of a next carried value: the same type."""
        carried = self.before[-2] if len(self.before) > 1 else None
        known = self.place.analysis.type_of(self.place.line, carried.name) if carried is not None else None
        return Formal("", dtypes=frozenset({known.dtype})) if isinstance(known, TensorType) else _ANY

    def close(self, target: CompletionTarget) -> Iterator[types.CompletionItem]:
        """Complete ``} else {`` or ``} -> (%y = %s)``."""
        chunk = self.place.analysis.chunk_at(self.place.line)
        block = chunk.reading.blocks[self.place.line - chunk.start]
        if block is None or target.sigil == "@":
            return
        if self.last() == "}" and block.kind == "then":
            yield from items.keywords(target, ("else",))
        elif self.last() == "=" and block.kind == "body":
            carried = block.inputs[1:]
            yield from items.names(target, (value.name for value in carried))
            if not target.sigil:
                collected: tuple[Value, ...] = (block.results or ())[len(carried) :]
                for index, value in enumerate(collected):
                    yield target.item(
                        f"collect[{index}]",
                        types.CompletionItemKind.Field,
                        f"%{name_text(value.name)}, stacked",
                    )
