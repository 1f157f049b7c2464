"""Map lines to statements, for breakpoints, stepping and the editor's arrow."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, overload

from nncdbg.errors import Excerpt
from nncdbg.ir.records import Node, Path, Program, RunLine, Value, tensor_only
from nncdbg.text.lexemes import NO_PREFIXES, Prefixes


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
    wrapped: Mapping[int, int] = field(default_factory=dict, compare=False)
    """Maps the further lines of statements of several lines to the first."""
    unread: frozenset[int] = field(default=frozenset(), compare=False)
    """The lines of views that no statement reads."""

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
        return self._sites.get(self.wrapped.get(line, line))

    def line(self, path: Path, pc: int) -> int:
        """Return the line of statement `pc` of the graph at `path`; both must exist."""
        return self.statements[path][pc]

    def statements_beside(self, path: Path, pc: int) -> range:
        """Return the numbers of the statements on the line of a statement of a graph.

        A line has several if it is a statement over groups, or computes operands in place.  The statements of
        a ``run`` line are steps of the run.
        """
        lines = self.statements[path]
        first, end, line = pc, pc + 1, lines[pc]
        while first and lines[first - 1] == line:
            first -= 1
        while end < len(lines) - 1 and lines[end] == line:
            end += 1
        if end - first > 1 and self.lines[line - 1].lstrip().startswith(("run ", "evaluate ")):
            return range(pc, pc + 1)
        return range(first, end)

    def excerpt(self, path: Path, pc: int) -> Excerpt:
        """Return a statement in one line, underlined from its first character."""
        line = self.line(path, pc)
        text = self.statement(line)
        indent = len(text) - len(text.lstrip())
        return Excerpt(text, line, indent + 1, len(text.strip()), self.file)

    def next_site(self, line: int) -> tuple[int, Site] | None:
        """Return the first statement at or after `line`, with its line: the place of its breakpoints."""
        line = self.wrapped.get(line, line)
        at = bisect_left(self.statement_lines, line)
        if at == len(self.statement_lines):
            return None
        found = self.statement_lines[at]
        return found, self._sites[found]

    def statement(self, line: int) -> str:
        """Return the statement that begins at `line`, with all its lines in one."""
        text, number = self.lines[line - 1], line + 1
        while self.wrapped.get(number) == line:
            gap = "" if text.endswith(("(", "[")) else " "
            text += gap + self.lines[number - 1].strip()
            number += 1
        return text

    def full_line(self, line: int) -> str:
        """Return the statement that begins at `line` with the names in full, with all its lines in one."""
        return self.in_full(self.statement(line), line)

    def in_full(self, text: str, line: int) -> str:
        """Return a text with the names in full that it writes as the graph around `line` does."""
        return self._graph_prefixes(line).full_line(text)

    def full_lines(self) -> Sequence[str]:
        """Return the lines with the names in full, the first line of a statement with all of its lines."""
        return Lines([("", self.full_line, (number,)) for number in range(1, len(self.lines) + 1)])

    def _graph_prefixes(self, line: int) -> Prefixes:
        """Return the prefixes with the module of the graph around `line`."""
        at = bisect_right(self._graph_lines, (line, "\U0010ffff")) - 1
        graph = self._graph_lines[at][1] if at >= 0 else ""
        if graph not in self._prefixes_of:
            self._prefixes_of[graph] = self.prefixes.within(graph)
        return self._prefixes_of[graph]

    @cached_property
    def _graph_lines(self) -> list[tuple[int, str]]:
        return sorted((line, str(path[0])) for path, line in self.headers.items() if len(path) == 1)

    @cached_property
    def _prefixes_of(self) -> dict[str, Prefixes]:
        """The prefixes with the module of a graph, by its name, as they are used; a copy takes them along."""
        return {}

    def header_line(self, path: Path) -> int:
        """Return the first line of the graph at `path`: ``graph``, ``if``, ``} else`` or ``while``."""
        return self.headers[path]

    def block(self, line: int) -> Path | None:
        """Return the innermost graph, branch or body around `line` or its header; None outside of graphs."""
        around = [path for path, first in self.headers.items() if first <= line <= self.statements[path][-1]]
        return max(around, key=self.headers.__getitem__, default=None)


# -- driver ----------------------------------------------------------------------------------------
# The graph that gives states their first values and calls the other graphs. It is not written in the text:
# its statements are the lines ``state`` and ``run``. Without a ``run`` line it calls the entry graph once,
# and the header of that graph is the line of the call.


def has_driver(program: Program) -> bool:
    """Return whether a program has states or runs."""
    return bool(program.states or program.runs)


def driver_name(program: Program) -> str:
    """Return the name of the driver's graph, which no graph of the program has."""
    number, name = 0, "program"
    while name in program.graphs:
        number += 1
        name = f"program.{number}"
    return name


def body_length(run: RunLine) -> int:
    """Return the number of statements in one step of a run: the batch, if it has data, and the call."""
    return 2 if run.values else 1


def scalars_of(values: Sequence[Value]) -> tuple[Value, ...]:
    """Return the values that are declared as scalars, which a run collects."""
    return tuple(
        each for each in values if (known := tensor_only(each.type)) is not None and known.shape == ()
    )


def driver_lines(
    program: Program,
    state_lines: Mapping[str, int],
    run_lines: Sequence[Sequence[int]],
    headers: Mapping[Path, int],
) -> tuple[dict[Path, tuple[int, ...]], dict[Path, int]]:
    """Return the lines of the driver's statements, and the header lines of its blocks, as in a Listing.

    `run_lines` has the line of each run, then those of its evaluations; `headers` are those of the graphs.  A
    line of several statements stands for the first of the outermost block, so that a breakpoint at a run
    stops once, before its first step, and one at an evaluation stops once per epoch.
    """
    if not has_driver(program):
        return {}, {}
    name = driver_name(program)
    lines = [state_lines[state.value.name] for state in program.states if isinstance(state.first, Node)]
    calls = [] if run_lines else [headers[program.entry,]]
    statements: dict[Path, tuple[int, ...]] = {}
    for run, own in zip(program.runs, run_lines, strict=True):
        results = _evaluated(program, run)
        statements |= _run_lines(run, own, results, (name, len(lines) + len(calls), 0))
        # The loop, then a statement for each result of its evaluations.
        calls += [own[0]] * (1 + sum(results))
    blocks = {path: lines_[0] for path, lines_ in statements.items()}
    statements[name,] = (*lines, *calls, calls[-1])
    return statements, {(name,): min(state_lines.values(), default=calls[0]), **blocks}


def lines_of_runs(program: Program, listing: Listing) -> list[int]:
    """Return the line of each run in a listing."""
    name = driver_name(program)
    blocks = [path for path in listing.statements if path[0] == name and len(path) == 3]
    return [listing.statements[path][0] for path in sorted(blocks, key=lambda path: path[1])]


def _evaluated(program: Program, run: RunLine) -> list[int]:
    """Return the number of results of each evaluation of a run."""
    return [
        len(scalars_of(graph.outputs)) if (graph := program.graphs.get(each.graph)) else 0
        for each in run.evaluations
    ]


def _run_lines(
    run: RunLine, lines: Sequence[int], results: Sequence[int], path: Path
) -> dict[Path, tuple[int, ...]]:
    """Return the lines of the statements in the body of a run, at `path`, and in its blocks."""
    length = body_length(run)
    if not run.evaluations:
        return {path: (lines[0],) * (length + 1)}
    # The end of the epoch is decided by three statements and an `if`.
    found = {path: (lines[0],) * (length + 5), (*path, length + 3, 1): (lines[0],)}
    inside: list[int] = []
    for each, line, count in zip(run.evaluations, lines[1:], results, strict=True):
        found[*path, length + 3, 0, len(inside), 0] = (line,) * (body_length(each) + 1)
        inside += [line] * (1 + 2 * count)
    found[*path, length + 3, 0] = (*inside, inside[-1])
    return found
