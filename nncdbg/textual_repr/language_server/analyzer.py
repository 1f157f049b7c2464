"""Incremental analysis of lines; the cost of an update is proportional to the change.

A text is split where graphs begin. A chunk with unchanged lines keeps its parse results; it keeps its types
while the signatures of its callees are unchanged. Inside a changed chunk, lines and whole stretches of
lines that were parsed before are reused (see `graph_reading`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.engine.ops.schema import op_names
from nncdbg.engine.schedules.validation import validate
from nncdbg.errors import ParseError
from nncdbg.ir.records import Graph, StateLine, Type, Value
from nncdbg.ir.streams import scheduled
from nncdbg.presentation.schedules import ScheduleWording
from nncdbg.text.lexemes import NO_PREFIXES, Flaw, Prefixes, name_text
from nncdbg.textual_repr.groups import differentiated_by
from nncdbg.textual_repr.language_server.analysis import Analysis, Chunk, passed_names
from nncdbg.textual_repr.language_server.graph_reading import (
    NO_GROUPS,
    AnalysisMemory,
    GraphReading,
    GroupNames,
    StatementEntry,
    Stretch,
    cache_key,
)
from nncdbg.textual_repr.language_server.inference import (
    GraphTypes,
    HeaderSignature,
    LenientInference,
    UnreadView,
    UnusedValue,
    unread_views,
    unused_values,
)
from nncdbg.textual_repr.language_server.tokens import Problem, Span, problem_of, whole_line
from nncdbg.textual_repr.parser import parse
from nncdbg.textual_repr.passed_values import Listed
from nncdbg.textual_repr.resolution import Suggestions, backward_signatures, shown, wrong_calls, wrong_tracks
from nncdbg.textual_repr.statements import NameSpan

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


def schedule_problems(lines: Sequence[str], rows: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield the problems of the schedule of a text that parses.

    `rows` are the lines with each statement at its first line, if one has several.
    """
    rows = rows or lines
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
            related = ((whole_line(rows[other], other), label),)
        line = wording.line(problem.second.site) - 1
        span = whole_line(rows[line], line)
        if "|" in rows[line]:
            span = Span(line, rows[line].rindex("|"), span.end)
        yield Problem(span, f"{words.cause}: {words.evidence}", code, "warning", words.hint, related)


# -- analysis --------------------------------------------------------------------------------------

_begins_chunk = re.compile(r"[ \t\r]*(graph|states)(?![A-Za-z0-9_])(?!\s*%)").match

Steps: TypeAlias = "Generator[None, None, Analysis]"


@dataclass(slots=True, eq=False)
class _Part:
    """The cached results for the lines of a chunk, independent of their position."""

    lines: list[str]
    reading: GraphReading
    asked: tuple[object, ...] | None = None
    """The signatures of the called graphs, and the types of values from other graphs, behind `types`."""
    types: GraphTypes | None = None
    signature: HeaderSignature | None = None
    unused: tuple[UnusedValue, ...] = ()
    unread: tuple[UnreadView, ...] = ()


@dataclass(frozen=True, slots=True)
class _Context:
    """What the lines of a part may use: the states so far with their lines, and groups of them."""

    prefixes: Prefixes
    states: Mapping[str, Type | None]
    state_lines: Mapping[str, int]
    declared: Sequence[StateLine] = ()
    groups: GroupNames = NO_GROUPS


_ORDER = ("states", "", "graph")
"""The order in which the parts are read, by their first words."""


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
        passed = _passed_types(names)
        for part in _callees_first(self._parts, names):
            yield from self._infer(part, names, passed)
        self._memory.prune(len(lines), self._entries(), self._stretches())
        chunks = [Chunk(start, p.reading, p.types or GraphTypes(), p.signature) for start, p in placed]
        rows = lines
        if any(part.reading.last_lines for part in self._parts):
            rows = [text for part in self._parts for text in part.reading.rows]
        analysis = Analysis(rows, chunks, opsets, self._prefixes, [])
        found = [*_problems(analysis, self._parts)]
        if not any(problem.severity == "error" for problem in found):
            found += schedule_problems(lines, rows)
        analysis.problems.extend(sorted(found, key=lambda problem: (problem.span.line, problem.span.start)))
        return analysis

    def _cut(self, lines: Sequence[str]) -> Generator[None, None, list[tuple[int, _Part]]]:
        """Return the parts of the text with their first lines; the graphs know all states."""
        old: dict[tuple[str, int], list[_Part]] = {}
        groups = NO_GROUPS
        for part in reversed(self._parts):
            old.setdefault((part.lines[0], len(part.lines)), []).append(part)
        placed: dict[int, _Part] = {}
        states: dict[str, Type | None] = {}
        state_lines: dict[str, int] = {}
        declared: tuple[StateLine, ...] = ()
        stretches = _stretches_of(lines)
        prefixes = _prefixes_of(lines[: stretches[0][1]] if not stretches[0][2] else ())
        if prefixes.declared != self._prefixes.declared:
            self._forget(prefixes, old)
        # The states behind the graphs are declared before those in front.
        for start, end, word in sorted(stretches, key=lambda stretch: _ORDER.index(stretch[2])):
            if word == "graph":
                continue
            above = self._prefixes if start else NO_PREFIXES
            context = _Context(above, states, state_lines, declared)
            part = yield from self._part(lines[start:end], start, old, context)
            placed[start] = part
            if part not in self._parts:
                # The states below may read these.
                old = {key: parts for key, parts in old.items() if _begins_chunk(key[0])}
            own = part.reading.own_states
            states = states | dict.fromkeys(own) | part.reading.state_types
            state_lines = state_lines | {name: start + line + 1 for name, line in own.items()}
            declared = tuple(part.reading.states)
            if not word:
                groups = _group_names(part.reading, lines)
        if states != self._states or groups != self._groups:
            # The names in the graphs have other meanings now.
            self._forget(self._prefixes, old)
            self._states, self._groups = states, groups
        context = _Context(self._prefixes, states, state_lines, groups=groups)
        for start, end, word in stretches:
            if word == "graph":
                placed[start] = yield from self._part(lines[start:end], start, old, context)
        return sorted(placed.items())

    def _forget(self, prefixes: Prefixes, old: dict[tuple[str, int], list[_Part]]) -> None:
        """Begin anew with these prefixes."""
        self._prefixes, self._memory, self._parts = prefixes, AnalysisMemory(), []
        old.clear()

    def _part(
        self,
        own: Sequence[str],
        start: int,
        old: dict[tuple[str, int], list[_Part]],
        context: _Context,
    ) -> Generator[None, None, _Part]:
        """Return the part with these lines, from `old` if it has an equal one."""
        own = list(own)
        same = old.get((own[0], len(own)), [])
        reading = same[-1].reading if same and same[-1].lines == own else None
        # Messages contain line numbers of the part, which may have moved, and of the states.
        if reading is not None and (
            not reading.problems or (reading.before, reading.outer_states) == (start, context.state_lines)
        ):
            return same.pop()
        known = context.states, context.state_lines
        reading = GraphReading(own, start, self._memory, context.prefixes, known, context.groups)
        reading.states = list(context.declared)
        return _Part(own, (yield from reading.steps()))

    def _infer(
        self, part: _Part, names: Mapping[str, _Part], passed: Mapping[str, Type | None]
    ) -> Generator[None, None, None]:
        reading = part.reading
        called = {call.mark.name: names.get(call.mark.name) for call in reading.calls}
        signatures = {name: other.signature for name, other in called.items() if other is not None}
        outer = {name: passed.get(name) for name in reading.deferred_names}
        asked = (*signatures.values(), *outer.items())
        if part.asked != asked:
            known = {name: signature for name, signature in signatures.items() if signature is not None}
            outer |= reading.state_types
            part.types = yield from LenientInference(reading, self._memory, known, outer).steps()
            part.signature = _signature(reading, part.types)
            part.unused = tuple(unused_values(reading))
            part.unread = tuple(unread_views(reading))
            part.asked = asked

    def _stretches(self) -> Iterator[tuple[str, Stretch]]:
        """Yield the stretches of the text by their keys in the memory."""
        for part in self._parts:
            for first, stretch in part.reading.stretches.items():
                yield cache_key(stretch.lines[0], part.reading.prefixes_at(first).module), stretch

    def _entries(self) -> Iterator[tuple[str, StatementEntry]]:
        """Yield the statements of the text, by their keys in the memory."""
        for part in self._parts:
            reading = part.reading
            for line, (text, event) in enumerate(zip(reading.rows, reading.events, strict=True)):
                if isinstance(event, StatementEntry):
                    yield cache_key(text, reading.prefixes_at(line).module), event


def _prefixes_of(head: Sequence[str]) -> Prefixes:
    """Return the prefixes that the lines before the first graph declare."""
    declared = GraphReading([text for text in head if "prefix" in text], 0, AnalysisMemory(), NO_PREFIXES)
    deque(declared.steps(), maxlen=0)
    return declared.prefixes.within("") if declared.prefixes.declared else NO_PREFIXES


def _stretches_of(lines: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the first lines of the parts of a text, their ends, and the words with which they begin.

    Blocks of states before the first graph belong to the first part.
    """
    begins = [
        (line, match[1])
        for line, text in enumerate(lines)
        if ("graph" in text or "states" in text) and (match := _begins_chunk(text))
    ]
    graph = next((line for line, word in begins if word == "graph"), len(lines))
    starts = [(line, word) for line, word in begins if line >= graph]
    if graph:
        starts.insert(0, (0, ""))
    ends = [*(line for line, _ in starts[1:]), len(lines)]
    return [(line, end, word) for (line, word), end in zip(starts, ends, strict=True)]


def _passed_types(names: Mapping[str, _Part]) -> dict[str, Type | None]:
    """Return the written types of the values that graphs may pass to others by ``...``."""
    read = {name for part in names.values() for name in part.reading.deferred_names}
    if not read:
        return {}
    blocks = {name: part.reading.opened[0] for name, part in names.items()}
    types: dict[str, Type | None] = {}
    for block in blocks.values():
        types = passed_names(block, read, blocks) | types
    return types


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
    passed = analysis.passed
    for chunk, part in zip(chunks, parts, strict=True):
        returned = {value.name for value in passed.outputs(chunk.name)}
        unused = [value.problem for value in part.unused if value.name not in returned]
        for found in (chunk.reading.problems, chunk.types.problems, unused, _unread(part.unread, returned)):
            for problem in found:
                hint = problem.hint
                if problem.unknown is not None:
                    hint = suggestions.nearest(problem.unknown, op_names(ops))
                span = Span(problem.span.line + chunk.start, problem.span.start, problem.span.end)
                places = [(place.line + chunk.start, words) for place, words in problem.related]
                related = tuple((whole_line(lines[place], place), words) for place, words in places)
                placed = replace(problem, span=span, hint=hint, related=related, unknown=None)
                if found is not unused or placed.span not in tracked:
                    yield placed
        for use in chunk.reading.deferred:
            if use.mark.name in passed.missing:
                yield problem_of(not_passed(use.mark), chunk.line_of(use.line))
    yield from _problems_between(lines, chunks, suggestions)
    yield from track_problems(analysis)


def not_passed(mark: NameSpan) -> Flaw:
    """Return the flaw of a name that no statement of the graph defines and no call returns."""
    message = f"{shown(mark.name)} is not defined, and no call above returns it"
    hint = "define it above, or in one graph that is called above with ... in its outputs"
    return Flaw(message, mark.start, mark.width, hint, code="undefined")


def _unread(views: Sequence[UnreadView], returned: set[str]) -> Iterator[Problem]:
    """Yield hints on the views that nothing reads; `returned` are values that other graphs read."""
    read = returned
    for view in views:
        if read.isdisjoint(view.outputs):
            yield Problem(view.span, "nothing reads this view", "unread-view", "hint")
        else:
            read = read | view.inputs


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
    groups: dict[str, Listed] = {}
    for chunk in chunks:
        groups = chunk.reading.listed | groups
    called: set[str] = set()
    for chunk in chunks:
        for number, flaw in wrong_calls(chunk.reading.calls, records, broken, suggestions, groups):
            yield problem_of(flaw, chunk.line_of(number))
        called.update(call.mark.name for call in chunk.reading.calls)
    if any(chunk.reading.problems for chunk in chunks):
        return
    for name, chunk in list(graphs.items())[1:]:
        if name not in called:
            yield Problem(chunk.header_span, f"@{name_text(name)} is never called", "unused", "hint")
