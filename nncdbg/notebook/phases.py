"""The phases of a recorded step as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nncdbg.ir.records import Graph, Program
from nncdbg.notebook.markup import escape


def phase_rows(program: Program) -> Iterator[list[str]]:
    """Yield a row of HTML for each graph that the entry graph calls.

    The cells are its name, its number of operators, its number of layers, and its source lines.
    """
    for node in program.graph.nodes:
        if node.op.startswith("@"):
            graphs = [*_with_called(program, node.op)]
            operators = sum(not each.op.startswith("@") for graph in graphs for each in graph.nodes)
            yield [escape(node.op), f"{operators:,}", f"{len(graphs) - 1:,}", escape(_source(graphs))]


def _with_called(program: Program, op: str) -> Iterator[Graph]:
    """Yield the graph of a call, and the graphs that it calls."""
    graph = program.graphs[op.removeprefix("@")]
    yield graph
    for node in graph.nodes:
        if node.op.startswith("@"):
            yield from _with_called(program, node.op)


def _source(graphs: Iterable[Graph]) -> str:
    """Return the first and the last line in the file of the first operator."""
    places = [node.location for graph in graphs for node in graph.nodes if node.location is not None]
    lines = [(place.file, place.line) for place in places if place.file and place.line]
    if not lines:
        return ""
    file = lines[0][0]
    within = [line for each, line in lines if each == file]
    low, high = min(within), max(within)
    return f"{file}:{low}" if low == high else f"{file}:{low}-{high}"
