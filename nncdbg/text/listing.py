"""Map lines to statements, for breakpoints, stepping and the editor's arrow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, overload

from nncdbg.errors import Excerpt
from nncdbg.ir.records import Path
from nncdbg.text.prefixes import NO_PREFIXES, Prefixes


@dataclass(frozen=True, slots=True)
class Site:
    """Statement `pc` of the graph at `path`; ``pc == len(nodes)`` is its return, yield or next."""

    path: Path
    pc: int


Line: TypeAlias = "str | tuple[str, Callable[..., str], tuple[Any, ...]]"
"""A line, or (indentation, function that writes the rest, its arguments)."""


class Lines(Sequence[str]):
    """The lines of a text, each written at its first read; equal to a tuple of the lines."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the written lines for a copy."""
        return Lines, ([*self],)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        line = self._lines[index]
        if not isinstance(line, str):
            indent, write, arguments = line
            line = self._lines[index] = indent + write(*arguments)
        return line

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, (Lines, tuple)) and tuple(self) == tuple(other))

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True)
class Listing:
    """The lines of a text, and the 1-based lines of the statements of each graph.

    `statements` maps a path to the lines of its nodes in order, then that of its terminator;
    `headers` maps a path to its first line.  `file` is the path of the text, if it has one.
    `prefixes` are the prefixes used in the lines.
    """

    lines: Sequence[str]
    statements: Mapping[Path, tuple[int, ...]]
    headers: Mapping[Path, int]
    file: str | None = None
    prefixes: Prefixes = field(default=NO_PREFIXES, compare=False)

    @cached_property
    def _sites(self) -> dict[int, Site]:
        pairs = [
            (line, Site(path, pc)) for path, lines in self.statements.items() for pc, line in enumerate(lines)
        ]
        # Of several statements on a line, the first one of the outermost block is entered last, and kept.
        return dict(sorted(pairs, key=lambda pair: (pair[0], -len(pair[1].path), -pair[1].pc)))

    @cached_property
    def statement_lines(self) -> list[int]:
        """Return the lines with a statement, in order."""
        return list(self._sites)

    def site(self, line: int) -> Site | None:
        """Return the statement on `line`; None for headers of graphs, constants, comments and braces."""
        return self._sites.get(line)

    def line(self, path: Path, pc: int) -> int:
        """Return the line of statement `pc` of the graph at `path`; both must exist."""
        return self.statements[path][pc]

    def excerpt(self, path: Path, pc: int) -> Excerpt:
        """Return the line of a statement, underlined from its first character."""
        line = self.line(path, pc)
        text = self.lines[line - 1]
        indent = len(text) - len(text.lstrip())
        return Excerpt(text, line, indent + 1, len(text.strip()), self.file)

    def next_site(self, line: int) -> tuple[int, Site] | None:
        """Return the first statement at or after `line`, with its line: the place of its breakpoints."""
        at = bisect_left(self.statement_lines, line)
        if at == len(self.statement_lines):
            return None
        found = self.statement_lines[at]
        return found, self._sites[found]

    def full_line(self, line: int) -> str:
        """Return the text of `line` with the names in full."""
        return self.prefixes.full_line(self.lines[line - 1])

    def full_lines(self) -> Sequence[str]:
        """Return all lines with the names in full."""
        if not self.prefixes.declared:
            return self.lines
        return Lines([("", self.full_line, (number,)) for number in range(1, len(self.lines) + 1)])

    def header_line(self, path: Path) -> int:
        """Return the first line of the graph at `path`: ``graph``, ``if``, ``} else`` or ``while``."""
        return self.headers[path]

    def block(self, line: int) -> Path | None:
        """Return the innermost graph, branch or body around `line` or its header; None outside of graphs."""
        around = [path for path, first in self.headers.items() if first <= line <= self.statements[path][-1]]
        return max(around, key=self.headers.__getitem__, default=None)
