"""The launches of a scheduled program: what the host issues, in its order, and the memory that each uses.

The host executes the text from top to bottom.  It issues each statement to the stream of its margin and goes
on at once; a statement of the host itself, such as a condition, keeps the host until it ends.  A statement
without margin runs on the host while all streams are idle.

Control flow depends on data, so launches are those of sample paths: loops have two iterations, and the
branches of `if` are taken all first, then all second.  Exclusive branches so never meet in one list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Graph, Node, Operand, Path, Placement, Program, Value
from nncdbg.ir.streams import HOST, Site
from nncdbg.ir.walk import walk_nodes
from nncdbg.process.collector import collector_paused

Steps: TypeAlias = "Iterator[Steps]"
"""Issues a block, and yields the steps of each block inside it, for its caller to run first."""

ValueSite: TypeAlias = "tuple[Path, str]"
"""A block, and the name of a value in it."""

DEEPEST = 200
"""Maximum number of nested blocks."""

ITERATIONS = 2
"""How often the body of a loop is issued: the second iteration meets the first one's accesses."""


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """Bytes `offset` to `offset + size` of the arena.

    `root` is the value that owns these bytes: the value itself unless it is an alias. `lives` holds the
    lines between which the planner considers it live.
    """

    offset: int
    size: int
    root: ValueSite
    lives: tuple[int, int] | None = None

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """The place of each value of a program; `alignment` in bytes is the one that the planner declares."""

    places: Mapping[ValueSite, PlannedBuffer]
    alignment: int = 1
    source: str = "the plan"
    extent: int = field(init=False)
    """The arena's size in bytes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", max((place.end for place in self.places.values()), default=0))


class Memory(NamedTuple):
    """Bytes `begin` to `end` of a buffer, and the value or workspace that has them.

    Without a memory plan, each computed value has a buffer of its own, and `end` is 1.
    """

    buffer: int
    begin: int
    end: int
    name: str
    kind: str = "value"
    """`value` or `workspace`."""


class Access(NamedTuple):
    """A read or write of memory by a launch; `frees` is a write that gives the memory back."""

    memory: Memory
    writes: bool
    frees: bool = False


@dataclass(slots=True, eq=False)
class Launch:
    """A statement, or the margin of a graph's first or last line, as the host issues it.

    `stream` is HOST for what the host does itself.  `barrier`: the host waits for all streams first.
    """

    site: Site
    stream: int
    accesses: tuple[Access, ...] = ()
    waits: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    records: tuple[int, ...] = ()
    barrier: bool = False
    call: int = 0
    """The number of the execution of its graph."""
    edge: str = ""
    """`begin` or `end` for the first and last line of a graph."""


@dataclass(slots=True)
class LaunchScope:
    """The values of an execution of a graph by name, and what a flat program has of an inlined graph."""

    graph: Graph
    call: int
    values: dict[str, Memory] = field(default_factory=dict)
    prefix: str = ""
    """The prefix of the names of an inlined graph."""
    results: dict[str, str] = field(default_factory=dict)
    """The names of its results."""
    constants: dict[str, str] = field(default_factory=dict)
    literals: dict[str, Operand] = field(default_factory=dict)
    """The inputs for which the call has a literal, or nothing."""
    at: Site | None = None
    """The call in the outermost graph; None for that graph."""


def launches(
    program: Program, plan: PlacedPlan | None = None, *, choice: int = 0, steps: int = ITERATIONS
) -> list[Launch]:
    """Return the launches of a program, with branch `choice` (0 or 1) of each `if`.

    With `plan`, the values that it places share its arena, buffer 0.  A training is `steps` calls of the
    graph of each of its `run` lines, which share the states.
    """
    with collector_paused():
        return LaunchExpansion(program, plan, choice).run(steps)


def branches(program: Program) -> Sequence[int]:
    """Return the values of `choice` that together reach each branch of a program."""
    return (0, 1) if any(node.kind is Kind.IF for node in walk_nodes(program)) else (0,)


class LaunchExpansion:
    """Issues the statements of a program on a stack of generators, so that nesting has no limit."""

    def __init__(self, program: Program, plan: PlacedPlan | None, choice: int) -> None:
        self.program = program
        self.places = {} if plan is None else plan.places
        self.choice = choice
        self.launches: list[Launch] = []
        self.buffers = 0
        self.calls = 0
        self.states = {state.value.name: self.fresh(state.value.name) for state in program.states}
        self.workspaces: dict[str, Memory] = {}

    def run(self, steps: int) -> list[Launch]:
        program = self.program
        graphs = [run.graph for run in program.runs for _ in range(steps)] or [program.entry]
        for name in graphs:
            self.issue_all(self.graph(program.graphs[name], (), [], outermost=True))
        return self.launches

    def issue_all(self, steps: Steps) -> None:
        """Issue a block, and the blocks inside it."""
        stack = [steps]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(inner)

    # -- memory ------------------------------------------------------------------------------------

    def fresh(self, name: str) -> Memory:
        self.buffers += 1
        return Memory(self.buffers, 0, 1, name)

    def defined(self, scope: LaunchScope, path: Path, name: str) -> Memory:
        """Return the memory of a value that is defined now: that of the plan, else a new buffer."""
        place = self.places.get((path, name)) if self.places else None
        return self.fresh(name) if place is None else Memory(0, place.offset, place.end, name)

    def aliases(self, path: Path, name: str) -> bool:
        """Return whether the plan gives a value the bytes of another one, as a view has."""
        place = self.places.get((path, name)) if self.places else None
        return place is not None and place.root != (path, name)

    def visible(self, scope: LaunchScope, name: object) -> Memory | None:
        if not isinstance(name, str):
            return None
        return scope.values.get(name) or self.states.get(name)

    # -- statements --------------------------------------------------------------------------------

    def issue(
        self,
        scope: LaunchScope,
        site: Site,
        placement: Placement | None,
        accesses: Sequence[Access],
        edge: str = "",
    ) -> None:
        """Add a launch with these accesses, those of its workspace, and its `free`."""
        margin, found = placement or Placement(), [*accesses]
        if margin.workspace is not None:
            found.append(Access(self.workspace(margin.workspace), True))
        for name in margin.frees:
            memory = self.visible(scope, name)
            if memory is not None:
                found.append(Access(memory, True, True))
        self.launches.append(
            Launch(
                site,
                HOST if margin.stream is None else margin.stream,
                tuple(found),
                margin.waits,
                margin.begins,
                margin.records,
                barrier=placement is None,
                call=scope.call,
                edge=edge,
            )
        )

    def workspace(self, name: str) -> Memory:
        if name not in self.workspaces:
            self.buffers += 1
            self.workspaces[name] = Memory(self.buffers, 0, 1, name, "workspace")
        return self.workspaces[name]

    def reads(self, scope: LaunchScope, names: Sequence[object]) -> list[Access]:
        found = []
        for name in names:
            memory = self.visible(scope, name)
            if memory is not None:
                access = Access(memory, False)
                if access not in found:
                    found.append(access)
        return found

    def graph(
        self,
        graph: Graph,
        arguments: Sequence[Memory | None],
        results: list[Memory | None],
        *,
        outermost: bool,
    ) -> Steps:
        """Issue a graph; append the memory of its results to `results`."""
        scope = self.entered(graph)
        path: Path = (graph.name,)
        for at, value in enumerate(graph.inputs):
            given = arguments[at] if at < len(arguments) else None
            scope.values[value.name] = self.defined(scope, path, value.name) if given is None else given
        if graph.begin is not None:
            self.issue(scope, (path, -1), graph.begin, (), "begin")
        yield from self.block(scope, graph, path)
        end = (path, len(graph.nodes))
        if outermost:
            self.issue(scope, end, graph.end, self.reads(scope, [each.name for each in graph.outputs]), "end")
        elif graph.end is not None:
            self.issue(scope, end, graph.end, (), "end")
        results += [self.visible(scope, each.name) for each in graph.outputs]

    def entered(self, graph: Graph) -> LaunchScope:
        """Return the values of a new execution of a graph."""
        self.calls += 1
        return LaunchScope(graph, self.calls)

    def block(self, scope: LaunchScope, block: Graph, path: Path) -> Steps:
        for pc, node in enumerate(block.nodes):
            if node.called in self.program.graphs:
                yield self.call(scope, node, path, pc)
            elif node.kind is Kind.IF:
                yield self.branch(scope, node, path, pc)
            elif node.kind is Kind.WHILE:
                yield self.loop(scope, node, path, pc)
            else:
                self.statement(scope, node, path, pc)

    def statement(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> None:
        accesses = self.reads(scope, node.inputs)
        for value in node.outputs:
            if not value.name:
                continue
            if node.kind is Kind.UPDATE:
                memory = self.states.get(value.name) or self.fresh(value.name)
            else:
                memory = scope.values[value.name] = self.defined(scope, path, value.name)
            if not self.aliases(path, value.name):
                accesses.append(Access(memory, True))
        self.issue(scope, (path, pc), node.placement, accesses)

    def call(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        """Issue a called graph between what its margin waits for and what it records."""
        margin = node.placement
        if margin is not None and (margin.waits or margin.begins):
            before = Placement(stream=margin.stream, waits=margin.waits, begins=margin.begins)
            self.issue(scope, (path, pc), before, ())
        results: list[Memory | None] = []
        arguments = [self.visible(scope, name) for name in node.inputs]
        yield self.graph(self.program.graphs[str(node.called)], arguments, results, outermost=False)
        for value, memory in zip(node.outputs, results, strict=False):
            scope.values[value.name] = memory or self.defined(scope, path, value.name)
        if (saved := node.attributes.get("saved")) is not None:
            scope.values[str(saved)] = self.fresh(str(saved))
        if margin is not None and (margin.records or margin.frees):
            after = Placement(stream=margin.stream, records=margin.records, frees=margin.frees)
            self.issue(scope, (path, pc), after, ())

    def branch(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        self.issue(scope, (path, pc), node.placement, self.reads(scope, node.inputs))
        taken, inside = node.subgraphs[self.choice], (*path, pc, self.choice)
        yield self.block(scope, taken, inside)
        if taken.end is not None:
            self.issue(scope, (inside, len(taken.nodes)), taken.end, ())
        for value, result in zip(node.outputs, taken.outputs, strict=True):
            scope.values[value.name] = self.visible(scope, result.name) or self.defined(
                scope, path, value.name
            )

    def loop(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        body = node.subgraphs[0]
        inside = (*path, pc, 0)
        counter, *carried = body.inputs
        times, *initial = node.inputs
        self.issue(scope, (path, pc), node.placement, self.reads(scope, (times,)))
        if counter.name:
            scope.values[counter.name] = self.fresh(counter.name)
        self._carry(scope, inside, carried, [self.visible(scope, name) for name in initial])
        after = body.outputs[: len(carried)]
        for _ in range(ITERATIONS):
            yield self.block(scope, body, inside)
            if body.end is not None:
                self.issue(scope, (inside, len(body.nodes)), body.end, ())
            self._carry(scope, inside, carried, [self.visible(scope, value.name) for value in after])
        collected = []
        for at, value in enumerate(node.outputs):
            if at < len(carried):
                memory = self.visible(scope, carried[at].name)
                scope.values[value.name] = memory or self.defined(scope, path, value.name)
            elif value.name:
                memory = scope.values[value.name] = self.defined(scope, path, value.name)
                collected.append(Access(memory, True))
        if collected:
            self.issue(scope, (path, pc), None, collected)

    def _carry(
        self, scope: LaunchScope, path: Path, carried: Sequence[Value], given: Sequence[Memory | None]
    ) -> None:
        for value, memory in zip(carried, given, strict=True):
            scope.values[value.name] = memory or self.defined(scope, path, value.name)
