"""Shared prefixes of names: after `prefix rnn "/decoder/rnn/"`, `%rnn::Add_1` is `/decoder/rnn/Add_1`."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

from nncdbg.text.lexemes import PREFIX_END, PREFIXED, STRING, Flaw, name_text, quote, unquote

_in_line = re.compile(rf"(?P<sigil>%?)(?P<name>{PREFIXED})|%?{STRING}|#.*")


class UndeclaredPrefix(Exception):
    """A name uses a prefix label that the text does not declare."""


class Prefixes:
    """The prefixes of one text: `declared` maps labels to prefixes, in the order of the text.

    All of them are declared before the first name is read or written.
    """

    def __init__(self, declared: Mapping[str, str]) -> None:
        self.declared = dict(declared)
        self.full: Callable[[str], str] = cache(self._find_full)
        """Returns the name of `label::rest`; other texts are returned unchanged.

        Raises UndeclaredPrefix, or Flaw for a bad escape, with its place relative to the rest.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the declared prefixes for a copy, without its caches."""
        return Prefixes, (self.declared,)

    def find(self, spelled: str) -> str | None:
        """Return the name of `label::rest`; None for other texts and undeclared labels."""
        try:
            found = self.full(spelled)
        except (UndeclaredPrefix, Flaw):
            return None
        return found if found != spelled else None

    @cached_property
    def spell(self) -> Callable[[str], str]:
        """Return the function that writes a value's name, without sigil, after its longest prefix's label."""
        return cache(self._find_spelling) if self.declared else name_text

    def spell_string(self, text: str) -> str:
        """Return `text` with the label of its longest prefix, or as a quoted string without a prefix."""
        return self._find_prefixed(text) or quote(text)

    def full_line(self, line: str) -> str:
        """Return a line of the text with all names in full."""
        if not self.declared or PREFIX_END not in line:
            return line
        return _in_line.sub(self._written_in_full, line)

    def _written_in_full(self, match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        name = self.full(match["name"])
        return f"%{name_text(name)}" if match["sigil"] else quote(name)

    def _find_full(self, spelled: str) -> str:
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
        return self._find_prefixed(name) or name_text(name)

    def _find_prefixed(self, name: str) -> str:
        """Return the name as `label::rest` with its longest prefix and a nonempty rest; empty without one."""
        # The longest prefix is the last text before the name in sorted order, or a prefix of that text.
        near = bisect_left(self._texts, name) - 1
        text = self._texts[near] if near >= 0 else ""
        while text and not name.startswith(text):
            text = self._shorter[text]
        return f"{self._labels[text]}{PREFIX_END}{name_text(name[len(text) :])}" if text else ""

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
