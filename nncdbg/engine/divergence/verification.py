"""Verify bit for bit that observers do not change a run, and that a program is deterministic.

The reference of observers is a run without statistics, catches, guards or fills.  Every other run combines
one allocator with the observers it supports.  Outputs are compared by element type, shape and bytes, so NaNs
with different payloads differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from nncdbg.comparison.report import DiffReport
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.execution.check_results import FAILED, NOT_CHECKED, PASSED, CheckResult
from nncdbg.engine.execution.findings import KINDS
from nncdbg.engine.execution.linking import Allocation
from nncdbg.engine.memory import ALLOCATORS
from nncdbg.engine.memory.debug import LeanAllocation
from nncdbg.engine.memory.inspected import bytes_of
from nncdbg.engine.values.checksum import checksum
from nncdbg.errors import RunError
from nncdbg.expression import spelled
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import type_of
from nncdbg.stats.digests import digest
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import origin_text

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.ir.records import Node, Program

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
        differ = bytes_of(expected) != bytes_of(found)
        position = int(np.flatnonzero(differ.any(axis=1))[0])
    index = tuple(int(each) for each in np.unravel_index(position, expected.shape))
    return OutputDifference(way, name, index, _element(expected, index), _element(found, index))


def _element(array: Any, index: tuple[int, ...]) -> str:
    element = array[index]
    return repr(element) if array.dtype.hasobject else f"{element} (bits 0x{element.tobytes()[::-1].hex()})"


_BITS = Tolerance(ulp=0)

_OTHER_CAUSES = (
    "the step depends on more than its inputs: another number of threads, another version or machine, or a "
    "write that was not recorded"
)


@dataclass(frozen=True, slots=True)
class RecordedOutputs:
    """A comparison of outputs with their recorded checksums: how many have one, and which differ.

    `changed` are the names of outputs with other bits, in the order in which the program computes them;
    `node` is the statement of the first.
    """

    count: int
    changed: tuple[str, ...] = ()
    node: Node | None = None

    def __str__(self) -> str:
        """Return a sentence on the outputs with other bits, of which there is at least one."""
        count = f"{len(self.changed)} of {self.count} output{'s' if self.count > 1 else ''}"
        others = "have" if len(self.changed) > 1 else "has"
        first = f"first {spelled(self.changed[0])}" if self.node is None else f"first {_statement(self)}"
        return f"{count} {others} other bits than the recorded step, {first}"


@dataclass(frozen=True, slots=True)
class DeterminismVerification:
    """The comparison of two runs of a program, bit for bit, and of its outputs with the recorded ones."""

    title: ClassVar[str] = "determinism"

    runs: DiffReport
    recorded: RecordedOutputs

    @property
    def ok(self) -> bool:
        """Whether all outputs have the same bits.

        Another value may differ without effect on them, such as memory that a kernel uses as a workspace.
        """
        return self.runs.status in ("equal", "intermediate") and not self.recorded.changed

    def __str__(self) -> str:
        if self.ok and not self.runs.equal:
            others = (
                "1 other value differs"
                if self.runs.diverging == 1
                else f"{self.runs.diverging} others differ"
            )
            same = f"a second run has the same bits in all {len(self.runs.outputs)} outputs"
            effect = f"deterministic: {same}; {others} without effect on an output"
            return "\n".join([effect, *self._difference()])
        same = f"a second run has the same bits after each of {counted(self.runs.ops[0], 'statement')}"
        if self.runs.equal and not self.recorded.count:
            return f"deterministic: {same}"
        if self.ok:
            outputs = "output has the recorded" if self.recorded.count == 1 else "outputs have the recorded"
            return f"deterministic: {same}, and {self.recorded.count} {outputs} bits"
        if self.runs.equal:
            return f"not the recorded step: {self.recorded}; {same}\n  {_OTHER_CAUSES}"
        return "\n".join(["not deterministic: a second run has other bits", *self._difference()])

    def _difference(self) -> Iterator[str]:
        match = self.runs.first or next(each for each in self.runs.outputs if each.diverges)
        site, comparison = match.a, match.comparison
        place = f", line {site.line} of @{site.graph}" if site.line is not None else ""
        yield f"  first {spelled(site.value)} {site.type} = {site.op}{place}"
        if site.source:
            yield f"  from {site.source}"
        if comparison is not None:
            size = f", largest difference {comparison.max_abs:.4g}" if comparison.max_abs is not None else ""
            yield f"  {match.excess.count} of {counted(comparison.count, 'element')} differ{size}"
        if self.recorded.changed:
            yield f"  {self.recorded}"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "status": "ok" if self.ok else "differs",
            "first": None if self.runs.first is None else self.runs.first.as_dict(),
            "statements": self.runs.ops[0],
            "recorded": self.recorded.count,
            "changed": list(self.recorded.changed),
        }


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
    known = [name for name in checksums if name in outputs]
    changed = {name for name in known if checksum(outputs[name]) != checksums[name]}
    computed = dict(_computed(debugger.loaded.program, changed))
    ordered = (*computed, *sorted(changed - computed.keys()))
    return RecordedOutputs(len(known), ordered, next(iter(computed.values()), None))


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


def _statement(found: RecordedOutputs) -> str:
    assert found.node is not None
    source = f" ({place})" if (place := origin_text(found.node)) else ""
    return f"{spelled(found.changed[0])} = {found.node.op}{source}"
