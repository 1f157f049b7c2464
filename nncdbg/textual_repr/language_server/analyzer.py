"""Incremental analysis of lines; the cost of an update is proportional to the change.

A text is split where graphs begin. A chunk with unchanged lines keeps its parse results; it keeps its types
while the signatures of its callees are unchanged. Inside a changed chunk, lines and whole stretches of
lines that were parsed before are reused (see `graph_reading`).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.engine.ops.schema import op_names
from nncdbg.engine.schedules.validation import validate
from nncdbg.errors import ParseError
from nncdbg.ir.records import Graph, Type, Value
from nncdbg.ir.streams import scheduled
from nncdbg.presentation.schedules import ScheduleWording
from nncdbg.text.lexemes import NO_PREFIXES, name_text
from nncdbg.textual_repr.groups import differentiated_by
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk
from nncdbg.textual_repr.language_server.graph_reading import (
    NO_GROUPS,
    AnalysisMemory,
    GraphReading,
    GroupNames,
    StatementEntry,
)
from nncdbg.textual_repr.language_server.inference import (
    GraphTypes,
    HeaderSignature,
    LenientInference,
    unused_values,
)
from nncdbg.textual_repr.language_server.tokens import Problem, Span, problem_of, whole_line
from nncdbg.textual_repr.parser import parse
from nncdbg.textual_repr.resolution import Suggestions, backward_signatures, shown, wrong_calls, wrong_tracks

# -- tracks ----------------------------------------------------------------------------------------


def track_problems(analysis: Analysis) -> Iterator[Problem]:
    """Yield the tracks that do not parse, and notes on names that no graph of the step computes."""
    for chunk in analysis.chunks:
        for track in chunk.reading.tracks:
            line = chunk.line_of(track.line)
            # The states, and the values of the graphs of a step.
            names = set(analysis.chunks[0].reading.state_types)
            for graph in analysis.tracked_graphs(line):
                names.update(graph.block.names if graph.block is not None else ())
            flaws = [flaw for _, flaw in wrong_tracks([track], names.copy, analysis.prefixes)]
            yield from (problem_of(flaw, line) for flaw in flaws)
            if not flaws:
                yield from _data(analysis, line, names)


def _data(analysis: Analysis, line: int, known: set[str]) -> Iterator[Problem]:
    """Yield notes on names that no graph of the step computes."""
    for name, start, end, *_ in analysis.mentions(line):
        # A name may begin with one of a graph, as in `%h.T` and `%h/2`.
        longer = any(name[at] in "/." and name[:at] in known for at in range(1, len(name)))
        if name and name not in known and not longer:
            message = f"{shown(name)} is data: no graph of the step computes it"
            hint = f"give the data with --input {name}=FILE.npy"
            yield Problem(Span(line, start, end), message, "data", "information", hint)


# -- schedules -------------------------------------------------------------------------------------

MOST_LINES = 20_000
"""Number of lines up to which schedules are checked while the text is edited."""


def schedule_problems(lines: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of the schedule of a text that parses."""
    if len(lines) > MOST_LINES or not any("|" in line for line in lines):
        return
    try:
        program = parse("\n".join(lines))
    except ParseError:
        return  # Its errors are reported already.
    if not scheduled(program):
        return
    wording = ScheduleWording(program)
    for problem in validate(program).problems:
        words = wording.explanation(problem)
        code, label = "schedule", "because of this line"
        if problem.kind == "race":
            code, label = "race", "the other statement"
        related: tuple[tuple[Span, str], ...] = ()
        if problem.first is not None:
            other = wording.line(problem.first.site) - 1
            related = ((whole_line(lines[other], other), label),)
        line = wording.line(problem.second.site) - 1
        span = whole_line(lines[line], line)
        if "|" in lines[line]:
            span = Span(line, lines[line].rindex("|"), span.end)
        yield Problem(span, f"{words.cause}: {words.evidence}", code, "warning", words.hint, related)


# -- analysis --------------------------------------------------------------------------------------

_begins_graph = re.compile(r"[ \t\r]*graph(?![A-Za-z0-9_])").match

Steps: TypeAlias = "Generator[None, None, Analysis]"


@dataclass(slots=True, eq=False)
class _Part:
    """The cached results for the lines of a chunk, independent of their position."""

    lines: list[str]
    reading: GraphReading
    asked: tuple[HeaderSignature | None, ...] | None = None
    types: GraphTypes | None = None
    signature: HeaderSignature | None = None
    unused: tuple[Problem, ...] = ()


class Analyzer:
    """Caches the results for the last text, for reuse in the next."""

    def __init__(self) -> None:
        self._memory = AnalysisMemory()
        self._parts: list[_Part] = []
        self._prefixes = NO_PREFIXES
        self._states: dict[str, Type | None] = {}
        self._groups = NO_GROUPS

    def steps(self, lines: Sequence[str]) -> Steps:
        """Analyze these lines, a few hundred at a time; nothing is raised.

        The analysis of another text may start before this one completes.
        """
        placed = yield from self._cut(lines)
        self._parts = [part for _, part in placed]
        opsets = self._parts[0].reading.opsets
        if opsets != self._memory.opsets:
            for part in self._parts:
                part.asked = None
            self._memory.change_opsets(opsets, (entry for _, entry in self._entries()))
        names: dict[str, _Part] = {}
        for part in self._parts:
            if part.reading.header is not None:
                names.setdefault(part.reading.header.name, part)
        for part in _callees_first(self._parts, names):
            yield from self._infer(part, names)
        stretches = (each for part in self._parts for each in part.reading.stretches.values())
        self._memory.prune(len(lines), self._entries(), stretches)
        chunks = [
            Chunk(start, p.lines, p.reading, p.types or GraphTypes(), p.signature) for start, p in placed
        ]
        analysis = Analysis(lines, chunks, opsets, self._prefixes, ())
        found = [*_problems(analysis, self._parts)]
        if not any(problem.severity == "error" for problem in found):
            found += schedule_problems(lines)
        problems = sorted(found, key=lambda problem: (problem.span.line, problem.span.start))
        return Analysis(lines, chunks, opsets, self._prefixes, problems)

    def _cut(self, lines: Sequence[str]) -> Generator[None, None, list[tuple[int, _Part]]]:
        starts = [0, *(i for i, text in enumerate(lines) if i and "graph" in text and _begins_graph(text))]
        old: dict[tuple[str, int], list[_Part]] = {}
        groups = NO_GROUPS
        for part in reversed(self._parts):
            old.setdefault((part.lines[0], len(part.lines)), []).append(part)
        placed: list[tuple[int, _Part]] = []
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            own = list(lines[start:end])
            same = old.get((own[0], len(own)), [])
            reading = same[-1].reading if same and same[-1].lines == own else None
            # Messages of a chunk that has moved contain its former line numbers.
            if reading is not None and (reading.before == start or not reading.problems):
                part = same.pop()
            else:
                above = self._prefixes if placed else NO_PREFIXES
                states = (self._states, placed[0][1].reading.state_lines) if placed else ({}, {})
                names = groups if placed else NO_GROUPS
                reading = GraphReading(own, start, self._memory, above, states, names)
                part = _Part(own, (yield from reading.steps()))
            if not placed:
                groups = _group_names(part.reading, lines)
            if not placed and (
                part.reading.prefixes.declared != self._prefixes.declared
                or part.reading.state_types != self._states
                or groups != self._groups
            ):
                # The names below have other meanings now.
                self._prefixes, self._memory, self._parts = part.reading.prefixes, AnalysisMemory(), []
                self._states, self._groups = part.reading.state_types, groups
                old.clear()
            placed.append((start, part))
        return placed

    def _infer(self, part: _Part, names: Mapping[str, _Part]) -> Generator[None, None, None]:
        called = {call.mark.name: names.get(call.mark.name) for call in part.reading.calls}
        signatures = {name: other.signature for name, other in called.items() if other is not None}
        asked = tuple(signatures.values())
        if part.asked != asked:
            known = {name: signature for name, signature in signatures.items() if signature is not None}
            part.types = yield from LenientInference(part.reading, part.lines, self._memory, known).steps()
            part.signature = _signature(part.reading, part.types)
            part.unused = tuple(unused_values(part.reading, part.lines))
            part.asked = asked

    def _entries(self) -> Iterator[tuple[str, StatementEntry]]:
        """Yield the statements of the text, each with its line."""
        for part in self._parts:
            for text, event in zip(part.lines, part.reading.events, strict=True):
                if isinstance(event, StatementEntry):
                    yield text, event


def _group_names(head: GraphReading, lines: Sequence[str]) -> GroupNames:
    """Return what the graphs of a text need to know of groups; `head` are the lines before them."""
    return GroupNames(head.groups, head.owners(), differentiated_by(lines, head.prefixes, head.groups))


def _signature(reading: GraphReading, types: GraphTypes) -> HeaderSignature | None:
    """Return the signature of the header; outputs without a type have the inferred type."""
    block = reading.header
    if block is None or block.kind != "graph":
        return None
    outputs = tuple(Value(v.name, v.type or types.of(block, v.name)) for v in block.outputs)
    return HeaderSignature(block.inputs, outputs)


def _callees_first(parts: Sequence[_Part], names: Mapping[str, _Part]) -> Iterator[_Part]:
    """Yield every part once, callees first; a cycle of calls is cut at an arbitrary call."""
    seen: set[_Part] = set()
    for root in parts:
        stack = [root]
        while stack:
            part = stack[-1]
            if part not in seen:
                seen.add(part)
                called = (names.get(call.mark.name) for call in part.reading.calls)
                stack.extend(other for other in called if other is not None and other not in seen)
            else:
                stack.pop()
                if part not in stack:
                    yield part


def _problems(analysis: Analysis, parts: Sequence[_Part]) -> Iterator[Problem]:
    suggestions = Suggestions()
    lines, chunks, ops = analysis.lines, analysis.chunks, frozenset(analysis.opsets.items())
    tracked = {
        definition.span
        for line in analysis.track_lines()
        for mention in analysis.mentions(line)
        if (definition := analysis.definition_of(line, mention)) is not None
    }
    for chunk, part in zip(chunks, parts, strict=True):
        for found in (chunk.reading.problems, chunk.types.problems, part.unused):
            for problem in found:
                hint = problem.hint
                if problem.unknown is not None:
                    hint = suggestions.nearest(problem.unknown, op_names(ops))
                span = Span(problem.span.line + chunk.start, problem.span.start, problem.span.end)
                places = [(place.line + chunk.start, words) for place, words in problem.related]
                related = tuple((whole_line(lines[place], place), words) for place, words in places)
                placed = replace(problem, span=span, hint=hint, related=related, unknown=None)
                if found is not part.unused or placed.span not in tracked:
                    yield placed
    yield from _problems_between(lines, chunks, suggestions)
    yield from track_problems(analysis)


def _problems_between(
    lines: Sequence[str], chunks: Sequence[Chunk], suggestions: Suggestions
) -> Iterator[Problem]:
    """Yield problems of the whole text: duplicate graph names, invalid calls, uncalled graphs."""
    graphs: dict[str, Chunk] = {}
    broken: set[str] = set()
    for chunk in chunks:
        if chunk.block is None:
            continue
        first = graphs.setdefault(chunk.name, chunk)
        if chunk.signature is None:
            broken.add(chunk.name)
        if first is not chunk and chunk.name:
            message = f"two graphs are named @{name_text(chunk.name)}"
            hint = f"the first is at line {first.start + 1}"
            related = ((first.header_span, "it is defined here"),)
            yield Problem(chunk.header_span, message, "redefined", "error", hint, related)
    if not graphs:
        hint = "add a graph: graph @main() -> () {"
        yield Problem(Span(len(lines) - 1, 0, len(lines[-1])), "the text has no graph", "syntax", hint=hint)
    records = {
        name: Graph(name, chunk.signature.inputs, chunk.signature.outputs)
        for name, chunk in graphs.items()
        if chunk.signature is not None
    }
    backwards = [line for chunk in chunks for line in chunk.reading.backwards]
    records |= backward_signatures(backwards, records)
    called: set[str] = set()
    for chunk in chunks:
        for number, flaw in wrong_calls(chunk.reading.calls, records, broken, suggestions):
            yield problem_of(flaw, chunk.line_of(number))
        called.update(call.mark.name for call in chunk.reading.calls)
    if any(chunk.reading.problems for chunk in chunks):
        return
    for name, chunk in list(graphs.items())[1:]:
        if name not in called:
            yield Problem(chunk.header_span, f"@{name_text(name)} is never called", "unused", "hint")
