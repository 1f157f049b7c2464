"""Gradients of a trace: made ahead of time for the statements before a value, then executed as statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import FrameType
from typing import TYPE_CHECKING, Any

from nncdbg.dynamic_graph.plans import NO_ATTRIBUTES, Attributes
from nncdbg.dynamic_graph.trace import Symbol, statements, trace_node, wanted_name
from nncdbg.engine.building.python_lines import locate
from nncdbg.engine.differentiation.backward_pass import GradientRequest, gradient_graph
from nncdbg.errors import GraphError
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Graph, Inline, Literal, Location, TensorType, has_cotangent

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.execution import Execution
    from nncdbg.dynamic_graph.variable import EagerVariable


def add_gradients(loss: EagerVariable, frame: FrameType) -> None:
    """Add the gradient of a value to `grad` of the variables that require one.

    Errors are those of `EagerVariable.backward`.
    """
    session = loss._session
    if not has_cotangent(loss.type) or not isinstance(loss.type, TensorType) or prod(loss.shape) != 1:
        hint = "reduce it first, for example with ReduceMean(loss, keepdims=0)"
        session.fail(f"backward needs one float, not {loss.type}", hint, frame)
    parameters = sorted(session.parameters.values(), key=lambda each: each._symbol.number)
    traced = TracedSlice.before(loss._symbol, [each._symbol for each in parameters])
    reached = [each for each in parameters if each._symbol in traced.ends]
    if not reached:
        hint = 'set it on the data: g.input("w", data, requires_grad=True)'
        session.fail("the value depends on no variable with requires_grad", hint, frame)
    key = traced.key()
    if key not in session.gradients:
        session.gradients[key] = _gradient(session, traced, frame)
    found = _executed(session, session.gradients[key], traced, frame)
    ends = dict(zip(traced.ends, found, strict=True))
    for each in reached:
        part = ends[each._symbol]
        if each.grad is not None:
            part = session.execute("Add", (each.grad, part), NO_ATTRIBUTES, frame)
        each.grad = part


@dataclass(frozen=True, slots=True)
class TracedSlice:
    """The statements between the values that require a gradient (`ends`) and the value to differentiate."""

    last: Symbol
    ends: tuple[Symbol, ...]
    inside: tuple[Symbol, ...]
    """The results of the statements, in order."""
    outside: tuple[Symbol, ...]
    """The values that they read from elsewhere, ends included."""
    names: Mapping[int, str]
    """A name for each value, by number; equal for slices of equal form."""

    @staticmethod
    def before(last: Symbol, points: Sequence[Symbol]) -> TracedSlice:
        """Return the slice that computes `last` from those of `points` that it depends on."""
        inside: dict[int, Symbol] = {}
        outside: dict[int, Symbol] = {}
        stack = [last]
        while stack:
            symbol = stack.pop()
            if symbol.number in inside or symbol.number in outside:
                continue
            if not symbol.tracked or symbol in points or symbol.statement.plan is None:
                outside[symbol.number] = symbol
                continue
            inside[symbol.number] = symbol
            stack += [each for each in symbol.statement.operands if isinstance(each, Symbol)]
        ordered = [each for _, each in sorted({**inside, **outside}.items())]
        used: set[str] = set()
        names = {each.number: claimed_name(wanted_name(each), used) for each in ordered}
        ends = tuple(each for each in ordered if each in points)
        return TracedSlice(
            last,
            ends,
            tuple(each for each in ordered if each.number in inside),
            tuple(each for each in ordered if each.number in outside),
            names,
        )

    def key(self) -> tuple[Any, ...]:
        """Return the form of the slice: equal for slices with the same gradient graph."""
        names = self.names
        statements = tuple(
            (
                names[each.number],
                each.index,
                each.statement.plan,
                *(names[o.number] if isinstance(o, Symbol) else repr(o) for o in each.statement.operands),
            )
            for each in self.inside
        )
        given = tuple((names[each.number], each.type) for each in self.outside)
        return names[self.last.number], tuple(names[each.number] for each in self.ends), statements, given


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient graph of a slice; the line in the location of a statement is the number of `origins`."""

    graph: Graph
    origins: tuple[int, ...]
    """For each statement of the slice, the place of its first result in `inside`."""


def _gradient(session: Execution, traced: TracedSlice, frame: FrameType) -> Gradient:
    for each in traced.inside:
        plan = each.statement.plan
        model = session.model_of(plan.node.op) if plan is not None else None
        if model is not None and model.has_states:
            hint = "write the training as a program: docs/TRAINING.md"
            session.fail(f"@{model.program.entry} has states, and so no gradient here", hint, frame)
    groups = statements(traced.inside)
    nodes = [
        replace(trace_node(group, session.types, traced.names), location=Location(line=number))
        for number, group in enumerate(groups)
    ]
    names = traced.names
    ends = tuple(names[each.number] for each in traced.ends)
    types = {names[each.number]: session.types[each.type] for each in traced.outside}
    graph = gradient_graph(
        "gradient",
        nodes,
        GradientRequest(names[traced.last.number], ends, ends),
        types,
        session.graphs,
        session.rules.opsets,
    )
    missing = [node.attributes for node in graph.nodes if node.op == "nncdbg.NoGradientRule"]
    if missing:
        reasons = [(str(each["name"]), str(each["reason"]) or "it has no rule") for each in missing]
        words = "; ".join(dict.fromkeys(f"{op}: {reason}" for op, reason in reasons))
        error = GraphError(f"ops without a gradient: {words}", hint="docs/GRADIENTS.md lists the ops")
        locate(error, Location(frame.f_code.co_filename, frame.f_lineno))
        raise error
    places = {id(each): place for place, each in enumerate(traced.inside)}
    return Gradient(graph, tuple(places[id(group[0])] for group in groups))


def _executed(
    session: Execution, gradient: Gradient, traced: TracedSlice, frame: FrameType
) -> Sequence[EagerVariable]:
    by_name = {traced.names[each.number]: each for each in (*traced.inside, *traced.outside)}
    symbols = {value.name: by_name[value.name] for value in gradient.graph.inputs}
    session.provide(symbols.values())
    values = {name: session.variable_of(symbol) for name, symbol in symbols.items()}
    for constant in gradient.graph.constants:
        data = constant.data
        array = data.array if isinstance(data, Inline) else session.weights[data.key]
        values[constant.value.name] = session.leaf(array, constant.value.name, frame)
    before, session.tracking = session.tracking, False
    try:
        for node in gradient.graph.nodes:
            operands = [
                values[each] if isinstance(each, str) else each.data if isinstance(each, Literal) else None
                for each in node.inputs
            ]
            attributes = Attributes.of(node.attributes)
            made = session.execute_several(node.op, operands, attributes, len(node.outputs), frame)
            # A result has the name from the gradient graph, and the place of the forward statement.
            place = node.location
            for value, variable in zip(node.outputs, made, strict=True):
                symbol = variable._symbol
                symbol.wanted = value.name
                if place is not None and place.line is not None:
                    forward = traced.inside[gradient.origins[place.line]].statement
                    symbol.code, symbol.position = forward.code, forward.position
                values[value.name] = variable
    finally:
        session.tracking = before
    return [values[value.name] for value in gradient.graph.outputs]
