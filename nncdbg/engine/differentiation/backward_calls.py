"""Calls of the graphs of ``backward`` lines, and of the graphs that they differentiate.

A call names what the backward graph needs (``saved %s``), and may omit cotangents and results (``_``).  In
the program that runs, it has a value for each saved part, and only the cotangents and results that it names.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.engine.inference.types import literal_array
from nncdbg.errors import Excerpt, GraphError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import (
    BackwardLine,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    Path,
    Program,
    TensorType,
    Value,
    has_cotangent,
    tensor_only,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import block_at, blocks, walk_nodes
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing

SAVED = "saved"
"""The attribute of a call with the name of what it saves for the backward graph."""


SavedValue: TypeAlias = "tuple[Path, str]"
"""What a call has saved: the graph or block of the call, and the name."""


@dataclass(frozen=True, slots=True)
class Derivative:
    """The graphs of one ``backward`` line, or of one call inside a differentiated graph.

    `forward` and `backward` are their keys in the program.  `backward` takes cotangents, then the values
    `saved`.
    """

    forward: str
    backward: str
    saved: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of the backward graph of the line `line`: the cotangents `given`, the results `wanted`.

    They are the numbers of the results of the differentiated graph, and of the names in ``by``.
    """

    line: str
    given: tuple[int, ...]
    wanted: tuple[int, ...]


def whole(line: BackwardLine, of: Graph) -> Variant:
    """Return the variant with all cotangents and all results."""
    return Variant(line.name, _floats(of), tuple(range(len(line.by))))


def _floats(graph: Graph) -> tuple[int, ...]:
    """Return the numbers of the results that have a cotangent."""
    return tuple(number for number, value in enumerate(graph.outputs) if has_cotangent(value.type))


@dataclass(frozen=True, slots=True)
class _Block:
    """A graph or a block inside it; `scopes` has the saved values that each statement can read."""

    path: Path
    graph: Graph
    scopes: tuple[Mapping[str, SavedValue], ...]


def _blocks(graph: Graph) -> list[_Block]:
    """Return a graph and the blocks inside it, outer before inner."""
    found: dict[Path, _Block] = {}
    for path, block in sorted(blocks(graph), key=lambda each: len(each[0])):
        scope = found[path[:-2]].scopes[int(path[-2])] if len(path) > 1 else {}
        scopes = []
        for node in block.nodes:
            scopes.append(scope)
            name = node.attributes.get(SAVED)
            if node.kind is Kind.CALL and isinstance(name, str):
                scope = {**scope, name: (path, name)}
        found[path] = _Block(path, block, tuple(scopes))
    return list(found.values())


def saved_calls(graph: Graph, ops: Container[str]) -> Iterator[tuple[Path, int, Node, SavedValue]]:
    """Yield (path of its block, number, statement, what it reads) of the calls of `ops` with saved values."""
    for block in _blocks(graph):
        for pc, node in enumerate(block.graph.nodes):
            last = node.inputs[-1] if node.inputs else None
            saved = block.scopes[pc].get(last) if isinstance(last, str) else None
            if node.op in ops and saved is not None:
                yield block.path, pc, node, saved


def between_calls(graph: Graph, saved: SavedValue, path: Path, pc: int) -> Iterator[Node]:
    """Yield the statements that may run after the call that saved values, and before the statement at `pc`.

    `path` is the block of the statement, which is the block of `saved` or inside it.
    """
    nodes = block_at(graph, saved[0]).nodes
    first = 1 + next(n for n, node in enumerate(nodes) if node.attributes.get(SAVED) == saved[1])
    place = (*path, pc)
    for depth in range(len(saved[0]), len(place), 2):
        nodes, inside = block_at(graph, place[:depth]).nodes, int(place[depth])
        for node in nodes[first : inside + (nodes[inside].kind is Kind.WHILE)]:
            yield from walk_nodes(node)
        first = 0


def variants_in(graph: Graph, program: Program, listing: Listing) -> dict[SavedValue, Variant]:
    """Return the variant for each value that a call saved; `listing` has the lines.

    Calls that share saved values get one variant, with the results that any of them names; of the calls of
    several backward graphs, the last one decides.  Raises GraphError for a call without cotangents, and for
    such calls with different cotangents.
    """
    lines = {f"@{line.name}": line for line in program.backwards if line.of in program.graphs}
    found: dict[SavedValue, Variant] = {}
    for path, pc, node, saved in saved_calls(graph, lines):
        line, place = lines[node.op], listing.excerpt(path, pc)
        found[saved] = _variant(node, line, program.graphs[line.of], found.get(saved), place)
    return found


def _variant(node: Node, line: BackwardLine, of: Graph, before: Variant | None, place: Excerpt) -> Variant:
    """Return the variant for a call of a backward graph, and for the call `before` with the same values."""
    floats = _floats(of)
    given = tuple(
        number for number, operand in zip(floats, node.inputs[:-1], strict=False) if operand is not None
    )
    wanted = tuple(number for number, value in enumerate(node.outputs) if value.name)
    if floats and not given:
        result = of.outputs[floats[0]].name
        raise GraphError(
            f"{node.op} has no cotangent: its operand for %{name_text(result)} is omitted",
            excerpt=place,
            hint="pass 1.0, or the gradient of a later value, for a result at least",
        )
    if before is not None and before.line == line.name:
        if before.given != given:
            raise GraphError(
                f"two calls of {node.op} with %{name_text(str(node.inputs[-1]))} omit different cotangents",
                excerpt=place,
                hint=f"call @{name_text(line.of)} once for each of them",
            )
        wanted = tuple(sorted({*before.wanted, *wanted}))
    return Variant(line.name, given, wanted or tuple(range(len(line.by))))


class BackwardCalls:
    """Replaces ``saved %s`` and the calls of backward graphs in the graphs that the user wrote."""

    def __init__(
        self,
        program: Program,
        made: Mapping[Variant, Derivative],
        graphs: Mapping[str, Graph],
        listing: Listing,
        later: Container[str] = (),
    ) -> None:
        """`made` are the derivatives of the lines of `program`, and `graphs` its graphs and theirs.

        `later` are the graphs of lines that are expanded later.
        """
        self._program = program
        self._tops = made
        self._graphs = graphs
        self._listing = listing
        self._later = later
        self._lines = {f"@{line.name}" for line in program.backwards}

    def graph(self, graph: Graph) -> Graph:
        """Return a graph with every value saved by name as one value for each part."""
        order = _blocks(graph)
        saved = self._saved(graph, order)
        constants: list[Constant] = []
        calls: dict[tuple[Path, int], Node] = {}
        for block in reversed(order):
            for pc, node in enumerate(block.graph.nodes):
                name = node.attributes.get(SAVED)
                if isinstance(name, str) and (block.path, name) in saved:
                    calls[block.path, pc] = self._forward(node, name, saved[block.path, name][1])
                elif node.op in self._lines:
                    place = self._listing.excerpt(block.path, pc)
                    last = node.inputs[-1] if node.inputs else None
                    key = block.scopes[pc].get(last) if isinstance(last, str) else None
                    pair = saved.get(key) if key else None
                    calls[block.path, pc] = self._backward(node, pair, constants, place)
        top = rewrite(graph, lambda path, pc, node: calls.get((path, pc), node))
        return replace(top, constants=(*top.constants, *constants))

    def _saved(self, graph: Graph, order: Sequence[_Block]) -> dict[SavedValue, tuple[Variant, Derivative]]:
        """Return the variant and the derivative for each saved value of the lines."""
        by_graph = {self._graphs[made.forward].name: (key, made) for key, made in self._tops.items()}
        variants = variants_in(graph, self._program, self._listing)
        saved = {}
        for block in order:
            for pc, node in enumerate(block.graph.nodes):
                name = node.attributes.get(SAVED)
                called = node.called
                if called is None or not isinstance(name, str) or called in self._later:
                    continue
                variant = variants.get((block.path, name))
                found = (variant, self._tops[variant]) if variant is not None else by_graph.get(called)
                if found is None or self._graphs[found[1].forward].name != called:
                    raise GraphError(
                        f"{node.op} saves %{name_text(name)}, but no `backward` line "
                        f"differentiates {node.op}",
                        excerpt=self._listing.excerpt(block.path, pc),
                        hint=f"add the line: backward {node.op}.backward of {node.op} by (%w)",
                    )
                saved[block.path, name] = found
        return saved

    def _forward(self, node: Node, name: str, derivative: Derivative) -> Node:
        """Return a call that also returns the parts of what it saves."""
        parts = tuple(replace(each, name=f"{name}.{each.name}") for each in derivative.saved)
        return replace(node, op=f"@{derivative.forward}", outputs=(*node.outputs, *parts), attributes={})

    def _backward(
        self,
        node: Node,
        saved: tuple[Variant, Derivative] | None,
        constants: list[Constant],
        place: Excerpt,
    ) -> Node:
        """Return a call of a backward graph with typed cotangents, and the parts of what was saved."""
        if saved is None or saved[0].line != node.called:
            forward = next(line.of for line in self._program.backwards if line.name == node.called)
            raise GraphError(
                f"{node.op} needs the values saved by a call of @{forward} as its last operand",
                excerpt=place,
                hint=f"write %l, saved %s = @{forward}(...), then {node.op}(1.0, %s)",
            )
        variant, derivative = saved
        last = node.inputs[-1]
        used = {constant.value.name for constant in constants}
        cotangents: list[Operand] = []
        given = [operand for operand in node.inputs[:-1] if operand is not None]
        for operand, value in zip(given, self._graphs[derivative.backward].inputs, strict=False):
            known = tensor_only(value.type)
            if isinstance(operand, Literal) and known is not None:
                name = claimed_name(f"{last}.{value.name}", used)
                data = literal_array(operand, known.dtype)
                constants.append(Constant(Value(name, TensorType(known.dtype, data.shape)), Inline(data)))
                operand = name
            cotangents.append(operand)
        return replace(
            node,
            op=f"@{derivative.backward}",
            inputs=(*cotangents, *(f"{last}.{each.name}" for each in derivative.saved)),
            outputs=tuple(node.outputs[number] for number in variant.wanted),
        )
