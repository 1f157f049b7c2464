"""Find the smallest program and inputs that still show a finding, by delta debugging.

The run up to the finding is recorded as a straight line and cut near the finding; removed statements become
inputs with their values.  Delta debugging then removes statements, and after that indices and elements of the
data.  Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.errors import RunError
from nncdbg.ir.records import Array, Program
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.reduction.case import ReducedCase, case_of_program
from nncdbg.nan_watch.reduction.finding_identity import Probe
from nncdbg.nan_watch.reduction.straight_line import lines_of

T = TypeVar("T")


def minimized(items: Sequence[T], test: Callable[[Sequence[T]], bool], most: int | None = None) -> list[T]:
    """Return a part of `items`, in order, from which no single item can be removed.

    `test` returns whether a part is sufficient; all items together must be.  After `most` tests, the smallest
    part so far is returned.
    """
    current, parts, left = list(items), 2, most
    while current:
        parts = min(parts, len(current))
        for candidate, following in _candidates(current, parts):
            if left is not None:
                if left <= 0:
                    return current
                left -= 1
            if test(candidate):
                current, parts = candidate, following
                break
        else:
            if parts >= len(current):
                return current
            parts *= 2
    return current


def _candidates(current: list[T], parts: int) -> list[tuple[list[T], int]]:
    """Return each part alone, then all but each part, with the number of parts to divide it into next."""
    edges = [len(current) * at // parts for at in range(parts + 1)]
    slices = [slice(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    alone = [(current[each], 2) for each in slices] if parts > 1 else []
    without = [(current[: each.start] + current[each.stop :], max(parts - 1, 2)) for each in slices]
    # With two parts, removing one leaves the other.
    return alone if parts == 2 else [*alone, *without]


_PROBES = 60
"""Most runs per axis or tensor."""
_ELEMENTS = 1 << 14
"""Most elements of a tensor whose single elements are set to 0."""

Try = Callable[[ReducedCase], bool]


def shrunk(case: ReducedCase, attempt: Try) -> ReducedCase:
    """Return the case with the least data for which `attempt` finds the same.

    After fewer indices along the axes, zeros or ones replace tensors, else zeros replace single elements.
    """
    case = _shorter(case, attempt)
    for name in _data(case):
        case = _zeros_or_ones(case, name, attempt) or _sparse(case, name, attempt)
    return case


def _data(case: ReducedCase) -> dict[str, Array]:
    held = {**case.inputs, **case.constants}
    return {
        name: array for name, array in held.items() if isinstance(array, np.ndarray) and array.dtype != object
    }


def _with(case: ReducedCase, changed: Mapping[str, Array]) -> ReducedCase:
    return replace(
        case,
        inputs={name: changed.get(name, content) for name, content in case.inputs.items()},
        constants={name: changed.get(name, array) for name, array in case.constants.items()},
    )


# -- axes ------------------------------------------------------------------------------------------


def _shorter(case: ReducedCase, attempt: Try) -> ReducedCase:
    """Remove indices: from all axes of one size together, as they are often related, then from each axis."""
    sizes = sorted({size for array in _data(case).values() for size in array.shape if size > 1}, reverse=True)
    for size in sizes:
        arrays = _data(case).items()
        axes = [
            (name, axis) for name, array in arrays for axis in range(array.ndim) if array.shape[axis] == size
        ]
        case = _cut(case, attempt, axes, size)
    for name, array in _data(case).items():
        for axis in range(array.ndim):
            size = _data(case)[name].shape[axis]
            if size > 1:
                case = _cut(case, attempt, [(name, axis)], size)
    return case


def _cut(case: ReducedCase, attempt: Try, axes: Sequence[tuple[str, int]], size: int) -> ReducedCase:
    """Return the case with the fewest indices along these axes of equal size."""
    best = case

    def test(indices: Sequence[int]) -> bool:
        nonlocal best
        if not indices:
            return False
        data, changed = _data(case), dict[str, Array]()
        for name, axis in axes:
            changed[name] = np.take(changed.get(name, data[name]), list(indices), axis)
        smaller = _with(case, changed)
        if not attempt(smaller):
            return False
        best = smaller
        return True

    minimized(range(size), test, _PROBES)
    return best


# -- elements ----------------------------------------------------------------------------------------


def _zeros_or_ones(case: ReducedCase, name: str, attempt: Try) -> ReducedCase | None:
    array = _data(case)[name]
    for make in (np.zeros_like, np.ones_like):
        plain: Any = make(array)
        if _same(array, plain):
            return case
        simpler = _with(case, {name: plain})
        if attempt(simpler):
            return simpler
    return None


def _sparse(case: ReducedCase, name: str, attempt: Try) -> ReducedCase:
    """Set as many elements to 0 as possible."""
    array = _data(case)[name]
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        places = [int(at) for at in np.flatnonzero(flat != 0)] if array.size <= _ELEMENTS else []
    best = case

    def test(kept: Sequence[int]) -> bool:
        nonlocal best
        sparse = np.zeros_like(flat)
        sparse[list(kept)] = flat[list(kept)]
        simpler = _with(case, {name: sparse.reshape(array.shape)})
        if not attempt(simpler):
            return False
        best = simpler
        return True

    minimized(places, test, _PROBES)
    return best


def _same(a: Array, b: Array) -> bool:
    if name_of(a.dtype) in FLOATS:
        with np.errstate(all="ignore"):
            return bool(np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True))
    return bool(np.array_equal(a, b))


ROUNDS = 4
"""Most passes over statements and data."""


@dataclass(frozen=True, slots=True)
class ReductionProgress:
    """The progress of a reduction."""

    phase: str
    runs: int
    statements: int
    bytes: int


@dataclass(slots=True)
class Reduction:
    """Reduces step by step.  `best` is the smallest case so far, None before the first.

    `kept` is called with every new best case, `on_progress` with the progress.
    """

    probe: Probe
    kept: Callable[[ReducedCase], None] = lambda case: None
    on_progress: Callable[[ReductionProgress], None] = lambda progress: None
    best: ReducedCase | None = None
    phase: str = "looking for the finding"

    def start(self, program: Program, inputs: Mapping[str, Any], finding: WatchFinding) -> None:
        """Find a first case: the smallest surroundings of a watch's finding that show it.

        Raises RunError if the finding does not recur.
        """
        self.probe.asked = lambda runs: self._tell()
        self._enter("cutting near the finding")
        for line in lines_of(self.probe.trace(program, inputs, finding)):
            for kept in line.surroundings():
                if self._try(line.case(kept)):
                    return
        if not self._try(case_of_program(program, inputs)):
            raise RunError(
                "the finding did not occur again",
                hint="check whether a kernel uses random numbers or the time",
            )

    def finish(self) -> ReducedCase:
        """Make the first case as small as possible."""
        assert self.best is not None
        self.probe.asked = lambda runs: self._tell()
        for _ in range(ROUNDS):
            before = _size(self.best)
            self._fewer_statements()
            self._enter("reducing the data")
            shrunk(self.best, self._try)
            if _size(self.best) == before:
                break
        return self.best

    def _fewer_statements(self) -> None:
        """Remove statements other than the finding's own by delta debugging."""
        assert self.best is not None
        self._enter("reducing the statements")
        finding = self.probe.finding(self.best)
        assert finding is not None
        for line in lines_of(self.probe.trace(self.best.program(), self.best.inputs, finding)):
            everything = line.case(range(len(line.nodes)))
            if everything.statements <= self.best.statements and self.probe(everything):
                break
        else:
            return
        others = [at for at in sorted(line.distances()) if at != len(line.nodes) - 1]
        minimized(others, lambda part: self._try(line.case(part)))

    def _try(self, case: ReducedCase) -> bool:
        """Return whether a case shows the finding; if it does, make it the best one."""
        if not self.probe(case):
            return False
        self.best = case
        self.kept(case)
        self._tell()
        return True

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._tell()

    def _tell(self) -> None:
        best = self.best
        statements, size = (best.statements, best.bytes) if best is not None else (0, 0)
        self.on_progress(ReductionProgress(self.phase, self.probe.runs, statements, size))


def _size(case: ReducedCase) -> tuple[int, int]:
    return case.statements, case.bytes
