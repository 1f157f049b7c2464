"""`nncdbg.Editor`: change a program statement by statement, and get a new program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn, TypeAlias

from nncdbg.engine.building.editing import (
    EditedBlock,
    EditedOperand,
    EditedStatement,
    EditedValue,
    edited_operand,
)
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.frontends.order import title
from nncdbg.engine.inference.graphs import GraphInference, TypeRules
from nncdbg.engine.inference.types import common_type, type_of_array
from nncdbg.errors import GraphError, NncdbgError, UsageError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.kinds import Kind, called_graph, kind_of
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    Attribute,
    BackwardLine,
    Graph,
    Literal,
    Node,
    Operand,
    Path,
    Program,
    Type,
    Value,
    has_cotangent,
)
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import block_at, blocks, walk_nodes
from nncdbg.text.lexemes import Flaw, name_text
from nncdbg.text.types import parse_type


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
        self.original = program
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
        found = self._graphs.get(name.removeprefix("@") or self.original.entry)
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
            return self.original
        graphs = dict(self.original.graphs)
        for name in self._edited:
            graphs[name] = self._written(self._graphs[name])
        saved = replace(self.original.saved, origin="", checksums={})
        made = replace(self.original, graphs=graphs, listing=None, source=None, notes=(), saved=saved)
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
        body, block, given = loop.blocks[0], loop.containing_block(), edited_operand(first)
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
        given = [edited_operand(each) for each in operands]
        inputs = tuple(
            each.name or f"operand {index}" if isinstance(each, EditedValue) else each
            for index, each in enumerate(given)
        )
        types = tuple(each.type if isinstance(each, EditedValue) else None for each in given)
        node = Node(op, inputs, (Value(""),) * outputs, attributes)
        return self._rules.results(node, self._rules.literal_types(node, types))

    # -- reading -----------------------------------------------------------------------------------

    def _read_graph(self, key: str, graph: Graph) -> EditedGraph:
        self._used[key] = {*self._states, *(value.name for value in all_defined(graph))}
        top = EditedGraph(self, graph, None, key)
        made: dict[Path, EditedBlock] = {}
        around: dict[Path, Mapping[str, EditedValue]] = {}
        """The values that the blocks of a statement can read."""
        for path, block in blocks(graph):
            if len(path) == 1:
                made[path], known = top, {**self._states}
            else:
                outer = made[path[:-2]]._statements[int(path[-2])]
                made[path], known = EditedBlock(self, block, outer, key), {**around[path[:-1]]}
                outer.blocks = (*outer.blocks, made[path])
            around |= {(*path, pc): values for pc, values in self._read_block(made[path], block, known)}
        return top

    def _read_block(
        self, block: EditedBlock, graph: Graph, known: dict[str, EditedValue]
    ) -> Iterator[tuple[int, Mapping[str, EditedValue]]]:
        """Read the statements of a block; yield each one with blocks, and what they can read."""
        block.inputs = tuple(EditedValue(each.name, each.type, block) for each in graph.inputs)
        block.constants = tuple(
            (EditedValue(each.value.name, each.value.type, block), each) for each in graph.constants
        )
        known |= {value.name: value for value in block.inputs}
        known |= {value.name: value for value, _ in block.constants}
        for pc, node in enumerate(graph.nodes):
            statement = EditedStatement(block, self.next_id(), node)
            block._statements.append(statement)
            statement._set_operands([self._found(each, known, node) for each in node.inputs])
            if node.kind in (Kind.IF, Kind.WHILE):
                yield pc, dict(known)
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


OperandOf: TypeAlias = "Callable[[EditedStatement], Any]"
"""Returns the operand of a call."""


class EditedGraph(EditedBlock):
    """A graph: a block whose calls follow its signature."""

    @property
    def calls(self) -> tuple[EditedStatement, ...]:
        """The statements that call the graph."""
        return tuple(each for each in self.editor if called_graph(each.op) == self.graph)

    def add_input(self, name: str, type: str | Type, operand: Any | OperandOf = None) -> EditedValue:
        """Add an input such as ``add_input("scale", "f32[3]")``, and return it.

        All calls pass `operand`: a number, or the result of ``operand(call)``.  Raises GraphError for a call
        without an operand, and UsageError for a graph of a ``run`` line.
        """
        self._check_no_run()
        known = _type(type)
        calls = self.calls
        given = [operand(call) if callable(operand) else operand for call in calls]
        if None in given:
            call = calls[given.index(None)]
            raise GraphError(
                f"{call} has no operand for %{name_text(name)}",
                hint="give `operand`: a number, or a function that returns the value for a call",
            )
        value = EditedValue(self.editor.claim(self, name), known, self)
        self.inputs = (*self.inputs, value)
        for call, each in zip(calls, given, strict=True):
            call._set_operands([*call.operands, each])
        self.editor.changed(self)
        return value

    def remove_input(self, value: EditedValue) -> None:
        """Remove an input, and its operand of all calls.

        Raises GraphError while it is read or differentiated, and UsageError for a graph of a ``run`` line.
        """
        index = self._index(value, self.inputs, "input")
        self._check_no_run()
        self._check_unread(value)
        line = next((line for line in self._backward_lines if value.name in line.by), None)
        if line is not None:
            raise GraphError(
                f"@{line.name} is the gradient by %{name_text(value.name)}",
                hint="remove it from the `backward` line",
            )
        self.inputs = _without(self.inputs, index)
        for call in self.calls:
            call._set_operands(_without(call.operands, index))
        self.editor.changed(self)

    def set_input_type(self, value: EditedValue, type: str | Type) -> None:
        """Change the type of an input; `Editor.program` infers the others again."""
        self._index(value, self.inputs, "input")
        value.type = _type(type)
        self.editor.changed(self)

    def add_result(self, value: EditedValue, name: str = "") -> tuple[EditedValue, ...]:
        """Return a further value from the graph; return its values in the callers, one for each call.

        Their name is `name`, by default that of the value.  Calls of a backward graph have no cotangent for
        it.  Raises GraphError for a value that the graph returns already, or whose type must be known.
        """
        if value in self.results:
            raise GraphError(f"@{self.name} returns %{name_text(value.name)} already")
        backward = self._backward_calls()
        if backward:
            self._need_type(value)
        if has_cotangent(value.type):
            for call in backward:
                call._set_operands([*call.operands[:-1], None, *call.operands[-1:]])
        self._set_operands([*self.results, value])
        made = []
        for call in self.calls:
            block = call.containing_block()
            made.append(EditedValue(self.editor.claim(block, name or value.name), value.type, block, call))
            call.outputs = (*call.outputs, made[-1])
            self.editor.changed(call)
        return tuple(made)

    def remove_result(self, value: EditedValue) -> None:
        """No longer return a value.  Raises GraphError while a caller reads it."""
        index = self._index(value, self.results, "result")
        for call in self.calls:
            self._check_unread(call.outputs[index])
        if has_cotangent(value.type):
            place = sum(
                isinstance(each, EditedValue) and has_cotangent(each.type) for each in self.results[:index]
            )
            for call in self._backward_calls():
                call._set_operands(_without(call.operands, place))
        for call in self.calls:
            call.outputs = _without(call.outputs, index)
            self.editor.changed(call)
        self._set_operands(_without(self.results, index))

    @property
    def _backward_lines(self) -> list[BackwardLine]:
        return [line for line in self.editor.original.backwards if line.of == self.graph]

    def _backward_calls(self) -> list[EditedStatement]:
        lines = {f"@{line.name}" for line in self._backward_lines}
        return [each for each in self.editor if each.op in lines]

    def _need_type(self, value: EditedValue) -> None:
        """Infer the type of a result, which decides whether it has a cotangent."""
        if value.type is None:
            self.editor.infer_types(self.graph)
        if value.type is None:
            raise GraphError(
                f"the type of %{name_text(value.name)} is not known, and @{self.name} has a gradient",
                hint="add or remove results of a known type",
            )

    def _check_no_run(self) -> None:
        lines = (each for run in self.editor.original.runs for each in (run, *run.evaluations))
        if any(line.graph == self.graph for line in lines):
            raise UsageError(
                f"a `run` line gives the inputs of @{self.name}", hint="edit the text: both lines must change"
            )

    def _check_unread(self, value: EditedValue) -> None:
        for use in value.uses:
            raise GraphError(
                f"%{name_text(value.name)} is still read by {use.reader}", hint="call replace_uses first"
            )

    def _index(self, value: EditedValue, values: tuple[EditedOperand, ...], what: str) -> int:
        if value not in values:
            raise UsageError(f"{value} is no {what} of @{self.name}")
        return values.index(value)


def _type(given: str | Type) -> Type:
    """Return a type that may be text.  Raises GraphError for text that is no type."""
    if not isinstance(given, str):
        return given
    try:
        return parse_type(given)
    except Flaw as flaw:
        raise GraphError(f"{given!r}: {flaw.message}", hint=flaw.hint) from None


def _without(values: Any, index: int) -> Any:
    return (*values[:index], *values[index + 1 :])


def retyped(program: Program, graph: Graph) -> Graph:
    """Return a graph of a program with the types of its values inferred from its inputs.

    A declared type stays if the inferred one agrees with it, and where none is inferred.  Raises GraphError
    for a statement that reads a value before its definition, or that does not fit the types of its operands.
    """
    states = {line.value.name: line.value for line in program.states}
    kept = {str(node.attributes[SAVED]) for node in walk_nodes(graph) if SAVED in node.attributes}
    around = (*states.values(), *map(Value, kept))
    open_graph = replace(_untyped(graph), inputs=(*graph.inputs, *around))

    def complain(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
        block = block_at(graph, path)
        where = title(block.nodes[pc]) if pc < len(block.nodes) else "the last line"
        error.message = f"{where} in graph @{graph.name}: {error.message}"
        return error

    inference = GraphInference(
        program.opsets,
        program.graphs,
        lambda constant: type_of_array(initial_data(constant, program)),
        complain,
        rebound=states.keys(),
    )
    types = inference.infer(open_graph, [None] * len(open_graph.inputs))
    return _typed(graph, types)


def _untyped(graph: Graph) -> Graph:
    """Return a graph without declared types of results; inputs and carried values keep their types."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        known = node.kind is Kind.CALL
        return replace(node, outputs=tuple(each if known else Value(each.name) for each in node.outputs))

    def block(path: Path, new: Graph) -> Graph:
        return replace(new, outputs=tuple(Value(each.name) for each in new.outputs))

    return rewrite(graph, statement, block)


def _typed(graph: Graph, types: Mapping[Path, Mapping[str, Type | None]]) -> Graph:
    def typed(value: Value, path: Path) -> Value:
        found = types[path].get(value.name)
        if found is None or not value.name:
            return value
        agreed = common_type(value.type, found) if value.type is not None else found
        return Value(value.name, found if agreed is None else agreed)

    def statement(path: Path, pc: int, node: Node) -> Node:
        if node.kind is Kind.UPDATE:
            return node
        return replace(node, outputs=tuple(typed(each, path) for each in node.outputs))

    new = rewrite(graph, statement)
    return replace(new, outputs=tuple(typed(each, (graph.name,)) for each in new.outputs))
