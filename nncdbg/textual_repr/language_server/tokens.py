"""Tokens of one line, valid or not, the value names in it, and the records of the document model.

The parser determines the meaning of a line; this module finds positions, even in an incomplete line.
Lines and columns are 0-based, columns count code points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from nncdbg.dtypes import NUMPY
from nncdbg.ir.records import Type
from nncdbg.text.lexemes import BARE, NO_PREFIXES, OP, PREFIX_END, RESERVED, STRING, Flaw, Prefixes
from nncdbg.textual_repr.resolution import Block
from nncdbg.textual_repr.statement_lines import salvaged

# -- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The characters `start` to `end` (exclusive) of a line."""

    line: int
    start: int
    end: int


def whole_line(text: str, line: int) -> Span:
    """Return the span of the text of a line, without the blanks around it."""
    return Span(line, len(text) - len(text.lstrip()), len(text.rstrip()))


class Token(NamedTuple):
    """A token of one line; `kind` is its grammatical category, as far as the line alone determines it.

    `name` is the name without quotes and sigil, for a value, graph, label, op, attribute or string.
    """

    kind: Kind
    start: int
    end: int
    name: str = ""


Kind = Literal[
    "comment",
    "value",
    "graph",
    "label",
    "type",
    "string",
    "number",
    "keyword",
    "op",
    "attribute",
    "operator",
    "word",
]


class Mention(NamedTuple):
    """A value name in a line.

    `scope` is the block of the name: the block around the line (``here``), the block that the line opens
    (``inner``), or the block that it closes (``closed``; ``here`` is then the block around that one).
    """

    name: str
    start: int
    end: int
    defines: bool
    scope: Literal["here", "inner", "closed"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A diagnostic: `code` is a word such as ``undefined``; `related` are other spans with messages.

    `unknown` is an unknown op; for the first ones in a text, the hint is the nearest name.
    """

    span: Span
    message: str
    code: str
    severity: Severity = "error"
    hint: str | None = None
    related: tuple[tuple[Span, str], ...] = ()
    unknown: str | None = None


def problem_of(flaw: Flaw, line: int, related: tuple[tuple[Span, str], ...] = ()) -> Problem:
    """Return the diagnostic of a flaw of a line."""
    span = Span(line, flaw.start, flaw.start + max(1, flaw.width))
    return Problem(span, flaw.message, flaw.code, hint=flaw.hint, related=related)


Severity = Literal["error", "warning", "information", "hint"]

Role = Literal["input", "constant", "result", "carried", "counter"]


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a value at `span`, in the scope of `block`.

    `role` is an input of a graph, a constant, a result of a statement (an op, a call, an ``if`` or a
    ``while``), a loop-carried value, or a loop counter. `written` is the type in the text, `type` the
    inferred type.
    """

    name: str
    block: Block
    span: Span
    role: Role
    written: Type | None
    type: Type | None


# -- tokens ----------------------------------------------------------------------------------------

_DTYPES = "|".join(sorted(NUMPY, key=len, reverse=True))
_OPEN_STRING = r'"(?:[^"\\]|\\.)*"?'
_TENSOR = rf'(?:{_DTYPES})\[(?:[^\[\]"=%@]|{STRING})*\]'
_SEQUENCE = rf"(?:seq|opt)\(\s*{_TENSOR}\s*\)"
_TYPE = rf"(?:seq|opt)\(\s*{_SEQUENCE}\s*\)|{_SEQUENCE}|{_TENSOR}"
_PREFIXED = rf"{OP}{PREFIX_END}(?:{BARE}|{_OPEN_STRING})?"
_pieces = re.compile(
    rf"(?P<comment>#.*)"
    rf"|%(?P<value>{_PREFIXED}|{BARE}|{_OPEN_STRING})?"
    rf"|@(?P<graph>{BARE}|{_OPEN_STRING})?"
    rf"|(?P<type>{_TYPE})"
    rf"|(?P<string>b?{_OPEN_STRING}|{_PREFIXED})"
    rf"|(?P<number>nan:0x[0-9a-fA-F]+|-?(?:[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+|inf\b)(?::f64)?|nan\b)"
    rf"|(?P<word>{OP})"
    r"|(?P<operator>->|[^\s\w])"
)
_BY_PLACE = frozenset({"graph", "word", "string", "keyword"})
"""Token kinds that may change with the surrounding tokens."""
_KEYWORDS = RESERVED - {"nan", "inf", "b"}
_BLOCK_LINES = {"graph", "if", "while", "break", "next", "yield", "return", "}"}
_LINES = _BLOCK_LINES | {
    "update",
    "state",
    "states",
    "group",
    "run",
    "evaluate",
    "track",
    "backward",
    "opset",
    "store",
    "prefix",
    "stream",
}
"""The first words of the kinds of lines."""
_ONLY_USES = frozenset(
    ["if", "break", "yield", "return", "next", "update", "run", "evaluate", "track", "backward"]
)
"""The kinds of lines that define no value."""
_DEFINING = frozenset({"state", "states", "group", "grads"})
"""The first words of lines that define the names before their ``=``."""
MARGIN_WORDS = ("host", "wait", "begin", "workspace", "record", "free")
"""The words of the margin of a schedule, such as ``| s2 wait e5 record e9``."""
_stream = re.compile(r"(?<!\S)s([0-9]{1,9})(?:\s*->\s*([0-9]{1,9}))?(?!\S)")
_first_word = re.compile(r"\s*([a-z]+|\})").match


def tokens(text: str, prefixes: Prefixes = NO_PREFIXES) -> tuple[Token, ...]:
    """Return the tokens of a line, left to right; names are only expanded with the `prefixes` of the text."""
    return _tokens(text, prefixes)


@lru_cache(maxsize=1 << 15)
def _tokens(text: str, prefixes: Prefixes) -> tuple[Token, ...]:
    found = [_token(match, prefixes) for match in _pieces.finditer(text)]
    first = found[0].name if found and found[0].kind == "keyword" else ""
    header = first == "graph"
    for at, token in enumerate(found):
        # A track is an expression: its words are functions and parameters, not ops.
        if token.kind in _BY_PLACE and first != "track":
            following = found[at + 1].name if at + 1 < len(found) and found[at + 1].kind == "operator" else ""
            kind = _kind_by_place(token, found[at - 1] if at else None, following, header)
            found[at] = token._replace(kind=kind) if kind != token.kind else token
    margin = next((at for at, token in enumerate(found) if _begins_margin(token)), len(found))
    for at in range(margin, len(found) if first != "track" else 0):
        # The words of a margin are keywords, its streams and events numbers.
        token = found[at]
        if token.kind in _BY_PLACE and token.name in MARGIN_WORDS:
            found[at] = token._replace(kind="keyword")
        elif token.kind in _BY_PLACE and re.fullmatch(r"[se][0-9]+", token.name):
            found[at] = token._replace(kind="number")
    return tuple(found)


def _begins_margin(token: Token) -> bool:
    return token.name == "|" and token.kind == "operator"


def stream_at(text: str, column: int) -> tuple[int | None, int] | None:
    """Return the logical number (None without one) and the number of the stream of a margin at a column."""
    margin = next((token.end for token in tokens(text) if _begins_margin(token)), None)
    if margin is not None:
        for match in _stream.finditer(text, margin):
            if match.start() <= column < match.end():
                first, second = match.groups()
                return (None, int(first)) if second is None else (int(first), int(second))
    return None


def _token(match: re.Match[str], prefixes: Prefixes) -> Token:
    kind: Any = match.lastgroup
    start, end = match.span()
    if kind is None:  # a lone sigil
        return Token("value" if match[0] == "%" else "graph", start, end)
    name = match[kind]
    if kind == "word" and name in _KEYWORDS:
        kind = "keyword"
    elif kind in ("value", "graph") or (kind == "string" and name[0] != "b"):
        closed = _closed(name)
        found = prefixes.find(closed)
        name = salvaged(closed) if found is None else found
    return Token(kind, start, end, name)


def _closed(spelled: str) -> str:
    """Return a quoted name, with a closing quote if the line omits it."""
    if not spelled.startswith('"') or (len(spelled) > 1 and re.fullmatch(STRING, spelled)):
        return spelled
    return spelled + '"'


def _kind_by_place(token: Token, before: Token | None, following: str, header: bool) -> Kind:
    if token.kind == "graph":
        labels = before and before.kind == "keyword" and before.name in ("if", "else", "while")
        return "graph" if following == "(" and (header or not labels) else "label"
    word = before.name if before is not None else "="
    if token.kind in ("word", "string") and following == "=" and word in ("(", ","):
        return "attribute"
    if token.kind in ("word", "string", "keyword") and following == "(" and word == "=":
        own = token.kind != "string" and token.name in ("data", "type", "if", "while", "graph", "loc")
        return token.kind if own else "op"
    return token.kind


def kind_of_line(text: str) -> str:
    """Return ``graph``, ``if``, ``while``, ``break``, ``next``, ``yield``, ``return``, ``}``, or ""."""
    match = _first_word(text)
    word = match[1] if match else ""
    return word if word in _LINES else ""


def type_after(found: Sequence[Token], at: int) -> Token | None:
    """Return the type of the definition at token `at`; None if none is written."""
    typed = at + 2 < len(found) and found[at + 1].name == ":" and found[at + 2].kind == "type"
    return found[at + 2] if typed else None


@lru_cache(maxsize=1 << 15)
def mentions(text: str, prefixes: Prefixes) -> tuple[Mention, ...]:
    """Return the values that a line names, left to right; `prefixes` are those of its text."""
    kind = kind_of_line(text)
    found = tokens(text, prefixes)
    if kind == "graph":
        return tuple(_header_mentions(found))
    if kind == "while":
        return tuple(_loop_mentions(found))
    if kind == "}":
        return tuple(_result_mentions(found))
    if kind in _ONLY_USES:
        return tuple(_mention(t, False) for t in found if t.kind == "value")
    return tuple(_statement_mentions(found))


def _mention(token: Token, defines: bool, scope: str = "here") -> Mention:
    return Mention(token.name, token.start, token.end, defines, scope)  # type: ignore[arg-type]


def _header_mentions(found: tuple[Token, ...]) -> Iterator[Mention]:
    """Yield inputs as definitions and outputs as uses of values of the graph."""
    defines = True
    for token in found:
        if token.name == "->":
            defines = False
        elif token.kind == "value":
            yield _mention(token, defines, "inner")


def _loop_mentions(found: tuple[Token, ...]) -> Iterator[Mention]:
    """Yield the mentions in ``(%s: T = %outer)``, ``count %i``, ``times %n``."""
    before = ""
    for token in found:
        if token.kind == "value":
            inner = before in ("(", ",", "count")
            yield _mention(token, inner, "inner" if inner else "here")
        if token.kind != "type" and token.name != ":":
            before = token.name if token.kind in ("operator", "keyword", "word") else ""


def _result_mentions(found: tuple[Token, ...]) -> Iterator[Mention]:
    """Yield the mentions in ``} -> (%y: T = %s)``: results are outer definitions, sources are in the body."""
    before = ""
    for token in found:
        if token.kind == "value":
            taken = before == "="
            yield _mention(token, not taken, "closed" if taken else "here")
        if token.kind == "operator":
            before = token.name


def _statement_mentions(found: tuple[Token, ...]) -> Iterator[Mention]:
    """Yield the mentions before the first ``=`` as definitions, if the line starts with a value."""
    first = found[1:2] if found and found[0].name in _DEFINING else found[:1]
    defines = any(token.kind == "value" or token.name == "_" for token in first)
    for token in found:
        if token.kind == "operator" and token.name in ("=", "("):
            defines = False
        elif token.kind == "value":
            yield _mention(token, defines)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The columns of an op's arguments: operands, and attributes from name to end."""

    operands: tuple[tuple[int, int], ...]
    attributes: dict[str, tuple[int, int]]
    names: dict[str, tuple[int, int]]
    """The attribute names alone."""


def arguments(text: str) -> Arguments:
    """Return the operands and attributes of the op, call or data on a line."""
    found = tokens(text)
    start = next((i for i, token in enumerate(found) if token.kind in ("op", "graph")), None)
    if start is None or start + 1 >= len(found) or found[start + 1].name != "(":
        return Arguments((), {}, {})
    operands: list[tuple[int, int]] = []
    attributes: dict[str, tuple[int, int]] = {}
    names: dict[str, tuple[int, int]] = {}
    parts, _, _ = split_arguments([token for token in found[start + 2 :] if token.kind != "comment"])
    for part in filter(None, parts):
        columns = part[0].start, part[-1].end
        if part[0].kind == "attribute":
            attributes[part[0].name] = columns
            names[part[0].name] = part[0].start, part[0].end
        else:
            operands.append(columns)
    return Arguments(tuple(operands), attributes, names)


def split_arguments(found: Sequence[Token]) -> tuple[list[list[Token]], list[int], Token | None]:
    """Split the outermost list at its commas; return its parts, the columns of the commas, and its ``)``."""
    depth = 0
    parts: list[list[Token]] = [[]]
    commas: list[int] = []
    for token in found:
        if token.kind == "operator":
            depth += (token.name in "([") - (token.name in ")]")
            if depth < 0:
                return parts, commas, token
            if depth == 0 and token.name == ",":
                parts.append([])
                commas.append(token.start)
                continue
        parts[-1].append(token)
    return parts, commas, None
