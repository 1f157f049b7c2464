"""The source trace of a recorded step: which statements each line ran, and which values its names held."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nncdbg.ir.source_trace import NO_VISIT, SourceCall, SourceName, SourceTrace, SourceVisit
from nncdbg.torch.recording import Event
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

    def trace(self, file_name: Callable[[str], str]) -> SourceTrace:
        """Return the trace of the statements; `file_name` returns the name of a file as in locations."""
        calls: dict[Call, int] = {}
        visits: dict[Visit, int] = {}
        made_calls: list[SourceCall] = []
        made_visits: list[SourceVisit] = []

        def call_number(call: Call) -> int:
            if call not in calls:
                caller = visit_number(call.caller)
                calls[call] = len(made_calls)
                made_calls.append(SourceCall(file_name(call.file), call.function, caller))
            return calls[call]

        def visit_number(visit: Visit | None) -> int:
            if visit is None:
                return NO_VISIT
            if visit not in visits:
                call = call_number(visit.call)
                visits[visit] = len(made_visits)
                made_visits.append(SourceVisit(call, visit.line))
            return visits[visit]

        statements = [visit_number(visit) for visit in _visits(self._built.statements)]
        names = [
            SourceName(call_number(each.call), each.name, each.since, each.value) for each in self._changes
        ]
        return SourceTrace(made_calls, made_visits, statements, names)

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


def _visits(statements: Sequence[RecordedStatement]) -> Iterator[Visit | None]:
    """Yield the visit of each statement; an update of states belongs to the statement before it."""
    before = None
    for each in statements:
        before = before if each.node.op == UPDATE else each.event.visit
        yield before
