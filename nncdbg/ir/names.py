"""Names of values: what graphs define and read, and names that are still unused."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from nncdbg.ir.records import Graph, Node, Path, Value
from nncdbg.ir.walk import Source, blocks, fold


def defined(graph: Graph, *, inputs: bool = True) -> Iterator[Value]:
    """Yield the values that a block itself defines: its inputs, constants and the results of statements."""
    if inputs:
        yield from graph.inputs
    for constant in graph.constants:
        yield constant.value
    for node in graph.nodes:
        yield from node.outputs


def all_defined(source: Source, *, inputs: bool = True) -> Iterator[Value]:
    """Yield the values that graphs and the blocks inside them define."""
    for _, block in blocks(source):
        yield from defined(block, inputs=inputs)


def reads(node: Node) -> list[str]:
    """Return the names of the values that a node and its subgraphs read from outside."""
    return [operand for operand in node.inputs if isinstance(operand, str)] + captures(node)


def captures(node: Node) -> list[str]:
    """Return the names of the values around a node that its subgraphs read, with repetitions."""
    return [name for graph in node.subgraphs for name in free_names(graph)]


def free_names(graph: Graph) -> list[str]:
    """Return the names that a graph reads and does not define, in order of use, with repetitions."""
    return fold(graph, _free_names)


def _free_names(path: Path, block: Graph, inner: Mapping[int, Sequence[list[str]]]) -> list[str]:
    own = {value.name for value in defined(block)}
    names: list[str] = []
    for pc, node in enumerate(block.nodes):
        names += [name for name in node.inputs if isinstance(name, str) and name not in own]
        for free in inner.get(pc, ()):
            names += [name for name in free if name not in own]
    return names + [value.name for value in block.outputs if value.name not in own]


def needed_nodes(nodes: Sequence[Node], results: Iterable[str]) -> tuple[Node, ...]:
    """Return the statements on which values depend, in order."""
    needed, kept = {*results}, []
    for node in reversed(nodes):
        if any(value.name in needed for value in node.outputs):
            needed.update(reads(node))
            kept.append(node)
    return tuple(reversed(kept))


def fresh_name(name: str, used: Container[str], *, first: int = 1, mark: str = ".") -> str:
    """Return the name if it is unused, else the name with the lowest unused number from `first`."""
    free, number = name, first
    while free in used:
        free, number = f"{name}{mark}{number}", number + 1
    return free


def claimed_name(name: str, used: set[str], *, first: int = 1, mark: str = ".") -> str:
    """Return `fresh_name`, and add it to the used names."""
    free = fresh_name(name, used, first=first, mark=mark)
    used.add(free)
    return free
