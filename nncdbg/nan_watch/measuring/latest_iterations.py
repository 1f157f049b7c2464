"""The history of a loop in the undo log: the carried values of its latest iterations, and the data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.driver_graph import BATCH
from nncdbg.engine.compilation.effects import is_changed_by_sum, parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import FindingRecord
from nncdbg.engine.execution.undo_log import FramePopped
from nncdbg.ir.kinds import Kind
from nncdbg.stats import summarize

if TYPE_CHECKING:
    from nncdbg.engine.execution.machine import Machine

_BLOCK = 1 << 16
"""Elements per block."""


def is_float_tensor(content: Any) -> bool:
    """Return whether a content is a tensor of floats on the host."""
    is_tensor = isinstance(content, (np.ndarray, np.generic)) and not content.dtype.hasobject
    return is_tensor and name_of(content.dtype) in FLOATS


def root_mean_square(content: Any) -> float | None:
    """Return the root of the mean square; None for non-finite contents, and for non-float values."""
    if not is_float_tensor(content):
        return None
    summary = summarize(np.asarray(content))
    if summary.mean is None or summary.std is None or summary.finite < summary.count:
        return None
    return math.hypot(summary.mean, summary.std)


def norm_and_change(old: Any, new: Any) -> tuple[float, float]:
    """Return (norm of `old`, norm of `new` - `old`) of two float tensors of the same shape, in f64."""
    before = change = 0.0
    flat_old, flat_new = np.asarray(old).reshape(-1), np.asarray(new).reshape(-1)
    for start in range(0, flat_old.size, _BLOCK):
        part = flat_old[start : start + _BLOCK].astype(np.float64)
        before = math.hypot(before, float(np.linalg.norm(part)))
        part -= flat_new[start : start + _BLOCK].astype(np.float64)
        change = math.hypot(change, float(np.linalg.norm(part)))
    return before, change


LATEST = 16
"""Latest iterations that are examined."""

STEADY = 0.75
"""Least share of the iterations in which the norm must grow."""

_NEAR = 64
"""Entries of the undo log in which the frame of the latest step is."""


@dataclass(frozen=True, slots=True)
class CarriedCourse:
    """A carried value over the iterations, oldest first.

    `norms` are the finite Euclidean norms, one per iteration and one for the last result;
    `ratios` are the norm of each change divided by the norm of the value before.
    """

    name: str
    norms: list[float]
    learns: bool
    """Whether a gradient changes the value, or the next value is this one plus or minus something."""
    ratios: list[float] = field(default_factory=list)
    shape: tuple[int, ...] = ()

    @property
    def growth(self) -> float:
        """Return the growth factor of the norm if it grew steadily, else 1."""
        if len(self.norms) < 2:
            return 1.0
        first, last = self.norms[0], self.norms[-1]
        rising = sum(1 for a, b in pairwise(self.norms) if b > a)
        steady = rising >= STEADY * (len(self.norms) - 1)
        return last / first if steady and first > 0 else 1.0

    @property
    def gain(self) -> float:
        """Return about how much the value magnifies: its largest singular value, if its elements are random.

        For a vector or a scalar, the root of the mean square.
        """
        width = max(self.shape[0], math.prod(self.shape[1:])) if len(self.shape) > 1 else 1
        return self.norms[-1] * math.sqrt(width / math.prod(self.shape))

    def until(self, iteration: int) -> CarriedCourse:
        """Return the course up to the start of an iteration, counted from the oldest."""
        return CarriedCourse(
            self.name, self.norms[: iteration + 1], self.learns, self.ratios[:iteration], self.shape
        )


class LatestIterations:
    """The latest iterations of the loop around a finding, up to the iteration of the finding.

    `code` is the block of the training steps, else of the innermost loop; `previous` holds the slots of the
    iterations before that of the finding, oldest first, and `current` those of the finding.
    """

    def __init__(self, debugger: Debugger, code: Code, tick: int) -> None:
        self.code = code
        self._debugger = debugger
        self.current, self.previous = _iterations(debugger, code, tick)

    @property
    def is_training(self) -> bool:
        """Return whether the loop is a ``run`` line."""
        return self.code.epoch is not None

    @property
    def first_step(self) -> int:
        """Return the number of the oldest iteration."""
        slots = (*self.previous, self.current)[0]
        return int(slots[1]) if slots is not None else 0

    @cached_property
    def courses(self) -> list[CarriedCourse]:
        """The courses of the carried values with a name, if at least one iteration has ended."""
        return [*self._courses()] if self.previous else []

    def _courses(self) -> Iterator[CarriedCourse]:
        code = self.code
        learned = parameters_of(self._debugger.program) if self.is_training else None
        for index, value in enumerate(code.graph.inputs[1:]):
            after = code.operands[len(code.nodes)][index]
            contents = [self._host(slots[2 + index]) for slots in self.previous]
            # The results of each iteration are the inputs of the next one.
            contents.append(self._host(self.previous[-1][after]))
            norms, ratios = _norms(contents)
            if norms and value.name:
                pc = code.definition[after]
                summed = pc >= 0 and is_changed_by_sum(code.nodes[pc], value.name)
                learns = summed if learned is None else value.name in learned
                yield CarriedCourse(value.name, norms, learns, ratios, np.shape(contents[0]))

    def batches(self) -> Iterator[tuple[str, Any, list[Any]]]:
        """Yield each input of the data: its name, all its samples, and its batches, oldest first.

        A batch is None if the history no longer holds it.
        """
        code = self.code
        entries = [*self.previous, *([self.current] if self.current is not None else [])]
        for pc, node in enumerate(code.nodes):
            if node.op != BATCH or not entries:
                continue
            for source, slot in zip(code.operands[pc][1:], code.result_slots(pc), strict=True):
                batches = [self._host(slots[slot]) for slots in entries]
                held = [each if isinstance(each, (np.ndarray, np.generic)) else None for each in batches]
                yield code.names[slot], self._host(entries[-1][source]), held

    def _host(self, content: Any) -> Any:
        return self._debugger.backend.to_host(content)


def loop_of(sighting: FindingRecord) -> Code | None:
    """Return the block of the training steps around a statement, else of the innermost loop."""
    loops = []
    for statement in (sighting.statement, *reversed(sighting.calls)):
        code: Code | None = statement.code
        while code is not None:
            loops += [code] if code.is_loop else []
            code = code.parent
    return next((each for each in loops if each.epoch is not None), loops[0] if loops else None)


def data_of(code: Code) -> set[str]:
    """Return the names of a driver's inputs and constants that are the data of its ``run`` lines."""
    nodes = [node for bodies in code.bodies.values() for body in bodies for node in body.nodes]
    return {name for node in nodes if node.op == BATCH for name in node.inputs[1:] if isinstance(name, str)}


def step_frame(machine: Machine, code: Code) -> FramePopped | None:
    """Return the frame of the graph that a ``run`` line, whose block is `code`, called last."""
    graph = next(name for node in code.nodes if (name := node.called) is not None)
    popped = (each for each in islice(machine.finished(), _NEAR) if isinstance(each, FramePopped))
    return next((each for each in popped if each.code.path == (graph,)), None)


def maker_of(state: str, code: Code) -> tuple[int, int]:
    """Return the statement of a graph that computes the new value of a state, and which result it is."""
    for pc, node in enumerate(code.nodes):
        names = [value.name for value in node.outputs] if node.kind is Kind.UPDATE else []
        if state in names:
            slot = code.operands[pc][names.index(state)]
            maker = code.definition[slot]
            return (
                (maker, [*code.result_slots(maker)].index(slot)) if maker >= 0 else (pc, names.index(state))
            )
    return len(code.nodes), 0


def _iterations(
    debugger: Debugger, code: Code, tick: int
) -> tuple[Sequence[Any] | None, list[Sequence[Any]]]:
    """Return the slots of the iteration with this tick (None if it is lost), and of the latest before it."""
    machine = debugger.control.machine
    current: Sequence[Any] | None = next((each.slots for each in machine.frames if each.code is code), None)
    previous: list[Sequence[Any]] = []
    for each in machine.finished():
        if each.code is not code:
            continue
        if each.tick > tick:
            current = each.slots
            continue
        later = previous[-1] if previous else current
        if later is not None and int(each.slots[1]) != int(later[1]) - 1:
            break  # It belongs to an earlier run of the loop.
        previous.append(each.slots)
        if len(previous) == LATEST:
            break
    return current, previous[::-1]


def _norms(contents: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the norms of the leading finite contents, and the ratios of the changes between them."""
    norms: list[float] = []
    ratios: list[float] = []
    for index, content in enumerate(contents):
        size = root_mean_square(content)
        if size is None or (norms and np.shape(content) != np.shape(contents[0])):
            break
        if norms:
            before, change = norm_and_change(contents[index - 1], content)
            ratios.append(change / before if before else math.inf if change else 0.0)
        norms.append(size * math.sqrt(np.size(content)))
    return norms, ratios
