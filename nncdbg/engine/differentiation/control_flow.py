"""The gradient of branches and loops.

The backward graph has an `if` on the same condition, and a `while` over the iterations in reverse.  Each of
their blocks first computes the block of the forward graph again, and then the cotangents.  So a branch saves
nothing, and a loop saves only the values that it carries, as they are at the start of each iteration, or of
some iterations (`checkpointed_loop.py`).

The cotangent of a value from outside, such as a weight, is the sum over the iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.backward_pass import BackwardPass
from nncdbg.engine.differentiation.checkpointed_loop import CheckpointedHistory
from nncdbg.engine.differentiation.loop_history import LoopHistory
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import all_defined
from nncdbg.ir.records import Graph, Node, Operand, TensorType, Value
from nncdbg.ir.walk import walk_nodes

Copies: TypeAlias = "Sequence[tuple[int, Node]]"
"""Copies of the statements of a block, with the numbers of the originals."""

Parts: TypeAlias = "Sequence[tuple[Operand, str]]"
"""Values with a cotangent of each."""

_INDEX = TensorType("i64", ())


class ControlFlowPass(BackwardPass):
    """A backward pass that also differentiates branches and loops."""

    checkpoints: int | None = None
    """How many iterations of a loop keep the values that they carry; None: all of them."""

    def inner(
        self, builder: BackwardBuilder, xs: Iterable[str], node: Node, number: int, copies: Copies
    ) -> ControlFlowPass:
        """Return a pass over block `number` of a statement: over `copies`, which are in `builder`."""
        xs = [*xs]
        walk = ControlFlowPass(builder, xs, xs)
        walk._open = [*self._open]
        walk.checkpoints = self.checkpoints
        return walk

    def check_repeatable(self, node: Node) -> None:
        """Raise UnsupportedOp if the blocks of a statement cannot be computed again."""
        if any(each.kind is Kind.UPDATE for each in walk_nodes(node)):
            raise UnsupportedOp("it updates a state, and would update it again")
        if self._draws(node):
            raise UnsupportedOp("its random numbers cannot be drawn again")

    def block_builder(self) -> BackwardBuilder:
        """Return a builder for a block of the backward graph."""
        return self._emit.block()

    def replaced(self, node: Node, other: Node) -> bool:
        """Let a statement compute further values; return False if it is not part of what is written."""
        return self._emit.replaced(node, other)

    def _through(self, node: Node, cotangents: tuple[str | None, ...]) -> bool:
        if not node.subgraphs:
            return super()._through(node, cotangents)
        self.check_repeatable(node)
        location = self._emit.location
        through = self._branches if node.kind is Kind.IF else self._loop
        for operand, part in through(node, cotangents):
            self._give(operand, part)
        self._emit.location = location
        return True

    def outside(self, node: Node) -> list[str]:
        """Return the values that the blocks of a statement read, and that have a cotangent."""
        return [name for name in dict.fromkeys(self.reads(node)) if self.varies(name)]

    # -- branches -----------------------------------------------------------------------------

    def _branches(self, node: Node, cotangents: Sequence[str | None]) -> Parts:
        wanted = self.outside(node)
        blocks = [_Block(self, node, number, ()) for number in (0, 1)]
        for block in blocks:
            walk = block.walk = block.inner(wanted)
            walk.pull(block.nodes, _seeds(walk, zip(block.results, cotangents, strict=True)))
        reached = [x for x in wanted if any(block.walk.reaches(x) for block in blocks)]
        graphs = tuple(
            block.graph((), [block.walk.result(x, ".branch") for x in reached]) for block in blocks
        )
        return self._statement(node, Node("if", node.inputs, (), {}, graphs), reached)

    def _statement(self, node: Node, made: Node, targets: Sequence[Operand]) -> Parts:
        """Append the statement `made`, whose results are cotangents of `targets`; return the parts."""
        outputs, parts = [], []
        for target in targets:
            there = isinstance(target, str) and self.varies(target)
            name = self._emit.anonymous(f"d_{target}.{node.op}") if there else ""
            outputs.append(Value(name))
            parts += [(target, name)] if there else []
        if parts:
            self._emit.append(replace(made, outputs=tuple(outputs), location=node.location))
        return parts

    # -- loops --------------------------------------------------------------------------------

    def _loop(self, node: Node, cotangents: Sequence[str | None]) -> Parts:
        carried = node.subgraphs[0].inputs[1:]
        history = self._history(node)
        block = _Block(self, node, 0, (history.index, *history.carried))
        wanted, active = self.outside(node), self._active_carried(node, block, history)
        walk = block.walk = block.inner([*wanted, *(history.carried[j] for j in active)])
        following = {j: block.builder.fresh(f"d_{block.results[j]}") for j in active}
        for j, name in following.items():
            self._emit.types[name] = history.types[j]
        seeds: list[tuple[Operand, str | None]] = [(block.results[j], name) for j, name in following.items()]
        for j in range(len(carried), len(cotangents)):
            cotangent = cotangents[j]
            if cotangent is not None:
                block.builder.prefix = f"d_{block.results[j]}"
                seeds.append((block.results[j], block.builder("Gather", cotangent, history.index, axis=0)))
        walk.pull(block.nodes, _seeds(walk, seeds))
        reached = [x for x in wanted if walk.reaches(x)]
        sums = [walk.add_to(x, block.builder.fresh(f"d_{x}.sum")) for x in reached]
        results = [walk.result(history.carried[j]) for j in active]
        results += [walk.result(x, ".next") for x in reached]
        inputs = (Value(history.turn, _INDEX), *map(self._typed, (*following.values(), *sums)))
        finals = {j: history.final(j) for j in active if cotangents[j] is None}
        body = history.completed(block.graph(inputs, results), self)
        last = [cotangents[j] or self._zeros(finals[j]) for j in active]
        first = (history.steps, *last, *map(self._zeros, reached), *history.first)
        targets = [*(node.inputs[1 + j] for j in active), *reached, *(None for _ in history.first)]
        return self._statement(node, Node("while", first, (), {}, (body,)), targets)

    def _history(self, node: Node) -> LoopHistory:
        if self.checkpoints is None:
            return LoopHistory(self._emit, node)
        return CheckpointedHistory(self._emit, node, self.checkpoints)

    def _active_carried(self, node: Node, block: _Block, history: LoopHistory) -> list[int]:
        """Return the numbers of the carried values that depend differentiably on values from outside."""
        first = enumerate(node.inputs[1:])
        active = [j for j, each in first if isinstance(each, str) and self.varies(each)]
        while True:
            walk = block.inner([*self.outside(node), *(history.carried[j] for j in active)])
            results = block.results[: len(history.carried)]
            found = [j for j, each in enumerate(results) if j in active or walk.varies(str(each))]
            if found == active:
                return active
            active = found

    def _typed(self, name: str) -> Value:
        return Value(name, self._emit.types.get(name))

    def _zeros(self, like: str) -> str:
        self._emit.prefix = f"d_{like}"
        return self._emit("nncdbg.FullLike", like, value=0.0)

    def add_to(self, x: str, total: str) -> str:
        """Let the cotangent of a value add to `total`, a value of its type; return `total`."""
        self._parts[x].insert(0, total)
        self._emit.types[total] = self._emit.types.get(x)
        return total


class _Block:
    """A block of the backward graph: the statements of block `number` of `node` again, then cotangents."""

    def __init__(self, around: ControlFlowPass, node: Node, number: int, operands: Sequence[Operand]) -> None:
        self._around, self._node, self._number = around, node, number
        block = node.subgraphs[number]
        self._label = f"{block.name}.backward" if block.name else ""
        # Every iteration in the backward pass is one that did not leave the loop.
        kept = [(pc, each) for pc, each in enumerate(block.nodes) if each.kind is not Kind.BREAK]
        self.builder = around.block_builder()
        self.builder.origin = ""
        repeated = replace(block, nodes=tuple(each for _, each in kept))
        self.nodes, self.results = self.builder.computed_again(repeated, operands)
        self._numbers = [pc for pc, _ in kept]
        self.walk = around

    def inner(self, xs: Iterable[str]) -> ControlFlowPass:
        """Return a pass over the statements, by `xs`."""
        copies = [*zip(self._numbers, self.nodes, strict=True)]
        walk = self._around.inner(self.builder, xs, self._node, self._number, copies)
        walk.mark(self.nodes)
        return walk

    def graph(self, inputs: Sequence[Value], results: Sequence[str]) -> Graph:
        """Return the block with what its results need."""
        names, kept, constants = self.builder.finished(results)
        return Graph(self._label, tuple(inputs), tuple(map(Value, names)), kept, constants)


def _seeds(walk: BackwardPass, pairs: Iterable[tuple[Operand, str | None]]) -> Iterator[tuple[str, str]]:
    """Yield the values that vary in a block, with their cotangents."""
    for value, cotangent in pairs:
        if isinstance(value, str) and cotangent is not None and walk.varies(value):
            yield value, cotangent


def inner_names(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the names of the values in the blocks of these statements."""
    blocks = (block for node in nodes for block in node.subgraphs)
    return frozenset(value.name for block in blocks for value in all_defined(block))
