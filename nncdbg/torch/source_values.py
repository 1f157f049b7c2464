"""The source trace of a recorded step: which statements each line ran, and which values its names held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from nncdbg.ir.source_trace import NO_VISIT, SourceCall, SourceName, SourceTrace, SourceVisit
from nncdbg.torch.recording import BACKWARD, FIRST_GRADIENT, Event
from nncdbg.torch.source_frames import Binding, Call, Visit
from nncdbg.torch.statements import UPDATE, RecordedStatement, RecordedStatements
from nncdbg.torch.storages import Key


@dataclass(slots=True, eq=False)
class _Held:
    """What a name of a call holds: memory, and its value from the next statement, number `since`, on."""

    call: Call
    name: str
    key: Key | None
    since: int
    value: str = ""


class NamedValues:
    """Follows which values the names of the user hold while the statements of a recording are built."""

    def __init__(self, built: RecordedStatements, bindings: Sequence[Binding]) -> None:
        self._built = built
        self._bindings = iter(bindings)
        self._next = next(self._bindings, None)
        self._changes: list[_Held] = []
        self._held: dict[tuple[Call, str], _Held] = {}
        self._holders: defaultdict[int, dict[tuple[Call, str], None]] = defaultdict(dict)
        """The names that hold a tensor in a storage, by the storage."""
        built.entered = self._resolve

    def before(self, event: int) -> None:
        """Bind the names that hold other tensors from an event on, by its number."""
        while self._next is not None and self._next.event <= event:
            self._bind(self._next)
            self._next = next(self._bindings, None)

    def after(self, event: Event) -> None:
        """Enter the values of the memory that an event wrote, or made views of."""
        given = [each if isinstance(each, list) else [each] for each in event.arguments]
        keys = [key for listed in (*given, event.results, event.written) for key in listed]
        self._resolve(*{key[0]: None for key in keys if isinstance(key, tuple)})

    def trace(self, file_name: Callable[[str], str], callers: int) -> SourceTrace:
        """Return the trace of the statements; `file_name` returns the name of a file as in locations.

        `callers` is the number of outermost calls in which no line began.
        """
        return _TraceBuilder(self._built.statements, self._changes, file_name).trace(callers)

    def _bind(self, binding: Binding) -> None:
        name = binding.call, binding.name
        before = self._held.get(name)
        if before is not None and before.key is not None:
            del self._holders[before.key[0]][name]
        key = binding.key
        self._enter(_Held(*name, key, len(self._built.statements)))
        if key is not None:
            self._holders[key[0]][name] = None
            self._resolve(key[0])

    def _enter(self, held: _Held) -> None:
        self._held[held.call, held.name] = held
        self._changes.append(held)

    def _resolve(self, *storages: int) -> None:
        """Enter the present values of the names that hold a tensor in one of these storages."""
        count = len(self._built.statements)
        for storage in storages:
            for name in self._holders.get(storage, ()):
                held = self._held[name]
                assert held.key is not None
                value = self._built.value_of(held.key)
                if value is None or value == held.value:
                    continue
                first = not held.value and self._built.is_first_value(value, storage)
                if held.since == count or first:
                    held.value = value
                else:
                    self._enter(_Held(held.call, held.name, held.key, count, value))


class _TraceBuilder:
    """Numbers calls and visits, and makes a call of each backward pass."""

    def __init__(
        self,
        statements: Sequence[RecordedStatement],
        changes: Sequence[_Held],
        file_name: Callable[[str], str],
    ) -> None:
        self._statements = statements
        self._changes = changes
        self._file_name = file_name
        self._calls: list[SourceCall] = []
        self._visits: list[SourceVisit] = []
        self._numbers: dict[Call | Visit, int] = {}
        self._forward: dict[int, RecordedStatement] = {}
        """The first statement of the forward pass with a number of autograd."""
        self._gradients: list[SourceName] = []
        self._derived: list[tuple[int, int, int]] = []
        """The stack of the backward pass: visit of the forward pass, that of the line that runs it, own."""
        self._named: set[str] = set()
        """The values whose gradients were found."""
        self._held_by: defaultdict[str, list[_Held]] = defaultdict(list)
        for each in changes:
            self._held_by[each.value].append(each)
        made = (value for each in statements if _is_backward(each) for value in each.node.outputs)
        self._backward_types = {value.name: value.type for value in made}

    def trace(self, callers: int) -> SourceTrace:
        numbers = [*self._statement_visits()]
        names = [
            SourceName(self._call(each.call), each.name, each.since, each.value) for each in self._changes
        ]
        names = sorted([*names, *self._gradients], key=lambda each: each.since)
        return SourceTrace(self._calls, self._visits, numbers, names, callers)

    def _statement_visits(self) -> Iterator[int]:
        """Yield the visit of each statement; an update of states belongs to the statement before it."""
        before = NO_VISIT
        for number, each in enumerate(self._statements):
            event = each.event
            if each.node.op == UPDATE:
                yield before
                continue
            here = self._visit(event.visit)
            if event.phase != BACKWARD:
                self._forward.setdefault(event.sequence, each)
                self._derived.clear()
                before = here
            elif (source := self._forward.get(event.sequence)) is not None:
                before = self._derivative(self._visit(source.event.visit), here)
                self._name_gradient(number, each, source)
            elif self._derived and self._derived[0][1] == here:
                before = self._derived[-1][2]  # Code of the user, such as a hook, may have run since.
            else:
                before = here
            yield before

    def _derivative(self, visit: int, here: int) -> int:
        """Return the visit of a backward pass that derives a visit; `here` is the line that runs the pass.

        The calls of the backward pass mirror those of the forward pass, as far as it is not a call around
        `here`.
        """
        if NO_VISIT in (visit, here):
            return here
        around = {self._visits[each].call for each in self._stack(here)}
        mirrored = self._stack(visit)
        while len(mirrored) > 1 and self._visits[mirrored[1]].call in around:
            del mirrored[0]
        derived = self._derived
        if derived and derived[0][1] != here:
            derived.clear()
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1][0], zip(mirrored, derived, strict=False))
        )
        # The last one may continue after lines of functions that it has called.
        del derived[same:]
        for each in mirrored[same:]:
            if not derived:
                call = self._backward_call(here)
            elif self._visits[each].call == self._visits[derived[-1][0]].call:
                call = self._visits[derived[-1][2]].call
            else:
                call = self._backward_call(derived[-1][2])
            self._visits.append(SourceVisit(call, self._visits[each].line, each))
            derived.append((each, here, len(self._visits) - 1))
        return derived[-1][2]

    def _backward_call(self, caller: int) -> int:
        file = self._calls[self._visits[caller].call].file
        self._calls.append(SourceCall(file, BACKWARD, caller))
        return len(self._calls) - 1

    def _stack(self, visit: int) -> list[int]:
        """Return a visit and those that called it, outermost first."""
        found = []
        while visit != NO_VISIT:
            found.append(visit)
            visit = self._calls[self._visits[visit].call].caller
        return found[::-1]

    def _name_gradient(self, number: int, statement: RecordedStatement, source: RecordedStatement) -> None:
        """Name the gradient that a statement reads, `h.grad`, if the forward statement has made `h`."""
        made = source.node.outputs[0]
        if not made.name or made.name in self._named:
            return
        operands = (name for name in statement.node.inputs if isinstance(name, str))
        gradient = next((name for name in operands if self._backward_types.get(name) == made.type), None)
        if gradient is None:
            return
        self._named.add(made.name)
        levels = {self._visits[forward].call: self._visits[visit].call for forward, _, visit in self._derived}
        for held in self._held_by.get(made.name, ()):
            call = levels.get(self._call(held.call))
            if call is not None:
                self._gradients.append(SourceName(call, f"{held.name}.grad", number, gradient))

    def _call(self, call: Call) -> int:
        if call not in self._numbers:
            caller = self._visit(call.caller)
            self._numbers[call] = len(self._calls)
            self._calls.append(SourceCall(self._file_name(call.file), call.function, caller))
        return self._numbers[call]

    def _visit(self, visit: Visit | None) -> int:
        if visit is None:
            return NO_VISIT
        if visit not in self._numbers:
            call = self._call(visit.call)
            self._numbers[visit] = len(self._visits)
            self._visits.append(SourceVisit(call, visit.line))
        return self._numbers[visit]


def _is_backward(statement: RecordedStatement) -> bool:
    """Return whether a statement belongs to a backward pass, or makes the gradient with which one begins."""
    event = statement.event
    return event.phase == BACKWARD or event.signature.name == FIRST_GRADIENT
