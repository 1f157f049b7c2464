"""`nncdbg.Editor`: change a program statement by statement, and get a new program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn

from nncdbg.engine.building.editing import (
    EditedBlock,
    EditedOperand,
    EditedStatement,
    EditedValue,
    edited_attributes,
    edited_operand,
)
from nncdbg.engine.building.retyping import retyped
from nncdbg.engine.building.signatures import EditedGraph
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.kinds import Kind, kind_of
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import Attribute, BackwardLine, Graph, Literal, Node, Operand, Program, Type, Value
from nncdbg.text.lexemes import name_text


class Editor:
    """A program whose statements can be inserted, replaced, moved, rewired and deleted.

        edit = nncdbg.Editor(program)
        for statement in edit.graph():                 # edits during the iteration are allowed
            if statement.op == "Relu":
                statement.replace("LeakyRelu", statement.operands[0], alpha=0.1)
        program = edit.program()

    The given program does not change.  A statement keeps its `id`, and values know their readers (`uses`).
    """

    def __init__(self, program: Program) -> None:
        self._original = program
        self._ids = count()
        self._edited: set[str] = set()
        self._rules = TypeRules(program.opsets, program.graphs)
        self._states = {
            line.value.name: EditedValue(line.value.name, line.value.type) for line in program.states
        }
        self._used: dict[str, set[str]] = {}
        """The names in each graph and its blocks."""
        self._graphs = {name: self._read_graph(name, graph) for name, graph in program.graphs.items()}
        self._edited.clear()

    def graph(self, name: str = "") -> EditedGraph:
        """Return a graph, by default the entry graph.  Raises UsageError for an unknown name."""
        found = self._graphs.get(name.removeprefix("@") or self._original.entry)
        if found is None:
            raise UsageError(f"no graph {name}", hint=f"use one of: {', '.join(self._graphs)}")
        return found

    def __iter__(self) -> Iterator[EditedStatement]:
        """Yield the statements of all graphs and blocks, outer before inner, as a block does."""
        for graph in tuple(self._graphs.values()):
            waiting = [iter(graph)]
            while waiting:
                statement = next(waiting[-1], None)
                if statement is None:
                    waiting.pop()
                    continue
                yield statement
                waiting += [
                    iter(block) for block in reversed(statement.blocks) if statement.block is not None
                ]

    def value(self, name: str, graph: str = "") -> EditedValue:
        """Return a value of a graph by name.  Raises UsageError if it has none, or several in its blocks."""
        plain, top = name.removeprefix("%"), self.graph(graph)
        found = [value for block in _blocks(top) for value in _defined(block) if value.name == plain]
        if len(found) != 1:
            raise UsageError(f"@{top.name} has {len(found) or 'no'} values %{name_text(plain)}")
        return found[0]

    def program(self) -> Program:
        """Return the edited program; the types of its values are inferred again.

        Raises GraphError for a statement that reads a value before its definition, or that does not fit the
        types of its operands.
        """
        if not self._edited:
            return self._original
        graphs = dict(self._original.graphs)
        for name in self._edited:
            graphs[name] = self._written(self._graphs[name])
        saved = replace(self._original.saved, origin="", checksums={})
        made = replace(self._original, graphs=graphs, listing=None, source=None, notes=(), saved=saved)
        for name in self._edited:
            graphs[name] = retyped(made, graphs[name])
        return replace(made, graphs=graphs)

    def carry(self, loop: EditedStatement, first: Any, name: str = "") -> tuple[EditedValue, EditedValue]:
        """Let a ``while`` carry a further value; return it as it is in the body, and after the loop.

        `first` is its first value.  The next value is the same: ``value.replace_uses`` or ``set_operand`` of
        the body sets another one.  Raises GraphError for a statement that is no loop.
        """
        if kind_of(loop.op) is not Kind.WHILE:
            raise GraphError(f"{loop} carries no values", hint="name a `while`")
        body, block, given = loop.blocks[0], loop.containing_block(), self.operand(first)
        count = len(body.inputs) - 1
        known, wanted = (given.type, given.name) if isinstance(given, EditedValue) else (None, "carried")
        inside = EditedValue(self.claim(body, name or wanted), known, body)
        after = EditedValue(self.claim(block, name or wanted), known, block, loop)
        body.inputs = (*body.inputs, inside)
        body._set_operands([*body.results[:count], inside, *body.results[count:]])
        loop.outputs = (*loop.outputs[:count], after, *loop.outputs[count:])
        loop._set_operands([*loop.operands, given])
        return inside, after

    # -- called by blocks and statements -----------------------------------------------------------

    def operand(self, given: Any) -> EditedOperand:
        """Return an operand from Python data."""
        return edited_operand(given)

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Attribute]:
        """Return keywords as attributes."""
        return edited_attributes(given)

    def has_run(self, graph: str) -> bool:
        """Return whether a ``run`` or ``evaluate`` line calls a graph."""
        lines = [each for run in self._original.runs for each in (run, *run.evaluations)]
        return any(each.graph == graph for each in lines)

    def backward_lines(self, graph: str) -> list[BackwardLine]:
        """Return the ``backward`` lines that differentiate a graph."""
        return [line for line in self._original.backwards if line.of == graph]

    def infer_types(self, graph: str) -> None:
        """Infer the types of the values of a graph that are not known.  Raises GraphError as `program`."""
        top = self._graphs[graph]
        made = retyped(self.program(), self._written(top))
        types = {value.name: value.type for node in made.nodes for value in node.outputs}
        for statement in top:
            for value in statement.outputs:
                value.type = value.type or types.get(value.name)

    def next_id(self) -> int:
        """Return the id of a new statement."""
        return next(self._ids)

    def changed(self, reader: EditedStatement | EditedBlock | Any) -> None:
        """Note that a statement or block has changed."""
        block = reader if isinstance(reader, EditedBlock) else reader.block
        if block is not None:
            self._edited.add(block.graph)

    def claim(self, block: EditedBlock, name: str) -> str:
        """Return a name that no value of the graph has."""
        return claimed_name(name.removeprefix("%"), self._used[block.graph])

    def inferred(
        self, op: str, operands: Sequence[Any], attributes: Mapping[str, Attribute], outputs: int
    ) -> Sequence[Type | None]:
        """Return the types of the results of an op, as far as they are known.  Raises GraphError."""
        given = [self.operand(each) for each in operands]
        inputs = tuple(
            each.name or f"operand {index}" if isinstance(each, EditedValue) else each
            for index, each in enumerate(given)
        )
        types = tuple(each.type if isinstance(each, EditedValue) else None for each in given)
        node = Node(op, inputs, (Value(""),) * outputs, attributes)
        return self._rules.results(node, self._rules.literal_types(node, types))

    # -- reading -----------------------------------------------------------------------------------

    def _read_graph(self, key: str, graph: Graph) -> EditedGraph:
        """Return a graph with its statements."""
        self._used[key] = {*self._states, *(value.name for value in all_defined(graph))}
        top = EditedGraph(self, graph, None, key)
        waiting: list[tuple[EditedBlock, Graph, Mapping[str, EditedValue]]] = [(top, graph, self._states)]
        # No recursion: blocks may be nested deeper than Python's stack.
        while waiting:
            waiting += self._read_block(*waiting.pop())
        return top

    def _read_block(
        self, block: EditedBlock, graph: Graph, outer: Mapping[str, EditedValue]
    ) -> list[tuple[EditedBlock, Graph, Mapping[str, EditedValue]]]:
        """Read the statements of a block; return the blocks inside it, to be read next."""
        known = dict(outer)
        block.inputs = tuple(EditedValue(each.name, each.type, block) for each in graph.inputs)
        block.constants = tuple(
            (EditedValue(each.value.name, each.value.type, block), each) for each in graph.constants
        )
        known |= {value.name: value for value in block.inputs}
        known |= {value.name: value for value, _ in block.constants}
        inside: list[tuple[EditedBlock, Graph, Mapping[str, EditedValue]]] = []
        for node in graph.nodes:
            statement = EditedStatement(block, self.next_id(), node)
            block._statements.append(statement)
            statement._set_operands([self._found(each, known, node) for each in node.inputs])
            statement.blocks = tuple(
                EditedBlock(self, each, statement, block.graph) for each in node.subgraphs
            )
            inside += zip(statement.blocks, node.subgraphs, [dict(known)] * len(node.subgraphs), strict=True)
            if node.kind is Kind.UPDATE:
                statement.outputs = tuple(self._states[each.name] for each in node.outputs)
                continue
            statement.outputs = tuple(
                EditedValue(each.name, each.type, block, statement) for each in node.outputs
            )
            saved = node.attributes.get(SAVED) if node.kind is Kind.CALL else None
            if isinstance(saved, str):
                statement.saved = EditedValue(saved, None, block, statement)
            known |= {value.name: value for value in statement.results}
        block._set_operands([self._found(each.name, known, None) for each in graph.outputs])
        return inside

    def _found(self, operand: Operand, known: Mapping[str, EditedValue], node: Node | None) -> EditedOperand:
        if not isinstance(operand, str):
            return operand
        if operand not in known:
            _fail(
                f"{node.op if node else 'the end of a block'} reads %{name_text(operand)}, which "
                f"is not defined"
            )
        return known[operand]

    # -- writing -----------------------------------------------------------------------------------

    def _written(self, top: EditedBlock) -> Graph:
        """Return the record of a graph."""
        order = [*_blocks(top)]
        made: dict[EditedBlock, Graph] = {}
        for block in reversed(order):
            nodes = tuple(
                Node(
                    each.op,
                    tuple(map(_operand, each.operands)),
                    tuple(
                        Value(value.name, None if kind_of(each.op) is Kind.UPDATE else value.type)
                        for value in each.outputs
                    ),
                    each.attributes,
                    tuple(made[inner] for inner in each.blocks),
                    each.location,
                    each.comment,
                )
                for each in block
            )
            made[block] = Graph(
                block.name,
                tuple(Value(value.name, value.type) for value in block.inputs),
                tuple(self._result(each, block) for each in block.results),
                nodes,
                tuple(constant for _, constant in block.constants),
                block.comment,
            )
        return made[top]

    def _result(self, value: EditedOperand, block: EditedBlock) -> Value:
        if not isinstance(value, EditedValue):
            _fail(f"@{block.name} ends with {value!r}, which is no value")
        return Value(value.name, value.type if block.outer is None else None)


def _operand(operand: EditedOperand) -> str | Literal | None:
    return operand.name if isinstance(operand, EditedValue) else operand


def _blocks(top: EditedBlock) -> Iterator[EditedBlock]:
    """Yield a block and the blocks inside it, outer before inner."""
    waiting = [top]
    for block in waiting:
        yield block
        waiting += [inner for statement in block for inner in statement.blocks]


def _defined(block: EditedBlock) -> Iterator[EditedValue]:
    yield from block.inputs
    yield from (value for value, _ in block.constants)
    yield from (value for statement in block for value in statement.results)


def _fail(message: str) -> NoReturn:
    raise GraphError(message, hint="correct the program first: `nncdbg print MODEL` shows it")
