"""Verify that observers do not change a run: compare outputs with and without them, bit for bit.

The reference is a run without statistics, catches, guards or fills.  Every other run combines one
allocator with the observers it supports.  Outputs are compared by element type, shape and bytes, so
NaNs with different payloads differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from nncdbg.engine.errors import RunError
from nncdbg.engine.execution.check_results import FAILED, NOT_CHECKED, PASSED, CheckResult
from nncdbg.engine.execution.findings import KINDS
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory import ALLOCATORS
from nncdbg.engine.memory.lean import LeanAllocation
from nncdbg.engine.text.lexemes import name_text
from nncdbg.ir.records import type_of

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.stops import Stop

Make: TypeAlias = "Callable[[str | Allocation, bool, bool], Debugger]"
"""``make(allocator, statistics, checks)``: a debugger at its first statement."""

Move: TypeAlias = "Callable[[Debugger], Stop]"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a program: with `statistics`, all kinds caught (`catches`), NaNs tracked (`follows`)."""

    allocator: str
    statistics: bool = False
    catches: bool = False
    follows: bool = False

    def __str__(self) -> str:
        observers = [name for name in ("statistics", "catches", "follows") if getattr(self, name)]
        return ", ".join([f"allocator {self.allocator}", *observers])


REFERENCE = Way("plain")


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The first output that differs in a run with observers.

    `index` is the first element that differs, with its value and bytes in both runs; None if the
    types differ.
    """

    way: Way
    output: str
    index: tuple[int, ...] | None
    expected: str
    found: str

    def __str__(self) -> str:
        place = f"%{name_text(self.output)}" + (f"[{', '.join(map(str, self.index))}]" if self.index else "")
        return f"{place} differs with {self.way}: {self.found}, without observers {self.expected}"


@dataclass(frozen=True, slots=True)
class Verification:
    """The `ways` that were run, and the `digests` by name of the outputs without observers."""

    title: ClassVar[str] = "observers"

    ways: tuple[Way, ...]
    digests: dict[str, str]
    difference: OutputDifference | None
    left: tuple[Way, ...] = ()
    """The ways that were not run, because an output differed before."""

    @property
    def ok(self) -> bool:
        return self.difference is None

    @property
    def checks(self) -> list[CheckResult]:
        """Return the result of each run; the first difference ends the verification."""
        last = "an output of an earlier run differs"
        failed = self.ways[-1:] if self.difference is not None else ()
        return [
            *(CheckResult(str(way), FAILED if way in failed else PASSED) for way in self.ways),
            *(CheckResult(str(way), NOT_CHECKED, last) for way in self.left),
        ]

    def __str__(self) -> str:
        if self.difference is not None:
            return f"observers change the run: {self.difference}"
        count = "1 output is" if len(self.digests) == 1 else f"{len(self.digests)} outputs are"
        names = ", ".join(dict.fromkeys(way.allocator for way in self.ways))
        return f"observers change nothing: {count} bit-equal in {len(self.ways)} runs ({names})"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        first = self.difference
        return {
            "status": "ok" if self.ok else "differs",
            "outputs": self.digests,
            "runs": [str(way) for way in self.ways],
            "checks": [each.as_dict() for each in self.checks],
            "first": None
            if first is None
            else {
                "run": str(first.way),
                "output": first.output,
                "index": None if first.index is None else list(first.index),
                "expected": first.expected,
                "found": first.found,
            },
        }


def verify_observers(make: Make, move: Move, only: str | None = None) -> Verification:
    """Run a program without observers, then with them under each allocator, until an output differs.

    `move` runs a debugger to its end; `only` limits the runs to one allocator.  Raises the error of the
    run without observers, and RunError if only a run with observers fails.
    """
    debugger = _prepared(make, REFERENCE)
    wanted = _finished(debugger, move)
    ways = tuple(way for way in _ways(debugger.backend.on_host) if only in (None, way.allocator))
    digests = {name: digest(content) for name, content in wanted.items()}
    done = []
    for way in ways:
        try:
            found = _finished(_prepared(make, way), move)
        except RunError as error:
            raise RunError(f"the run fails only with {way}: {error.message}") from error
        done.append(way)
        difference = next(_differences(way, wanted, found), None)
        if difference is not None:
            return Verification(tuple(done), digests, difference, ways[len(done) :])
    return Verification(ways, digests, None)


def _ways(on_host: bool) -> Iterator[Way]:
    for allocator in ALLOCATORS if on_host else ("plain",):
        yield Way(allocator)
        yield Way(allocator, statistics=True, catches=True)
        if allocator in ("debug", "plain"):
            yield Way(allocator, statistics=True, follows=True)
    if on_host:
        yield Way("lean", follows=True)


def _prepared(make: Make, way: Way) -> Debugger:
    allocator = LeanAllocation() if way.allocator == "lean" else way.allocator
    debugger = make(allocator, way.statistics, way.catches)
    debugger.uncatch()
    if way.catches:
        debugger.catch(*(kind for kind in KINDS if kind not in debugger.observers.beyond()))
    if way.follows:
        debugger.observers.follow(debugger.control)
    return debugger


def _finished(debugger: Debugger, move: Move) -> dict[str, Any]:
    """Run to the end, past any findings, and return the outputs.  Raises the run's error."""
    stop = move(debugger)
    if stop.error is not None:
        raise stop.error
    if stop.reason == "pause" and not stop.detail:
        raise KeyboardInterrupt
    if debugger.outputs is None:
        raise RunError(
            f"stopped: {stop.detail}", hint="check the program for an endless loop, or raise --max-ops"
        )
    return dict(debugger.outputs)


def _differences(way: Way, wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[OutputDifference]:
    for name, expected in wanted.items():
        if digest(expected) != digest(found[name]):
            yield _first_difference(way, name, expected, found[name])


def _first_difference(way: Way, name: str, expected: Any, found: Any) -> OutputDifference:
    types = str(type_of(expected)), str(type_of(found))
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray) or types[0] != types[1]:
        return OutputDifference(way, name, None, types[0], types[1])
    if expected.dtype.hasobject:
        position = int(np.flatnonzero(expected.reshape(-1) != found.reshape(-1))[0])
    else:
        differ = _bytes(expected) != _bytes(found)
        position = int(np.flatnonzero(differ.any(axis=1))[0])
    index = tuple(int(each) for each in np.unravel_index(position, expected.shape))
    return OutputDifference(way, name, index, _element(expected, index), _element(found, index))


def _bytes(array: Any) -> Any:
    """Return the bytes of an array, one row per element."""
    return np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)


def _element(array: Any, index: tuple[int, ...]) -> str:
    element = array[index]
    return repr(element) if array.dtype.hasobject else f"{element} (bits 0x{element.tobytes()[::-1].hex()})"


def digest(content: Any) -> str:
    """Return a digest of a value's type, shape and bytes; of a sequence, of its items in order."""
    found = hashlib.blake2b(digest_size=16)
    _add(found, content)
    return found.hexdigest()


def _add(found: Any, content: Any) -> None:
    if content is None or isinstance(content, (list, tuple)):
        found.update(f"{type(content).__name__} {len(content or ())}\n".encode())
        for item in content or ():
            _add(found, item)
        return
    array = np.asarray(content)
    found.update(f"{array.dtype} {array.shape}\n".encode())
    if array.dtype.hasobject:
        found.update("\0".join(map(repr, array.reshape(-1).tolist())).encode())
    else:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
