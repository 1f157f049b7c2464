"""Compile a graph once: names become numbered slots, statements a flat list of instructions.

An instruction is `(execute, gather, target)`: the machine's loop runs
`slots[target] = execute(*gather(slots))`.  `execute` is None for transfers of control (control flow,
the end of a graph) and for traps, which implement breakpoints.  Slot 0 of every frame holds None, the
omitted operand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

from nncdbg.engine.inference.graphs import Complain, GraphInference
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.inference.types import literal_array, type_of_array
from nncdbg.ir.kinds import Kind, is_transfer
from nncdbg.ir.records import Array, Constant, Graph, Literal, Node, Path, Program, Type

Instruction: TypeAlias = "tuple[Callable[..., Any] | None, Callable[[list[Any]], Sequence[Any]], Any]"

EPOCH = "steps_per_epoch"
"""The attribute of the loop of a ``run`` line with the number of its steps per epoch."""


class _NoValue:
    """What a slot contains in place of a value."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


UNSET = _NoValue("<not computed>")
"""The content of a slot whose statement has not run."""

EVICTED = _NoValue("<evicted>")
"""The content of a slot after its value was dropped to stay within the limit of the history."""


def nothing(slots: list[Any]) -> tuple[()]:
    """Return the operands of a statement that has none."""
    return ()


def gatherer(indices: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function from slots to operands; `itemgetter` is the fastest one."""
    if not indices:
        return nothing
    if len(indices) == 1:
        # itemgetter returns a bare item for one index, and a list for a slice.
        return itemgetter(slice(indices[0], indices[0] + 1))
    return itemgetter(*indices)


TRAP: Instruction = (None, nothing, None)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Code:
    """A block of statements, ready to run.  `len(nodes)` is the pc of its last line."""

    graph: Graph
    path: Path
    opsets: Mapping[str, int]
    parent: Code | None = None
    graphs: Mapping[str, Graph] = field(default_factory=dict)
    """The graphs of the program that the statements can call."""
    slot_of: dict[str, int] = field(default_factory=dict)
    """The slot of each name; of a state, the slot of its last definition here (see `slot_at`)."""
    definitions: dict[str, list[int]] = field(default_factory=dict)
    """The slots of a state that is defined several times here, in order."""
    names: list[str] = field(default_factory=list)
    definition: list[int] = field(default_factory=list)
    """Per slot the pc that writes it; -1 for slots set when the frame begins."""
    template: list[Any] = field(default_factory=list)
    """The slots of a new frame: constants in place, all others UNSET."""
    operands: list[tuple[int, ...]] = field(default_factory=list)
    """Per pc the slots that the statement reads, without its blocks' captures."""
    targets: list[int | slice | None] = field(default_factory=list)
    bodies: dict[int, tuple[Code, ...]] = field(default_factory=dict)
    captures: list[tuple[int, int]] = field(default_factory=list)
    """(slot of the enclosing block, slot here), copied when the frame begins."""
    kept: list[int] = field(default_factory=list)
    """The slots of captures and constants, kept from one iteration to the next."""
    instructions: list[Instruction] = field(default_factory=list)
    evicting: list[Instruction] = field(default_factory=list)
    """The instructions that drop values after their last use (see `Linker.evicts`); else `instructions`."""
    patched: list[Instruction] = field(default_factory=list)
    """The instructions that run, some replaced by traps."""
    types: dict[str, Type | None] = field(default_factory=dict)
    traps: set[int] = field(default_factory=set)
    epoch: int | None = None
    """For the loop of a ``run`` line: its steps per epoch, 0 without data."""
    formula: Program | None = None
    """The micro program of this code, if it is one."""
    read_at_end: tuple[int, ...] = ()
    """The slots that are read once more when the block has ended: tracked values."""
    last_uses: tuple[int, ...] | None = None
    dying: tuple[tuple[int, ...], ...] | None = None
    """The cached result of `liveness.dying`."""

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
            if name in self.slot_of:
                self.definitions.setdefault(name, [self.slot_of[name]]).append(slot)
            self.slot_of[name] = slot
        return slot

    def slot_at(self, name: str, pc: int) -> int | None:
        """Return the slot of a name as the statement at `pc` reads it; None if the block does not have it."""
        for slot in reversed(self.definitions.get(name, ())):
            if self.definition[slot] < pc:
                return slot
        return self.slot_of.get(name)

    def find(self, name: str) -> int | None:
        """Return the slot of a visible name; an outer one is captured on first use."""
        inside: list[Code] = []
        code: Code | None = self
        # No recursion: blocks may be nested deeper than Python's stack.
        while code is not None and name not in code.slot_of:
            inside.append(code)
            code = code.parent
        if code is None:
            return None
        slot, type = code.slot_of[name], code.types.get(name)
        if name in code.definitions:
            within = inside[-1].path[-2]
            assert isinstance(within, int)
            # The blocks inside a block are compiled after it.
            slot = code.slot_at(name, within) or slot
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
        """Update `patched` from the instructions and the traps, in place."""
        armed = self.evicting.copy()
        for pc in self.traps:
            armed[pc] = TRAP
        self.patched[:] = armed

    def transfers(self, pc: int) -> bool:
        """Return whether the machine executes the line at `pc`: control flow, a call, the block's end."""
        return pc == len(self.nodes) or is_transfer(self.nodes[pc].op)

    def runs_kernel(self, pc: int) -> bool:
        """Return whether the statement at `pc` runs a kernel: not control flow, not the block's end."""
        return pc < len(self.nodes) and self.instructions[pc][0] is not None

    def operands_of(self, pc: int, slots: list[Any]) -> Sequence[Any]:
        """Return the operands of the statement at `pc`; for the last line, the block's results."""
        return self.instructions[pc][1](slots)

    def result_slots(self, pc: int) -> range:
        """Return the slots that the statement at `pc` writes."""
        target = self.targets[pc]
        if isinstance(target, slice):
            return range(target.start, target.stop)
        return range(0) if target is None else range(target, target + 1)

    def results_of(self, pc: int, slots: Sequence[Any]) -> list[Any]:
        """Return the results of the statement at `pc` in `slots`."""
        return [slots[slot] for slot in self.result_slots(pc)]

    def returns(self, slot: int) -> bool:
        """Return whether the block returns the value in a slot."""
        return slot in self.operands[-1]

    def reads(self, pc: int) -> set[int]:
        """Return every slot that the statement at `pc` reads, including reads in its blocks."""
        found = set(self.operands[pc])
        for body in self.bodies.get(pc, ()):
            found.update(outer for outer, _ in body.captures)
        return found


# Not frozen: a program has one for each statement, and a frozen one takes several times as long to make.
@dataclass(slots=True, eq=False)
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
    rebound: Collection[str] = ()
    """The names that a block may define more than once: those of states."""
    _types: Mapping[Path, dict[str, Type | None]] = field(default_factory=dict)

    def compile(self, graph: Graph, types: Sequence[Type | None], path: Path | None = None) -> Code:
        """Return the code of a graph of the program, for inputs of these types (None: as declared).

        Raises GraphError for the first invalid statement.
        """
        path = path or (graph.name,)
        opsets, graphs = self.program.opsets, self.program.graphs
        inference = GraphInference(
            opsets,
            graphs,
            lambda constant: type_of_array(self.read(constant)),
            self.complain,
            rebound=self.rebound,
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
        """Assign a slot to each value of a block; return the blocks inside it, to be filled next."""
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
                epoch: Any = node.attributes.get(EPOCH)
                code.bodies[pc] = tuple(
                    Code(graph, (*code.path, pc, index), code.opsets, code, code.graphs, epoch=epoch)
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


def walk(code: Code) -> Iterator[Code]:
    """Yield a code and all blocks inside it."""
    stack = [code]
    while stack:
        each = stack.pop()
        yield each
        for bodies in each.bodies.values():
            stack.extend(bodies)


def last_uses(code: Code) -> tuple[int, ...]:
    """Return per slot the last pc that reads it; -1 for a slot without reads.

    Every `break` of a loop's body reads the carried values, which are its results there.  Tracked values are
    read at the end of the block.
    """
    if code.last_uses is not None:
        return code.last_uses
    last = [-1] * len(code.template)
    for pc in range(len(code.nodes) + 1):
        for slot in code.reads(pc) if pc < len(code.nodes) else code.operands[pc]:
            last[slot] = pc
        if pc < len(code.nodes) and code.nodes[pc].kind is Kind.BREAK:
            for slot in range(2, 1 + len(code.graph.inputs)):
                last[slot] = max(last[slot], pc)
    for slot in code.read_at_end:
        last[slot] = len(code.nodes)
    code.last_uses = tuple(last)
    return code.last_uses


def dying(code: Code) -> tuple[tuple[int, ...], ...]:
    """Return per pc the slots of this block's statements that have no read after it."""
    if code.dying is not None:
        return code.dying
    table: list[list[int]] = [[] for _ in range(len(code.nodes) + 1)]
    for slot, last in enumerate(last_uses(code)):
        written = code.definition[slot]
        if written >= 0:
            table[max(last, written)].append(slot)
    code.dying = tuple(tuple(slots) for slots in table)
    return code.dying
