"""A graph that calls a graph and its backward graph: the core of `nncdbg.grad` and `nncdbg.minimize`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from nncdbg.engine.building.copies import renamed
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.errors import UsageError
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    BackwardLine,
    Constant,
    Graph,
    Literal,
    Node,
    Operand,
    Program,
    RunLine,
    StateLine,
    TensorType,
    Type,
    Value,
    has_cotangent,
)
from nncdbg.ir.walk import graphs_called
from nncdbg.text.lexemes import name_text, nearest


def names_of(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    """Return one or more names without their ``%``.  Raises UsageError for anything else."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"{what} must be a name or a list of names, not {given!r}", hint=f'{what}=["w"]')
    return tuple(dict.fromkeys(each.removeprefix("%") for each in names))


class GradientStep:
    """A program whose new entry graph computes values `of` of graph `graph`, and their gradients.

    `graph` is a name, by default that of the entry graph.  `state` makes a state of a constant, so that a
    gradient by it exists; `differentiate` adds the ``backward`` line and its call.
    """

    def __init__(self, program: Program, graph: str | None, of: str | Sequence[str], name: str) -> None:
        if program.runs:
            raise UsageError(
                "the program is a training: it has a `run` line", hint="remove its `run` and `evaluate` lines"
            )
        key = graph.removeprefix("@") if graph is not None else program.entry
        if key not in program.graphs:
            hint = nearest(key, program.graphs, "@") or "use one of: " + listed("@", program.graphs)
            raise UsageError(f"no graph @{name_text(key)}", hint=hint)
        self.program = program
        self.of = names_of(of, "of")
        self.key = key
        self.states: dict[str, StateLine] = {state.value.name: state for state in program.states}
        self.graphs = dict(self.program.graphs)
        self.graphs[key] = _returning(self.graphs[key], self.of)
        self.nodes: list[Node] = []
        self.line: BackwardLine | None = None
        self._graph_names = {*self.graphs, *(line.name for line in program.backwards)}
        self._name = claimed_name(name, self._graph_names)
        self._used = {*self.states, *(value.name for value in all_defined(self.graphs))}
        self._outputs: list[Value] = []

    @property
    def graph(self) -> Graph:
        """The graph that is differentiated."""
        return self.graphs[self.key]

    def fresh(self, name: str) -> str:
        """Return an unused name for a value or a state."""
        return claimed_name(name, self._used)

    def type_of(self, name: str) -> Type | None:
        """Return the type of a state or of an input of the graph."""
        if name in self.states:
            return self.states[name].value.type
        return next((value.type for value in self.graph.inputs if value.name == name), None)

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Yield the float constants of the differentiated graph and of those that it calls, by graph."""
        for key in graphs_called(self.key, self.graphs):
            for constant in self.graphs[key].constants:
                if has_cotangent(constant.value.type):
                    yield key, constant

    def state(self, key: str, constant: Constant) -> str:
        """Make a state of a constant of graph `key`, and return its name."""
        graph, name = self.graphs[key], constant.value.name
        shared = sum(name in {v.name for v in all_defined(each)} for each in self.graphs.values()) > 1
        state = self.fresh(f"{graph.name}.{name}") if shared else name
        constants = tuple(each for each in graph.constants if each is not constant)
        graph = renamed(graph, {name: state}) if shared else graph
        self.graphs[key] = replace(graph, constants=constants)
        self.states[state] = StateLine(replace(constant.value, name=state), constant.data)
        return state

    def differentiate(
        self, by: Sequence[str], checkpoints: int | None = None, comment: str = ""
    ) -> dict[str, str]:
        """Append the calls of the graph and of its backward graph; return the gradients of `by`, by name."""
        if checkpoints is not None and checkpoints < 1:
            raise UsageError(f"checkpoints is {checkpoints}, expected 1 or more")
        graph = self.graph
        saved = self.fresh("saved")
        inputs = tuple(value.name for value in graph.inputs)
        self._outputs = [
            value if value.name in self.of else replace(value, name="") for value in graph.outputs
        ]
        self.nodes.append(Node(f"@{self.key}", inputs, tuple(self._outputs), {SAVED: saved}))
        backward = claimed_name(f"{self.key}.backward", self._graph_names)
        self.line = BackwardLine(backward, self.key, tuple(by), comment, checkpoints)
        cotangents = [self._cotangent(value) for value in self._outputs if has_cotangent(value.type)]
        gradients = {name: self.fresh(f"d_{name}") for name in by}
        results = tuple(Value(gradients[name], self.type_of(name)) for name in by)
        self.nodes.append(Node(f"@{backward}", (*cotangents, saved), results))
        return gradients

    def _cotangent(self, value: Value) -> Operand:
        """Return ones for a value, the cotangent of its sum; None for a result that is not differentiated."""
        if not value.name:
            return None
        if isinstance(value.type, TensorType) and value.type.shape == ():
            return Literal(1.0)
        ones = Value(self.fresh(f"{value.name}.ones"), value.type)
        self.nodes.append(Node("nncdbg.FullLike", (value.name,), (ones,), {"value": 1.0}))
        return ones.name

    def finished(self, gradients: Sequence[str], run: RunLine | None = None) -> Program:
        """Return the program; its entry graph returns the values `of` and these gradients."""
        assert self.line is not None
        types = {value.name: value.type for node in self.nodes for value in node.outputs}
        of = [value for name in self.of for value in self._outputs if value.name == name]
        outputs = (*of, *(Value(name, types[name]) for name in gradients))
        entry = Graph(self._name, self.graph.inputs, outputs, tuple(self.nodes))
        return replace(
            self.program,
            graphs={self._name: entry, **self.graphs},
            entry=self._name,
            states=tuple(self.states.values()),
            backwards=(*self.program.backwards, self.line),
            runs=() if run is None else (replace(run, graph=self._name),),
            source=None,
            listing=None,
        )


def _returning(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these values among its results.  Raises UsageError for an unknown value."""
    known = {value.name: value for node in graph.nodes for value in node.outputs if value.name}
    outputs = {value.name: value for value in graph.outputs}
    for name in names:
        if name not in known:
            hint = nearest(name, [*outputs, *known], "%") or "use one of: " + listed("%", outputs)
            raise UsageError(f"@{name_text(graph.name)} does not compute %{name_text(name)}", hint=hint)
        outputs.setdefault(name, known[name])
        if not has_cotangent(outputs[name].type):
            raise UsageError(
                f"%{name_text(name)} is {outputs[name].type}, which has no gradient",
                hint="differentiate a value of floats",
            )
    if not names:
        raise UsageError("no value to differentiate", hint="use one of: " + listed("%", outputs))
    return replace(graph, outputs=tuple(outputs.values()))


def listed(sigil: str, names: Iterable[str]) -> str:
    """Return up to five names, as in text."""
    known = [f"{sigil}{name_text(name)}" for name in names]
    return ", ".join(known[:5]) + (" ..." if len(known) > 5 else "")
