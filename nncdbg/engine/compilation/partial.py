"""Partial runs: only the statements between chosen values (sources) and chosen values (destinations)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nncdbg.engine.compilation.needed import Part, Places, needed_part
from nncdbg.errors import UsageError
from nncdbg.ir.names import all_defined, defined, fresh_name
from nncdbg.ir.records import Graph, Node, Program, Value
from nncdbg.ir.walk import walk
from nncdbg.text.lexemes import name_text


def partial_run(
    program: Program, lowered: Program, outputs: Sequence[str] | None, given: Iterable[object]
) -> Part:
    """Return the statements of a lowered program that compute `outputs` from the inputs and `given` values.

    `outputs` are names of values; None and an empty list are the outputs of the program.  A name in `given`
    that is no input of the program is a value that the caller supplies: its statement does not run, and it
    becomes an input.  Without either, all statements run.  `program` is the program before it was lowered.

    In a training, these are results of its ``run`` lines, and states after them.

    Raises UsageError for a value that does not exist or has many values.
    """
    inputs = {value.name for value in lowered.graph.inputs}
    cuts = [name for name in map(_value_name, given) if name not in inputs and _defined(lowered, name)]
    outputs = [outputs] if isinstance(outputs, str) else outputs
    if not outputs and not cuts:
        return Part(lowered, lowered.places)
    form = tuple(map(_value_name, outputs or ())), frozenset(cuts)
    known, part = lowered.kept.get("part", (None, None))
    if part is not None and known == form:
        return part  # type: ignore[no-any-return]
    rewiring = _Rewiring(replace(lowered, listing=program.as_listing()), _results_of_runs(program, lowered))
    for name in cuts:
        rewiring.supply(name)
    if outputs:
        rewiring.choose([*dict.fromkeys(map(_value_name, outputs))])
    part = needed_part(rewiring.program)
    part = replace(part, places=_before(part.places, lowered.places))
    lowered.kept["part"] = form, part
    return part


def _before(places: Places, earlier: Places) -> Places:
    """Return the places of a part in the program from which a permuted program was made."""
    found = dict(places)
    for path, (whole, numbers) in places.items():
        if whole in earlier:
            first, at = earlier[whole]
            found[path] = first, tuple(at[number] for number in numbers)
    return found


def used_inputs(whole: Program, part: Program, given: Any) -> tuple[Any, list[str]]:
    """Return the given inputs that a partial run uses, and a note on those that it does not.

    What is no mapping is returned unchanged.
    """
    if not isinstance(given, Mapping) or part is whole:
        return given, []
    needed = {value.name for value in part.graph.inputs}
    values = {value.name for value in whole.graph.inputs}.union(*map(_names, whole.graphs.values()))
    used = {
        name: data
        for name, data in given.items()
        if _value_name(name) in needed or _value_name(name) not in values
    }
    left = [f"%{_value_name(name)}" for name in given if name not in used]
    return used, [f"the outputs do not need {', '.join(left)}"] if left else []


def _results_of_runs(program: Program, lowered: Program) -> list[str]:
    """Return the names of what the ``run`` lines compute: their results, and the states."""
    values = [*lowered.graph.outputs, *(state.value for state in program.states)]
    return [value.name for value in values] if program.runs else []


def _value_name(name: object) -> str:
    """Return the name of a value, which callers may write with %."""
    return str(name).removeprefix("%")


_LISTED = 5
"""Most values in a hint."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a graph: the calling graph and the number of the statement; None inside of a block."""

    caller: str
    pc: int | None


class _Rewiring:
    """Makes values of any graph inputs and outputs of the entry graph of `program`."""

    def __init__(self, program: Program, of_runs: Sequence[str] = ()) -> None:
        self.program = program
        self._of_runs = of_runs
        """The results and states of a training."""
        self._calls: dict[str, list[_Call]] = {}
        self._graphs = [program.entry]
        """The graphs that run, those near the entry graph first."""
        for caller in self._graphs:
            for call, name in _calls(program.graphs[caller], caller):
                if name not in self._calls and name != program.entry:
                    self._graphs.append(name)
                self._calls.setdefault(name, []).append(call)

    def supply(self, name: str) -> None:
        """Make a value an input of the entry graph; its statement no longer defines it."""
        graph, calls = self._place(name)
        value = _definition(self.program.graphs[graph], name)
        self._replace(graph, _without(self.program.graphs[graph], name))
        self._add_input(graph, Value(name, value.type))
        for caller, pc in calls:
            outer = Value(self._free(caller, name), value.type)
            node = self.program.graphs[caller].nodes[pc]
            self._replace_node(caller, pc, replace(node, inputs=(*node.inputs, outer.name)))
            self._add_input(caller, outer)

    def choose(self, names: Sequence[str]) -> None:
        """Make these values the outputs of the entry graph."""
        declared = {value.name: value for value in self.program.graph.outputs}
        chosen = [declared.get(name) or self._led_out(name) for name in names]
        entry = self.program.entry
        self._replace(entry, replace(self.program.graph, outputs=tuple(chosen)))

    def _led_out(self, name: str) -> Value:
        """Return a value as a value of the entry graph: the calls on its way return it."""
        graph, calls = self._place(name)
        value = _definition(self.program.graphs[graph], name)
        for caller, pc in calls:
            called = self.program.graphs[graph]
            self._replace(graph, replace(called, outputs=(*called.outputs, value)))
            value = Value(self._free(caller, name), value.type)
            node = self.program.graphs[caller].nodes[pc]
            self._replace_node(caller, pc, replace(node, outputs=(*node.outputs, value)))
            graph = caller
        return value

    # -- places ----------------------------------------------------------------------------------

    def _place(self, name: str) -> tuple[str, list[tuple[str, int]]]:
        """Return the graph that defines a value, and the calls that lead to it, innermost first.

        Of several graphs, it is one with the fewest calls around it.  Raises UsageError if the value does
        not have exactly one definition that runs once.
        """
        found = [each for each in self._graphs if self._has(each, name)]
        if not found:
            self._fail(name)
        graph, calls = found[0], []
        while graph != self.program.entry:
            around = self._calls[graph]
            if len(around) > 1:
                raise UsageError(
                    f"%{name_text(name)} is in @{graph}, which is called {len(around)} times",
                    hint="choose a result of one of the calls",
                )
            (call,) = around
            if call.pc is None and call.caller == self.program.entry and self._of_runs:
                known = ", ".join(f"%{name_text(each)}" for each in self._of_runs[:_LISTED])
                raise UsageError(
                    f"%{name_text(name)} has another value in each step of the run",
                    hint=f"choose a result of the run or a state, such as {known}; or stop at "
                    f"`%{name_text(name)} if $step == 0`",
                )
            if call.pc is None:
                raise UsageError(
                    f"%{name_text(name)} is in @{graph}, which a loop or branch of @{call.caller} calls",
                    hint="choose a result of the loop or branch",
                )
            calls.append((call.caller, call.pc))
            graph = call.caller
        return found[0], calls

    def _fail(self, name: str) -> NoReturn:
        for graph in self._graphs:
            if name in _names(self.program.graphs[graph]):
                raise UsageError(
                    f"%{name_text(name)} is in a loop or branch of @{graph}, where it may have many values",
                    hint="choose a result of the loop or branch",
                )
        known = {each for graph in self._graphs for each in _names(self.program.graphs[graph])}
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean %{name_text(near[0])}?" if near else "`nncdbg print MODEL` lists the values"
        raise UsageError(f"the program computes no value %{name_text(name)}", hint=hint)

    def _has(self, graph: str, name: str) -> bool:
        """Return whether a graph defines a value outside of its loops and branches."""
        entry = graph == self.program.entry
        return bool(name) and any(
            value.name == name for value in defined(self.program.graphs[graph], inputs=entry)
        )

    # -- changes ---------------------------------------------------------------------------------

    def _replace(self, name: str, graph: Graph) -> None:
        self.program = replace(self.program, graphs={**self.program.graphs, name: graph})

    def _replace_node(self, name: str, pc: int, node: Node) -> None:
        graph = self.program.graphs[name]
        self._replace(name, replace(graph, nodes=(*graph.nodes[:pc], node, *graph.nodes[pc + 1 :])))

    def _add_input(self, name: str, value: Value) -> None:
        graph = self.program.graphs[name]
        self._replace(name, replace(graph, inputs=(*graph.inputs, value)))

    def _free(self, graph: str, name: str) -> str:
        """Return a name that no value of a graph has."""
        record = self.program.graphs[graph]
        return fresh_name(name, _names(record) | {value.name for value in record.inputs})


def _calls(graph: Graph, name: str) -> Iterator[tuple[_Call, str]]:
    """Yield the calls in a graph with the names of the called graphs."""
    for path, _, pc, node in walk(graph):
        if (called := node.called) is not None:
            yield _Call(name, pc if len(path) == 1 else None), called


def _definition(graph: Graph, name: str) -> Value:
    """Return the last definition of a value."""
    return [value for value in defined(graph) if value.name == name][-1]


def _defined(program: Program, name: str) -> bool:
    return any(name in _names(graph) for graph in program.graphs.values())


def _names(graph: Graph) -> set[str]:
    """Return the names of the constants and results of a graph and its blocks."""
    return {value.name for value in all_defined(graph, inputs=False)} - {""}


def _without(graph: Graph, name: str) -> Graph:
    """Return a graph that does not define a value; a state is supplied as its first value."""
    constants = tuple(each for each in graph.constants if each.value.name != name)
    if len(constants) < len(graph.constants):
        return replace(graph, constants=constants)
    pc = next(pc for pc, node in enumerate(graph.nodes) if name in {value.name for value in node.outputs})
    node = graph.nodes[pc]
    outputs = tuple(Value("") if value.name == name else value for value in node.outputs)
    return replace(graph, nodes=(*graph.nodes[:pc], replace(node, outputs=outputs), *graph.nodes[pc + 1 :]))
