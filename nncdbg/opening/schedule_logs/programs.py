"""A program with a schedule, made of the records of a log: one statement per launch, in the host's order.

The statement of a launch is an op without kernel, ``%t7 = kernel.mm(%t3, %t5) | s7 wait e2 record e4``.
Its operands are the values whose bytes it reads, its results those that it writes; the addresses are the
program's memory plan.  A record or wait that no launch can hold, and each wait of the host, is a statement of
its own.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from nncdbg.comparison.check_results import NOT_CHECKED, CheckResult
from nncdbg.comparison.launches import PlacedPlan, PlannedBuffer
from nncdbg.comparison.schedule_timeline import Times
from nncdbg.dtypes import NUMPY
from nncdbg.engine.execution.findings import RACE
from nncdbg.ir.records import Graph, Location, Node, Placement, Program, TensorType, Value
from nncdbg.ir.streams import Site
from nncdbg.text.counting import counted

# -- records ---------------------------------------------------------------------------------------
# The records of a schedule log, in the order in which the host issued them.
#
# All readers produce these records.  As lines of JSON they are a file format of nncdbg, an access log: first
# `LogHeader`, then one record per line with its name in ``kind``::
#
#     {"kind":"header","nncdbg_accesses":1,"source":"torch 2.13.0"}
#     {"kind":"launch","name":"aten.mm.default","stream":0,
#      "writes":[{"begin":4096,"end":4160,"type":["f32",[4,4]]}]}
#     {"kind":"record","event":1,"stream":0}
#     {"kind":"wait","event":1,"stream":7}
#
# Streams and events are named by numbers that are unique in the log, such as handles.

VERSION = 1


class LogHeader(msgspec.Struct, frozen=True, tag="header", tag_field="kind"):
    """The first record of an access log: the version of the format, and what wrote it."""

    nncdbg_accesses: int
    source: str = ""


class ByteRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bytes at addresses `begin` to `end` that a launch reads or writes.

    `type` is the dtype and shape of the tensor there, `name` its name in the user's program.
    """

    begin: int
    end: int
    type: tuple[str, tuple[int, ...]] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ValueError(f"bytes {self.begin} to {self.end} are not a range")


class LoggedLaunch(msgspec.Struct, frozen=True, omit_defaults=True, tag="launch", tag_field="kind"):
    """A kernel, copy or fill on a stream; `stream` None: the log does not say which.

    `reads` and `writes` are None if the log does not contain accesses.  `start` and `duration` are in
    microseconds.  `file` and `line` are the user's source line.
    """

    name: str
    stream: int | None
    device: str = ""
    reads: tuple[ByteRange, ...] | None = None
    writes: tuple[ByteRange, ...] | None = None
    start: float | None = None
    duration: float | None = None
    file: str | None = None
    line: int | None = None


class EventCreation(msgspec.Struct, frozen=True, tag="create", tag_field="kind"):
    """The creation of an event, so that all its records are in the log; a later event may have its number."""

    event: int


class EventRecord(msgspec.Struct, frozen=True, tag="record", tag_field="kind"):
    """An event is reached when all that the stream has been given so far ends."""

    event: int
    stream: int


class EventWait(msgspec.Struct, frozen=True, tag="wait", tag_field="kind"):
    """What the stream is given from here on runs after the latest record of the event."""

    event: int
    stream: int


class HostWait(msgspec.Struct, frozen=True, tag="synchronize", tag_field="kind"):
    """The host waits for an event, or a stream, or without both for all streams."""

    event: int | None = None
    stream: int | None = None


LogRecord: TypeAlias = "LoggedLaunch | EventCreation | EventRecord | EventWait | HostWait"


# -- kernel names ----------------------------------------------------------------------------------

_MANGLED = re.compile(r"_ZN?K?")
_OPERATOR = re.compile(r"(?:torch\.)?\w+\.(\w+)\.\w+")


@cache
def short_name(name: str) -> str:
    """Return the name of a function without namespaces, template arguments and parameters, as one word.

    ``void at::native::reduce_kernel<512, 1>(float*)`` and its mangled name give ``reduce_kernel``, the
    operator ``aten.add_.Tensor`` gives ``add_``, ``Memcpy HtoD (Pinned -> Device)`` gives ``Memcpy_HtoD``.
    """
    operator = _OPERATOR.fullmatch(name)
    if operator is not None:
        return operator[1]
    found = _of_mangled(name) if name.startswith("_Z") else _of_declaration(name)
    word = re.sub(r"\W+", "_", found, flags=re.ASCII).strip("_") or "unnamed"
    return f"_{word}" if word[0].isdigit() else word


def _of_declaration(name: str) -> str:
    """Return the last part of a qualified name, from a declaration in C++."""
    name = name.replace("(anonymous namespace)", "anonymous")
    outside, depth = [], 0
    for letter in name:
        if letter == "(" and depth == 0:
            break
        depth -= letter == ">" and depth > 0
        if depth == 0 and letter not in "<>":
            outside.append(letter)
        depth += letter == "<"
    plain = "".join(outside).strip().removeprefix("void ")
    return plain.rpartition("::")[2] or plain


def _of_mangled(name: str) -> str:
    """Return the last identifier of the first qualified name in a mangled one."""
    prefix = _MANGLED.match(name)
    at = prefix.end() if prefix is not None else len(name)
    nested = name.startswith("_ZN")
    found = ""
    while number := re.compile(r"\d+").match(name, at):
        begin = number.end()
        at = begin + int(number[0])
        found = name[begin:at]
        if not nested:
            break
    return found or name


# -- byte ranges -----------------------------------------------------------------------------------
# Which launch wrote the bytes that another one reads.
#
# Each write makes a value with its bytes.  A read of bytes that no launch of the log has written reads a
# value from before the log.  A value of which launches read or overwrite parts is divided into pieces, so
# that each access concerns exactly the bytes that it uses.


@dataclass(eq=False)
class WrittenBytes:
    """The bytes of a write, or of a value from before the log; `cuts` are the bounds of its pieces."""

    bytes: ByteRange
    cuts: set[int] = field(default_factory=set)

    @cached_property
    def bounds(self) -> list[int]:
        """The first byte of each piece, and the end of the last one, once all reads have divided it."""
        return [self.bytes.begin, *sorted(self.cuts), self.bytes.end]

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the end of each piece between two bounds."""
        first, last = bisect_left(self.bounds, begin), bisect_left(self.bounds, end)
        return pairwise(self.bounds[first : last + 1])


class ReadPart(NamedTuple):
    """The bytes `begin` to `end` of a write that a launch reads."""

    source: WrittenBytes
    begin: int
    end: int


class ByteMap:
    """The latest write of each byte."""

    def __init__(self) -> None:
        self.before: list[WrittenBytes] = []
        """The values from before the log, in the order of their first use."""
        self._begins: list[int] = []
        self._parts: list[ReadPart] = []

    def read(self, read: ByteRange) -> list[ReadPart]:
        """Return what a read reads, and divide the values at its ends."""
        found = []
        at = read.begin
        for part in self._overlapping(read):
            if at < part.begin:
                found.append(self._enter_before(read, at, part.begin))
            found.append(ReadPart(part.source, max(part.begin, read.begin), min(part.end, read.end)))
            at = part.end
        if at < read.end:
            found.append(self._enter_before(read, at, read.end))
        for source, begin, end in found:
            source.cuts |= {begin, end} - {source.bytes.begin, source.bytes.end}
        return found

    def write(self, written: ByteRange) -> WrittenBytes:
        """Enter a write as the latest of its bytes."""
        source = WrittenBytes(written)
        self._enter(ReadPart(source, written.begin, written.end))
        return source

    def _enter_before(self, read: ByteRange, begin: int, end: int) -> ReadPart:
        whole = (begin, end) == (read.begin, read.end)
        source = WrittenBytes(ByteRange(begin, end, read.type if whole else None, read.name))
        self.before.append(source)
        part = ReadPart(source, begin, end)
        self._enter(part)
        return part

    def _enter(self, new: ReadPart) -> None:
        old = self._overlapping(new)
        kept = [new]
        if old and old[0].begin < new.begin:
            kept.insert(0, old[0]._replace(end=new.begin))
        if old and old[-1].end > new.end:
            kept.append(old[-1]._replace(begin=new.end))
        at = bisect_left(self._begins, old[0].begin if old else new.begin)
        self._begins[at : at + len(old)] = [part.begin for part in kept]
        self._parts[at : at + len(old)] = kept

    def _overlapping(self, bytes: ByteRange | ReadPart) -> Sequence[ReadPart]:
        first = bisect_right(self._begins, bytes.begin) - 1
        if first < 0 or self._parts[first].end <= bytes.begin:
            first += 1
        return self._parts[first : bisect_left(self._begins, bytes.end, first)]


# -- programs --------------------------------------------------------------------------------------

ENTRY = "main"


@dataclass(frozen=True, slots=True)
class ScheduleLog:
    """A program with the schedule of a log, its memory plan if accesses are known, and measured times.

    The notes of the program say what the log does not contain, and `unchecked` what cannot be checked because
    of that.
    """

    program: Program
    plan: PlacedPlan | None = None
    times: Times = field(default_factory=dict)
    unchecked: Sequence[CheckResult] = ()


@dataclass(slots=True, eq=False)
class _Statement:
    """A statement in the making; `stream` None is the host, and `placed` False: it has no margin."""

    name: str
    stream: int | None
    launch: LoggedLaunch | None = None
    waits: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    reads: list[ReadPart] = field(default_factory=list)
    writes: list[WrittenBytes] = field(default_factory=list)
    placed: bool = True

    def placement(self) -> Placement | None:
        if not self.placed:
            return None
        return Placement(stream=self.stream, waits=tuple(self.waits), records=tuple(self.records))


def program_of(
    records: Iterable[LogRecord], *, source: str, notes: Sequence[str] = (), unordered: str = ""
) -> ScheduleLog:
    """Return the program of the records of a log, without typing or running anything.

    `unordered` says why the order of its streams is unknown, if it is.

    Waits for events whose record is not in the log are left out and noted, unless it has their creation.
    """
    reading = _Reading()
    for record in records:
        reading.read(record)
    left = [(RACE, unordered)] if unordered else []
    left += reading.unchecked()
    found = _Naming(reading).log(source, [*notes, *(why for _, why in left), *reading.notes()])
    return replace(found, unchecked=[CheckResult(check, NOT_CHECKED, why) for check, why in left])


class _Reading:
    """Places records in the margins of statements."""

    def __init__(self) -> None:
        self.statements: list[_Statement] = []
        self.bytes = ByteMap()
        self.devices: dict[int, str] = {}
        self.streams = _Numbers()
        self.events = _Numbers()
        self.created: set[int] = set()
        self.recorded: set[int] = set()
        self.latest: dict[int, int] = {}
        """The latest statement of each stream."""
        self.mentioned: dict[int, int] = {}
        """The latest statement with each event, in its margin."""
        self.pending: dict[int, list[int]] = {}
        """The events that the next statement of a stream waits for."""
        self.unknown_waits = 0
        self.launches = self.without_accesses = 0

    def unchecked(self) -> list[tuple[str, str]]:
        """Return the checks for which the log does not contain enough, each with the reason."""
        found = []
        if self.launches and self.without_accesses == self.launches:
            found.append((RACE, "the log has no accesses to memory"))
        elif self.without_accesses:
            some = f"{self.without_accesses} of {self.launches}"
            found.append((RACE, f"the memory accesses of {some} launches are unknown"))
        if self.unknown_waits:
            waits = counted(self.unknown_waits, "wait")
            found.append(("schedule", f"{waits} for events from before the log"))
        return found

    def notes(self) -> list[str]:
        """Return how the program differs from the log."""
        found = []
        if len(self.latest) == 1:
            found.append(f"all launches are on one stream, s{next(iter(self.latest))}")
        for handle, number in self.streams.numbers.items():
            if handle != number:
                text = str(handle) if _small(handle) else hex(handle)
                found.append(f"s{number} is stream {text} of the log")
        return found

    def read(self, record: LogRecord) -> None:
        if isinstance(record, LoggedLaunch):
            self.launch(record)
        elif isinstance(record, EventCreation):
            self.created.add(self.events.renew(record.event))
        elif isinstance(record, EventRecord):
            self.record(self.events.number(record.event), self.streams.number(record.stream))
        elif isinstance(record, EventWait):
            self.wait(self.events.number(record.event), self.streams.number(record.stream))
        else:
            self.host_wait(record)

    # -- records -------------------------------------------------------------------------------------

    def launch(self, launch: LoggedLaunch) -> None:
        self.launches += 1
        if launch.stream is None:
            statement = self.add(_Statement(launch.name, None, launch, placed=False))
        else:
            stream = self.streams.number(launch.stream)
            if launch.device:
                self.devices.setdefault(stream, launch.device)
            statement = self.on(stream, launch.name, launch)
        if launch.reads is None and launch.writes is None:
            self.without_accesses += 1
        for read in launch.reads or ():
            statement.reads += self.bytes.read(read)
        statement.writes = [self.bytes.write(written) for written in launch.writes or ()]

    def record(self, event: int, stream: int) -> None:
        """Record an event after the latest statement of a stream, or after a statement of its own.

        Moving the record up to that statement must not move it over a wait for the same event.
        """
        for other, events in list(self.pending.items()):
            if event in events:
                self.on(other, "wait")
        at = self.latest.get(stream, -1)
        if at < 0 or self.pending.get(stream) or self.mentioned.get(event, -1) > at:
            self.on(stream, "record")
            at = self.latest[stream]
        records = self.statements[at].records
        if event not in records:
            records.append(event)
        self.recorded.add(event)
        self.mentioned[event] = max(at, self.mentioned.get(event, -1))

    def wait(self, event: int, stream: int) -> None:
        if self.known(event):
            pending = self.pending.setdefault(stream, [])
            if event not in pending:
                pending.append(event)

    def host_wait(self, wait: HostWait) -> None:
        if wait.event is not None:
            event = self.events.number(wait.event)
            if self.known(event):
                self.on_host([event])
        elif wait.stream is not None:
            stream = self.streams.number(wait.stream)
            if self.pending.get(stream):
                self.on(stream, "wait")
            if stream in self.latest:
                event = self.events.free()
                self.mentioned[event] = self.latest[stream]
                self.statements[self.latest[stream]].records.append(event)
                self.on_host([event])
        else:
            for stream in [each for each, events in self.pending.items() if events]:
                self.on(stream, "wait")
            self.add(_Statement("synchronize", None, placed=False))

    def known(self, event: int) -> bool:
        known = event in self.recorded or event in self.created
        self.unknown_waits += not known
        return known

    # -- statements ----------------------------------------------------------------------------------

    def on(self, stream: int, name: str, launch: LoggedLaunch | None = None) -> _Statement:
        statement = _Statement(name, stream, launch, waits=self.pending.pop(stream, []))
        self.latest[stream] = len(self.statements)
        return self.add(statement)

    def on_host(self, waits: list[int]) -> None:
        self.add(_Statement("synchronize", None, waits=waits))

    def add(self, statement: _Statement) -> _Statement:
        for event in statement.waits:
            self.mentioned[event] = len(self.statements)
        self.statements.append(statement)
        return statement


def _small(handle: int) -> bool:
    return 0 <= handle < 100_000


class _Numbers:
    """Small numbers for the handles of a log: the handle itself if small and free, else the next free one."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self._taken: set[int] = set()
        self._next = 0

    def number(self, handle: int) -> int:
        if handle not in self.numbers:
            if _small(handle) and handle not in self._taken:
                self._taken.add(handle)
                self.numbers[handle] = handle
            else:
                self.numbers[handle] = self.free()
        return self.numbers[handle]

    def renew(self, handle: int) -> int:
        """Return a number that the handle has not had yet."""
        self.numbers.pop(handle, None)
        return self.number(handle)

    def free(self) -> int:
        """Return a number that no handle has had."""
        while self._next in self._taken:
            self._next += 1
        self._taken.add(self._next)
        return self._next


class _Naming:
    """Names the pieces of all values, and writes the program."""

    def __init__(self, reading: _Reading) -> None:
        self.reading = reading
        self.names: dict[tuple[WrittenBytes, int], str] = {}
        """The name of each piece, by the value and the first byte."""
        self.counts: dict[str, int] = {}
        self.taken: set[str] = set()
        self.places: dict[tuple[tuple[str | int, ...], str], PlannedBuffer] = {}
        sources = [*reading.bytes.before, *(each for one in reading.statements for each in one.writes)]
        self.base = min((each.bytes.begin for each in sources), default=0)

    def log(self, source: str, notes: list[str]) -> ScheduleLog:
        reading = self.reading
        inputs = tuple(value for each in reading.bytes.before for value in self.values(each))
        nodes = tuple(self.node(statement) for statement in reading.statements)
        times: dict[Site, tuple[float, float]] = {}
        for pc, statement in enumerate(reading.statements):
            launch = statement.launch
            if launch is not None and launch.start is not None and launch.duration is not None:
                times[(ENTRY,), pc] = launch.start, launch.duration
        if self.base:
            notes.append(f"bytes count from address {self.base:#x}")
        graph = Graph(ENTRY, inputs, nodes=nodes)
        program = Program({ENTRY: graph}, ENTRY, streams=reading.devices, source=source, notes=tuple(notes))
        return ScheduleLog(program, PlacedPlan(self.places, source=source) if self.places else None, times)

    def node(self, statement: _Statement) -> Node:
        operands = {
            self.names[source, at]: None
            for source, begin, end in statement.reads
            for at, _ in source.pieces(begin, end)
        }
        outputs = tuple(value for each in statement.writes for value in self.values(each))
        launch = statement.launch
        location = None
        if launch is not None and (launch.file is not None or short_name(launch.name) != launch.name):
            location = Location(launch.file, launch.line, launch.name)
        op = f"kernel.{short_name(statement.name)}"
        return Node(op, tuple(operands), outputs, location=location, placement=statement.placement())

    def values(self, source: WrittenBytes) -> list[Value]:
        """Name the pieces of a value, and place them."""
        pieces = list(source.pieces(source.bytes.begin, source.bytes.end))
        found = []
        for begin, end in pieces:
            name = self.names[source, begin] = self.name(source.bytes)
            site = (ENTRY,), name
            self.places[site] = PlannedBuffer(begin - self.base, end - begin, site)
            found.append(Value(name, _type(source.bytes) if len(pieces) == 1 else None))
        return found

    def name(self, bytes: ByteRange) -> str:
        """Return the name of the tensor, with a number from its second value on, else ``t`` with a number."""
        while True:
            count = self.counts[bytes.name] = self.counts.get(bytes.name, -1) + 1
            numbered = f"{bytes.name}.{count}" if count else bytes.name
            name = numbered if bytes.name else f"t{count}"
            if name not in self.taken:
                self.taken.add(name)
                return name


def _type(bytes: ByteRange) -> TensorType | None:
    if bytes.type is None or bytes.type[0] not in NUMPY:
        return None
    return TensorType(*bytes.type)
