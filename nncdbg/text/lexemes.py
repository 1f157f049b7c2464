"""The spelling of names, strings and numbers in program text, in both directions.

The printer and the reader share these spellings, so they always agree.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from nncdbg.ir.kinds import called_graph

BARE = r"[A-Za-z0-9_/$][A-Za-z0-9_/.$]*"
REST = r"[A-Za-z0-9_/.$]+"
LOCAL = rf"\.{REST}"
"""A name below the module of its graph: `%.mm` is `%layers.0.mm` in the graph `@layers.0`."""
WORD = r"[A-Za-z_][A-Za-z0-9_]*"
OP = r"[A-Za-z_][A-Za-z0-9_.]*"
STRING = r'"(?:[^"\\]|\\.)*"'
PREFIX_END = "::"
"""The separator between the label of a prefix and the rest of a name."""
PREFIXED = rf"{OP}{PREFIX_END}(?:{REST}|{STRING})"
ELLIPSIS = "..."
"""Stands for values that pass between graphs under their own names."""
TENSOR = rf"[A-Za-z]\w*\[(?:[^\]\"]|{STRING})*\]"

_WORDS = "graph if else while break unless next collect yield return data type loc true false nan inf b _"
RESERVED = frozenset(_WORDS.split()) | {
    "opset",
    "store",
    "prefix",
    "state",
    "states",
    "group",
    "update",
    "run",
    "evaluate",
    "track",
    "backward",
    "stream",
}
"""Reserved words; an op with such a name is quoted."""

_is_bare = re.compile(BARE).fullmatch
_is_rest = re.compile(REST).fullmatch
_is_op = re.compile(OP).fullmatch
_is_whole = re.compile(r"[+-]?[0-9]{1,18}").fullmatch


def integer_of(text: str) -> int | None:
    """Return a number of at most 18 digits, such as ``12`` or ``-3``; None for another text.

    Python refuses longer texts with an error of its own, and sizes and counts fit into 64 bits.
    """
    return int(text) if _is_whole(text) else None


@dataclass(eq=False)
class Flaw(Exception):
    """An error at character `start` of a line (0-based), `width` characters wide."""

    message: str
    start: int
    width: int = 1
    hint: str | None = None
    code: str = field(default="syntax", kw_only=True)
    """The code of the error, for an editor."""
    related: int | None = field(default=None, kw_only=True)
    """The related line, such as that of the first definition."""

    def __str__(self) -> str:
        return self.message


_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _escape(char: str) -> str:
    simple = _ESCAPES.get(char)
    if simple is not None:
        return simple
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_UNESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    '"': '"',
    "\\": "\\",
    "'": "'",
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
}
_escaped = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")


def quote(text: str) -> str:
    """Return `text` as a quoted string: printable characters unchanged, the rest as C escapes."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escape(c) for c in text) + '"'


def quote_bytes(data: bytes) -> str:
    """Return `data` as ``b"..."``: printable ASCII unchanged, other bytes as ``\\xNN``."""
    return 'b"' + "".join(_BYTES[byte] for byte in data) + '"'


_BYTES = [chr(b) if 0x20 <= b < 0x7F and chr(b) not in '"\\' else _escape(chr(b)) for b in range(256)]


def unquote(text: str, start: int = 0) -> str:
    """Return the string spelled by `text` with its quotes; `start` is its place in the line, for Flaw."""

    def plain(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is not None and int(digits, 16) <= 0x10FFFF:
            return chr(int(digits, 16))
        char = _UNESCAPES.get(match[4] or "")
        if char is None:
            raise Flaw(
                f"unknown escape {match[0]} in a string",
                start + 1 + match.start(),
                len(match[0]),
                'use the escapes \\n \\t \\r \\" \\\\ \\xNN \\uNNNN \\UNNNNNNNN',
            )
        return char

    body = text[1:-1]
    return _escaped.sub(plain, body) if "\\" in body else body


def name_text(name: str) -> str:
    """Return a value's or graph's name without its sigil, quoted if needed."""
    return name if isinstance(name, ElementName) or _is_bare(name) else quote(name)


class ElementName(str):
    """The name of an element of a sequence, as `print` takes it: ``x[0]``, ``"a b"[0]``."""

    def __new__(cls, name: str, index: int) -> ElementName:
        return super().__new__(cls, f"{name_text(name)}[{index}]")


def op_text(op: str) -> str:
    """Return an op's name as written before its parenthesis; ``@`` calls keep their sigil."""
    if (called := called_graph(op)) is not None:
        return "@" + name_text(called)
    return op if _is_op(op) and op not in RESERVED else quote(op)


def key_text(key: str) -> str:
    """Return the spelling of an attribute's name or an opset's domain."""
    return key if _is_op(key) else quote(key)


def nearest(word: str, words: object, sigil: str = "") -> str | None:
    """Return the hint ``did you mean ...?``, or None if no word is similar."""
    names = [str(name) for name in words]  # type: ignore[attr-defined]
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {sigil}{name_text(near[0]) if sigil else near[0]}?" if near else None


_in_line = re.compile(rf"(?P<sigil>%?)(?P<name>{PREFIXED})|%(?P<local>{LOCAL})|%?{STRING}|#.*")
_suffix = re.compile(r"(?:\.backward)?(?:\$[0-9]+)?\Z")


# -- prefixes --------------------------------------------------------------------------------------
# Names share prefixes: after `prefix rnn "/decoder/rnn/"`, `%rnn::Add_1` is `/decoder/rnn/Add_1`.


class UndeclaredPrefix(Exception):
    """A name uses a prefix label that the text does not declare."""


class Prefixes:
    """The prefixes of one text: `declared` maps labels to prefixes, in the order of the text.

    All of them are declared before the first name is read or written.
    """

    def __init__(self, declared: Mapping[str, str], graph: str = "") -> None:
        self.declared = dict(declared)
        self.module = _suffix.sub("", graph, count=1)
        """The module of the graph around the names, which `%.name` begins with; empty outside of graphs."""
        self.full: Callable[[str], str] = cache(self._find_full)
        """Returns the name of `label::rest` or `.rest`; other texts are returned unchanged.

        Raises UndeclaredPrefix, or Flaw for a bad escape, with its place relative to the rest.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the declared prefixes for a copy, without its caches."""
        return Prefixes, (self.declared, self.module)

    def within(self, graph: str) -> Prefixes:
        """Return the prefixes with the module of a graph, for the names in it."""
        return Prefixes(self.declared, graph)

    def find(self, spelled: str) -> str | None:
        """Return the name of `label::rest` or `.rest`; None for other texts and undeclared labels."""
        try:
            found = self.full(spelled)
        except (UndeclaredPrefix, Flaw):
            return None
        return found if found != spelled else None

    @cached_property
    def spell(self) -> Callable[[str], str]:
        """Return the function that writes a value's name, without sigil, after its longest prefix's label."""
        return cache(self._find_spelling) if self.declared or self.module else name_text

    def spell_string(self, text: str) -> str:
        """Return `text` with the label of its longest prefix, or as a quoted string without a prefix."""
        return self._find_prefixed(text) or quote(text)

    def full_line(self, line: str) -> str:
        """Return a line of the text with all names in full."""
        if not (self.declared and PREFIX_END in line) and not (self.module and "%." in line):
            return line
        return _in_line.sub(self._written_in_full, line)

    def _written_in_full(self, match: re.Match[str]) -> str:
        if match["local"] is not None:
            if not self.module:
                return match[0]
            return f"%{name_text(self.full(match['local']))}"
        if match["name"] is None:
            return match[0]
        name = self.full(match["name"])
        return f"%{name_text(name)}" if match["sigil"] else quote(name)

    def _find_full(self, spelled: str) -> str:
        if spelled[:1] == ".":
            if not self.module:
                raise UndeclaredPrefix
            return self.module + (spelled[1:] if spelled[1:2] == "/" else spelled)
        label, _, rest = spelled.partition(PREFIX_END)
        text = self.declared.get(label)
        if text is not None and rest and rest[0] != '"':
            return text + rest
        if not rest or spelled[0] == '"':
            return spelled
        if text is None:
            raise UndeclaredPrefix
        return text + unquote(rest)

    def _find_spelling(self, name: str) -> str:
        return self._find_local(name) or self._find_prefixed(name) or name_text(name)

    def _find_local(self, name: str) -> str:
        """Return the name as `.rest` if it is below the module and has no shorter spelling; else empty."""
        module = self.module
        if not module or not name.startswith(module) or name[len(module) : len(module) + 1] not in ("/", "."):
            return ""
        rest = name[len(module) :]
        spelled = f".{rest}" if rest[0] == "/" else rest
        if not _is_rest(spelled[1:]) or self.full(spelled) != name:
            return ""
        prefixed = self._find_prefixed(name)
        return spelled if not prefixed or len(spelled) <= len(prefixed) else ""

    def _find_prefixed(self, name: str) -> str:
        """Return the name as `label::rest` with its longest prefix and a nonempty rest; empty without one."""
        text = self._longest(name)
        if not text:
            return ""
        rest = name[len(text) :]
        return f"{self._labels[text]}{PREFIX_END}{rest if _is_rest(rest) else quote(rest)}"

    def _longest(self, name: str) -> str:
        """Return the longest prefix that a name has before a nonempty rest; empty without one."""
        # The longest prefix is the last text before the name in sorted order, or a prefix of that text.
        near = bisect_left(self._texts, name) - 1
        text = self._texts[near] if near >= 0 else ""
        while text and not name.startswith(text):
            text = self._shorter[text]
        return text

    @cached_property
    def _labels(self) -> dict[str, str]:
        return {text: label for label, text in self.declared.items()}

    @cached_property
    def _texts(self) -> list[str]:
        return sorted(self._labels)

    @cached_property
    def _shorter(self) -> dict[str, str]:
        """Return per prefix the longest other prefix that it begins with; empty if there is none."""
        found: dict[str, str] = {}
        before = ""
        for text in self._texts:
            while before and not text.startswith(before):
                before = found[before]
            found[text] = before
            before = text
        return found


NO_PREFIXES = Prefixes({})
