"""A graph compiled once: names become numbered slots, statements a flat list of instructions.

An instruction is `(execute, gather, target)`: the machine's loop does
`slots[target] = execute(*gather(slots))`.  `execute` is None for what only the machine can do
(control flow, the end of a graph) and for a trap, which is how a breakpoint is set.
Slot 0 of every frame holds None, the operand that is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from nncdbg.engine.errors import GraphError
from nncdbg.engine.graph import (
    Array,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Program,
    Type,
)
from nncdbg.engine.inference.graphs import Complain, GraphInference
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import literal_array, type_of_array

Path: TypeAlias = "tuple[str | int, ...]"
"""Which block: `("main",)`, or `("main", 5, 0)` for the first body of its statement 5."""

Instruction: TypeAlias = "tuple[Callable[..., Any] | None, Callable[[list[Any]], Sequence[Any]], Any]"

CONTROL = frozenset({"if", "while", "break"})


class _Unset:
    """The content of a slot whose statement has not run."""

    def __repr__(self) -> str:
        return "<not computed>"


UNSET = _Unset()


def nothing(slots: list[Any]) -> tuple[()]:
    """The operands of a statement without any."""
    return ()


def gatherer(indices: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function from slots to the operands; `itemgetter` is the fastest there is."""
    if not indices:
        return nothing
    if len(indices) == 1:
        # itemgetter of one index gives the item bare; of a slice, a list of one.
        return itemgetter(slice(indices[0], indices[0] + 1))
    return itemgetter(*indices)


TRAP: Instruction = (None, nothing, None)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Code:
    """One block of statements, ready to run.  `len(nodes)` is the pc of its last line."""

    graph: Graph
    path: Path
    opsets: Mapping[str, int]
    parent: Code | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    """The graphs of the program, which the statements may call."""
    slot_of: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    definition: list[int] = field(default_factory=list)
    """Per slot the pc that writes it; -1 for what is there when the frame begins."""
    template: list[Any] = field(default_factory=list)
    """The slots of a fresh frame: constants in place, all else UNSET."""
    operands: list[tuple[int, ...]] = field(default_factory=list)
    """Per pc the slots that the statement reads, its blocks' captures apart."""
    targets: list[int | slice | None] = field(default_factory=list)
    bodies: dict[int, tuple[Code, ...]] = field(default_factory=dict)
    captures: list[tuple[int, int]] = field(default_factory=list)
    """(slot of the enclosing block, slot here), copied when the frame begins."""
    kept: list[int] = field(default_factory=list)
    """The slots of captures and constants, which stay from one iteration to the next."""
    instructions: list[Instruction] = field(default_factory=list)
    patched: list[Instruction] = field(default_factory=list)
    """What runs: the instructions with traps in place of some."""
    types: dict[str, Type | None] = field(default_factory=dict)
    traps: set[int] = field(default_factory=set)
    formula: Program | None = None
    """The micro program that this is, if it is one."""
    last_uses: tuple[int, ...] | None = None
    dying: tuple[tuple[int, ...], ...] | None = None
    """What `liveness` has found, once it was asked."""

    is_loop: bool = field(init=False)
    """Whether this is the body of a loop."""

    def __post_init__(self) -> None:
        self.is_loop = bool(self.graph.inputs) and isinstance(self.path[-1], int)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.graph.nodes

    def new_slot(self, name: str, content: Any, pc: int) -> int:
        slot = len(self.template)
        self.template.append(content)
        self.names.append(name)
        self.definition.append(pc)
        if name:
            self.slot_of[name] = slot
        return slot

    def find(self, name: str) -> int | None:
        """The slot of a name that is visible here; an outer one is captured on first use."""
        inside: list[Code] = []
        code: Code | None = self
        # No recursion: blocks may be nested deeper than Python's stack.
        while code is not None and name not in code.slot_of:
            inside.append(code)
            code = code.parent
        if code is None:
            return None
        slot, type = code.slot_of[name], code.types.get(name)
        for each in reversed(inside):
            slot = each._capture(name, slot, type)
        return slot

    def _capture(self, name: str, outer: int, type: Type | None) -> int:
        slot = self.new_slot(name, UNSET, -1)
        self.captures.append((outer, slot))
        self.kept.append(slot)
        self.types[name] = type
        return slot

    def arm(self) -> None:
        """Bring `patched` up to date with the instructions and the traps, in place."""
        armed = self.instructions.copy()
        for pc in self.traps:
            armed[pc] = TRAP
        self.patched[:] = armed

    def runs_kernel(self, pc: int) -> bool:
        """Return whether the statement at `pc` runs a kernel: no control flow, and not the block's end."""
        return pc < len(self.nodes) and self.instructions[pc][0] is not None

    def operands_of(self, pc: int, slots: list[Any]) -> Sequence[Any]:
        """Return the operands of the statement at `pc`; for the last line, what the block returns."""
        return self.instructions[pc][1](slots)

    def result_slots(self, pc: int) -> range:
        """Return the slots that the statement at `pc` writes."""
        target = self.targets[pc]
        if isinstance(target, slice):
            return range(target.start, target.stop)
        return range(0) if target is None else range(target, target + 1)

    def results_of(self, pc: int, slots: Sequence[Any]) -> list[Any]:
        """Return what the statement at `pc` has written to `slots`."""
        return [slots[slot] for slot in self.result_slots(pc)]

    def reads(self, pc: int) -> set[int]:
        """Every slot that the statement at `pc` reads, through its blocks too."""
        found = set(self.operands[pc])
        for body in self.bodies.get(pc, ()):
            found.update(outer for outer, _ in body.captures)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """The statement at `pc` of a block; its last line, if `pc` is the number of its nodes."""

    code: Code
    pc: int


ReadConstant: TypeAlias = Callable[[Constant], Array]


@dataclass(slots=True)
class Compiler:
    """Compiles the blocks of one program.

    `read` returns the data of a constant; `complain` adds the place in the listing to an error.
    """

    program: Program
    read: ReadConstant
    complain: Complain
    _types: Mapping[Path, dict[str, Type | None]] = field(default_factory=dict)

    def compile(self, graph: Graph, types: Sequence[Type | None], path: Path | None = None) -> Code:
        """The code of a graph of the program, for inputs of these types (None: as declared).

        Raises GraphError at the first statement that is wrong.
        """
        path = path or (graph.name,)
        opsets, graphs = self.program.opsets, self.program.graphs
        inference = GraphInference(
            opsets, graphs, lambda constant: type_of_array(self.read(constant)), self.complain
        )
        self._types = inference.infer(graph, types, path)
        code = Code(graph, path, opsets, graphs=graphs)
        stack = [code]
        # No recursion: blocks may be nested deeper than Python's stack.
        while stack:
            each = stack.pop()
            stack.extend(self._fill(each))
        return code

    def _fill(self, code: Code) -> list[Code]:
        """Give each value of a block its slot; the blocks inside it, which come next."""
        code.types = self._types[code.path]
        code.new_slot("", None, -1)
        for value in code.graph.inputs:
            code.new_slot(value.name, UNSET, -1)
        for constant in code.graph.constants:
            code.kept.append(code.new_slot(constant.value.name, self.read(constant), -1))
        inside: list[Code] = []
        for pc, node in enumerate(code.nodes):
            code.operands.append(self._operands(code, node))
            if node.subgraphs:
                code.bodies[pc] = tuple(
                    Code(graph, (*code.path, pc, index), code.opsets, code, code.graphs)
                    for index, graph in enumerate(node.subgraphs)
                )
                inside += code.bodies[pc]
            first = len(code.template)
            for value in node.outputs:
                code.new_slot(value.name, UNSET, pc)
            last = len(code.template)
            code.targets.append(first if last == first + 1 else slice(first, last))
        code.operands.append(tuple([self._slot(code, value.name) for value in code.graph.outputs]))
        code.targets.append(None)
        return inside

    def _operands(self, code: Code, node: Node) -> tuple[int, ...]:
        slots = [self._slot(code, name) if isinstance(name, str) else 0 for name in node.inputs]
        for index, operand in enumerate(node.inputs):
            if isinstance(operand, Literal):
                types = [code.types.get(name) if isinstance(name, str) else None for name in node.inputs]
                dtype = literal_dtype(operand, node, index, types, code.opsets)
                slots[index] = code.new_slot("", literal_array(operand, dtype), -1)
        return tuple(slots)

    def _slot(self, code: Code, name: str) -> int:
        slot = code.slot_of.get(name)
        if slot is None:
            slot = code.find(name)
        assert slot is not None  # Inference has found the value.
        return slot


def initial_data(constant: Constant, program: Program) -> Array:
    """The data of a constant, read through the program's stores; read-only."""
    if isinstance(constant.data, Inline):
        return constant.data.array
    reference = constant.data
    if reference.store >= len(program.readers):
        raise GraphError(
            f'%{constant.value.name} = data("{reference.key}") reads a store that is not open',
            hint="load the program from its file, or correct the path in its `store` line",
        )
    array: Array = program.readers[reference.store].read(reference.key)
    return array
