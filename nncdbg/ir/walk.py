"""Walks over programs: blocks and statements in the order of the text, without recursion.

Control flow may be nested deeper than Python's stack, so no other module recurses into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from nncdbg.ir.records import Graph, Node, Path, Program
from nncdbg.ir.source_trace import SourceTrace

T = TypeVar("T")

Source: TypeAlias = "Program | Graph | Mapping[str, Graph]"
"""What a walk covers.  A path starts with the name of the graph; in a mapping, with its key there.

The two differ for the forward graph of a ``backward`` line, which has the name of the graph that it repeats.
"""


def _roots(source: Source) -> list[tuple[Path, Graph]]:
    if isinstance(source, Graph):
        return [((source.name,), source)]
    if isinstance(source, Program):
        return [((graph.name,), graph) for graph in source.graphs.values()]
    return [((key,), graph) for key, graph in source.items()]


def blocks(source: Source) -> Iterator[tuple[Path, Graph]]:
    """Yield every graph, branch and loop body with its path, outer before inner."""
    stack = _roots(source)[::-1]
    while stack:
        place = stack.pop()
        yield place
        path, graph = place
        inside = [
            ((*path, pc, number), block)
            for pc, node in enumerate(graph.nodes)
            if node.subgraphs
            for number, block in enumerate(node.subgraphs)
        ]
        stack += reversed(inside)


def walk(source: Source) -> Iterator[tuple[Path, Graph, int, Node]]:
    """Yield every statement after its block's path, its block and its number there.

    A statement comes before the statements in its blocks, and these before the next one.
    """
    stack = [(path, graph, enumerate(graph.nodes)) for path, graph in reversed(_roots(source))]
    while stack:
        path, graph, nodes = stack[-1]
        for pc, node in nodes:
            yield path, graph, pc, node
            if node.subgraphs:
                for number in reversed(range(len(node.subgraphs))):
                    block = node.subgraphs[number]
                    stack.append(((*path, pc, number), block, enumerate(block.nodes)))
                break
        else:
            stack.pop()


def executed(program: Program) -> Iterator[Node]:
    """Yield the statements of a program whose graphs are called once, in the order in which they run.

    Recorded steps are such programs.  Calls are left out.
    """
    return (node for node in walk_nodes(program.graph, program.graphs) if node.called is None)


def misfit(program: Program, trace: SourceTrace) -> str | None:
    """Return why a source trace is not that of a recorded step; None if it is."""
    nodes = [*executed(program)]
    values = {value.name for value in program.graph.inputs} | {line.value.name for line in program.states}
    values.update(value.name for node in nodes for value in node.outputs)
    return trace.mistake(len(nodes), values)


def fitting_trace(program: Program) -> SourceTrace | None:
    """Return the source trace of a recorded step; None without one, and for an edited program."""
    trace = program.saved.trace
    return trace if trace is not None and misfit(program, trace) is None else None


def walk_nodes(source: Source | Node, calls: Mapping[str, Graph] | None = None) -> Iterator[Node]:
    """Yield every statement in the order of `walk`; for a statement itself and those in its blocks.

    With `calls`, the statements of each graph in it follow the first call of the graph.
    """
    nodes = [source] if isinstance(source, Node) else chain(*(graph.nodes for _, graph in _roots(source)))
    entered: set[str] = set()
    stack = [iter(nodes)]
    while stack:
        for node in stack[-1]:
            yield node
            if node.subgraphs:
                stack.append(chain(*(block.nodes for block in node.subgraphs)))
                break
            name = node.called if calls else None
            if calls and name is not None and name in calls and name not in entered:
                entered.add(name)
                stack.append(iter(calls[name].nodes))
                break
        else:
            stack.pop()


def block_at(source: Source, path: Path) -> Graph:
    """Return the block at a path of `blocks`.  Raises LookupError if there is none."""
    graph = source
    if not isinstance(graph, Graph):
        graph = (graph.graphs if isinstance(graph, Program) else graph)[str(path[0])]
    for pc, number in zip(path[1::2], path[2::2], strict=True):
        graph = graph.nodes[int(pc)].subgraphs[int(number)]
    return graph


def node_at(source: Source, path: Path, pc: int) -> Node | None:
    """Return statement `pc` of the block at a path; None for the first or last line of the block."""
    nodes = block_at(source, path).nodes
    return nodes[pc] if 0 <= pc < len(nodes) else None


def calls_in(source: Source | Node) -> list[str]:
    """Return the graphs that statements call, in order and with repetitions."""
    return [name for node in walk_nodes(source) if (name := node.called) is not None]


def graphs_called(key: str, graphs: Mapping[str, Graph]) -> list[str]:
    """Return a graph and the graphs that it calls, in these too, by key and in order."""
    reached = [key]
    for name in reached:
        reached += dict.fromkeys(c for c in calls_in(graphs[name]) if c not in reached and c in graphs)
    return reached


def fold(graph: Graph, of: Callable[[Path, Graph, Mapping[int, Sequence[T]]], T]) -> T:
    """Return `of(path, block, inner)` of the graph; `inner[pc]` are the results of a statement's blocks."""
    results: dict[Path, T] = {}
    for path, block in reversed([*blocks(graph)]):
        inner = {
            pc: [results.pop((*path, pc, number)) for number in range(len(node.subgraphs))]
            for pc, node in enumerate(block.nodes)
            if node.subgraphs
        }
        results[path] = of(path, block, inner)
    return results[graph.name,]
