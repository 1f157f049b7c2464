"""A graph compiled once: names become numbered slots, statements a flat list of instructions.

An instruction is `(execute, gather, target)`: the machine's loop does
`slots[target] = execute(*gather(slots))`.  `execute` is None for what only the machine can do
(control flow, the end of a graph) and for a trap, which is how a breakpoint is set.
Slot 0 of every frame holds None, the operand that is not given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from nncdbg.engine.compilation.inference import literal_dtype, output_types
from nncdbg.engine.dtypes import NUMPY
from nncdbg.engine.errors import GraphError, NncdbgError
from nncdbg.engine.graph import (
    Array,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    OptionalType,
    Program,
    TensorType,
    Type,
    without_sizes,
)

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

    def know(self, name: str, type: Type | None) -> None:
        """Note the type of a value.  Operands in place have no name, and no other's type."""
        if name:
            self.types[name] = type

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

    @property
    def is_loop(self) -> bool:
        """Whether this is the body of a loop."""
        return bool(self.graph.inputs) and isinstance(self.path[-1], int)

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


Result = TypeVar("Result")

Blocks: TypeAlias = "Generator[tuple[Code, Sequence[Type | None]], None, Result]"
"""A part of the compilation that waits for inner blocks to be compiled, for inputs of these types."""

ReadConstant: TypeAlias = Callable[[Constant], Array]
Complain: TypeAlias = Callable[[Path, int, NncdbgError], NncdbgError]


class Declarations(Protocol):
    """How declared and inferred types are reconciled."""

    def agreed(self, path: Path, name: str, declared: Type | None, inferred: Type | None) -> Type | None:
        """The type of a result; GraphError if the two types contradict each other."""

    def carried(self, path: Path, name: str, declared: Type | None, initial: Type | None) -> Type | None:
        """The type of a value that a loop carries, in every iteration."""


class StrictDeclarations:
    """Declared types hold: a result that contradicts its declaration is an error."""

    def agreed(self, path: Path, name: str, declared: Type | None, inferred: Type | None) -> Type | None:
        return agreed(name, declared, inferred)

    def carried(self, path: Path, name: str, declared: Type | None, initial: Type | None) -> Type | None:
        return declared or (without_sizes(initial) if initial else None)


@dataclass(slots=True)
class Compiler:
    """Compiles the blocks of one program.

    `read` returns the data of a constant; `complain` adds the place in the listing to an error;
    `declarations` reconciles declared and inferred types.
    """

    program: Program
    read: ReadConstant
    complain: Complain
    declarations: Declarations = field(default_factory=StrictDeclarations)

    def compile(self, graph: Graph, types: Sequence[Type | None], path: Path | None = None) -> Code:
        """The code of a graph of the program, for inputs of these types (None: as declared)."""
        code = Code(graph, path or (graph.name,), self.program.opsets, graphs=self.program.graphs)
        # Each entry fills one block and yields the blocks inside it, which come first.
        stack = [self._fill(code, types)]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(self._fill(*inner))
        return code

    def _fill(self, code: Code, types: Sequence[Type | None]) -> Blocks[None]:
        code.new_slot("", None, -1)
        for value, given in zip(code.graph.inputs, types, strict=True):
            code.new_slot(value.name, UNSET, -1)
            code.know(value.name, given or value.type)
        for constant in code.graph.constants:
            code.kept.append(code.new_slot(constant.value.name, self.read(constant), -1))
            code.types[constant.value.name] = constant.value.type or type_of_array(code.template[-1])
        for pc, node in enumerate(code.nodes):
            try:
                yield from self._statement(code, pc, node)
            except NncdbgError as error:
                if error.excerpt is not None:
                    raise
                raise self.complain(code.path, pc, error) from error
        outputs = [self._operand(code, value.name) for value in code.graph.outputs]
        code.operands.append(tuple(outputs))
        code.targets.append(None)

    def _statement(self, code: Code, pc: int, node: Node) -> Blocks[None]:
        if node.subgraphs:
            operands, results = yield from self._block(code, pc, node)
        else:
            types = [self._type(code, operand) for operand in node.inputs]
            operands = tuple(
                self._operand(code, operand, node, index, types) for index, operand in enumerate(node.inputs)
            )
            types = [code.types.get(code.names[slot]) or _slot_type(code, slot) for slot in operands]
            results = self._results(code, node, types)
        code.operands.append(operands)
        first = len(code.template)
        for value, inferred in zip(node.outputs, results, strict=True):
            if value.name in code.slot_of:
                raise GraphError(f"%{value.name} is defined twice", hint="rename one of the two values")
            code.new_slot(value.name, UNSET, pc)
            code.know(value.name, self.declarations.agreed(code.path, value.name, value.type, inferred))
        last = len(code.template)
        code.targets.append(first if last == first + 1 else slice(first, last))

    def _results(self, code: Code, node: Node, types: Sequence[Type | None]) -> Sequence[Type | None]:
        if node.op == "break":
            return ()
        if node.op.startswith("@"):
            return [None] * len(node.outputs)
        return output_types(node, types, code.opsets)

    def _block(
        self, code: Code, pc: int, node: Node
    ) -> Blocks[tuple[tuple[int, ...], Sequence[Type | None]]]:
        operands = tuple(self._operand(code, operand) for operand in node.inputs)
        bodies = []
        for index, graph in enumerate(node.subgraphs):
            body = Code(graph, (*code.path, pc, index), code.opsets, parent=code, graphs=code.graphs)
            if node.op == "while":
                yield body, self._carried_types(code, body.path, node, operands)
            else:
                yield body, [value.type for value in graph.inputs]
            bodies.append(body)
        code.bodies[pc] = tuple(bodies)
        return operands, self._block_results(node, bodies)

    def _block_results(self, node: Node, bodies: Sequence[Code]) -> Sequence[Type | None]:
        """What both branches agree on; what a loop carries."""
        if node.op == "while":
            carried = [bodies[0].types.get(value.name) for value in bodies[0].graph.inputs[1:]]
            return carried + [None] * (len(node.outputs) - len(carried))
        ends = [[body.types.get(value.name) for value in body.graph.outputs] for body in bodies]
        return [types[0] if len(set(types)) == 1 else None for types in zip(*ends, strict=True)]

    def _carried_types(
        self, code: Code, path: Path, node: Node, operands: Sequence[int]
    ) -> list[Type | None]:
        """What holds in every iteration: what the text says, or the element type of the first value."""
        types: list[Type | None] = [TensorType("i64", ())]
        for value, slot in zip(node.subgraphs[0].inputs[1:], operands[1:], strict=True):
            initial = code.types.get(code.names[slot]) or _slot_type(code, slot)
            types.append(self.declarations.carried(path, value.name, value.type, initial))
        return types

    def _type(self, code: Code, operand: Operand) -> Type | None:
        if isinstance(operand, str):
            slot = code.find(operand)
            return code.types.get(operand) if slot is not None else None
        return None

    def _operand(
        self,
        code: Code,
        operand: Operand,
        node: Node | None = None,
        index: int = 0,
        types: Sequence[Type | None] = (),
    ) -> int:
        if operand is None:
            return 0
        if isinstance(operand, Literal):
            dtype = literal_dtype(operand, node, index, types, code.opsets)
            return code.new_slot("", literal_array(operand, dtype), -1)
        slot = code.find(operand)
        if slot is None:
            raise GraphError(f"%{operand} is not defined", hint="define the value before this statement")
        return slot


def literal_array(literal: Literal, dtype: str) -> Array:
    try:
        with np.errstate(all="ignore"):
            return np.array(literal.data, dtype=NUMPY[dtype])
    except (OverflowError, ValueError, TypeError) as error:
        raise GraphError(f"an inline operand is not a valid {dtype}: {error}") from error


def type_of_array(array: Array) -> TensorType:
    from nncdbg.engine.dtypes import name_of

    return TensorType(name_of(array.dtype), tuple(array.shape))


def _slot_type(code: Code, slot: int) -> TensorType | None:
    content = code.template[slot]
    return type_of_array(content) if isinstance(content, np.ndarray) else None


def agreed(name: str, declared: Type | None, inferred: Type | None) -> Type | None:
    """The type that the text and the op's rule agree on; the more exact of the two per size."""
    if declared is None or inferred is None:
        return declared or inferred
    found = common_type(declared, inferred)
    if found is None:
        raise GraphError(
            f"%{name} is declared {declared} but the op returns {inferred}",
            hint="omit the type, or correct it",
        )
    return found


def common_type(declared: Type, inferred: Type) -> Type | None:
    """What both say; None where they contradict each other."""
    if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
        return _common_tensor(declared, inferred)
    if isinstance(declared, OptionalType) != isinstance(inferred, OptionalType):
        # A value that is there is an optional value too, and a loop may end with one.
        inner = [each.element if isinstance(each, OptionalType) else each for each in (declared, inferred)]
        return declared if common_type(*inner) is not None else None
    if isinstance(declared, TensorType) or isinstance(inferred, TensorType):
        return None
    element = common_type(declared.element, inferred.element)
    return declared.__class__(element) if element and isinstance(inferred, declared.__class__) else None


def _common_tensor(declared: TensorType, inferred: TensorType) -> TensorType | None:
    if declared.dtype != inferred.dtype:
        return None
    if declared.shape is None or inferred.shape is None:
        return declared if declared.shape is not None else inferred
    if len(declared.shape) != len(inferred.shape) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(declared.shape, inferred.shape, strict=True)
    ):
        return None
    sizes = tuple(
        b if isinstance(b, int) or a is None else a
        for a, b in zip(declared.shape, inferred.shape, strict=True)
    )
    return TensorType(declared.dtype, sizes)


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
