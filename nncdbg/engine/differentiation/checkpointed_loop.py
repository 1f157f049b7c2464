"""The values that a loop carries, computed again from a bounded number of checkpoints.

The backward loop holds checkpoints: the values that some iterations carry in.  Each of its turns reverses one
iteration.  It computes the iterations from the latest checkpoint on again, and keeps further checkpoints on
the way as the binomial plan says (`ops/checkpoint_plan.py`); then it drops the checkpoint that it has used.

The plan needs the number of iterations, which a loop with a `break` has only when it has run.  So the first
turn does the whole sweep from the first values, and the forward loop keeps nothing: its statements and lines
stay those of the text, and of several loops only one has checkpoints at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.differentiation.loop_history import LoopHistory, Replacing
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import free_names, reads
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    SequenceType,
    TensorType,
    Value,
    without_sizes,
)
from nncdbg.text.lexemes import name_text

_INDEX = TensorType("i64", ())


class CheckpointedHistory(LoopHistory):
    """As `LoopHistory`, with at most `checkpoints` iterations whose values are kept."""

    def __init__(self, builder: BackwardBuilder, node: Node, checkpoints: int) -> None:
        super().__init__(builder, node)
        self._checkpoints = checkpoints

    def completed(self, body: Graph, walk: Replacing) -> Graph:
        """Return the body of the backward loop with the statements that compute what iteration carries in.

        Raises UnsupportedOp if a needed value is not known to be a tensor.
        """
        free = set(free_names(body))
        needed = [number for number, name in enumerate(self.carried) if name in free]
        if not needed:
            return super().completed(body, walk)
        self._collected((), walk)
        self._count()
        kept = self._depended_on(needed)
        turn = _Turn(self._emit.block(), [self.index, *map(self._carried_in, kept)], self._stacks(kept))
        turn.emit.append(Node("Sub", (self._last(), self.turn), (Value(self.index, _INDEX),)))
        self._sweep(turn, kept)
        self._drop(turn)
        self.first = self._first(kept)
        names = [self.index, *(self.carried[number] for number in kept), *turn.stacks]
        results, nodes, constants = turn.emit.finished(names)
        return replace(
            body,
            inputs=(*body.inputs, *turn.inputs),
            nodes=(*nodes, *body.nodes),
            outputs=(*body.outputs, *map(Value, results[-len(turn.stacks) :])),
            constants=(*constants, *body.constants),
        )

    def _depended_on(self, needed: Sequence[int]) -> list[int]:
        """Return the carried values that decide the next values of `needed`, and these, by number."""
        found = set(needed)
        while True:
            nodes = self._statements_for(sorted(found))
            used = {name for node in nodes for name in reads(node)}
            used |= {self._body.outputs[number].name for number in found}
            more = {number for number in range(len(self.carried)) if self._carried_in(number) in used}
            if more <= found:
                return sorted(found)
            found |= more

    def _statements_for(self, kept: Sequence[int]) -> list[Node]:
        """Return the statements of the body that compute the next values of these carried values."""
        needed = {self._body.outputs[number].name for number in kept}
        nodes: list[Node] = []
        for node in reversed(self._body.nodes):
            if node.kind is not Kind.BREAK and any(value.name in needed for value in node.outputs):
                needed.update(reads(node))
                nodes.insert(0, node)
        return nodes

    def _stacks(self, kept: Sequence[int]) -> list[Value]:
        """Return what the backward loop carries: the checkpoints, as one sequence for each kept value."""
        stacks = [Value(self._emit.fresh(f"{self.index}.checkpoints"), SequenceType(_INDEX))]
        for number in kept:
            name, known = self._carried_in(number), self.types[number]
            if known is None:
                raise UnsupportedOp(
                    f"the type of %{name_text(name)}, which it carries, is not known before the run"
                )
            stacks.append(Value(self._emit.fresh(f"{name}.checkpoints"), SequenceType(without_sizes(known))))
        return stacks

    def _first(self, kept: Sequence[int]) -> list[str]:
        """Return the sequences with the first checkpoint: the values before the loop."""
        zero = Constant(Value("", _INDEX), Inline(np.array(0)))
        first = [self._emit.append_constant(zero, self._emit.fresh(f"{self.index}.first"))]
        for number in kept:
            initial = self._emit.as_value(self._node.inputs[1 + number], self._typed(number))
            assert isinstance(initial, str)
            first.append(initial)
        names = [self.index, *map(self._carried_in, kept)]
        return [
            self._emit.named(f"{name}.checkpoints", *self._sequence_with(each))
            for name, each in zip(names, first, strict=True)
        ]

    def _sequence_with(self, value: str) -> tuple[str, ...]:
        """Return the op and the operands of a sequence of one value."""
        if not isinstance(self._emit.types.get(value), SequenceType):
            return "SequenceConstruct", value
        self._emit.prefix = value
        return "nncdbg.SequenceAppend", self._emit("nncdbg.EmptySequenceOf", value), value

    def _typed(self, number: int) -> Value:
        return Value(self._carried_in(number), self.types[number])

    # -- one turn of the backward loop --------------------------------------------------------

    def _sweep(self, turn: _Turn, kept: Sequence[int]) -> None:
        """Compute what the iteration carries in, from the latest checkpoint, and keep checkpoints."""
        emit, index = turn.emit, self.index
        types = [_INDEX, *(self.types[number] for number in kept)]
        start, *values = (
            emit.named(f"{name}.from", "SequenceAt", stack, Literal(-1), known=known)
            for name, stack, known in zip(turn.names, turn.stacks, types, strict=True)
        )
        held = emit.named(f"{index}.held", "SequenceLength", turn.stacks[0])
        free = emit.named(f"{index}.free", "Sub", Literal(self._checkpoints), held)
        ahead = emit.named(f"{index}.ahead", "Sub", index, start)
        body = self._again(turn, kept, (start, ahead, free))
        carried = tuple(Value(self.carried[number], self.types[number]) for number in kept)
        after = turn.renamed(emit, "checkpoints")
        emit.origin = "from the latest checkpoint"
        emit.append(Node("while", (ahead, *values, *turn.stacks), (*carried, *after), {}, (body,)))
        emit.origin = ""
        turn.stacks = [value.name for value in after]

    def _again(self, turn: _Turn, kept: Sequence[int], plan: tuple[str, str, str]) -> Graph:
        """Return the body of the loop that computes iterations again.

        `plan` has the number of the first iteration, how many follow, and the number of free checkpoints.
        """
        start, ahead, free = plan
        emit = turn.emit.block()
        step = Value(emit.fresh("step"), _INDEX)
        carried = [Value(emit.copy_name(self._carried_in(n)), self.types[n]) for n in kept]
        stacks = turn.renamed(emit, "kept")
        emit.types |= {value.name: value.type for value in (step, *carried, *stacks)}
        number = emit.named(f"{self.index}.again", "Add", start, step.name)
        keeps = emit.named(f"{self.index}.keeps", "nncdbg.KeepsCheckpoint", step.name, ahead, free)
        after = turn.changed_if(
            emit, keeps, stacks, "SequenceInsert", [number, *(value.name for value in carried)]
        )
        operands: list[str | None] = [None] * len(self.carried)
        for place, value in zip(kept, carried, strict=True):
            operands[place] = value.name
        outputs = tuple(self._body.outputs[number] for number in kept)
        block = replace(self._body, nodes=tuple(self._statements_for(kept)), outputs=outputs)
        _, results = emit.computed_again(block, [number, *operands])
        names, nodes, constants = emit.finished([*map(str, results), *after])
        label = f"{self._body.name}.again" if self._body.name else ""
        inputs = (step, *carried, *stacks)
        return Graph(label, inputs, tuple(map(Value, names)), nodes, constants)

    def _drop(self, turn: _Turn) -> None:
        """Drop the latest checkpoint if it is that of the iteration, the last one that needs it."""
        emit, index = turn.emit, self.index
        latest = emit.named(f"{index}.latest", "SequenceAt", turn.stacks[0], Literal(-1), known=_INDEX)
        used = emit.named(f"{index}.used", "Equal", latest, index)
        stacks = [Value(name, value.type) for name, value in zip(turn.stacks, turn.inputs, strict=True)]
        turn.stacks = turn.changed_if(emit, used, stacks, "SequenceErase", [None] * len(stacks))


class _Turn:
    """The statements of a turn in `emit`, and the sequences of checkpoints of the values `names`.

    `inputs` are the sequences before the turn, `stacks` the names of those after its statements.
    """

    def __init__(self, emit: BackwardBuilder, names: Sequence[str], inputs: Sequence[Value]) -> None:
        self.emit, self.names, self.inputs = emit, names, inputs
        self.stacks = [value.name for value in inputs]
        emit.origin = ""
        emit.types |= {value.name: value.type for value in inputs}

    def renamed(self, emit: BackwardBuilder, word: str) -> tuple[Value, ...]:
        """Return new names for the sequences, such as ``%h.kept`` for the word ``kept``."""
        pairs = zip(self.names, self.inputs, strict=True)
        return tuple(Value(emit.fresh(f"{name}.{word}"), stack.type) for name, stack in pairs)

    def changed_if(
        self,
        emit: BackwardBuilder,
        condition: str,
        stacks: Sequence[Value],
        op: str,
        operands: Sequence[str | None],
    ) -> list[str]:
        """Append an `if` that applies an op to each sequence, or leaves it; return the results."""
        inside = emit.block()
        results = [
            inside.named(
                f"{name}.changed", _op_for(stack, op), stack.name, *([each] if each else []), known=stack.type
            )
            for name, stack, each in zip(self.names, stacks, operands, strict=True)
        ]
        names, nodes, constants = inside.finished(results)
        blocks = (
            Graph("", (), tuple(map(Value, names)), nodes, constants),
            Graph("", (), tuple(Value(stack.name) for stack in stacks)),
        )
        after = self.renamed(emit, "kept" if op == "SequenceInsert" else "checkpoints")
        emit.append(Node("if", (condition,), after, {}, blocks))
        return [value.name for value in after]


def _op_for(stack: Value, op: str) -> str:
    """Return the op for checkpoints in `stack`: in ONNX, no sequence is inserted in another one."""
    nested = isinstance(stack.type, SequenceType) and isinstance(stack.type.element, SequenceType)
    return "nncdbg.SequenceAppend" if nested and op == "SequenceInsert" else op
