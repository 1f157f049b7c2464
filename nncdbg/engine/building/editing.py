"""Statements, blocks and values of a program that is being edited.

A statement holds the values that it reads.  The reverse edges, `EditedValue.uses`, follow from them: each
change of an operand passes through `_Reader`, which updates both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.building.values import attribute_of, inline_constant, literal_data, wrong_literal
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.kinds import Kind, kind_of
from nncdbg.ir.records import (
    Attribute,
    Constant,
    Graph,
    Literal,
    Location,
    Node,
    Type,
)
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.building.editor import Editor

EditedOperand: TypeAlias = "EditedValue | Literal | None"


@dataclass(frozen=True, slots=True)
class Use:
    """Operand `index` of a statement, or result `index` of a block."""

    reader: EditedStatement | EditedBlock
    index: int


@dataclass(slots=True, eq=False, repr=False)
class EditedValue:
    """A value: the result of `statement`, or an input or constant of `block`, or a state."""

    name: str
    type: Type | None
    block: EditedBlock | None = None
    statement: EditedStatement | None = None
    _uses: dict[Use, None] | None = None

    @property
    def uses(self) -> tuple[Use, ...]:
        """The operands and results of blocks that read the value."""
        return tuple(self._uses or ())

    def replace_uses(self, other: EditedValue) -> None:
        """Make every reader of this value read another one, except the statement that computes the other."""
        for use in self.uses:
            if use.reader is not other.statement:
                use.reader.set_operand(use.index, other)

    def __repr__(self) -> str:
        return f"<%{name_text(self.name)}: {self.type or '?'}>"


class _Reader:
    """Reads values: the operands of a statement, or the results of a block."""

    editor: Editor

    def __init__(self) -> None:
        self._operands: list[EditedOperand] = []

    def set_operand(self, index: int, value: Any) -> None:
        """Read another value, a literal, or None for an omitted operand.  Raises GraphError for others."""
        operand = edited_operand(value)
        self._release(index)
        self._operands[index] = operand
        if isinstance(operand, EditedValue):
            if not operand.name and operand.statement is not None and operand.block is not None:
                # The result was not used before.
                operand.name = self.editor.claim(operand.block, operand.statement.default_name)
            operand._uses = operand._uses or {}
            operand._uses[Use(self, index)] = None  # type: ignore[arg-type]
        self.editor.changed(self)

    def _set_operands(self, values: Sequence[Any]) -> None:
        operands = [edited_operand(value) for value in values]
        for index in range(len(self._operands)):
            self._release(index)
        self._operands = [None] * len(operands)
        for index, operand in enumerate(operands):
            self.set_operand(index, operand)

    def _release(self, index: int) -> None:
        before = self._operands[index]
        if isinstance(before, EditedValue) and before._uses is not None:
            del before._uses[Use(self, index)]  # type: ignore[arg-type]


class EditedStatement(_Reader):
    """A statement; `id` is its own for the life of the editor, whatever changes around it."""

    def __init__(self, block: EditedBlock, number: int, node: Node) -> None:
        super().__init__()
        self.id = number
        self.editor = block.editor
        self.block: EditedBlock | None = block
        """The block that contains it; None after `delete`."""
        self.op = node.op
        self.attributes: Mapping[str, Attribute] = node.attributes
        self.location: Location | None = node.location
        self.comment = node.comment
        self.outputs: tuple[EditedValue, ...] = ()
        """The results; of an `update`, the states."""
        self.saved: EditedValue | None = None
        """What the backward graph of a called graph needs."""
        self.blocks: tuple[EditedBlock, ...] = ()

    @property
    def operands(self) -> tuple[EditedOperand, ...]:
        """The values, literals and omitted operands that the statement reads."""
        return tuple(self._operands)

    @property
    def default_name(self) -> str:
        """The name of a result without a name of its own."""
        return self.op.rpartition(".")[2].lower().lstrip("@")

    @property
    def results(self) -> tuple[EditedValue, ...]:
        """The values that the statement defines."""
        defined = () if kind_of(self.op) is Kind.UPDATE else self.outputs
        return defined if self.saved is None else (*defined, self.saved)

    def replace(self, op: str, *operands: Any, **attributes: Any) -> None:
        """Compute the results by another op with as many outputs; readers and the id stay.

        Raises GraphError if the operands do not fit the op.
        """
        if self.blocks or self.block is None:
            raise GraphError(
                f"{self} cannot be replaced", hint="insert another statement, and delete this one"
            )
        given = edited_attributes(attributes)
        types = self.editor.inferred(op, operands, given, len(self.outputs))
        self._set_operands(operands)
        self.op, self.attributes = op, given
        for value, known in zip(self.outputs, types, strict=True):
            value.type = known

    def delete(self) -> None:
        """Remove the statement.  Raises GraphError if a result is still read."""
        block = self.containing_block()
        own = {*self._inside()}
        for value in self.results:
            for use in value.uses:
                if use.reader not in own:
                    message = f"%{name_text(value.name)} is still read by {use.reader}"
                    raise GraphError(message, hint="call replace_uses first")
        for reader in own:
            reader._set_operands(())
            if isinstance(reader, EditedStatement):
                reader.block = None
        block._statements.remove(self)
        self.editor.changed(block)

    def move(
        self,
        *,
        before: EditedStatement | None = None,
        after: EditedStatement | None = None,
        into: EditedBlock | None = None,
    ) -> None:
        """Move the statement before or after another one, or to the end of a block."""
        origin = self.containing_block()
        block, place = _place(before, after, into)
        if self in (before, after) or block in self._inside():
            raise UsageError(f"{self} cannot be moved into itself")
        if block.graph != origin.graph:
            raise UsageError(f"{self} cannot be moved into another graph", hint="insert a statement there")
        origin._statements.remove(self)
        if before is not None or after is not None:
            block, place = _place(before, after, into)
        block._statements.insert(place, self)
        self.block = block
        for value in self.results:
            value.block = block
        self.editor.changed(origin)
        self.editor.changed(block)

    def containing_block(self) -> EditedBlock:
        """Return the block that contains the statement.  Raises UsageError for a deleted statement."""
        if self.block is None:
            raise UsageError(f"{self} is deleted")
        return self.block

    def _inside(self) -> Iterator[_Reader]:
        """Yield the statement, and all blocks and statements inside it."""
        waiting: list[_Reader] = [self]
        while waiting:
            reader = waiting.pop()
            yield reader
            if isinstance(reader, EditedStatement):
                waiting += reader.blocks
            elif isinstance(reader, EditedBlock):
                waiting += reader._statements

    def __repr__(self) -> str:
        shown = ", ".join(f"%{name_text(value.name or '_')}" for value in self.outputs)
        return f"<statement {self.id}: {f'{shown} = ' if shown else ''}{self.op}>"


class EditedBlock(_Reader):
    """A graph, branch or loop body: its statements in order, and its results."""

    def __init__(self, editor: Editor, graph: Graph, outer: EditedStatement | None, key: str) -> None:
        super().__init__()
        self.graph = key
        """The name of the graph that contains it."""
        self.editor = editor
        self.outer = outer
        """The statement that contains the block; None for a graph."""
        self.name = graph.name
        self.comment = graph.comment
        self.inputs: tuple[EditedValue, ...] = ()
        self.constants: tuple[tuple[EditedValue, Constant], ...] = ()
        self._statements: list[EditedStatement] = []

    def __iter__(self) -> Iterator[EditedStatement]:
        """Yield the statements that are here now, without those that are deleted or moved meanwhile."""
        for statement in tuple(self._statements):
            if statement.block is self:
                yield statement

    def __len__(self) -> int:
        return len(self._statements)

    def __getitem__(self, index: int) -> EditedStatement:
        return self._statements[index]

    @property
    def results(self) -> tuple[EditedOperand, ...]:
        """The values that the block returns, yields, or passes to the next iteration."""
        return tuple(self._operands)

    def constant(self, name: str, data: Any) -> EditedValue:
        """Add a constant, such as a NumPy array, and return it.  Raises GraphError for what is no tensor."""
        record = inline_constant(self.editor.claim(self, name), data)
        value = EditedValue(record.value.name, record.value.type, self)
        self.constants = (*self.constants, (value, record))
        self.editor.changed(self)
        return value

    def insert(
        self,
        op: str,
        *operands: Any,
        name: str = "",
        before: EditedStatement | None = None,
        after: EditedStatement | None = None,
        **attributes: Any,
    ) -> EditedValue:
        """Insert a statement with one output, by default at the end, and return its value.

        Raises GraphError if the operands do not fit the op.
        """
        place = {"before": before, "after": after}
        return self.insert_several(op, *operands, names=[name], **place, **attributes)[0]

    def insert_several(
        self,
        op: str,
        *operands: Any,
        names: Sequence[str],
        before: EditedStatement | None = None,
        after: EditedStatement | None = None,
        **attributes: Any,
    ) -> tuple[EditedValue, ...]:
        """Insert a statement with one output for each name; "" is a name by the op."""
        given = edited_attributes(attributes)
        types = self.editor.inferred(op, operands, given, len(names))
        made = self._inserted(Node(op, attributes=given), before, after)
        made.outputs = self._values(made, names, types)
        made._set_operands(operands)
        return made.outputs

    def branch(
        self,
        condition: EditedValue,
        then: Sequence[EditedValue],
        otherwise: Sequence[EditedValue],
        *,
        names: Sequence[str] = (),
        before: EditedStatement | None = None,
        after: EditedStatement | None = None,
    ) -> tuple[EditedValue, ...]:
        """Insert an `if` whose results are `then` if the condition is true, else `otherwise`.

        Statements can be moved or inserted into its `blocks`.  Raises GraphError for lists of different
        lengths.
        """
        if len(then) != len(otherwise):
            raise GraphError(f"the branches yield {len(then)} and {len(otherwise)} values")
        made = self._inserted(Node("if"), before, after)
        made.blocks = tuple(EditedBlock(self.editor, Graph(""), made, self.graph) for _ in (then, otherwise))
        types = [a.type if a.type == b.type else None for a, b in zip(then, otherwise, strict=True)]
        made.outputs = self._values(made, names or [""] * len(then), types)
        made._set_operands([condition])
        for block, values in zip(made.blocks, (then, otherwise), strict=True):
            block._set_operands(values)
        return made.outputs

    def _inserted(
        self, node: Node, before: EditedStatement | None, after: EditedStatement | None
    ) -> EditedStatement:
        block, place = _place(before, after, self)
        if block is not self:
            raise UsageError("the other statement is in another block", hint="insert into its `block`")
        made = EditedStatement(self, self.editor.next_id(), node)
        beside = before or after
        made.location = beside.location if beside is not None else None
        self._statements.insert(place, made)
        self.editor.changed(self)
        return made

    def _values(
        self, made: EditedStatement, names: Sequence[str], types: Sequence[Type | None]
    ) -> tuple[EditedValue, ...]:
        return tuple(
            EditedValue(self.editor.claim(self, name or made.default_name), known, self, made)
            for name, known in zip(names, types, strict=True)
        )

    def __repr__(self) -> str:
        return f"<block @{self.name}: {len(self._statements)} statements>"


def _place(
    before: EditedStatement | None, after: EditedStatement | None, into: EditedBlock | None
) -> tuple[EditedBlock, int]:
    """Return the block and the index of a place.  Raises UsageError for a deleted statement."""
    if before is not None and after is not None:
        raise UsageError("give `before` or `after`, not both")
    beside = before or after
    if beside is not None:
        block = beside.containing_block()
        return block, block._statements.index(beside) + (after is not None)
    if into is None:
        raise UsageError("no place given", hint="give `before`, `after` or `into`")
    return into, len(into._statements)


def edited_operand(given: Any) -> EditedOperand:
    """Return an operand from Python data.  Raises GraphError for what is no value or number."""
    if given is None or isinstance(given, (EditedValue, Literal)):
        return given
    if wrong := wrong_literal(given):
        raise GraphError(f"{wrong} cannot be an operand", hint="pass a value of the editor or a number")
    return Literal(literal_data(given))


def edited_attributes(given: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return keywords as attributes; None is an omitted attribute."""
    return {key: attribute_of(value) for key, value in given.items() if value is not None}
