"""Rewriting: graphs with other statements, and copies of statements under other names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nncdbg.ir.records import Graph, Node, Path


@dataclass(slots=True)
class _Open:
    """A block that is being rewritten: its new statements, and the new blocks of its next statement."""

    path: Path
    graph: Graph
    pc: int = 0
    nodes: list[Node] = field(default_factory=list)
    inner: list[Graph] = field(default_factory=list)

    def closed(self) -> Graph:
        old = self.graph.nodes
        if len(self.nodes) == len(old) and all(map(_same, self.nodes, old)):
            return self.graph
        return replace(self.graph, nodes=tuple(self.nodes))


def _same(new: object, old: object) -> bool:
    return new is old


def _unchanged(path: Path, block: Graph) -> Graph:
    return block


def rewrite(
    graph: Graph,
    statement: Callable[[Path, int, Node], Node | Sequence[Node]],
    block: Callable[[Path, Graph], Graph] = _unchanged,
    *,
    key: str | None = None,
) -> Graph:
    """Return the graph with `statement(path, pc, node)` in the place of each statement: one, or several.

    The blocks of `node` are rewritten already; path and pc are its place in the old graph.  Statements come
    in the order of the text.  `block(path, new)` then returns the final form of each block.  Unchanged
    statements and blocks stay the same objects.  Blocks may be nested deeper than Python's stack.

    Paths start with `key`, by default the name of the graph.
    """
    stack = [_Open((graph.name if key is None else key,), graph)]
    while True:
        top = stack[-1]
        if top.pc == len(top.graph.nodes):
            stack.pop()
            made = block(top.path, top.closed())
            if not stack:
                return made
            stack[-1].inner.append(made)
            continue
        node = top.graph.nodes[top.pc]
        if (number := len(top.inner)) < len(node.subgraphs):
            stack.append(_Open((*top.path, top.pc, number), node.subgraphs[number]))
            continue
        if not all(map(_same, top.inner, node.subgraphs)):
            node = replace(node, subgraphs=tuple(top.inner))
        new = statement(top.path, top.pc, node)
        top.nodes += (new,) if isinstance(new, Node) else new
        top.pc += 1
        top.inner = []


def rewrite_node(node: Node, statement: Callable[[Node], Node]) -> Node:
    """Return `statement(node)`, after its blocks have been rewritten with the same function."""
    if node.subgraphs:
        return rewrite(Graph("", nodes=(node,)), lambda path, pc, inner: statement(inner)).nodes[0]
    return statement(node)
