"""The values that a loop carries, for a backward loop that runs over the iterations in reverse.

The forward loop collects each value that the backward loop needs.  If the sizes of a value may differ between
iterations, or the loop is not part of what is written, the backward graph repeats the loop to collect it.

A loop that may end early also carries the number of its last iteration: the backward loop has as many.

With checkpoints, the backward loop holds the values that some iterations carry in.  Each of its turns
reverses one iteration.  It computes the iterations from the latest checkpoint on again, and keeps further
checkpoints on the way as the binomial plan says (`ops/checkpoint_plan.py`); then it drops the checkpoint that
it has used.  The plan needs the number of iterations, which a loop with a `break` has only when it has run.
So the first turn does the whole sweep from the first values, and the forward loop keeps nothing: its
statements and lines stay those of the text, and of several loops only one has checkpoints at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nncdbg.dtypes import ONNX
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.inference.types import stacked_type
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import free_names, needed_nodes, reads
from nncdbg.ir.records import (
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    SequenceType,
    TensorType,
    Type,
    Value,
    without_sizes,
)
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.differentiation.backward_pass import BackwardPass

_INDEX = TensorType("i64", ())


class LoopHistory:
    """The names in the backward loop of `node`, and where they get their values from.

    `turn` counts the iterations of the backward loop, and `index` is the number of the forward iteration.
    `carried` are the values that iteration carries in, of the types `types`.
    """

    def __init__(self, builder: BackwardBuilder, node: Node) -> None:
        self._emit, self._node, self._body = builder, node, node.subgraphs[0]
        self.types: Sequence[Type | None] = builder.carried_types(node)
        self.turn = builder.fresh("turn")
        own = self._body.inputs[0].name
        self.index = builder.copy_name(own) if own else builder.fresh("iteration")
        self.carried = [builder.copy_name(value.name) for value in self._body.inputs[1:]]
        builder.types |= {self.turn: _INDEX, self.index: _INDEX}
        builder.types |= dict(zip(self.carried, self.types, strict=True))
        self._finals = [value.name for value in node.outputs[: len(self.carried)]]
        self._unnamed: dict[int, str] = {}
        leaves = any(each.kind is Kind.BREAK for each in self._body.nodes)
        self._last_name = builder.fresh(f"{self.index}.last") if leaves else ""
        """The number of the last iteration, -1 without one, of a loop that may end early."""
        if leaves:
            builder.types[self._last_name] = _INDEX
        self.steps: Operand = None if leaves else node.inputs[0]
        """The number of iterations: an operand, after `completed`."""
        self.first: Sequence[Operand] = ()
        """The first values of what the backward loop carries beside cotangents, after `completed`."""

    def final(self, number: int) -> str:
        """Return the name of carried value `number` after the loop."""
        if self._finals[number]:
            return self._finals[number]
        if number not in self._unnamed:
            name = self._unnamed[number] = self._emit.fresh(f"{self._body.inputs[1 + number].name}.last")
            self._emit.types[name] = self.types[number]
        return self._unnamed[number]

    def completed(self, body: Graph, walk: BackwardPass) -> Graph:
        """Return the body of the backward loop with the statements that get what iteration carries in.

        Raises UnsupportedOp if a needed value cannot be collected.
        """
        free = set(free_names(body))
        needed = [number for number, name in enumerate(self.carried) if name in free]
        collected = self._collected(needed, walk)
        self._count()
        first = [self._at(collected[number], number) for number in needed]
        if first or self.index in free:
            first.insert(0, Node("Sub", (self._last(), self.turn), (Value(self.index, _INDEX),)))
        return replace(body, nodes=(*first, *body.nodes))

    def _count(self) -> None:
        """Compute the number of iterations of a loop that may end early."""
        self._emit.prefix = self.index
        if self._last_name:
            self.steps = self._emit("Add", self._last_name, Literal(1))

    def _last(self) -> Operand:
        if self._last_name:
            return self._last_name
        if isinstance(self.steps, Literal) and isinstance(self.steps.data, int):
            return Literal(self.steps.data - 1)
        return self._emit("Sub", self.steps, Literal(1))

    def _at(self, collected: str, number: int) -> Node:
        value = Value(self.carried[number], self.types[number])
        if _constant_sizes(self.types[number]):
            return Node("Gather", (collected, self.index), (value,), {"axis": 0})
        return Node("SequenceAt", (collected, self.index), (value,))

    def _collected(self, needed: Sequence[int], walk: BackwardPass) -> dict[int, str]:
        """Return the names of all iterations' values, by number."""
        names = {number: self._emit.fresh(f"{self._carried_in(number)}.each") for number in needed}
        if not names and not self._unnamed and not self._last_name:
            return names
        changing = [number for number in needed if not _constant_sizes(self.types[number])]
        made = self._collecting(names, changing)
        if not changing and walk.replaced(self._node, made):
            kinds = [stacked_type(self.types[number]) for number in names]
            self._emit.types |= dict(zip(names.values(), kinds, strict=True))
            return names
        self._emit.append(_only(made, {*names.values(), *self._unnamed.values(), self._last_name}))
        return names

    def _carried_in(self, number: int) -> str:
        return self._body.inputs[1 + number].name

    def _collecting(self, names: dict[int, str], changing: Sequence[int]) -> Node:
        """Return the loop with the values `names` as further results, those of `changing` as sequences."""
        node, body, count = self._node, self._body, len(self.carried)
        stacked = [number for number in names if number not in changing]
        series = [self._series(number) for number in changing]
        finals = [
            replace(value, name=self._unnamed.get(j, value.name))
            for j, value in enumerate(node.outputs[:count])
        ]
        counter, ends, before = body.inputs[0], [], []
        if self._last_name:
            counter = counter if counter.name else Value(self.index, _INDEX)
            before = [Value(self._emit.fresh(f"{counter.name}.before"), _INDEX)]
            ends = [Value(self._last_name, _INDEX)]
        made = replace(
            body,
            inputs=(counter, *body.inputs[1:], *before, *(each.before for each in series)),
            nodes=(*body.nodes, *(each.insert for each in series)),
            outputs=(
                *body.outputs[:count],
                *(Value(counter.name) for _ in before),
                *(Value(each.after) for each in series),
                *body.outputs[count:],
                *(Value(self._carried_in(number)) for number in stacked),
            ),
        )
        outputs = (
            *finals,
            *ends,
            *(Value(names[number]) for number in changing),
            *node.outputs[count:],
            *(Value(names[number]) for number in stacked),
        )
        first = (*node.inputs, *(Literal(-1) for _ in before), *(each.empty for each in series))
        return replace(node, inputs=first, outputs=outputs, subgraphs=(made,))

    def _series(self, number: int) -> _Series:
        known, name = self.types[number], self._carried_in(number)
        self._emit.prefix = name
        if isinstance(known, TensorType):
            empty = self._emit("SequenceEmpty", dtype=ONNX[known.dtype])
            op, type_ = "SequenceInsert", SequenceType(TensorType(known.dtype))
        elif isinstance(known, SequenceType):
            # ONNX has no sequences of sequences.
            first = self._node.inputs[1 + number]
            empty = self._emit("nncdbg.EmptySequenceOf", first)
            op, type_ = "nncdbg.SequenceAppend", SequenceType(known)
        else:
            raise UnsupportedOp(
                f"the type of %{name_text(name)}, which it carries, is not known before the run"
            )
        before = Value(self._emit.fresh(f"{name}.before"), type_)
        after = Value(self._emit.fresh(f"{name}.until"), type_)
        insert = Node(op, (before.name, name), (after,))
        return _Series(empty, before, after.name, insert)


@dataclass(frozen=True, slots=True)
class _Series:
    """A sequence that a loop carries: first `empty`, and `before` and `after` the statement `insert`."""

    empty: str
    before: Value
    after: str
    insert: Node


def _only(loop: Node, results: Collection[str]) -> Node:
    body = loop.subgraphs[0]
    count = len(body.inputs) - 1
    outputs = [value if value.name in results else Value("") for value in loop.outputs]
    kept = [number for number, value in enumerate(outputs) if number < count or value.name]
    ends = tuple(body.outputs[number] for number in kept)
    blocks = (replace(body, outputs=ends),)
    return replace(loop, outputs=tuple(outputs[number] for number in kept), subgraphs=blocks, comment="")


def _constant_sizes(known: Type | None) -> bool:
    """Return whether the values of all iterations have the same sizes."""
    return isinstance(known, TensorType) and known.shape is not None and None not in known.shape


class CheckpointedHistory(LoopHistory):
    """As `LoopHistory`, with at most `checkpoints` iterations whose values are kept."""

    def __init__(self, builder: BackwardBuilder, node: Node, checkpoints: int) -> None:
        super().__init__(builder, node)
        self._checkpoints = checkpoints

    def completed(self, body: Graph, walk: BackwardPass) -> Graph:
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

    def _statements_for(self, kept: Sequence[int]) -> tuple[Node, ...]:
        """Return the statements of the body that compute the next values of these carried values."""
        return needed_nodes(self._body.nodes, (self._body.outputs[number].name for number in kept))

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
        block = replace(self._body, nodes=self._statements_for(kept), outputs=outputs)
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
