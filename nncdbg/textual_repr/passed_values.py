"""Values that pass between graphs under their own names, written as ``...``.

A training step passes hundreds of values from its forward to its backward pass, and a gradient for each
parameter to its optimizer.  In the text, ``...`` at the end of a list of inputs, outputs or operands is short
for the values that pass under their own names:

- the inputs ``...`` of a graph are the names that the graph reads and does not define, in the order of use;
- its outputs ``...`` are the names that it or the graphs that it calls define and that graphs around it
  read, in the order of definition;
- in the entry graph, the outputs ``...`` are the attributes of states: the last value that is named
  ``%w.grad`` or ``%w.grad.1`` for a state ``%w`` and each attribute that is no state itself.

A call has ``...`` where the first line of its graph has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import captures, reads
from nncdbg.ir.records import Graph, Node, Operand, Program, Value
from nncdbg.ir.walk import blocks

_FEW = 3
"""Maximum number of values that a graph passes from one call to another by name without ``...``."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The number of inputs and of outputs of a graph before its ``...``; None without ``...``."""

    inputs: int | None = None
    outputs: int | None = None


ALL_LISTED: Mapping[str, Listed] = {}
_NONE = Listed()
_T = TypeVar("_T")


# -- passed values ---------------------------------------------------------------------------------


class PassedValues:
    """The graphs of a text with their passed values.

    `graphs` have only the values before each ``...``; `listed` says which of them have it.  A name without a
    definition that can reach its use is in `missing`, with the graph that reads it.
    """

    def __init__(
        self,
        graphs: Mapping[str, Graph],
        listed: Mapping[str, Listed],
        entry: str,
        states: Container[str],
    ) -> None:
        self._graphs = graphs
        self._listed_of = listed
        self._states = states
        self._homes = _homes(graphs)
        self._order = _callees_first(graphs)
        self._below: dict[str, set[str]] = {}
        self._inputs: dict[str, dict[str, None]] = {}
        self._wanted: dict[str, set[str]] = {name: set() for name in graphs}
        self._providers: dict[str, list[str]] = {}
        self._outputs: dict[str, dict[str, None]] = {}
        self.missing: dict[str, str] = {}
        for name in self._order:
            self._read(name)
        if self._listed_in(entry).outputs is not None:
            explicit = {value.name for value in graphs[entry].outputs}
            attributes = state_attributes(graphs, entry, states)
            self._wanted[entry] = {name for name in attributes if name not in explicit}
        for name in reversed(self._order):
            for wanted in self._wanted[name]:
                self._provide(name, wanted)
        for name in self._order:
            self._outputs[name] = self._results(name)

    def _listed_in(self, name: str) -> Listed:
        return self._listed_of.get(name, _NONE)

    def _read(self, name: str) -> None:
        """Find the inputs that a graph is passed, and which calls in it return the names that it reads."""
        graph = self._graphs[name]
        own = {value.name for value in graph.inputs} | {each.value.name for each in graph.constants}
        providers: list[str] = []
        inputs: dict[str, None] = {}
        below = {name}

        def use(names: Iterable[str]) -> None:
            for each in names:
                if each in own or each in inputs or each in self._states:
                    continue
                if not self._ask(providers, each):
                    inputs[each] = None
                    if self._listed_in(name).inputs is None:
                        self.missing[each] = name

        for node in graph.nodes:
            use(reads(node))
            called = node.called
            if called in self._below:
                use(self._inputs[called])
                below |= self._below[called]
                if self._listed_in(called).outputs is not None:
                    providers.append(called)
            if node.kind is not Kind.UPDATE:
                own.update(value.name for value in node.outputs)
        use(value.name for value in graph.outputs)
        self._below[name], self._providers[name] = below, providers
        self._inputs[name] = inputs if self._listed_in(name).inputs is not None else {}

    def _ask(self, providers: Collection[str], name: str) -> bool:
        """Let the call that returns the name do so; return whether there is one."""
        home = self._homes.get(name)
        for provider in providers:
            if home is not None and home.graph in self._below[provider]:
                self._wanted[provider].add(name)
                return True
        return False

    def _provide(self, graph: str, name: str) -> None:
        """Let a graph have a name that its caller reads."""
        home = self._homes[name]
        if home.graph != graph:
            self._ask(self._providers[graph], name)

    def _results(self, name: str) -> dict[str, None]:
        """Return the outputs that a graph passes on, in the order of their definition."""
        if self._listed_in(name).outputs is None:
            return {}
        graph, wanted = self._graphs[name], self._wanted[name]
        explicit = {value.name for value in graph.outputs}
        results: dict[str, None] = {}
        for node in graph.nodes:
            names = [value.name for value in node.outputs] if node.kind is not Kind.UPDATE else []
            names += self._outputs.get(node.called or "", ())
            results |= dict.fromkeys(each for each in names if each in wanted and each not in explicit)
        return results

    def graphs(self) -> dict[str, Graph]:
        """Return the graphs with all values of their signatures and calls."""
        return {name: self._complete(graph) for name, graph in self._graphs.items()}

    def _complete(self, graph: Graph) -> Graph:
        inputs = tuple(map(self._value, self._inputs.get(graph.name, ())))
        outputs = tuple(map(self._value, self._outputs.get(graph.name, ())))
        nodes = tuple(map(self._call, graph.nodes))
        return replace(graph, inputs=graph.inputs + inputs, outputs=graph.outputs + outputs, nodes=nodes)

    def _value(self, name: str) -> Value:
        home = self._homes.get(name)
        return Value(name) if home is None else home.value

    def _call(self, node: Node) -> Node:
        called = node.called
        if called is None or called not in self._listed_of or called not in self._graphs:
            return node
        outputs = tuple(map(self._value, self._outputs[called]))
        return replace(node, inputs=(*node.inputs, *self._inputs[called]), outputs=node.outputs + outputs)


@dataclass(frozen=True, slots=True)
class _Home:
    """The only graph that defines a value, by a statement that is no call that passes it on."""

    graph: str
    value: Value


def _homes(graphs: Mapping[str, Graph]) -> dict[str, _Home]:
    homes: dict[str, _Home] = {}
    several: set[str] = set()
    for graph in graphs.values():
        for node in graph.nodes:
            if node.kind is Kind.UPDATE:
                continue
            called = graphs.get(node.called or "")
            same = {value.name for value in called.outputs} if called is not None else set()
            for value in node.outputs:
                if value.name in same or not value.name:
                    continue
                if value.name in homes:
                    several.add(value.name)
                homes[value.name] = _Home(graph.name, value)
    return {name: home for name, home in homes.items() if name not in several}


def _callees_first(graphs: Mapping[str, Graph]) -> list[str]:
    """Return the names of the graphs, each after the graphs that it calls; without those in a cycle."""
    done: dict[str, None] = {}
    for first in graphs:
        stack: list[tuple[str, Iterator[str]]] = [(first, _calls(graphs, first))] if first not in done else []
        around = {first}
        while stack:
            name, calls = stack[-1]
            following = next(calls, None)
            if following is None:
                stack.pop()
                around.discard(name)
                done[name] = None
            elif following not in done and following not in around:
                around.add(following)
                stack.append((following, _calls(graphs, following)))
    return list(done)


def _calls(graphs: Mapping[str, Graph], name: str) -> Iterator[str]:
    return (called for node in graphs[name].nodes if (called := node.called) is not None and called in graphs)


_version = re.compile(r"\.[0-9]+\Z")


def state_attributes(graphs: Mapping[str, Graph], entry: str, states: Container[str]) -> dict[str, None]:
    """Return the last value that is named as an attribute of a state, such as ``%w.grad``, for each one.

    Those of graphs that the entry graph reaches, in the order of their first definition.
    """
    last: dict[str, str] = {}
    stack = [iter(graphs[entry].nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif (called := node.called) is not None and called in graphs:
            if len(stack) <= len(graphs):
                stack.append(iter(graphs[called].nodes))
        elif node.kind is not Kind.UPDATE:
            for value in node.outputs:
                attribute = _version.sub("", value.name)
                if attribute not in states and attribute.rpartition(".")[0] in states:
                    last[attribute] = value.name
    return dict.fromkeys(last.values())


# -- listed values of a program --------------------------------------------------------------------


def listed_values(program: Program) -> dict[str, Listed]:
    """Return what each graph lists in the text of a program, which means exactly this program."""
    others = [graph for name, graph in program.graphs.items() if name != program.entry]
    few = not program.states and all(len(graph.outputs) <= _FEW for graph in others)
    if few or any(name != graph.name for name, graph in program.graphs.items()):
        return {}  # A graph for certain types has the name of the general one.
    chosen = _Choice(program)
    listed = chosen.listed()
    states = {state.value.name for state in program.states}
    while listed:
        made = PassedValues(chosen.reduced(listed), listed, program.entry, states).graphs()
        wrong = {name for name in program.graphs if made[name] != program.graphs[name]}
        if not wrong:
            break
        # A graph of another order or with other names keeps its lists, and so do the calls of it.
        calls = {
            node.called for name in wrong for node in program.graphs[name].nodes if node.called is not None
        }
        fewer = {name: own for name, own in listed.items() if name not in wrong and name not in calls}
        listed = fewer if len(fewer) < len(listed) else {}
    return listed


def with_passed_values_last(program: Program) -> Program:
    """Return the program with its values that ``...`` can stand for at the end of each list, in its order."""
    chosen = _Choice(program, reorder=True)
    listed = chosen.listed()
    if not listed:
        return program
    states = {state.value.name for state in program.states}
    expansion = PassedValues(chosen.reduced(listed), listed, program.entry, states)
    made = expansion.graphs()
    same = all(_equal_sets(made[name], graph) for name, graph in program.graphs.items())
    return replace(program, graphs=made) if same and not expansion.missing else program


def _equal_sets(one: Graph, other: Graph) -> bool:
    return {value.name for value in one.inputs} == {value.name for value in other.inputs} and {
        value.name for value in one.outputs
    } == {value.name for value in other.outputs}


class _Choice:
    """Chooses for each graph of a program which inputs and outputs its text lists.

    Listed are the inputs and outputs of the entry graph, except attributes of states; what the statements of
    a graph around a call compute or read; and what few values one call passes to another.
    """

    def __init__(self, program: Program, *, reorder: bool = False) -> None:
        self._program = program
        self._reorder = reorder
        graphs = program.graphs
        self._inputs: dict[str, set[str]] = {name: set() for name in graphs}
        self._outputs: dict[str, set[str]] = {name: set() for name in graphs}
        self._whole = _called_elsewhere(program)
        entry = graphs[program.entry]
        states = {state.value.name for state in program.states}
        attributes = state_attributes(graphs, program.entry, states)
        if len(attributes) <= _FEW:
            attributes = {}
        self._inputs[entry.name] = {value.name for value in entry.inputs}
        self._outputs[entry.name] = {value.name for value in entry.outputs if value.name not in attributes}
        for name in reversed(_callees_first(graphs)):
            self._list(graphs[name])

    def _list(self, graph: Graph) -> None:
        """List the inputs and outputs of the graphs that a graph calls."""
        graphs = self._program.graphs
        listed = self._inputs[graph.name] | {each.value.name for each in graph.constants}
        read = set(self._outputs[graph.name])
        maker: dict[str, Node] = {}
        passed: dict[tuple[int, int], set[str]] = {}
        for node in graph.nodes:
            if node.called not in graphs:
                read.update(reads(node))
            else:
                read.update(captures(node))
            for name in _strings(node.inputs):
                if name in maker and node.called in graphs:
                    passed.setdefault((id(maker[name]), id(node)), set()).add(name)
            if node.called in graphs:
                maker |= {value.name: node for value in node.outputs}
        few = {name for names in passed.values() if len(names) <= _FEW for name in names}
        for node in graph.nodes:
            called = graphs.get(node.called or "")
            if called is None:
                listed |= {value.name for value in node.outputs}
                continue
            for operand, value in zip(node.inputs, called.inputs, strict=True):
                if operand != value.name or operand in listed:
                    self._inputs[called.name].add(value.name)
            for result, value in zip(node.outputs, called.outputs, strict=True):
                if result.name != value.name or result.name in read or result.name in few:
                    self._outputs[called.name].add(value.name)
                    listed.add(result.name)

    def listed(self) -> dict[str, Listed]:
        """Return what is listed by the graphs that do not list all values."""
        found = {}
        for name, graph in self._program.graphs.items():
            if name in self._whole:
                continue
            inputs = self._count(graph.inputs, self._inputs[name])
            outputs = self._count(graph.outputs, self._outputs[name])
            if inputs is not None or outputs is not None:
                found[name] = Listed(inputs, outputs)
        return found

    def _count(self, values: tuple[Value, ...], listed: set[str]) -> int | None:
        """Return the number of listed values if others follow them; None for another order."""
        count = sum(value.name in listed for value in values)
        in_front = all(value.name in listed for value in values[:count])
        return count if count < len(values) and (in_front or self._reorder) else None

    def reduced(self, listed: Mapping[str, Listed]) -> dict[str, Graph]:
        """Return the graphs with only the listed values."""
        return {name: self._reduced(graph, listed) for name, graph in self._program.graphs.items()}

    def _reduced(self, graph: Graph, listed: Mapping[str, Listed]) -> Graph:
        own = listed.get(graph.name, _NONE)
        nodes = tuple(self._call(node, listed) for node in graph.nodes)
        inputs = self._kept(graph.inputs, graph.inputs, self._inputs[graph.name], own.inputs)
        outputs = self._kept(graph.outputs, graph.outputs, self._outputs[graph.name], own.outputs)
        return replace(graph, inputs=inputs, outputs=outputs, nodes=nodes)

    def _call(self, node: Node, listed: Mapping[str, Listed]) -> Node:
        called = self._program.graphs.get(node.called or "")
        if called is None or called.name not in listed:
            return node
        own = listed[called.name]
        inputs = self._kept(node.inputs, called.inputs, self._inputs[called.name], own.inputs)
        outputs = self._kept(node.outputs, called.outputs, self._outputs[called.name], own.outputs)
        return replace(node, inputs=inputs, outputs=outputs)

    @staticmethod
    def _kept(
        items: tuple[_T, ...], values: tuple[Value, ...], listed: set[str], count: int | None
    ) -> tuple[_T, ...]:
        if count is None:
            return items
        return tuple(item for item, value in zip(items, values, strict=True) if value.name in listed)


def _called_elsewhere(program: Program) -> set[str]:
    """Return the graphs that other lines, or calls in nested blocks, call: they list all values."""
    lines = [line for run in program.runs for line in (run, *run.evaluations)]
    names = {line.graph for line in lines} | {line.of for line in program.backwards}
    nested = (block for path, block in blocks(program.graphs) if len(path) > 1)
    return names | {node.called for block in nested for node in block.nodes if node.called is not None}


def _strings(operands: Iterable[Operand]) -> Iterator[str]:
    return (operand for operand in operands if isinstance(operand, str))
