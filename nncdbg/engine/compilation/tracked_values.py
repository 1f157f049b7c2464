"""The values that ``track`` lines read: the graph that computes each, or data given from outside."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nncdbg.engine.compilation.effects import effects_of
from nncdbg.errors import Excerpt, ExpressionError, NncdbgError
from nncdbg.expression import Expression, nodes, spelled
from nncdbg.expression.nodes import fault, walk
from nncdbg.expression.tracked import TrackedExpression, parse_tracked
from nncdbg.ir.names import defined
from nncdbg.ir.records import Graph, Node, Program, RunLine, TrackLine
from nncdbg.ir.walk import blocks, walk_nodes
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing
from nncdbg.text.short_names import nearest_name

TRACKED = "tracked"
"""The attribute of the loop of a line with tracks: (number of the run, number of the evaluation or -1)."""

TRACKED_DATA = "tracked_data"
"""The attribute of the same loop with the values of the batches of data that its tracks read, by name."""


@dataclass(frozen=True, slots=True)
class TrackedLine:
    """A ``run`` or ``evaluate`` line with tracks, and where their values are.

    `place` is the number of the run, and that of its evaluation or -1.  `sources` maps each value to the
    graph that computes it, by its name in calls; `data` are the names of data given from outside.
    """

    place: tuple[int, int]
    line: RunLine
    tracks: tuple[tuple[TrackLine, Expression], ...]
    sources: Mapping[str, str]
    data: tuple[str, ...]
    known: frozenset[str]
    """All values of a step that a track could read."""

    @property
    def part(self) -> str:
        """``train`` for a ``run`` line, ``test`` for an ``evaluate`` line."""
        return "train" if self.place[1] < 0 else "test"


def tracked_lines(program: Program) -> list[TrackedLine]:
    """Return the lines with tracks of a program with its backward graphs.

    Raises ExpressionError for a track that does not parse, and for a value that a step has several times.
    """
    lines = [
        ((number, evaluation), line)
        for number, run in enumerate(program.runs)
        for evaluation, line in enumerate((run, *run.evaluations), -1)
        if line.tracks
    ]
    return [_Resolution(program, line).tracked(place) for place, line in lines]


def computes_all(program: Program, line: RunLine, track: TrackLine) -> bool:
    """Return whether the steps of a line compute all values that a track reads.

    Raises ExpressionError for a track that does not parse.
    """
    return not _Resolution(program, replace(line, tracks=(track,))).tracked((0, -1)).data


def check_data(lines: Sequence[TrackedLine], given: object, listing: Listing) -> None:
    """Raise ExpressionError for data that a track reads and that the given inputs lack."""
    names = {str(name).removeprefix("%") for name in given} if isinstance(given, Mapping) else set()
    for line in lines:
        for track, expression in line.tracks:
            for name in line.data:
                if name in expression.names - names - {*line.line.values}:
                    near = nearest_name(name, [*line.known, *names])
                    either = f"did you mean {spelled(near)}? If not, give" if near else "give"
                    place = next(
                        node
                        for node, _ in walk(expression.root)
                        if isinstance(node, nodes.Name) and node.name == name
                    )
                    raise placed(
                        fault(
                            expression.text,
                            place.start,
                            place.end,
                            f"track {track.name} reads {spelled(name)}, which no statement of "
                            f"@{name_text(line.line.graph)} computes",
                            hint=f"{either} its data: --input {name}=FILE.npy",
                        ),
                        track,
                        listing,
                    )


def data_batches(loop: Node) -> tuple[tuple[str, str], ...]:
    """Return the name of each datum that the tracks of a loop read, with the value of its batch."""
    found: Any = loop.attributes.get(TRACKED_DATA, ())
    return found  # type: ignore[no-any-return]


def kept_to_the_end(program: Program, lines: Sequence[TrackedLine]) -> dict[str, frozenset[str]]:
    """Return the values of each graph of a lowered program that are read when the graph has ended."""
    found: dict[str, set[str]] = {}
    for line in lines:
        for name, graph in line.sources.items():
            found.setdefault(graph, set()).add(name)
    statements = [*walk_nodes(program.graph)]
    batches = {value for node in statements for _, value in data_batches(node)}
    # The first value of the body is a batch, whose size is the number of samples of the step.
    sampled = {line.place for line in lines if line.line.batch}
    bodies = (node.subgraphs[0] for node in statements if node.attributes.get(TRACKED) in sampled)
    batches.update(body.nodes[0].outputs[0].name for body in bodies)
    if batches:
        found.setdefault(program.entry, set()).update(batches)
    return {graph: frozenset(names) for graph, names in found.items()}


def placed(error: NncdbgError, track: TrackLine, listing: Listing) -> NncdbgError:
    """Return an error of a track's expression, underlined in the line of the text that has the track."""
    start = re.compile(rf"\s*track\s+{re.escape(name_text(track.name))}\s*=\s*")
    for number, line in enumerate(listing.lines, 1):
        if (found := start.match(line)) is not None and line.startswith(track.expression, found.end()):
            inside = error.excerpt
            column, width = 1, len(track.expression)
            if inside is not None and inside.text == track.expression:
                column, width = inside.column, inside.width
            error.excerpt = Excerpt(line, number, found.end() + column, width, listing.file)
            return error
    if error.excerpt is not None:
        error.excerpt = replace(error.excerpt, file=f"track {track.name}")
    return error


class _Resolution:
    """Finds the values of one line: in its graph, then in the graphs that this one calls."""

    def __init__(self, program: Program, line: RunLine) -> None:
        self._program = program
        self._line = line
        self._calls: dict[str, list[tuple[str, bool]]] = {}
        """(calling graph, whether in a block of it) for each call of a graph."""
        self._graphs = [line.graph]
        """The graphs of a step, those with few calls around them first."""
        self._around = {line.graph: 0}
        """The least number of calls around each graph."""
        for caller in self._graphs:
            for called, inside in _calls(program.graphs[caller]):
                if called in program.graphs:
                    self._calls.setdefault(called, []).append((caller, inside))
                    if called not in self._graphs:
                        self._graphs.append(called)
                        self._around[called] = self._around[caller] + 1
        self._values = {
            name: {value.name for value in defined(program.graphs[name])} - {""} for name in self._graphs
        }
        self._values[line.graph] |= effects_of(program)[line.graph].used

    def tracked(self, place: tuple[int, int]) -> TrackedLine:
        """Return the line with the places of its values."""
        known = frozenset().union(*self._values.values())
        prefixes = self._program.as_listing().prefixes
        tracks: list[tuple[TrackLine, Expression]] = []
        sources: dict[str, str] = {}
        data: dict[str, None] = {}
        for track in self._line.tracks:
            try:
                found = parse_tracked(track.expression, known, prefixes)
                sources |= self._sources(found.expression, known)
                self._check_data(found)
            except ExpressionError as error:
                error.message = f"track {track.name}: {error.message}"
                raise placed(error, track, self._program.as_listing()) from None
            tracks.append((track, found.expression))
            data |= dict.fromkeys(found.data)
        return TrackedLine(place, self._line, tuple(tracks), sources, tuple(data), known)

    def _sources(self, expression: Expression, known: Collection[str]) -> dict[str, str]:
        """Return the graph that computes each value of an expression."""
        found: dict[str, str] = {}
        for node, _ in walk(expression.root):
            if isinstance(node, nodes.Name) and node.name in known and node.name not in found:
                found[node.name] = self._graph_of(node, expression.text)
        return found

    def _check_data(self, found: TrackedExpression) -> None:
        """Raise ExpressionError for data in a run that has no batches."""
        text = found.expression.text
        for node, _ in walk(found.expression.root):
            if isinstance(node, nodes.Name) and node.name in found.data and not self._line.values:
                near = nearest_name(node.name, {name for names in self._values.values() for name in names})
                raise fault(
                    text,
                    node.start,
                    node.end,
                    f"no statement of @{self._name(self._line.graph)} computes {spelled(node.name)}",
                    hint=f"did you mean {spelled(near)}?" if near else "data need a run with batches: for %x",
                )

    def _graph_of(self, node: nodes.Name, text: str) -> str:
        """Return the graph that computes a value once per step.  Raises ExpressionError if none does."""
        found = [each for each in self._graphs if node.name in self._values[each]]
        found = [each for each in found if self._around[each] == self._around[found[0]]]
        # A graph also has the values that it is called with: those are the caller's.
        found = [each for each in found if not self._is_input(each, node.name)] or found
        source = graph = found[0]
        while graph != self._line.graph:
            calls = self._calls_of(graph)
            caller, inside = calls[0]
            if inside:
                where = f"a loop or branch of @{self._name(caller)}"
                self._fail(node, text, f"is in @{self._name(graph)}, which {where} calls")
            if len(calls) > 1:
                self._fail(node, text, f"is in @{self._name(graph)}, which a step calls {len(calls)} times")
            graph = caller
        if len(found) > 1:
            self._fail(node, text, f"is in @{self._name(source)} and in @{self._name(found[1])}")
        return source

    def _is_input(self, graph: str, name: str) -> bool:
        return any(value.name == name for value in self._program.graphs[graph].inputs)

    def _calls_of(self, graph: str) -> list[tuple[str, bool]]:
        """Return the calls of a graph.

        Calls that a ``backward`` line differentiates call copies of the graph, which have its name.
        """
        copies = [each for each in self._graphs if self._name(each) == self._name(graph)]
        return [call for each in copies for call in self._calls.get(each, ())]

    def _name(self, key: str) -> str:
        return self._program.graphs[key].name

    def _fail(self, node: nodes.Name, text: str, fact: str) -> NoReturn:
        hint = "track a value that each step computes once, such as the result of one call"
        raise fault(text, node.start, node.end, f"{spelled(node.name)} {fact}", hint=hint)


def _calls(graph: Graph) -> Iterator[tuple[str, bool]]:
    """Yield the graphs that a graph calls, with whether a block inside it does."""
    for path, block in blocks(graph):
        yield from ((called, len(path) > 1) for node in block.nodes if (called := node.called) is not None)
