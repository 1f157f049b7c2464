"""The statements that have run in the frames on a stack, as one list with unique names.

An input of a called graph is the operand that its caller passes, so that values of several frames are on one
path.  What a loop carries from an earlier iteration has no such operand; a statement stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.differentiation.derivatives import ExecutedStatements
from nncdbg.expression.operators import OperandError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import captures, claimed_name
from nncdbg.ir.records import Node, Operand, TensorType, Type, Value
from nncdbg.ir.walk import walk_nodes

Source: TypeAlias = tuple[int, int]
"""The depth of a frame on the stack, and one of its slots."""

LineOf: TypeAlias = "Callable[[Code, int], int | None]"

_EARLIER = "an earlier iteration computed the value"
_RENAMED = "it reads a name that two frames use"


@dataclass(frozen=True, slots=True)
class ActiveBlock:
    """A frame: its block, the number of statements that have run, and whether it is in a later iteration."""

    code: Code
    pc: int
    later: bool


def slot_in_caller(inner: Code, outer: Code, pc: int, slot: int, *, later: bool) -> int | None:
    """Return the named slot of the frame around a block that a slot of the block was copied from.

    `pc` is the statement of `outer` that runs the block, `later` whether the block is in a later iteration.
    None if the block has computed the value, or got it from an earlier iteration.
    """
    if inner.formula is not outer.formula:
        return None
    captured = next((each for each, here in inner.captures if here == slot), None)
    if captured is not None:
        return captured
    if later or not 1 + inner.is_loop <= slot <= len(inner.graph.inputs):
        return None
    passed = outer.operands[pc][slot - 1]
    return passed if outer.names[passed] else None


class StraightLine:
    """The statements of the frames between the value `y` and the outermost of the values `xs`."""

    def __init__(self, levels: tuple[ActiveBlock, ...], y: Source, xs: Mapping[str, Source]) -> None:
        self._levels = levels
        roots = {x: self._climbed(source) for x, source in xs.items()}
        self.low = min(depth for depth, _ in roots.values())
        self._check_one_program()
        self._used: set[str] = set()
        self._names: dict[Source, str] = {}
        self.types: dict[str, Type | None] = {}
        self.untyped: dict[str, Source] = {}
        """The values whose types are not known before the run."""
        self.names = {x: self._name(root) for x, root in roots.items()} | {"": self._name(y)}
        """The unique names of `xs`; that of `y` has the key ""."""
        self._blocked: dict[int, str] = {}
        self._places: dict[int, tuple[Code, int]] = {}
        self._nodes = [node for depth in range(self.low, len(levels)) for node in self._statements(depth)]
        self.sources = {name: source for source, name in self._names.items()}

    @property
    def length(self) -> int:
        """Return the number of statements, with those in blocks and in called graphs, each call counted."""
        graphs = self._levels[-1].code.graphs
        lengths: dict[str, int] = {}

        def length(nodes: Iterable[Node]) -> int:
            return sum(1 if (name := node.called) is None else 1 + called(name) for node in nodes)

        def called(name: str) -> int:
            if name not in lengths:
                graph = graphs.get(name)
                lengths[name] = 0 if graph is None else length(walk_nodes(graph))
            return lengths[name]

        return length(inner for node in self._nodes for inner in walk_nodes(node))

    def executed(self, types: Mapping[str, Type | None], line: LineOf) -> ExecutedStatements:
        """Return the statements, with these types of the values in `untyped`."""

        def place(node: Node) -> str:
            found = line(*self._places[id(node)])
            return f"line {found}" if found is not None else ""

        code = self._levels[-1].code
        known = {**self.types, **types}
        return ExecutedStatements(tuple(self._nodes), known, code.opsets, code.graphs, place, self._blocked)

    def _check_one_program(self) -> None:
        formulas = {level.code.formula for level in self._levels[self.low + 1 :]}
        if formulas and formulas != {self._levels[self.low].code.formula}:
            raise OperandError(
                "a derivative does not pass the border of a micro program",
                "leave the micro program with `finish`, or name values inside it",
            )

    # -- names --------------------------------------------------------------------------------------

    def _outer(self, source: Source) -> Source | None:
        """Return the slot of the caller that a slot was copied from; None if there is none."""
        depth, slot = source
        if depth == 0:
            return None
        inner, outer = self._levels[depth], self._levels[depth - 1]
        passed = slot_in_caller(inner.code, outer.code, outer.pc, slot, later=inner.later)
        return (depth - 1, passed) if passed is not None else None

    def _climbed(self, source: Source) -> Source:
        """Return the outermost slot with the same value under the same name."""
        name = self._levels[source[0]].code.names[source[1]]
        while (outer := self._outer(source)) is not None:
            if self._levels[outer[0]].code.names[outer[1]] != name:
                break
            source = outer
        return source

    def _name(self, source: Source) -> str:
        """Return the unique name of a slot, and note its type."""
        while source[0] > self.low and (outer := self._outer(source)) is not None:
            source = outer
        if source not in self._names:
            code = self._levels[source[0]].code
            own = code.names[source[1]]
            name = self._names[source] = claimed_name(own or "literal", self._used)
            known = self.types[name] = code.types.get(own)
            if known is None or (isinstance(known, TensorType) and known.shape is None):
                self.untyped[name] = source
        return self._names[source]

    # -- statements ---------------------------------------------------------------------------------

    def _statements(self, depth: int) -> list[Node]:
        level = self._levels[depth]
        code, made = level.code, []
        if depth > self.low and level.later:
            made.append(self._earlier(depth))
        for pc in range(level.pc):
            node = code.nodes[pc]
            if node.kind is Kind.BREAK:
                continue
            inputs = tuple(
                self._name((depth, slot)) if isinstance(operand, str) else operand
                for operand, slot in zip(node.inputs, code.operands[pc], strict=True)
            )
            outputs = tuple(
                replace(value, name=self._name((depth, slot))) if value.name else value
                for value, slot in zip(node.outputs, code.result_slots(pc), strict=True)
            )
            for each in self._without_updates(replace(node, inputs=inputs, outputs=outputs)):
                self._places[id(each)] = (code, pc)
                if any(self._renamed(depth, name, pc) for name in captures(each)):
                    self._blocked[id(each)] = _RENAMED
                made.append(each)
        return made

    def _without_updates(self, node: Node) -> list[Node]:
        """Return the statement, or one copy per state in place of an `update`."""
        if node.kind is not Kind.UPDATE:
            return [node]
        return [
            Node("Identity", (new,), (state,)) for new, state in zip(node.inputs, node.outputs, strict=True)
        ]

    def _renamed(self, depth: int, name: str, pc: int) -> bool:
        slot = self._levels[depth].code.slot_at(name, pc)
        return slot is not None and self._name((depth, slot)) != name

    def _earlier(self, depth: int) -> Node:
        """Return a statement for the iterations before the current one."""
        level, outer = self._levels[depth], self._levels[depth - 1]
        operands: list[Operand] = [
            self._name((depth - 1, slot)) for slot in outer.code.operands[outer.pc][1:] if slot
        ]
        carried = range(2, 1 + len(level.code.graph.inputs))
        outputs = tuple(Value(self._name((depth, slot))) for slot in carried)
        node = Node("while", tuple(operands), outputs)
        self._blocked[id(node)] = _EARLIER
        self._places[id(node)] = (outer.code, outer.pc)
        return node
