"""A scheduled program with its calls inlined, as the launches of its statements: what the player permutes.

The results of a called graph have the names that the call gives them.  Its other values are named after the
graph, as ``%layer/a`` and, in the second call, ``%layer.2/a``.
Control flow keeps its blocks.  `if`, `while`, `break` and `return` close a segment: the host waits there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from nncdbg.comparison.launches import (
    DEEPEST,
    Access,
    Launch,
    LaunchExpansion,
    LaunchScope,
    Memory,
    PlacedPlan,
    Steps,
)
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import (
    Constant,
    Graph,
    Node,
    Operand,
    Path,
    Placement,
    Program,
    TensorType,
    Type,
    Value,
    without_sizes,
)
from nncdbg.ir.streams import Site
from nncdbg.ir.walk import walk_nodes


@dataclass(slots=True, eq=False)
class FlatStatement:
    """A launch, and its statement with the names of the flat program; None for the margin of a line.

    `blocks` are those of control flow.  `closes`: the statement ends a segment.  `at` is the statement of the
    outermost graph: the launch's own, or the call.
    """

    launch: Launch
    node: Node | None = None
    blocks: tuple[FlatBlock, ...] = ()
    closes: bool = False
    at: Site | None = None


@dataclass(slots=True, eq=False)
class FlatBlock:
    """A graph or block: `graph` has its flat inputs and constants, and no statements.

    `results` are the names of the values that it returns.  `memory` is that of each value of the outermost
    graph by name; `owners` maps a value that shares the bytes of another one to the name of that one.
    """

    graph: Graph
    memory: dict[str, Memory]
    owners: dict[str, str]
    statements: list[FlatStatement] = field(default_factory=list)
    results: tuple[str, ...] = ()


@dataclass(slots=True)
class Flat:
    """The graphs of a program without calls; `used` are all names."""

    program: Program
    graphs: dict[str, FlatBlock]
    used: set[str]


def flattened(program: Program, plan: PlacedPlan | None = None) -> Flat:
    """Return the graphs that a run begins with, flat; the program has no ``backward`` lines."""
    return _Flattening(program, plan).flat()


class _Flattening(LaunchExpansion):
    """Issues each statement once, both branches of `if` included, and keeps the statements."""

    def __init__(self, program: Program, plan: PlacedPlan | None) -> None:
        super().__init__(program, plan, 0)
        self.open: list[FlatBlock] = []
        self.memory: dict[str, Memory] = {}
        self.owners: dict[str, str] = {}
        self.used = {state.value.name for state in program.states}
        self.used |= {value.name for graph in program.graphs.values() for value in graph.inputs}
        self.used |= {value.name for node in walk_nodes(program) for value in node.outputs}
        self.caller: tuple[LaunchScope, Node, Site] | None = None
        self.outer: LaunchScope | None = None
        self.hoisted: dict[tuple[str, str], str] = {}
        self.constants: list[Constant] = []
        self.prefixes: set[str] = set()

    def flat(self) -> Flat:
        program = self.program
        lines = [*program.runs, *(each for run in program.runs for each in run.evaluations)]
        names = dict.fromkeys([*(line.graph for line in lines), program.entry])
        graphs = {name: self.outermost(program.graphs[name]) for name in names}
        return Flat(program, graphs, self.used)

    def outermost(self, graph: Graph) -> FlatBlock:
        self.caller = None
        self.hoisted, self.constants, self.prefixes = {}, [], set()
        self.memory, self.owners = {}, {}
        body = FlatBlock(graph, self.memory, self.owners)
        self.open.append(body)
        self.issue_all(self.graph(graph, (), [], outermost=True))
        self.open.pop()
        body.graph = replace(graph, nodes=(), constants=(*graph.constants, *self.constants))
        return body

    # -- names -----------------------------------------------------------------------------------------

    def entered(self, graph: Graph) -> LaunchScope:
        self.calls += 1
        if self.caller is None:
            names = {each.value.name: each.value.name for each in graph.constants}
            scope = LaunchScope(graph, self.calls, constants=names)
        else:
            scope = self.inlined(graph, *self.caller)
        self.outer = scope if self.caller is None else self.outer
        return scope

    def inlined(self, graph: Graph, outer: LaunchScope, call: Node, site: Site) -> LaunchScope:
        prefix = claimed_name(f"{outer.prefix}{graph.name}", self.prefixes, first=2)
        scope = LaunchScope(graph, self.calls, prefix=f"{prefix}/", at=outer.at or site)
        made = {value.name for node in graph.nodes for value in node.outputs if node.kind is not Kind.UPDATE}
        for result, value in zip(graph.outputs, call.outputs, strict=False):
            if value.name and result.name in made and result.name not in scope.results:
                scope.results[result.name] = self.spelled(outer, value.name)
        given = (*call.inputs, *(None for _ in graph.inputs))
        for value, operand in zip(graph.inputs, given, strict=False):
            if not isinstance(operand, str):
                scope.literals[value.name] = operand
            elif operand in outer.literals:
                scope.literals[value.name] = outer.literals[operand]
        for constant in graph.constants:
            name = constant.value.name
            key = graph.name, name
            if key not in self.hoisted:
                self.hoisted[key] = claimed_name(f"{graph.name}/{name}", self.used)
                self.constants.append(replace(constant, value=Value(self.hoisted[key], constant.value.type)))
            scope.constants[name] = self.hoisted[key]
        return scope

    def spelled(self, scope: LaunchScope, name: str) -> str:
        """Return the name of a value that is defined now."""
        if name in scope.results:
            return scope.results[name]
        return name if not scope.prefix else claimed_name(f"{scope.prefix}{name}", self.used)

    def operand(self, scope: LaunchScope, operand: Operand) -> Operand:
        if not isinstance(operand, str):
            return operand
        if operand in scope.literals:
            return scope.literals[operand]
        memory = self.visible(scope, operand)
        return operand if memory is None else memory.name

    def visible(self, scope: LaunchScope, name: object) -> Memory | None:
        """Return the memory of a value; constants have some, too, which nothing writes."""
        memory = super().visible(scope, name)
        if memory is None and isinstance(name, str) and name in scope.constants:
            memory = scope.values[name] = self.fresh(scope.constants[name])
        return memory

    def defined(self, scope: LaunchScope, path: Path, name: str) -> Memory:
        flat = self.spelled(scope, name)
        memory = super().defined(scope, path, name)._replace(name=flat)
        self.memory[flat] = memory
        if self.aliases(path, name):
            root = self.visible(scope, self.places[path, name].root[1])
            if root is not None:
                self.owners[flat] = self.owners.get(root.name, root.name)
        return memory

    def own(self, scope: LaunchScope, name: str) -> Memory:
        """Return memory of its own for a value of control flow, whatever the plan says."""
        flat = self.spelled(scope, name)
        memory = self.memory[flat] = scope.values[name] = self.fresh(flat)
        return memory

    def typed(self, scope: LaunchScope, value: Value, memory: Memory) -> Value:
        """Return a value with its flat name; the symbols of a called graph are not those of its caller."""
        return Value(memory.name, _outside(value.type) if scope.prefix else value.type)

    # -- statements ------------------------------------------------------------------------------------

    def issue(
        self,
        scope: LaunchScope,
        site: Site,
        placement: Placement | None,
        accesses: Sequence[Access],
        edge: str = "",
    ) -> None:
        super().issue(scope, site, placement, accesses, edge)
        last = FlatStatement(self.launches.pop(), at=scope.at or site)
        self.open[-1].statements.append(last)
        if edge == "end" and len(self.open) == 1 and scope is self.outer:
            last.closes = True
            outputs = scope.graph.outputs
            self.open[0].results = tuple(str(self.operand(scope, value.name)) for value in outputs)

    def statement(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> None:
        inputs = tuple(self.operand(scope, each) for each in node.inputs)
        super().statement(scope, node, path, pc)
        last = self.open[-1].statements[-1]
        last.closes = node.kind is Kind.BREAK
        last.node = self.renamed(scope, node, inputs)

    def renamed(self, scope: LaunchScope, node: Node, inputs: tuple[Operand, ...]) -> Node:
        """Return a statement with the names of the flat program, without its blocks."""
        placement = node.placement
        if placement is not None and placement.logical and scope.prefix:
            # The logical streams of a called graph are not those of its caller.
            placement = replace(placement, logical=())
        outputs = node.outputs
        if node.kind is not Kind.UPDATE:
            outputs = tuple(
                self.typed(scope, value, scope.values[value.name]) if value.name else value
                for value in outputs
            )
        return replace(node, inputs=inputs, outputs=outputs, placement=placement, subgraphs=())

    def call(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        self.caller = scope, node, (path, pc)
        yield from super().call(scope, node, path, pc)

    def branch(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        inputs = tuple(self.operand(scope, each) for each in node.inputs)
        self.issue(scope, (path, pc), node.placement, self.reads(scope, node.inputs))
        last = self.open[-1].statements[-1]
        last.closes = True
        for number, source in enumerate(node.subgraphs):
            yield self.inside(last, scope, source, (*path, pc, number))
        for value in node.outputs:
            self.own(scope, value.name)
        last.node = self.renamed(scope, node, inputs)

    def loop(self, scope: LaunchScope, node: Node, path: Path, pc: int) -> Steps:
        inputs = tuple(self.operand(scope, each) for each in node.inputs)
        self.issue(scope, (path, pc), node.placement, self.reads(scope, node.inputs[:1]))
        last = self.open[-1].statements[-1]
        last.closes = True
        yield self.inside(last, scope, node.subgraphs[0], (*path, pc, 0))
        for value in node.outputs:
            if value.name:
                self.own(scope, value.name)
        last.node = self.renamed(scope, node, inputs)

    def inside(self, last: FlatStatement, scope: LaunchScope, source: Graph, path: Path) -> Iterator[Steps]:
        """Keep a block of a statement of control flow; its values are not visible after it."""
        if len(self.open) > DEEPEST:
            raise UsageError(f"blocks are nested more than {DEEPEST} levels deep", hint="use fewer levels")
        values, constants = scope.values, scope.constants
        scope.values, scope.constants = dict(values), dict(constants)
        for value in source.inputs:
            if value.name:
                self.own(scope, value.name)
        kept = []
        for constant in source.constants:
            name = self.spelled(scope, constant.value.name)
            scope.constants[constant.value.name] = name
            kept.append(replace(constant, value=Value(name, constant.value.type)))
        graph = replace(
            source,
            inputs=tuple(
                self.typed(scope, value, scope.values[value.name]) if value.name else value
                for value in source.inputs
            ),
            nodes=(),
            constants=tuple(kept),
        )
        body = FlatBlock(graph, self.memory, self.owners)
        self.open.append(body)
        yield self.block(scope, source, path)
        if source.end is not None:
            self.issue(scope, (path, len(source.nodes)), source.end, ())
        self.open.pop()
        body.results = tuple(str(self.operand(scope, value.name)) for value in source.outputs)
        scope.values, scope.constants = values, constants
        last.blocks = (*last.blocks, body)


def _outside(type_: Type | None) -> Type | None:
    if type_ is None or (isinstance(type_, TensorType) and type_.concrete):
        return type_
    return without_sizes(type_)
