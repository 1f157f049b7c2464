"""Turn recorded events into statements: what an operator writes becomes a new value.

A view of memory that was written to since is derived again from the newest value of that memory.  Memory that
persists from step to step is a state: it gets its newest value at the end of each phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from nncdbg.engine.ops.aten.operators import LAZY, POSITIONED_VIEW, READS_NUMBER, RESOLVED, UNINITIALIZED
from nncdbg.engine.ops.aten.signatures import (
    COUNT,
    DTYPES,
    EXCHANGES,
    RANDOM,
    ArgumentKind,
    NotEncodable,
    encode,
)
from nncdbg.ir.records import Attribute, Node, TensorType, Value
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import OPERATOR, READ, RECEIVED_INPUT, RECORDED, RECORDED_INPUT, VIEW, WRITE
from nncdbg.torch.recording import ABSENT, Event
from nncdbg.torch.storages import Input, Key, extent_of


class FreeNames:
    """Free names: the wanted one, or with the first free number: ``mm``, ``mm.1``, ``mm.2``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        """Return a name that was not returned before."""
        name, number = wanted, self._next.get(wanted, 0)
        while name in self._taken:
            number += 1
            name = f"{wanted}.{number}"
        self._next[wanted] = number
        self._taken.add(name)
        return name

    def take(self, wanted: str) -> bool:
        """Take a name; return False if it is taken already."""
        if wanted in self._taken:
            return False
        self._taken.add(wanted)
        return True

    def next_version(self, name: str) -> str:
        """Return the name of the next value of what `name` is a value of: ``w.2`` after ``w.1``."""
        base, dot, number = name.rpartition(".")
        known = dot and number.isdigit() and base in self._next and int(number) <= self._next[base]
        return self.fresh(base if known else name)


UPDATE = "update"
"""The statement that gives states their new values."""

_NUMBER_TYPES = {bool: "bool", int: "i64", float: "f64", complex: "c128"}


@dataclass(slots=True)
class RecordedStatement:
    """One statement, with the event that it comes from."""

    node: Node
    event: Event


@dataclass(slots=True)
class _Memory:
    """The newest value of a storage, from which views are derived; or a state with its last update."""

    name: str
    key: Key
    writes: int = 0


@dataclass(slots=True, eq=False)
class _GeneratorState:
    """The state of a random generator: the name of the program's state, and its newest value."""

    name: str
    newest: str
    content: Any


@dataclass(slots=True)
class RecordedStatements:
    """Builds the statements of a recording, in the order of the events."""

    inputs: dict[int, Input]
    labels: dict[Key, str]
    """The memory of a parameter, buffer, gradient, moment or loss to its name."""
    placements: Mapping[Key, str]
    """The memory of a shard to how its tensor is placed on the ranks."""
    persistent: Mapping[str, str | None]
    """The names of parameters, buffers and moments; a moment to the name of its parameter."""
    statements: list[RecordedStatement] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    """The inputs of the program: name to tensor, contiguous and on the CPU."""
    states: dict[str, Any] = field(default_factory=dict)
    """The first values of the program's states, as those of `given`."""
    types: dict[str, TensorType] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)
    """The values that are shards, and how their tensors are placed."""
    lost: list[str] = field(default_factory=list)
    """Notes on results that could not be copied."""
    hidden: dict[str, dict[str, None]] = field(default_factory=dict)
    """Why results cannot be shown, to the operators that have them."""
    closed: dict[str, None] = field(default_factory=dict)
    """The operators of other libraries whose implementations the program does not have."""
    entered: Callable[[int], None] = lambda storage: None
    """Called with a storage whose content has become an input."""
    _names: FreeNames = field(default_factory=FreeNames)
    _storage_keys: dict[int, Key] = field(init=False)
    """A storage to its first memory with a name."""
    _memory: dict[int, _Memory] = field(default_factory=dict)
    _known: dict[Any, tuple[str, int]] = field(default_factory=dict)
    """The memory of a tensor to the name of its value, and the number of writes when it was valid."""
    _states: dict[int, _Memory] = field(default_factory=dict)
    """The storages of states, with the writes to their memory at the last update."""
    _generators: list[_GeneratorState] = field(default_factory=list)
    """The states of generators that are known, the last one that was drawn from at the end."""
    _ended: int = 0
    """The number of statements at the end of the last phase."""

    def __post_init__(self) -> None:
        self._storage_keys = {key[0]: key for key in reversed(self.labels)}

    @property
    def notes(self) -> list[str]:
        """What the program does not have."""
        found = []
        for reason, operators in self.hidden.items():
            first, more = next(iter(operators)), len(operators) - 1
            words = f"{first} and {counted(more, 'other operator')} have" if more else f"{first} has"
            found.append(f"{words} results that cannot be shown: {reason}")
        closed = [
            f"{name} is one statement: it computes without operators of PyTorch, which could be recorded"
            for name in self.closed
        ]
        return [*found, *closed, *self.lost]

    def add(self, event: Event) -> None:
        """Append the statements of an event."""
        if self.statements and self.statements[-1].event.phase != event.phase:
            self.end_phase()
        if event.hides_body:
            self.closed[event.signature.name] = None
        if event.opaque:
            self._add_recorded(event)
            return
        if event.signature.name == POSITIONED_VIEW:
            # At a position of the whole storage: in a program a storage starts elsewhere.
            key = event.results[0]
            assert key is not None
            self._derive(self._memory.get(key[0]) or self._enter_input(key[0]), key, event)
            return
        try:
            operands, attributes = self._arguments(event)
        except NotEncodable as reason:
            event.opaque = f"an argument is {reason}"
            self._add_recorded(event)
            return
        if event.numbers:
            self._add_read(event, operands, attributes)
            return
        state = None
        if event.generator is not None:
            state = self._generator_state(event.generator[1])
            operands.append(state.newest)
            attributes[RANDOM] = str(event.generator[0])
        while operands and operands[-1] is None:
            operands.pop()
        fresh = [self._result(key, event) for key in event.results]
        written = [(key, self._next_value(key, event)) for key in event.written]
        outputs = [*fresh, *(value for _, value in written)]
        if event.generator is not None and state is not None:
            # Only the newest state of a generator can come before the next draw.
            state.newest, state.content = self._names.next_version(state.newest), event.generator[2]
            self._generators.remove(state)
            self._generators.append(state)
            self.types[state.newest] = type_of(state.content.dtype, state.content.shape)
            outputs.append(self.value(state.newest))
        self._append(event.signature.name, operands, outputs, attributes, event)
        for key, value in zip(event.results, fresh, strict=True):
            if key is not None:
                self._bind(key, value.name)
        for key, value in written:
            self._bind_written(key, value.name, event)

    def end_phase(self) -> None:
        """Append updates of the states that the last phase wrote: one for each parameter with its moments.

        Later phases read the new values by the names of the states.  A state keeps its shape, so memory whose
        size changed is no longer that of the state.
        """
        updates: dict[str, str] = {}
        for number, state in self._states.items():
            memory = self._memory[number]
            if memory.writes == state.writes or not _is_same_memory(memory.key, state.key):
                continue
            updates[state.name] = self._name(state.key, self.statements[-1].event)
            memory.name, memory.key, state.writes = state.name, state.key, memory.writes
            self._known[state.key] = state.name, memory.writes
        for generator in self._generators:
            if generator.newest != generator.name:
                updates[generator.name], generator.newest = generator.newest, generator.name
        made = {value.name: s.event for s in self.statements[self._ended :] for value in s.node.outputs}
        groups: dict[str, list[str]] = {}
        for name in updates:
            groups.setdefault(self.owner(name) or name, []).append(name)
        for group in groups.values():
            values = [updates[name] for name in group]
            self._append(UPDATE, values, map(Value, group), {}, made[values[0]])
        self._ended = len(self.statements)

    def owner(self, name: str) -> str | None:
        """Return the parameter of a moment, if both are states."""
        of = self.persistent.get(name)
        return of if of in self.states else None

    def parameter_of(self, name: str) -> str:
        """Return the parameter that a state or its gradient belongs to; empty for other values."""
        state = name.removesuffix(".grad")
        return (self.owner(state) or state) if state in self.states else ""

    def newest(self, key: Key) -> str | None:
        """Return the name of the newest value of a tensor's memory; None if no statement computed it."""
        memory = self._memory.get(key[0])
        if memory is None or memory.name in self.given or (key[0] in self._states and not memory.writes):
            return None
        return self._name(key, self.statements[-1].event)

    def value_of(self, key: Key) -> str | None:
        """Return the name of the present value of memory; None without one, as before its first use.

        It is empty if the memory was written since, and no statement derived this view of it again.
        """
        memory = self._memory.get(key[0])
        if memory is None:
            return None
        name, writes = self._known.get(key, ("", -1))
        return name if writes == memory.writes else ""

    def is_first_value(self, name: str, storage: int) -> bool:
        """Return whether a value is an input or state whose memory nothing has written to."""
        return self._memory[storage].writes == 0 and (name in self.given or name in self.states)

    def value(self, name: str) -> Value:
        return Value(name, self.types.get(name))

    # -- operands --------------------------------------------------------------------------

    def _arguments(self, event: Event) -> tuple[list[str | None], dict[str, Attribute]]:
        operands: list[str | None] = []
        attributes: dict[str, Attribute] = {}
        for argument, given in zip(event.signature.arguments, event.arguments, strict=True):
            if argument.kind is ArgumentKind.TENSOR:
                operands.append(self._name(given, event) if isinstance(given, tuple) else None)
                if isinstance(given, (bool, int, float, complex)):
                    attributes[argument.name] = encode(given)
            elif argument.kind is ArgumentKind.TENSORS:
                if given is not ABSENT and given is not None:
                    attributes[COUNT + argument.name] = len(given)
                    operands.extend(None if each is None else self._name(each, event) for each in given)
            elif given is not ABSENT and not (given is None and argument.default is None):
                attributes[argument.name] = encode(given)
        return operands, attributes

    def _name(self, key: Key, event: Event) -> str:
        """Return the name of a tensor's value; a stale view is derived again."""
        number = key[0]
        memory = self._memory.get(number)
        if memory is None:
            memory = self._enter_input(number)
        name, writes = self._known.get(key, ("", -1))
        if writes == memory.writes:
            return name
        return self._derive(memory, key, event)

    def _enter_input(self, number: int) -> _Memory:
        """Add the content of a storage to the inputs of the program."""
        kept = self.inputs[number]
        first = next(iter(kept.keys))
        named = self._storage_keys.get(number)
        wanted = "input" if named is None else self.labels[named]
        label = self._names.fresh(wanted)
        flat = kept.content
        if named is not None and _is_same_memory(named, first):
            first = named  # The flat parameters of FSDP are read before the shards.
        if first[1] == kept.start and _fills(first, flat):
            content, key = flat.view(first[2]), first
        else:
            content, key = flat, (number, kept.start, flat.shape, (1,), flat.dtype, 0)
        if named is not None and wanted in self.persistent and _is_same_memory(named, key):
            self._states[number] = _Memory(label, key)
            self._give(label, content, self.states)
        else:
            self._give(label, content, self.given)
        self._place(label, key)
        self._memory[number] = memory = _Memory(label, key)
        self._known[key] = label, 0
        self.entered(number)
        return memory

    def _type(self, name: str, key: Key) -> None:
        self.types[name] = type_of(key[4], key[2])
        self._place(name, key)

    def _place(self, name: str, key: Key) -> None:
        if key in self.placements:
            self.placed[name] = self.placements[key]

    def _give(self, name: str, content: Any, to: dict[str, Any]) -> None:
        to[name] = content
        self.types[name] = type_of(content.dtype, content.shape)

    def _derive(self, memory: _Memory, key: Key, event: Event) -> str:
        """Append statements for the view `key` of a storage, and return its name."""
        name = self._names.fresh(f"{memory.name}.view")
        self._type(name, key)
        self._append(VIEW, [memory.name], [self.value(name)], _layout(key, memory.key), event)
        for flag, op in LAZY:
            if key[5] & flag:
                plain, name = name, self._names.fresh(f"{memory.name}.view")
                self.types[name] = self.types[plain]
                self._append(op, [plain], [self.value(name)], {}, event)
        self._known[key] = name, memory.writes
        return name

    # -- results ---------------------------------------------------------------------------

    def _result(self, key: Key | None, event: Event) -> Value:
        if key is None:
            return Value("")
        # An alias, as from `detach`, does not take the name of a parameter or gradient.
        label = self.labels.get(key) if key not in self._known else None
        name = self._names.fresh(label or _local_name(event))
        self._type(name, key)
        return self.value(name)

    def _bind(self, key: Key, name: str) -> None:
        memory = self._memory.get(key[0])
        if memory is None:
            memory = self._memory[key[0]] = _Memory(name, key)
        known = self._known.get(key)
        if known is None or known[1] != memory.writes:
            self._known[key] = name, memory.writes

    def _next_value(self, key: Key, event: Event) -> Value:
        memory, label = self._memory.get(key[0]), self.labels.get(key)
        if memory is None or label is not None:
            name = self._names.fresh(label or _local_name(event))
        else:
            known = self._known.get(key)
            name = self._names.next_version(known[0] if known is not None else memory.name)
        self._type(name, key)
        return self.value(name)

    def _bind_written(self, key: Key, name: str, event: Event) -> None:
        """Make `name` the newest value of the memory `key`, and of the storage that contains it."""
        memory = self._memory.get(key[0])
        if memory is None:
            self._bind(key, name)
            return
        memory.writes += 1
        stored, plain = name, (*key[:5], 0)
        for flag, op in RESOLVED:  # Memory is neither conjugated nor negated.
            if key[5] & flag:
                lazy, stored = stored, self._names.fresh(f"{stored}.memory")
                self.types[stored] = self.types[lazy]
                self._append(op, [lazy], [self.value(stored)], {}, event)
        if memory.key == plain or _covers(plain, memory.key):
            memory.name, memory.key = stored, plain
        else:
            whole = self._names.next_version(memory.name)
            self.types[whole] = self.types[memory.name]
            self._append(WRITE, [memory.name, stored], [self.value(whole)], _layout(plain, memory.key), event)
            memory.name = whole
            self._known[memory.key] = whole, memory.writes
        self._known[plain] = stored, memory.writes
        self._known[key] = name, memory.writes

    # -- random numbers, host reads, recorded results --------------------------------------

    def _generator_state(self, content: Any) -> _GeneratorState:
        """Return the state of a generator; one that no operator left is a state of the program."""
        known = [each for each in self._generators if torch.equal(each.content, content)]
        if known:
            return known[-1]
        name = self._names.fresh("random")
        self._give(name, content.cpu(), self.states)
        self._generators.append(_GeneratorState(name, name, content))
        return self._generators[-1]

    def _add_read(self, event: Event, operands: list[str | None], attributes: dict[str, Any]) -> None:
        """Append the statements of an operator that Python reads numbers from."""
        source: str | None
        if event.signature.name == READS_NUMBER:
            source = operands[0]
        else:
            source = self._names.fresh(_local_name(event))
            self.types[source] = TensorType(_NUMBER_TYPES[type(event.numbers[0])], ())
            self._append(event.signature.name, operands, [self.value(source)], attributes, event)
        name = self._names.fresh(f"{source}.item")
        self.types[name] = self.types[str(source)]
        number = event.numbers[0]
        recorded = str(number) if isinstance(number, complex) else number
        self._append(READ, [source], [self.value(name)], {"value": recorded}, event)

    def _add_recorded(self, event: Event) -> None:
        """Append statements that give the recorded results of an operator that cannot run again."""
        changed = [(key, False) for key in event.results if key is not None]
        changed += [(key, True) for key in event.written]
        contents = dict(event.contents)
        kind, sent = (
            (RECEIVED_INPUT, self._sent(event)) if event.opaque == EXCHANGES else (RECORDED_INPUT, [])
        )
        if len(changed) < len(event.results) or not changed:
            self.hidden.setdefault(event.opaque, {})[event.signature.name] = None
        for key, written in changed:
            content = contents[key]
            local = None if content is None else self._names.fresh(f"{kind}{_local_name(event)}")
            value = self._next_value(key, event) if written else self._result(key, event)
            if local is None:
                self._append_lost(key, value, event)
            else:
                self._give(local, content.cpu().contiguous(), self.given)
                attributes: dict[str, Attribute] = {"op": event.signature.name, "reason": event.opaque}
                self._append(RECORDED, [local, *sent], [value], attributes, event)
            if written:
                self._bind_written(key, value.name, event)
            else:
                self._bind(key, value.name)

    def _sent(self, event: Event) -> list[str]:
        """Return the names of the values that a collective sends: all but those of its outputs."""
        given = zip(event.signature.arguments, event.arguments, strict=True)
        operands = [each for argument, each in given if not argument.name.startswith("output")]
        keys = [key for each in operands for key in (each if isinstance(each, list) else [each])]
        return [self._name(key, event) for key in keys if isinstance(key, tuple) and len(key) == 6]

    def _append_lost(self, key: Key, value: Value, event: Event) -> None:
        """Append an uninitialized value in place of a recorded result that had no memory for its copy."""
        size = tuple(map(int, key[2]))
        attributes: dict[str, Attribute] = {"size": size, "dtype": DTYPES[key[4]]}
        self._append(UNINITIALIZED, [], [value], attributes, event)
        count = int(np.prod(size)) * key[4].itemsize
        self.lost.append(
            f"%{name_text(value.name)} is uninitialized: there was no memory to copy this result of "
            f"{event.signature.name} with {count:,} bytes"
        )

    def _append(
        self,
        op: str,
        operands: Iterable[str | None],
        outputs: Iterable[Value],
        attributes: dict[str, Any],
        event: Event,
    ) -> None:
        made = tuple(outputs)
        placed = [self.placed[each.name] for each in made if each.name in self.placed]
        comment = "; ".join(dict.fromkeys(placed))
        node = Node(op, tuple(operands), made, attributes, comment=comment)
        self.statements.append(RecordedStatement(node, event))


def type_of(dtype: torch.dtype, shape: Sequence[int]) -> TensorType:
    """Return the type of a tensor."""
    return TensorType(DTYPES[dtype], tuple(map(int, shape)))


def _local_name(event: Event) -> str:
    """Return a name for a result: the operator's, after the module around it."""
    local = event.signature.name.split(".")[-2].strip("_")
    module = event.modules[-1].removeprefix(OPERATOR) if event.modules else ""
    return f"{module}.{local}" if module else local


def _fills(key: Key, flat: Any) -> bool:
    """Return whether a tensor is all of the elements of `flat`, in their order.

    The stride of an axis with one element counts too: kernels for matrices are chosen by it.
    """
    _, _, size, stride, dtype, flags = key
    count = int(np.prod(size)) if size else 1
    step = 1
    for length, given in zip(reversed(size), reversed(stride), strict=True):
        if given != step:
            return False
        step *= max(length, 1)
    return dtype == flat.dtype and count == flat.numel() and not flags


def _covers(key: Key, other: Key) -> bool:
    """Return whether a tensor without gaps has all elements of another one, or of its resized memory."""
    (start, stop), (first, last) = extent_of(key), extent_of(other)
    return start <= first and last <= stop and _is_dense(key)


def _is_same_memory(key: Key, other: Key) -> bool:
    """Return whether two tensors without gaps have the same memory, in any layout."""
    return extent_of(key) == extent_of(other) and _is_dense(key) and _is_dense(other)


def _is_dense(key: Key) -> bool:
    """Return whether the elements of a tensor follow one another in memory, in any order of its axes."""
    axes = sorted((step, length) for step, length in zip(key[3], key[2], strict=True) if length != 1)
    expected = 1
    for step, length in axes:
        if step != expected:
            return False
        expected *= length
    return True


def _layout(key: Key, base: Key) -> dict[str, Any]:
    """Return the attributes of a view of `base`."""
    _, offset, size, stride, dtype, _ = key
    start = base[1] * base[4].itemsize // dtype.itemsize
    found: dict[str, Any] = {"size": tuple(map(int, size)), "stride": tuple(map(int, stride))}
    if offset != start:
        found["offset"] = offset - start
    if dtype != base[4]:
        found["dtype"] = DTYPES[dtype]
    return found
