"""One of two compared runs: its statements with operands, results and the origins of operands.

A statement has a key that finds it in the other run. Values are tracked by identity, which calls, blocks and
iterations preserve, so the data flow connects ops across graphs.

`RunTrace` records a whole run; values beyond a memory budget are kept in one temporary file.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, Self, TypeAlias

import numpy as np

from nncdbg.by_identity import ByIdentity
from nncdbg.comparison.report import Key, Place, ValueSite
from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.events import Failed, Outcome
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.values import copied
from nncdbg.ir.records import Graph, Node, type_of


def written_slots(frame: Frame) -> range:
    """Return the slots written by the statement before a frame's pc."""
    return frame.code.result_slots(frame.pc - 1) if frame.pc else range(0)


def key_of(frames: list[Frame], pc: int) -> Key:
    """Return the key (statement and visit) of `pc` in the innermost of `frames` (outermost first)."""
    *outer, inner = frames
    place = (*((frame.code.path, frame.pc) for frame in outer), (inner.code.path, pc))
    return place, tuple(frame.iteration for frame in frames if frame.is_loop)


class _Freed:
    """The content of a slot that was freed at once because no statement reads it."""

    def __repr__(self) -> str:
        return "<freed>"


FREED = _Freed()


@dataclass(frozen=True, slots=True)
class WrittenResult:
    """Output `index`, among the named ones, of the statement and visit `key`."""

    key: Key
    index: int


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """An input of the program."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A constant."""

    content: Any


Source: TypeAlias = "WrittenResult | ProgramInput | Fixed | None"
"""The origin of an operand; None if it is omitted or its origin is unknown."""


@dataclass(frozen=True, slots=True)
class Written:
    """A statement that has just written its results, after `tick` statements."""

    key: Key
    code: Code
    pc: int
    tick: int
    contents: tuple[Any, ...]
    """One content per named output of the statement, on the host; FREED if it is already freed."""
    operands: tuple[Any, ...] | None = None
    """The operands of its kernel, as the machine holds them; None for control flow and calls."""
    sources: tuple[Source, ...] = ()
    """The origins of the operands, if recorded."""

    @property
    def node(self) -> Node:
        return self.code.nodes[self.pc]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.node.outputs if value.name)


def site_of(debugger: Debugger, written: Written, index: int, key: Key | None = None) -> ValueSite:
    """Return the site of a result; `key` is the statement's own key if a comparison uses another."""
    node, location = written.node, written.node.location
    content = written.contents[index] if written.contents else None
    return ValueSite(
        written.names[index] if written.names else "",
        node.op,
        str(type_of(content) or type(content).__name__),
        debugger.loaded.line(written.code, written.pc),
        str(written.code.path[0]),
        written.key[1],
        location.name if location is not None and location.name else "",
        written.tick,
        key or written.key,
        location.place if location is not None else "",
    )


class Origins:
    """The origin of every value in memory: the first statement that returned it."""

    def __init__(self, debugger: Debugger) -> None:
        self._known: ByIdentity[Source] = ByIdentity()
        self._codes: set[Code] = set()
        self.passed_on: dict[WrittenResult, WrittenResult] = {}
        """Results of calls and blocks, mapped to the results of the statements inside that computed them."""
        for name, content in zip(debugger.inputs, debugger.control.machine.frames[0].slots[1:], strict=False):
            self._note(content, ProgramInput(name))
        # The data of states is on the device there.
        entry = debugger.control.machine.frames[0]
        for constant, content in zip(entry.code.template, entry.slots, strict=True):
            if isinstance(constant, np.ndarray):
                self._note(content, Fixed(constant))

    def operands(self, frame: Frame) -> tuple[Source, ...]:
        """Return the origins of the operands of the statement at the frame's pc."""
        code: Code | None = frame.code
        while code is not None and code not in self._codes:
            self._constants(code)
            code = code.parent
        contents = [frame.slots[slot] for slot in frame.code.operands[frame.pc]]
        # A value recomputed after an eviction is its own origin.
        return tuple(None if each is None else self.of(each) or Fixed(each) for each in contents)

    def of(self, content: Any) -> Source:
        """Return the origin of a value; None if it is unknown."""
        return self._known.get(content)

    def results(self, key: Key, contents: Sequence[Any]) -> None:
        """Record the results of a statement."""
        for index, content in enumerate(contents):
            known, result = self.of(content), WrittenResult(key, index)
            if isinstance(known, WrittenResult):
                self.passed_on[result] = known
            self._note(content, result)

    def _constants(self, code: Code) -> None:
        self._codes.add(code)
        for slot, content in enumerate(code.template):
            if slot and content is not UNSET and content is not None and code.definition[slot] < 0:
                self._note(content, Fixed(content))

    def _note(self, content: Any, source: Source) -> None:
        if content is not None and self.of(content) is None:
            self._known.set(content, source)


class Side:
    """Steps a debugger to its end; with `origins`, it also records where operands come from."""

    def __init__(self, debugger: Debugger, title: str, *, origins: bool = False) -> None:
        self.debugger = debugger
        self.title = title
        self._origins = Origins(debugger) if origins else None
        debugger.uncatch()

    @property
    def graph(self) -> Graph:
        """The entry graph of the program that runs."""
        return self.debugger.loaded.program.graph

    def step(self) -> Outcome | None:
        """Execute the next statement, and limit the history to its budget."""
        outcome = self.debugger.timeline.step()
        self.debugger.control.keep_house()
        return outcome

    def advance(self) -> Written | None:
        """Run the next statement that writes a value, and return it; None at the end of the program.

        Raises the statement's error with an explanation, and KeyboardInterrupt after a pause.
        """
        machine = self.debugger.control.machine
        while not machine.ended:
            frame = machine.frames[-1]
            executes = frame.code.runs_kernel(frame.pc)
            operands = self._operands(frame) if executes else None
            sources = self._origins.operands(frame) if executes and self._origins is not None else ()
            self._heed(self.step())
            frame = machine.frames[-1]
            if not machine.ended and frame.pc and frame.code.nodes[frame.pc - 1].outputs:
                return self._written(frame, operands, sources)
        return None

    def _operands(self, frame: Frame) -> tuple[Any, ...]:
        contents = [frame.slots[slot] for slot in frame.code.operands[frame.pc]]
        return tuple(map(copied, contents) if self.debugger.timeline.overwrites else contents)

    def _heed(self, outcome: Outcome | None) -> None:
        debugger, control = self.debugger, self.debugger.control
        if isinstance(outcome, Failed):
            frame = debugger.control.machine.frames[-1]
            error = debugger.control.judge.explain(outcome.error, frame, frame.pc)
            error.message = f"{self.title}: {error.message}"
            raise error from outcome.error
        control.check_limits(f"{self.title}: ")

    def _written(
        self, frame: Frame, operands: tuple[Any, ...] | None, sources: tuple[Source, ...]
    ) -> Written:
        debugger = self.debugger
        pc, to_host = frame.pc - 1, debugger.backend.to_host
        key = key_of(debugger.control.machine.frames, pc)
        contents = [frame.slots[slot] for slot in written_slots(frame) if frame.code.names[slot]]
        if self._origins is not None:
            self._origins.results(key, contents)
        if debugger.timeline.overwrites:
            freed = debugger.timeline.standing
            contents = [FREED if freed(content) else copied(content) for content in contents]
        else:
            contents = [to_host(content) for content in contents]
        return Written(key, frame.code, pc, debugger.control.machine.tick, tuple(contents), operands, sources)

    def all(self) -> Iterator[Written]:
        """Yield the remaining statements that write a value."""
        while (found := self.advance()) is not None:
            yield found

    def origin_of(self, result: WrittenResult) -> WrittenResult:
        """Return the result of the statement that computed a value passed on by calls and blocks."""
        return result if self._origins is None else self._origins.passed_on.get(result, result)

    def output_sources(self) -> tuple[Source, ...]:
        """Return the origins of the program's results; it must have ended."""
        frame = self.debugger.control.machine.frames[0]
        return () if self._origins is None else self._origins.operands(frame)

    def outputs(self) -> dict[str, Any]:
        """Return the program's results on the host; it must have ended."""
        to_host = self.debugger.backend.to_host
        return {name: to_host(content) for name, content in (self.debugger.outputs or {}).items()}


@dataclass(frozen=True, slots=True)
class _Spilled:
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class TracedValues:
    """Contents of slots, up to `budget` bytes in memory and the rest in a file.  A context manager."""

    def __init__(self, budget: int) -> None:
        self.spilled = 0
        """Number of tensors written to the file."""
        self._left = budget
        self._file: IO[bytes] | None = None
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        """The offsets of values that were removed from the file, by size."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, content: Any) -> Any:
        """Store a content, and return the handle for `get`."""
        if not isinstance(content, np.ndarray) or content.dtype.hasobject:
            return content
        if content.nbytes <= self._left:
            self._left -= content.nbytes
            return content
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="nncdbg-diff-")  # noqa: SIM115 - closed by __exit__
        self.spilled += 1
        free = self._free.get(content.nbytes)
        offset = self._file.seek(free.pop()) if free else self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(content).tobytes())
        return _Spilled(offset, content.dtype, content.shape)

    def get(self, held: Any) -> Any:
        if not isinstance(held, _Spilled):
            return held
        assert self._file is not None
        self._file.seek(held.offset)
        size = held.dtype.itemsize * int(np.prod(held.shape, dtype=np.int64))
        return np.frombuffer(self._file.read(size), held.dtype).reshape(held.shape)

    def pop(self, held: Any) -> Any:
        """Return the content of a handle that is not used again."""
        content = self.get(held)
        if isinstance(held, _Spilled):
            self._free[content.nbytes].append(held.offset)
        elif isinstance(content, np.ndarray) and not content.dtype.hasobject:
            self._left += content.nbytes
        return content


class RunTrace:
    """The statements of a finished run by key, in order of execution."""

    def __init__(self, side: Side, values: TracedValues) -> None:
        self.side = side
        self._values = values
        self._written: dict[Key, Written] = {}
        self.outputs: tuple[Source, ...] = ()
        """The origins of the program's outputs."""
        self.first: dict[Place, Written] = {}
        """The first visit of each statement."""

    def record(self) -> RunTrace:
        """Run the side to its end.  Raises the side's error, and KeyboardInterrupt after a pause."""
        for written in self.side.all():
            held = replace(
                written,
                contents=tuple(map(self._values.put, written.contents)),
                operands=None if written.operands is None else (),
            )
            self._written[written.key] = held
            self.first.setdefault(written.key[0], held)
        self.outputs = self.side.output_sources()
        return self

    def __contains__(self, key: Key) -> bool:
        return key in self._written

    @property
    def keys(self) -> Sequence[Key]:
        """Return the keys in order of execution."""
        return list(self._written)

    def has(self, result: WrittenResult) -> bool:
        """Return whether the statement was executed and has a result of this index."""
        held = self._written.get(result.key)
        return held is not None and result.index < len(held.contents)

    def at(self, key: Key) -> Written:
        """Return the statement with its contents loaded into memory."""
        held = self._written[key]
        return replace(held, contents=tuple(map(self._values.get, held.contents)))

    def content(self, key: Key, index: int) -> Any:
        return self._values.get(self._written[key].contents[index])

    def operands(self, written: Written) -> list[Any]:
        """Return the operands of a statement of this run on the host; None for an omitted one."""
        return [self.value(source) for source in written.sources]

    def value(self, source: Source) -> Any:
        """Return the content of an operand, on the host."""
        match source:
            case WrittenResult(key, index):
                return self.content(key, index)
            case ProgramInput(name):
                return self.side.debugger.inputs[name]
            case Fixed(content):
                return self.side.debugger.backend.to_host(content)
        return None
