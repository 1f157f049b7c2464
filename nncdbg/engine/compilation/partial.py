"""Partial runs: only the statements between chosen values (sources) and chosen values (destinations).

The statements that the outputs need are found in all graphs and blocks.  A branch, loop or call is needed
result by result: a loop does not compute a carried value that neither a needed result nor the `break` depends
on.  A graph that is called several times executes what one of its calls needs.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

from nncdbg.engine.compilation.code import EPOCH
from nncdbg.engine.compilation.driver_graph import BATCH
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import all_defined, defined, fresh_name
from nncdbg.ir.records import Graph, Node, Path, Program, Value
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import blocks, walk
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing


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
    part = _Rebuilding(rewiring.program, _Needs(rewiring.program)).part()
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


_Call: TypeAlias = "tuple[str, int | None]"
"""A call of a graph: the calling graph and the number of the statement; None inside of a block."""


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
            ((caller, pc),) = around
            if pc is None and caller == self.program.entry and self._of_runs:
                known = ", ".join(f"%{name_text(each)}" for each in self._of_runs[:_LISTED])
                raise UsageError(
                    f"%{name_text(name)} has another value in each step of the run",
                    hint=f"choose a result of the run or a state, such as {known}; or stop at "
                    f"`%{name_text(name)} if $step == 0`",
                )
            if pc is None:
                raise UsageError(
                    f"%{name_text(name)} is in @{graph}, which a loop or branch of @{caller} calls",
                    hint="choose a result of the loop or branch",
                )
            calls.append((caller, pc))
            graph = caller
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
            yield (name, pc if len(path) == 1 else None), called


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


Definition: TypeAlias = "tuple[Path, int, int]"
"""Block, statement and number of a result; statement -1 is an input of the block, -2 a constant."""

_INPUT, _CONSTANT = -1, -2

Places: TypeAlias = "Mapping[Path, tuple[Path, tuple[int, ...]]]"
"""For each block of a part: the block of the whole program, and the numbers of its statements there."""


@dataclass(frozen=True, slots=True)
class Part:
    """The statements of a program that run, as a program."""

    program: Program
    places: Places = field(default_factory=dict)


class _Block:
    """A graph or block, with the definitions of its names in order: (number of the statement, definition)."""

    def __init__(self, graph: Graph, path: Path) -> None:
        self.graph = graph
        self.path = path
        self.definitions: dict[str, list[tuple[int, Definition]]] = {}
        for index, value in enumerate(graph.inputs):
            self._define(value.name, _INPUT, index)
        for index, constant in enumerate(graph.constants):
            self._define(constant.value.name, _CONSTANT, index)
        for pc, node in enumerate(graph.nodes):
            for index, value in enumerate(node.outputs):
                self._define(value.name, pc, index)

    def _define(self, name: str, pc: int, index: int) -> None:
        if name:
            self.definitions.setdefault(name, []).append((pc, (self.path, pc, index)))

    def before(self, name: str, pc: int) -> Definition | None:
        """Return the definition of a name that the statement at `pc` reads; None if it is not here."""
        found = (each for at, each in reversed(self.definitions.get(name, ())) if at < pc)
        return next(found, None)


class _Needs:
    """Marks what the outputs need: results, statements, and inputs and ends of blocks."""

    def __init__(self, program: Program) -> None:
        self.blocks = {path: _Block(graph, path) for path, graph in blocks(program.graphs)}
        """The blocks, outer before inner."""
        self.values: set[Definition] = set()
        self.statements: dict[Path, set[int]] = {path: set() for path in self.blocks}
        self.ends: dict[Path, set[int]] = {path: set() for path in self.blocks}
        """The numbers of the needed outputs of each block."""
        self._calls: dict[str, list[tuple[Path, int]]] = {}
        """The needed calls of each graph."""
        names = Counter(graph.name for graph in program.graphs.values())
        self._whole = {key for key, graph in program.graphs.items() if names[graph.name] > 1}
        """The graphs that share their lines with another one: the same statements of both run."""
        self._waiting: list[Definition] = []
        entry = (program.entry,)
        for index in range(len(program.graph.outputs)):
            self._end(entry, index)
        while self._waiting:
            self._follow(*self._waiting.pop())

    @property
    def called(self) -> Collection[str]:
        """The graphs with a needed call."""
        return self._calls.keys()

    def inputs(self, path: Path) -> list[int]:
        """Return the numbers of the needed inputs of a block, in order."""
        count = len(self.blocks[path].graph.inputs)
        return [index for index in range(count) if (path, _INPUT, index) in self.values]

    def _read(self, path: Path, pc: int, name: object) -> None:
        """Mark the value that a statement reads under a name."""
        while isinstance(name, str):
            found = self.blocks[path].before(name, pc)
            if found is not None:
                if found not in self.values:
                    self.values.add(found)
                    self._waiting.append(found)
                return
            if len(path) == 1:
                return
            path, pc = path[:-2], int(path[-2])

    def _end(self, path: Path, index: int) -> None:
        """Mark an output of a block."""
        ends, graph = self.ends[path], self.blocks[path].graph
        if index not in ends:
            ends.add(index)
            self._read(path, len(graph.nodes), graph.outputs[index].name)

    def _follow(self, path: Path, pc: int, index: int) -> None:
        """Mark what a needed value depends on."""
        if pc == _INPUT:
            self._follow_input(path, index)
        elif pc >= 0:
            node = self.blocks[path].graph.nodes[pc]
            first = pc not in self.statements[path]
            self.statements[path].add(pc)
            self._follow_result(path, pc, node, index, first)

    def _follow_result(self, path: Path, pc: int, node: Node, index: int, first: bool) -> None:
        if node.kind is Kind.IF:
            self._read(path, pc, node.inputs[0])
            for number in range(len(node.subgraphs)):
                self._end((*path, pc, number), index)
        elif node.kind is Kind.WHILE:
            self._follow_loop(path, pc, node, index, first)
        elif node.kind is Kind.UPDATE:
            self._read(path, pc, node.inputs[index])
        elif (called := node.called) is not None and (called,) in self.blocks:
            self._call(path, pc, node, called)
            self._end((called,), index)
        elif first:
            for name in node.inputs:
                self._read(path, pc, name)

    def _call(self, path: Path, pc: int, node: Node, called: str) -> None:
        """Mark a call, and the operands for inputs that are needed so far."""
        calls = self._calls.setdefault(called, [])
        if (path, pc) in calls:
            return
        calls.append((path, pc))
        if len(calls) == 1 and called in self._whole:
            self._mark_whole((called,))
        for number in self.inputs((called,)):
            self._read(path, pc, node.inputs[number])

    def _mark_whole(self, graph: Path) -> None:
        for path, block in self.blocks.items():
            if path[:1] == graph:
                every = {each for found in block.definitions.values() for _, each in found}
                self._waiting += every - self.values
                self.values |= every
                for pc in {*range(len(block.graph.nodes))} - {pc for _, pc, _ in every}:
                    self._mark_without_name(path, pc, block.graph.nodes[pc])
                for index in range(len(block.graph.outputs)):
                    self._end(path, index)

    def _mark_without_name(self, path: Path, pc: int, node: Node) -> None:
        if node.outputs:
            self._waiting.append((path, pc, 0))
        elif pc not in self.statements[path]:
            self.statements[path].add(pc)
            for name in node.inputs:
                self._read(path, pc, name)

    def _follow_loop(self, path: Path, pc: int, node: Node, index: int, first: bool) -> None:
        body = (*path, pc, 0)
        if index < len(node.inputs) - 1:
            self._carry(path, pc, node, index)
        else:
            self._end(body, index)
        if first:
            self._read(path, pc, node.inputs[0])
            for number, each in enumerate(node.subgraphs[0].nodes):
                if each.kind is Kind.BREAK:
                    self.statements[body].add(number)
                    self._read(body, number, each.inputs[0])
                if each.op == BATCH and EPOCH in node.attributes:
                    # The data decide how many steps the run has, even if no step needs them.
                    for name in each.inputs:
                        self._read(body, number, name)

    def _carry(self, path: Path, pc: int, node: Node, index: int) -> None:
        """Mark a carried value: its first value, and its next one."""
        carried = ((*path, pc, 0), _INPUT, index + 1)
        self.values.add(carried)
        self._read(path, pc, node.inputs[index + 1])
        self._end(carried[0], index)

    def _follow_input(self, path: Path, index: int) -> None:
        if len(path) > 1:
            outer, pc = path[:-2], int(path[-2])
            node = self.blocks[outer].graph.nodes[pc]
            # Input 0 of a body is the number of the iteration.
            if index:
                self._carry(outer, pc, node, index - 1)
            return
        for caller, pc in tuple(self._calls.get(str(path[0]), ())):
            self._read(caller, pc, self.blocks[caller].graph.nodes[pc].inputs[index])


class _Rebuilding:
    """Makes the program of the needed statements."""

    def __init__(self, program: Program, needs: _Needs) -> None:
        self._program = program
        self._needs = needs

    def part(self) -> Part:
        """Return the part, with the lines of the whole program."""
        program = self._program
        needed = {program.entry, *self._needs.called}
        graphs = {
            key: rewrite(graph, self._statement, self._block, key=key)
            for key, graph in program.graphs.items()
            if key in needed
        }
        places = self._places(graphs)
        listing = _part_listing(program.as_listing(), places)
        return Part(replace(program, graphs=graphs, listing=listing), places)

    def _block(self, path: Path, graph: Graph) -> Graph:
        """Return a block of needed statements with what it needs besides."""
        ends = self._needs.ends[path]
        inputs = graph.inputs
        if len(path) == 1:
            inputs = tuple(inputs[index] for index in self._needs.inputs(path))
        elif inputs:
            # The counter of a loop, then the carried values, which are the first of the ends.
            inputs = (inputs[0], *(value for index, value in enumerate(inputs[1:]) if index in ends))
        constants = tuple(
            constant
            for index, constant in enumerate(graph.constants)
            if (path, _CONSTANT, index) in self._needs.values
        )
        return replace(graph, inputs=inputs, outputs=_at(graph.outputs, ends), constants=constants)

    def _statement(self, path: Path, pc: int, node: Node) -> Node | tuple[()]:
        needs = self._needs
        if pc not in needs.statements[path]:
            return ()
        if node.kind is Kind.UPDATE:
            made = {index for index in range(len(node.outputs)) if (path, pc, index) in needs.values}
            states = node.attributes.get("states", ())
            attributes = {"states": _at(states, made)} if isinstance(states, tuple) and states else {}
            inputs, outputs = _at(node.inputs, made), _at(node.outputs, made)
            return replace(node, inputs=inputs, outputs=outputs, attributes=attributes)
        if node.kind in (Kind.IF, Kind.WHILE):
            ends, inputs = needs.ends[*path, pc, 0], node.inputs
            if node.kind is Kind.WHILE:
                inputs = (inputs[0], *_at(inputs[1:], ends))
            return replace(node, inputs=inputs, outputs=_at(node.outputs, ends))
        if (name := node.called) is not None and (called := (name,)) in needs.blocks:
            inputs = tuple(node.inputs[index] for index in needs.inputs(called))
            return replace(node, inputs=inputs, outputs=_at(node.outputs, needs.ends[called]))
        return node

    # -- places in the whole program -------------------------------------------------------------

    def _places(self, graphs: Mapping[str, Graph]) -> Places:
        """Return the places of the blocks of the part in the whole program."""
        places: dict[Path, tuple[Path, tuple[int, ...]]] = {}
        for path, _ in blocks(graphs):
            whole, name = path, graphs[str(path[0])].name
            if len(path) > 1:
                outer, kept = places[name, *path[1:-2]]
                whole = (*path[:1], *outer[1:], kept[int(path[-2])], path[-1])
            places[name, *path[1:]] = (name, *whole[1:]), tuple(sorted(self._needs.statements[whole]))
        return places


def _at(values: Sequence[Any], numbers: Collection[int]) -> tuple[Any, ...]:
    return tuple(value for index, value in enumerate(values) if index in numbers)


def _part_listing(listing: Listing, places: Places) -> Listing:
    """Return a listing with the same lines, for the blocks of a part."""
    statements: dict[Path, tuple[int, ...]] = {}
    headers: dict[Path, int] = {}
    for path, (whole, kept) in places.items():
        if whole in listing.statements:
            lines = listing.statements[whole]
            statements[path] = (*(lines[pc] for pc in kept), lines[-1])
            headers[path] = listing.headers[whole]
    return replace(listing, statements=statements, headers=headers)
