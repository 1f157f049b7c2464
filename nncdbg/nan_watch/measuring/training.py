"""Classify a NaN in a training loop: a faulty op, a high learning rate, a large loss scale, or growth.

The journal of the run holds the carried values of a loop, so this costs nothing until a NaN originates.  For
the steps of a ``run`` line, these are the states of the training.  Rules:

* If the norm of a carried value grew over the last iterations, the learning rate is too high, provided
  the loop learns (it adds something to the carried value, or an optimizer computes it); otherwise the value
  just grew.
* Else, if an f16 or f8 result that was multiplied by a large power of two is infinite, the loss scale is
  too large.  The cotangent of a call of a gradient is such a factor.
* Else, if the carried values were stable, the op itself is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import Code
from nncdbg.engine.compilation.trained import is_changed_by_sum, parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.sightings import Sighting
from nncdbg.engine.dtypes import FLOATS, NUMPY, name_of
from nncdbg.engine.execution.transfers import IterationEnded
from nncdbg.stats import summarize

_LATEST = 16
"""Latest iterations that are examined."""

_GROWN = 10.0
"""Least growth factor of a norm over these iterations for a trend."""

_JUMP = 1e3
"""Least growth factor of a norm in a single iteration."""

_STEADY = 0.75
"""Least share of the iterations in which the norm must grow."""

_LEAST_SCALE = 64.0
"""Least power of two that counts as a loss scale."""

LEARNING_RATE, LOSS_SCALE, OP = "learning rate too high", "loss scale too large", "faulty op"
GROWTH = "growth"


@dataclass(frozen=True, slots=True)
class TrainingVerdict:
    """`name` is one of the four; `evidence` is the observation, `hint` the fix ("" for that of the op)."""

    name: str
    evidence: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Course:
    """The finite norms of a carried value, one per iteration, oldest first."""

    name: str
    norms: list[float]
    learns: bool
    """Whether the next value is this one plus or minus something."""

    @property
    def growth(self) -> float:
        """Return the growth factor of the norm if it grew steadily, else 1."""
        if len(self.norms) < 2:
            return 1.0
        first, last = self.norms[0], self.norms[-1]
        rising = sum(1 for a, b in pairwise(self.norms) if b > a)
        steady = rising >= _STEADY * (len(self.norms) - 1)
        return last / first if steady and first > 0 else 1.0


def judge_loop(debugger: Debugger, sighting: Sighting) -> TrainingVerdict | None:
    """Return the cause of an origin in a loop by the loop's history; None without a loop or a history."""
    if not sighting.iteration or sighting.role != "birth" or sighting.kind not in ("nan", "inf"):
        return None
    if not debugger.timeline.retains:
        return None
    steps = _iterations(debugger, sighting)
    courses = [course for course in _courses(debugger, steps) if len(course.norms) > 1]
    grown = max(filter(_is_grown, courses), key=lambda each: (each.learns, each.growth), default=None)
    if grown is not None:
        return _learning_rate(grown) if grown.learns else _growth(grown)
    scale = _loss_scale(sighting, debugger)
    if scale is not None:
        return scale
    return _op(courses) if courses else None


def _is_grown(course: _Course) -> bool:
    """Return whether a norm shows a trend; one iteration is enough for a jump."""
    return course.growth >= (_GROWN if len(course.norms) > 2 else _JUMP)


def _learning_rate(course: _Course) -> TrainingVerdict:
    hint = "use a smaller learning rate, or clip the gradient"
    return TrainingVerdict(LEARNING_RATE, f"{LEARNING_RATE}: {_grew(course)}", hint)


def _growth(course: _Course) -> TrainingVerdict:
    return TrainingVerdict(GROWTH, _grew(course), "")


def _grew(course: _Course) -> str:
    count = len(course.norms) - 1
    first, last = course.norms[0], course.norms[-1]
    return (
        f"the norm of %{course.name} grew from {first:.4g} to {last:.4g} "
        f"over the previous {count} iterations, by {course.growth ** (1 / count):.3g} times each"
    )


def _op(courses: list[_Course]) -> TrainingVerdict | None:
    course = max(courses, key=lambda each: each.norms[-1])
    low, high = min(course.norms), max(course.norms)
    if high > _GROWN * low:
        return None
    norms = f"the norm of %{course.name} was {low:.4g} to {high:.4g}"
    return TrainingVerdict(OP, f"{OP}: the carried values were steady before ({norms})", "")


def _loop_of(sighting: Sighting) -> Code | None:
    """Return the block of the training steps around a statement, else of the innermost loop."""
    loops = []
    for statement in (sighting.statement, *reversed(sighting.calls)):
        code: Code | None = statement.code
        while code is not None:
            loops += [code] if code.is_loop else []
            code = code.parent
    return next((each for each in loops if each.epoch is not None), loops[0] if loops else None)


def _iterations(debugger: Debugger, sighting: Sighting) -> list[tuple[Code, list[Any]]]:
    """Return (block, slots) of the latest iterations of the loop around a finding, oldest first."""
    found: list[tuple[Code, list[Any]]] = []
    loop = _loop_of(sighting)
    for each in debugger.control.machine.finished():
        if each.tick > sighting.tick or not isinstance(each, IterationEnded) or each.code is not loop:
            continue
        if len(found) == _LATEST:
            break
        found.append((each.code, each.slots))
        if int(each.slots[1]) == 0:
            break
    return found[::-1]


def _courses(debugger: Debugger, steps: list[tuple[Code, list[Any]]]) -> Iterator[_Course]:
    if not steps:
        return
    code = steps[0][0]
    learned = parameters_of(debugger.loaded.program) if code.epoch is not None else None
    for index, value in enumerate(code.graph.inputs[1:]):
        contents = [debugger.backend.to_host(slots[2 + index]) for _, slots in steps]
        # The results of each iteration are the inputs of the next one.
        contents.append(debugger.backend.to_host(steps[-1][1][code.operands[len(code.nodes)][index]]))
        norms = [norm for content in contents if (norm := _norm(content)) is not None]
        if norms and value.name:
            after = code.operands[len(code.nodes)][index]
            learns = _is_updated(code, value.name, after) if learned is None else value.name in learned
            yield _Course(value.name, norms, learns)


def _is_updated(code: Code, name: str, after: int) -> bool:
    """Return whether the next carried value is a sum or difference with the current one, of this name."""
    pc = code.definition[after]
    return pc >= 0 and is_changed_by_sum(code.nodes[pc], name)


def _norm(content: Any) -> float | None:
    """Return the root of the mean square; None for non-finite contents, and for non-float values."""
    if not isinstance(content, (np.ndarray, np.generic)) or content.dtype.hasobject:
        return None
    if name_of(content.dtype) not in FLOATS:
        return None
    summary = summarize(np.asarray(content))
    if summary.mean is None or summary.std is None or summary.finite < summary.count:
        return None
    return math.hypot(summary.mean, summary.std)


def _loss_scale(sighting: Sighting, debugger: Debugger) -> TrainingVerdict | None:
    """Return a verdict if an infinite narrow result contains a factor that looks like a loss scale."""
    if sighting.kind != "inf":
        return None
    code, pc = sighting.statement.code, sighting.statement.pc
    slot = code.slot_of.get(sighting.value)
    type_ = code.types.get(sighting.value) if slot is not None else None
    dtype = getattr(type_, "dtype", "")
    if dtype not in FLOATS or NUMPY[dtype].itemsize > 2:
        return None
    for name, factor in (*_factors(code, pc), *_cotangents(sighting, debugger)):
        shown = f"%{name} = {factor:g}" if name else f"{factor:g}"
        evidence = f"{LOSS_SCALE}: {dtype} cannot represent its factor {shown}"
        return TrainingVerdict(LOSS_SCALE, evidence, "use a smaller or a dynamic loss scale")
    return None


def _is_scale(factor: float) -> bool:
    """Return whether a factor looks like a loss scale."""
    return factor >= _LEAST_SCALE and math.frexp(factor)[0] == 0.5


def _cotangents(sighting: Sighting, debugger: Debugger) -> Iterator[tuple[str, float]]:
    """Return the loss scales that the calls around a statement give to gradients, the innermost first."""
    gradients = {f"@{line.name}" for line in debugger.program.backwards}
    states = {state.value.name for state in debugger.program.states}
    for call in reversed(sighting.calls):
        if call.code.nodes[call.pc].op not in gradients:
            continue
        for slot in call.code.operands[call.pc]:
            content = _content(debugger, call.code, slot)
            if isinstance(content, (np.ndarray, np.generic)) and content.size == 1:
                factor = abs(float(content.reshape(())))
                if _is_scale(factor):
                    # A number in the call has a generated name.
                    name = call.code.names[slot]
                    yield name if name in states else "", factor


def _content(debugger: Debugger, code: Code, slot: int) -> Any:
    """Return a constant of a block, else what its latest frame has in a slot."""
    machine = debugger.control.machine
    for frame in (*reversed(machine.frames), *machine.finished()):
        if frame.code is code:
            return debugger.backend.to_host(frame.slots[slot])
    return code.template[slot]


def _factors(code: Code, pc: int) -> Iterator[tuple[str, float]]:
    """Return the large powers of two that a statement's operands were multiplied by, nearest first."""
    waiting, seen = [pc], {pc}
    while waiting:
        current = waiting.pop(0)
        for slot in code.operands[current]:
            content = code.template[slot]
            if code.nodes[current].op == "Mul" and isinstance(content, np.ndarray) and content.size == 1:
                factor = abs(float(content.reshape(())))
                if _is_scale(factor):
                    yield code.names[slot], factor
            before = code.definition[slot]
            if before >= 0 and before not in seen:
                seen.add(before)
                waiting.append(before)
