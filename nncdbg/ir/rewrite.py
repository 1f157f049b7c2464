"""Rewriting: graphs with other statements, and copies of statements under other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nncdbg.ir.records import Graph, Node, Operand, Path, Type, Value


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
    enter: Callable[[Path, Graph], Graph] = _unchanged,
    key: str | None = None,
) -> Graph:
    """Return the graph with `statement(path, pc, node)` in the place of each statement: one, or several.

    The blocks of `node` are rewritten already; path and pc are its place in the old graph.  Statements come
    in the order of the text.  `enter(path, old)` returns what is rewritten in place of a block, when the
    statements before have been rewritten; `block(path, new)` returns the final form of each block.  Unchanged
    statements and blocks stay the same objects.  Blocks may be nested deeper than Python's stack.

    Paths start with `key`, by default the name of the graph.
    """
    root = (graph.name if key is None else key,)
    stack = [_Open(root, enter(root, graph))]
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
            path = (*top.path, top.pc, number)
            stack.append(_Open(path, enter(path, node.subgraphs[number])))
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


Claim = Callable[[str], str]
"""Returns the name of a copied value, from that of the original."""


def same_type(type_: Type | None) -> Type | None:
    """Return the type: the default for the values of a copy."""
    return type_


def copied_node(
    node: Node,
    names: dict[str, Operand],
    claim: Claim,
    retyped: Callable[[Type | None], Type | None] = same_type,
) -> Node:
    """Return a statement that reads `names[x]` instead of ``%x``, and with outputs named by `claim`.

    The outputs are added to `names`.  `retyped` returns the type of a copied value.
    """
    blocks = tuple(_copied_block(each, names, claim, retyped) for each in node.subgraphs)
    inputs = tuple(names.get(each, each) if isinstance(each, str) else each for each in node.inputs)
    outputs = tuple(_copied_value(value, names, claim, retyped) for value in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs, subgraphs=blocks)


def renamed(graph: Graph, new: Mapping[str, str], claim: Claim = lambda own: own) -> Graph:
    """Return the graph with new names for some of its inputs and constants, and where they are read.

    `claim` returns the names of the results of statements, by default their own.
    """

    def changed(value: Value) -> Value:
        return replace(value, name=new.get(value.name, value.name))

    return replace(
        graph,
        inputs=tuple(map(changed, graph.inputs)),
        constants=tuple(replace(each, value=changed(each.value)) for each in graph.constants),
        nodes=tuple(copied_node(node, {**new}, claim) for node in graph.nodes),
        outputs=tuple(map(changed, graph.outputs)),
    )


def _copied_block(
    block: Graph, names: dict[str, Operand], claim: Claim, retyped: Callable[[Type | None], Type | None]
) -> Graph:
    inside = dict(names)
    inputs = tuple(_copied_value(value, inside, claim, retyped) for value in block.inputs)
    constants = tuple(
        replace(each, value=_copied_value(each.value, inside, claim, same_type)) for each in block.constants
    )
    nodes = tuple(copied_node(node, inside, claim, retyped) for node in block.nodes)
    outputs = tuple(replace(value, name=str(inside.get(value.name, value.name))) for value in block.outputs)
    return replace(block, inputs=inputs, outputs=outputs, nodes=nodes, constants=constants)


def _copied_value(
    value: Value,
    names: dict[str, Operand],
    claim: Claim,
    retyped: Callable[[Type | None], Type | None],
) -> Value:
    if not value.name:
        return value
    names[value.name] = name = claim(value.name)
    return Value(name, retyped(value.type))
