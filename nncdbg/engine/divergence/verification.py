"""Verify bit for bit that observers do not change a run, and that a program is deterministic.

The reference of observers is a run without statistics, catches, guards or fills.  Every other run combines
one allocator with the observers it supports.  Outputs are compared by element type, shape and bytes, so NaNs
with different payloads differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.comparison.measure import compare_by_name
from nncdbg.comparison.report import DiffReport
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.comparison.verification import (
    DeterminismVerification,
    OutputDifference,
    RecordedOutputs,
    Verification,
    Way,
)
from nncdbg.engine.execution.findings import KINDS
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory import ALLOCATORS
from nncdbg.engine.memory.debug import LeanAllocation
from nncdbg.engine.memory.inspected import bytes_of
from nncdbg.engine.values.checksum import checksum
from nncdbg.errors import RunError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import type_of
from nncdbg.stats.digests import digest

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.ir.records import Node, Program

Make: TypeAlias = "Callable[[str | Allocation, bool, bool], Debugger]"
"""``make(allocator, statistics, checks)``: a debugger at its first statement."""

Move: TypeAlias = "Callable[[Debugger], Stop]"


REFERENCE = Way("plain")


def verify_observers(make: Make, move: Move, only: str | None = None) -> Verification:
    """Run a program without observers, then with them under each allocator, until an output differs.

    `move` runs a debugger to its end; `only` limits the runs to one allocator.  Raises the error of the
    run without observers, and RunError if only a run with observers fails.
    """
    debugger = _prepared(make, REFERENCE)
    wanted = _finished(debugger, move)
    ways = tuple(way for way in _ways(debugger.backend.on_host) if only in (None, way.allocator))
    digests = _digests(wanted)
    done = []
    for way in ways:
        try:
            found = _finished(_prepared(make, way), move)
        except RunError as error:
            raise RunError(f"the run fails only with {way}: {error.message}") from error
        done.append(way)
        if changed := compare_by_name(digests, _digests(found)).changed:
            difference = _first_difference(way, changed[0], wanted[changed[0]], found[changed[0]])
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


def _digests(outputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest(content) for name, content in outputs.items()}


def _first_difference(way: Way, name: str, expected: Any, found: Any) -> OutputDifference:
    types = str(type_of(expected)), str(type_of(found))
    if not isinstance(expected, np.ndarray) or not isinstance(found, np.ndarray) or types[0] != types[1]:
        return OutputDifference(way, name, None, types[0], types[1])
    if expected.dtype.hasobject:
        position = int(np.flatnonzero(expected.reshape(-1) != found.reshape(-1))[0])
    else:
        differ = bytes_of(expected) != bytes_of(found)
        position = int(np.flatnonzero(differ.any(axis=1))[0])
    index = tuple(int(each) for each in np.unravel_index(position, expected.shape))
    return OutputDifference(way, name, index, _element(expected, index), _element(found, index))


def _element(array: Any, index: tuple[int, ...]) -> str:
    element = array[index]
    return repr(element) if array.dtype.hasobject else f"{element} (bits 0x{element.tobytes()[::-1].hex()})"


_BITS = Tolerance(ulp=0)


def verify_determinism(
    make: Callable[[], Debugger],
    checksums: Mapping[str, str],
    run: Callable[[Lockstep], DiffReport] | None = None,
) -> DeterminismVerification:
    """Run two debuggers that `make` returns, statement by statement, and compare bits.

    `checksums` are those of recorded outputs by name; `run` runs the comparison.  Raises the error of
    a statement that fails, and KeyboardInterrupt after a pause.
    """
    from nncdbg.engine.divergence.lockstep import Lockstep

    a, b = make(), make()
    report = (run or Lockstep.run)(Lockstep(a, b, _BITS))
    return DeterminismVerification(report, recorded_outputs(a, checksums))


def recorded_outputs(debugger: Debugger, checksums: Mapping[str, str]) -> RecordedOutputs:
    """Compare the outputs of a debugger that has ended with recorded checksums by name."""
    outputs: Mapping[str, Any] = debugger.outputs or {}
    found = compare_by_name(
        checksums, {name: checksum(outputs[name]) for name in checksums if name in outputs}
    )
    changed = {*found.changed}
    computed = dict(_computed(debugger.loaded.program, changed))
    ordered = (*computed, *sorted(changed - computed.keys()))
    return RecordedOutputs(found.compared, ordered, next(iter(computed.values()), None))


def _computed(program: Program, names: set[str]) -> Iterator[tuple[str, Node]]:
    """Yield the statement that computes each of these values, in the order of execution.

    For a state, it is the one that computes the new value of the update.
    """
    makers: dict[str, Node] = {}
    for node in program.executed(program.graph):
        updates = node.inputs if node.kind is Kind.UPDATE else (None,) * len(node.outputs)
        for value, new in zip(node.outputs, updates, strict=False):
            maker = makers.get(new, node) if isinstance(new, str) else node
            makers.setdefault(value.name, maker)
            if value.name in names:
                yield value.name, maker
