"""The values that a loop carries, for a backward loop that runs over the iterations in reverse.

The forward loop collects each value that the backward loop needs.  If the sizes of a value may differ between
iterations, or the loop is not part of what is written, the backward graph repeats the loop to collect it.

A loop that may end early also carries the number of its last iteration: the backward loop has as many.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from nncdbg.dtypes import ONNX
from nncdbg.engine.differentiation.backward import BackwardBuilder
from nncdbg.engine.inference.types import stacked_type
from nncdbg.errors import UnsupportedOp
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import free_names
from nncdbg.ir.records import (
    Graph,
    Literal,
    Node,
    Operand,
    SequenceType,
    TensorType,
    Type,
    Value,
)
from nncdbg.text.lexemes import name_text

_INDEX = TensorType("i64", ())


class Replacing(Protocol):
    """What a history needs of a backward pass."""

    def replaced(self, node: Node, other: Node) -> bool: ...


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

    def completed(self, body: Graph, walk: Replacing) -> Graph:
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
        """Return the number of the last iteration."""
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

    def _collected(self, needed: Sequence[int], walk: Replacing) -> dict[int, str]:
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
    """Return the loop with only these results."""
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
