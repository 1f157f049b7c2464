"""The short names of values, and the names that match a short name, a suffix or a part of a name.

Exported models name values by their path: `/model/decoder/layers.3/self_attn/MatMul_1_output_0`.
Every screen shows the end of such a path (`self_attn/MatMul_1_output_0`), the shortest that no other value of
the program has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TypeAlias

from nncdbg.ir.names import all_defined, defined
from nncdbg.ir.records import Program
from nncdbg.ir.walk import block_at
from nncdbg.text.lexemes import BARE, name_text

_Test: TypeAlias = Callable[[str], bool]

ELLIPSIS = "…"

LONG = 24
"""Names longer than this, in characters, are shortened."""

_PART = 3
"""Minimum length of a text that can match anywhere in a name."""

_LISTED = 6
"""Maximum number of names listed in an error about an ambiguous text."""

_component = re.compile(r"(?:[/:|.]|__)+(?=[^\d/:|.])")
"""The boundary after a component of a path; `layers.3` is one component."""
_folder = re.compile(rf".*{_component.pattern}", re.DOTALL)
_bare = re.compile(BARE)
_word = re.compile(r"[^A-Za-z0-9]+(?=[A-Za-z])")
_elision = re.compile(r"…|\.\.\.")


class ShortNames:
    """Some names, each with the short name by which every screen shows it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: Sequence[str] = tuple(dict.fromkeys(name for name in names if name))
        self._short: dict[str, str] = {}
        self._known = frozenset(self.names)

    def has(self, name: str) -> bool:
        """Return whether the name is one of the names."""
        return name in self._known

    def short(self, name: str) -> str:
        """Return a long name's shortest end that no other name has; any other name unchanged."""
        found = self._short.get(name)
        if found is None:
            found = self._short[name] = self._find_short(name)
        return found

    def at(self, text: str, start: int) -> str | None:
        """Return the longest name that begins at `start` of an unquoted text; None without one.

        A message may contain a name that program text would quote, such as `conv:0`.
        """
        run = _bare.match(text, start)
        end = run.end() if run is not None else start
        for name in (text[start:end], text[start:end].rstrip(".")):
            if name in self._known:
                return name
        for longer in range(min(len(text), start + self._longest), end, -1):
            if text[start:longer] in self._known and _bare.match(text, longer) is None:
                return text[start:longer]
        return None

    def spelled(self, name: str) -> str:
        """Return the short name with its sigil, quoted if it is not a bare name."""
        return f"%{name_text(self.short(name))}"

    def _find_short(self, name: str) -> str:
        if len(name) <= LONG or name not in self._known or _elision.search(name):
            return name
        ends = [end for end in _ends(name, _component) if self._by_component[end] <= 1]
        if ends[-1] == name:
            ends += [end for end in _ends(name, _word) if self._by_word[end] <= 1]
        return ends[-1]

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.names), default=0)

    @cached_property
    def _by_component(self) -> Counter[str]:
        return Counter(end for name in self.names for end in _ends(name, _component))

    @cached_property
    def _by_word(self) -> Counter[str]:
        return Counter(end for name in self.names for end in _ends(name, _word))


class FullNames(ShortNames):
    """Some names, for a screen that shortens none."""

    def _find_short(self, name: str) -> str:
        return name


class ProgramNames(ShortNames):
    """The names of all values of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        states = (state.value for state in program.states)
        super().__init__(value.name for value in (*states, *all_defined(program)))
        self._visible: dict[tuple[str | int, ...], Sequence[str]] = {}

    def visible(self, path: tuple[str | int, ...]) -> Sequence[str]:
        """Return the names visible in the block at `path`: its own, and those of enclosing blocks."""
        found = self._visible.get(path)
        if found is None:
            found = self._visible[path] = tuple(dict.fromkeys(filter(None, self._find_visible(path))))
        return found

    def _find_visible(self, path: tuple[str | int, ...]) -> Iterator[str]:
        if str(path[0]) not in self._program.graphs:
            # The lines of states and runs, which the program runs in another form or not at all.
            yield from (state.value.name for state in self._program.states)
            return
        for end in range(1, len(path) + 1, 2):
            yield from (value.name for value in defined(block_at(self._program, path[:end])))


NO_NAMES = ShortNames(())


def names_of(program: Program) -> ProgramNames:
    """Return the names of a program, which are found once."""
    if "names" not in program.kept:
        program.kept["names"] = ProgramNames(program)
    return program.kept["names"]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Scopes:
    """Names in tiers, the nearest first.

    `without_prefix` returns the name written as `label::rest`, or as `.rest` in the graph of the first tier,
    in the program's text; None for other texts.
    """

    tiers: Sequence[Iterable[str]]
    without_prefix: Callable[[str], str | None] = lambda _: None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for tier in self.tiers for name in tier if name))


def meant(text: str, names: Iterable[str], *, parts: bool = True) -> list[str]:
    """Return the names that match `text`; several if it is ambiguous.

    Names that end with `text`, at the start of a component of a path or of a word, precede names that
    contain it, which match only with `parts`.  In each group a nearer tier of `names` hides the others.
    `…` in `text` matches any text.  `label::rest`, as in the program's text, matches only that name.
    """
    if isinstance(names, Scopes) and (name := written_name(text, names)) is not None:
        return [name]
    tiers = names.tiers if isinstance(names, Scopes) else [names]
    if not any(_elision.split(text)):
        return []
    tests = [*_exact_tests(text), *_part_tests(text)] if parts else _exact_tests(text)
    known = [list(dict.fromkeys(tier)) for tier in tiers]
    for fits in tests:
        for tier in known:
            if found := [name for name in tier if fits(name)]:
                return found
    return []


def written_name(text: str, names: Scopes) -> str | None:
    """Return the name written as `label::rest` or `.rest` in the text; None if it is not in `names`."""
    name = names.without_prefix(text)
    return name if name is not None and any(name in tier for tier in names.tiers) else None


def nearest_name(text: str, names: Iterable[str]) -> str | None:
    """Return a name that matches `text` without regard to case, otherwise the most similar name."""
    folded = {name.casefold(): name for name in names}
    found = meant(text.casefold(), folded) or get_close_matches(text.casefold(), list(folded), n=1)
    return folded[found[0]] if found else None


def choices(found: Sequence[str]) -> str:
    """Return a hint that lists the matches of an ambiguous text."""
    listed = ", ".join(f"%{name_text(name)}" for name in found[:_LISTED])
    return f"one of: {listed}{f' and {len(found) - _LISTED} more' if len(found) > _LISTED else ''}"


def _exact_tests(text: str) -> list[_Test]:
    if _elision.search(text) is None:
        return [
            lambda name: name.endswith(text) and text in _ends(name, _component),
            lambda name: name.endswith(text) and text in _ends(name, _word),
        ]
    pair = _elision.split(text)
    if len(pair) != 2:
        return []
    return [lambda name: (split := _components(name))[-1] == pair[1] and pair[0] in split[:-1]]


def _part_tests(text: str) -> list[_Test]:
    pieces = _elision.split(text)
    if max(map(len, pieces)) < _PART:
        return []
    pattern = re.compile(".*".join(map(re.escape, pieces)), re.DOTALL)
    ending = re.compile(pattern.pattern + r"\Z", re.DOTALL)
    return [lambda name: ending.search(name) is not None, lambda name: pattern.search(name) is not None]


def _ends(name: str, boundary: re.Pattern[str]) -> list[str]:
    """Return the name and its ends after each boundary, longest first."""
    return [name, *(name[match.end() :] for match in boundary.finditer(name))]


def folder(name: str) -> str:
    """Return the part before the last component of a name; empty if it has only one."""
    match = _folder.match(name)
    return match[0] if match is not None else ""


def folders(name: str) -> list[str]:
    """Return the parts before each component of a name except the first, shortest first."""
    return [name[: match.end()] for match in _component.finditer(name)]


def _components(name: str) -> list[str]:
    return [part for part in _component.split(name) if part] or [name]
