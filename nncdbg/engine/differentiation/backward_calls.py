"""Calls of the graphs of ``backward`` lines, and of the graphs that they differentiate.

A call names what the backward graph needs (``saved %s``), and may omit cotangents and results (``_``).  In
the program that runs, it has a value for each saved part, and only the cotangents and results that it names.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from nncdbg.engine.errors import Excerpt, GraphError
from nncdbg.engine.graph import (
    BackwardLine,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    Program,
    TensorType,
    Value,
    has_cotangent,
    tensor_only,
)
from nncdbg.engine.inference.types import literal_array
from nncdbg.engine.text.lexemes import name_text
from nncdbg.engine.text.listing import Listing

SAVED = "saved"
"""The attribute of a call with the name of what it saves for the backward graph."""


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


def variants_in(graph: Graph, program: Program, listing: Listing) -> dict[str, Variant]:
    """Return the variant for the values that a call saved, by their name; `listing` has the lines.

    Calls that share saved values get one variant, with the results that any of them names; of the calls of
    several backward graphs, the last one decides.  Raises GraphError for a call without cotangents, and for
    such calls with different cotangents.
    """
    lines = {f"@{line.name}": line for line in program.backwards if line.of in program.graphs}
    found: dict[str, Variant] = {}
    for pc, node in enumerate(graph.nodes):
        line, saved = lines.get(node.op), node.inputs[-1] if node.inputs else None
        if line is None or not isinstance(saved, str):
            continue
        floats = _floats(program.graphs[line.of])
        given = tuple(
            number for number, operand in zip(floats, node.inputs[:-1], strict=False) if operand is not None
        )
        wanted = tuple(number for number, value in enumerate(node.outputs) if value.name)
        if floats and not given:
            result = program.graphs[line.of].outputs[floats[0]].name
            raise GraphError(
                f"{node.op} has no cotangent: its operand for %{name_text(result)} is omitted",
                excerpt=listing.excerpt((graph.name,), pc),
                hint="pass 1.0, or the gradient of a later value, for a result at least",
            )
        before = found.get(saved)
        if before is not None and before.line == line.name:
            if before.given != given:
                raise GraphError(
                    f"two calls of {node.op} with %{name_text(saved)} omit different cotangents",
                    excerpt=listing.excerpt((graph.name,), pc),
                    hint=f"call @{name_text(line.of)} once for each of them",
                )
            wanted = tuple(sorted({*before.wanted, *wanted}))
        found[saved] = Variant(line.name, given, wanted or tuple(range(len(line.by))))
    return found


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
        saved: dict[str, tuple[Variant, Derivative]] = {}
        constants: list[Constant] = []
        nodes = []
        by_graph = {self._graphs[made.forward].name: (key, made) for key, made in self._tops.items()}
        taken = {
            name: (key, self._tops[key])
            for name, key in variants_in(graph, self._program, self._listing).items()
        }
        for pc, node in enumerate(graph.nodes):
            name = node.attributes.get(SAVED)
            if node.op.startswith("@") and isinstance(name, str) and node.op[1:] not in self._later:
                found = taken.get(name) or by_graph.get(node.op[1:])
                if found is None or self._graphs[found[1].forward].name != node.op[1:]:
                    raise GraphError(
                        f"{node.op} saves %{name}, but no `backward` line differentiates {node.op}",
                        excerpt=self._listing.excerpt((graph.name,), pc),
                        hint=f"add the line: backward {node.op}.backward of {node.op} by (%w)",
                    )
                saved[name] = found
                derivative = found[1]
                parts = tuple(replace(each, name=f"{name}.{each.name}") for each in derivative.saved)
                node = replace(
                    node, op=f"@{derivative.forward}", outputs=(*node.outputs, *parts), attributes={}
                )
            elif node.op in self._lines:
                node = self._backward(node, saved, constants, self._listing.excerpt((graph.name,), pc))
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes), constants=(*graph.constants, *constants))

    def _backward(
        self,
        node: Node,
        saved: Mapping[str, tuple[Variant, Derivative]],
        constants: list[Constant],
        place: Excerpt,
    ) -> Node:
        """Return a call of a backward graph with typed cotangents, and the parts of what was saved."""
        last = node.inputs[-1] if node.inputs else None
        variant, derivative = saved.get(last, (None, None)) if isinstance(last, str) else (None, None)
        if variant is None or derivative is None or variant.line != node.op[1:]:
            forward = next(line.of for line in self._program.backwards if line.name == node.op[1:])
            raise GraphError(
                f"{node.op} needs the values saved by a call of @{forward} as its last operand",
                excerpt=place,
                hint=f"write %l, saved %s = @{forward}(...), then {node.op}(1.0, %s)",
            )
        cotangents: list[Operand] = []
        given = [operand for operand in node.inputs[:-1] if operand is not None]
        for operand, value in zip(given, self._graphs[derivative.backward].inputs, strict=False):
            known = tensor_only(value.type)
            if isinstance(operand, Literal) and known is not None:
                name = f"{last}.{value.name}"
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
