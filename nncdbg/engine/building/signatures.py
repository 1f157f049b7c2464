"""The signatures of the graphs of an edited program: inputs and results, in the graphs and in their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from nncdbg.engine.building.editing import EditedBlock, EditedOperand, EditedStatement, EditedValue
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.kinds import called_graph
from nncdbg.ir.records import Type, has_cotangent
from nncdbg.text.lexemes import Flaw, name_text
from nncdbg.text.types import parse_type

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
        line = next((line for line in self.editor.backward_lines(self.graph) if value.name in line.by), None)
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

    def _backward_calls(self) -> list[EditedStatement]:
        lines = {f"@{line.name}" for line in self.editor.backward_lines(self.graph)}
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
        if self.editor.has_run(self.graph):
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
