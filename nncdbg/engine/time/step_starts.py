"""The starts of the steps of a training: what a restart needs, and a machine made from it.

The steps of all ``run`` lines are numbered on, so that a step has one number in a run: with a line of 100
steps before it, `$step` 3 of the second line is step 103.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nncdbg.engine.compilation.code import EPOCH, EVICTED, UNSET, Code
from nncdbg.engine.compilation.liveness import last_uses
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.graph import Array, Literal, Node


@dataclass(frozen=True, slots=True, eq=False)
class NumberedRun:
    """A ``run`` line of a driver: its statement `pc`, and the numbers of its first step and epoch.

    `steps` is the number of its steps, and `per_epoch` the steps of an epoch; without data, the line is one
    epoch.  `scalars` are the names of the collected results of each step, and `evaluated` those of the
    results of each epoch.
    """

    pc: int
    body: Code
    first_step: int
    first_epoch: int
    steps: int
    per_epoch: int
    scalars: tuple[str, ...]
    evaluated: tuple[str, ...]

    @property
    def carried(self) -> int:
        """The number of states that the steps carry."""
        return len(self.body.graph.inputs) - 1

    def step(self, iteration: int) -> int:
        """Return the number of the step of an iteration."""
        return self.first_step + iteration

    def epoch(self, iteration: int) -> int:
        """Return the number of the epoch of an iteration."""
        return self.first_epoch + iteration // self.per_epoch

    def ends_epoch(self, iteration: int) -> bool:
        """Return whether the evaluations follow the iteration."""
        return (iteration + 1) % self.per_epoch == 0

    def collected(self, driver: Frame, loop: Frame | None) -> list[Any]:
        """Return the results of the step that has just ended, then those of the evaluations.

        `loop` is None after the last step.
        """
        if loop is not None:
            return [items[-1] for items in loop.collected]
        return [series[-1] for series in driver.code.results_of(self.pc, driver.slots)[self.carried :]]


def lines_of(driver: Code) -> tuple[NumberedRun, ...]:
    """Return the ``run`` lines of a driver, in order; none for other code."""
    found: list[NumberedRun] = []
    step = epoch = 0
    for pc, node in enumerate(driver.nodes):
        if EPOCH not in node.attributes:
            continue
        (body,) = driver.bodies[pc]
        times = node.inputs[0]
        assert isinstance(times, Literal)
        scalars, evaluated = _result_names(driver, node, len(body.graph.inputs) - 1)
        per_epoch = body.epoch or int(times.data) or 1
        found.append(NumberedRun(pc, body, step, epoch, int(times.data), per_epoch, scalars, evaluated))
        step += int(times.data)
        epoch += -(-int(times.data) // per_epoch)
    return tuple(found)


def _result_names(driver: Code, loop: Node, carried: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the results of each step, and of those of each epoch.

    The driver selects the latter from a series with one element per step.
    """
    selected = {node.inputs[0]: node.outputs[0].name for node in driver.nodes if node.op == "Slice"}
    names = [value.name for value in loop.outputs[carried:]]
    return (
        tuple(name for name in names if name not in selected),
        tuple(selected[name] for name in names if name in selected),
    )


def line_at(lines: tuple[NumberedRun, ...], step: int) -> NumberedRun:
    """Return the line that executes a step; for the end of the last line, that line."""
    return lines[max(0, bisect_right([each.first_step for each in lines], step) - 1)]


def ended_steps(machine: Machine) -> int:
    """Return the number of steps of all ``run`` lines that have ended; 0 for a program without."""
    driver, *loops = machine.frames
    ended = 0
    for line in lines_of(driver.code):
        if line.pc < driver.pc:
            ended += line.steps
        elif line.pc == driver.pc and loops and loops[0].code is line.body:
            ended += loops[0].iteration
    return ended


@dataclass(frozen=True, slots=True, eq=False)
class StepStart:
    """The state of a training before step `step`: `position` can be written as JSON, `tensors` are by name.

    Names of tensors begin with a kind: `state`, `moment` (a state that belongs to another), `collected` (the
    results of the steps before), `value` (another value of the driver).
    """

    step: int
    epoch: int | None
    position: dict[str, Any]
    tensors: dict[str, Any]


def step_start(
    machine: Machine,
    lines: tuple[NumberedRun, ...],
    moments: Mapping[str, str | None],
    *,
    copy: bool,
) -> StepStart:
    """Return the start of the step that a machine is about to execute, or its state after the last step.

    The machine has just begun an iteration of a ``run`` line, or has left the loop of one.  `moments` maps
    each state to the one that it belongs to.  With `copy`, arrays are copied, because the machine overwrites
    them.
    """
    driver, *loops = machine.frames
    tensors: dict[str, Any] = {}
    outer: dict[str, int] = {}
    position: dict[str, Any] = {"pc": driver.pc, "tick": machine.tick, "outer": outer}
    line = next((each for each in lines if each.pc == driver.pc), None) if loops else None
    step, epoch = sum(each.steps for each in lines if each.pc < driver.pc), None
    if line is not None:
        loop = loops[0]
        step, epoch = line.step(loop.iteration), line.epoch(loop.iteration)
        position |= {"iteration": loop.iteration, "entered": loop.entered}
        for value, content in zip(line.body.graph.inputs[1:], loop.slots[2:], strict=False):
            tensors[_state(value.name, moments)] = content
        for name, items in zip((*line.scalars, *line.evaluated), loop.collected, strict=True):
            tensors[f"collected/{name}"] = items.copy()
    slots = _live(driver, line)
    if line is None and not copy:
        # The states at the end, which no statement reads.
        latest = (driver.code.slot_at(name, driver.pc) for name in moments)
        slots = [*dict.fromkeys([*slots, *(slot for slot in latest if slot is not None)])]
    for slot in slots:
        name = driver.code.names[slot]
        key = _state(name, moments) if name in moments else f"value/{name}"
        if driver.slots[slot] is UNSET or driver.slots[slot] is EVICTED:
            continue
        key = key if key not in tensors else f"value/{name}.{slot}"
        outer[key], tensors[key] = slot, driver.slots[slot]
    if copy:
        tensors = {
            key: each.copy() if isinstance(each, np.ndarray) else each for key, each in tensors.items()
        }
    return StepStart(step, epoch, position, tensors)


def _state(name: str, moments: Mapping[str, str | None]) -> str:
    return f"{'moment' if moments.get(name) else 'state'}/{name}"


def _live(driver: Frame, line: NumberedRun | None) -> list[int]:
    """Return the slots of a driver that its statements have set and that it reads later.

    Inside a loop, no statement reads the states with which it began.
    """
    last = last_uses(driver.code)
    captured = {outer for outer, _ in line.body.captures} if line is not None else ()
    return [
        slot
        for slot, written in enumerate(driver.code.definition)
        if 0 <= written < driver.pc
        and (last[slot] > driver.pc or (last[slot] == driver.pc and (line is None or slot in captured)))
    ]


def restored(
    start: Machine,
    lines: tuple[NumberedRun, ...],
    position: Mapping[str, Any],
    tensors: Mapping[str, Any],
    to_device: Callable[[Any], Any],
) -> Machine:
    """Return a machine at the start of a step, with the inputs of the machine `start` of the same program.

    Raises KeyError if a tensor is missing.
    """
    machine = start.clone()
    driver = machine.frames[0]
    machine.frames = [driver]
    driver.pc = position["pc"]
    for slot, written in enumerate(driver.code.definition):
        if 0 <= written < driver.pc:
            driver.slots[slot] = EVICTED
    for key, slot in position["outer"].items():
        driver.slots[slot] = to_device(frozen(tensors[key]))
    if "iteration" in position:
        line = next(each for each in lines if each.pc == driver.pc)
        machine.frames.append(_loop(driver, line, position, tensors, to_device))
    machine.tick = machine.floor = position["tick"]
    return machine


def _loop(
    driver: Frame,
    line: NumberedRun,
    position: Mapping[str, Any],
    tensors: Mapping[str, Any],
    to_device: Callable[[Any], Any],
) -> Frame:
    body, iteration = line.body, position["iteration"]
    loop = Frame(body, body.template.copy(), line.steps)
    loop.iteration, loop.entered = iteration, position["entered"]
    loop.slots[1] = to_device(np.array(iteration, np.int64))
    for number, value in enumerate(body.graph.inputs[1:]):
        key = f"state/{value.name}"
        content = tensors[key if key in tensors else f"moment/{value.name}"]
        loop.slots[2 + number] = to_device(frozen(content))
    for source, target in body.captures:
        loop.slots[target] = driver.slots[source]
    loop.collected = [
        [to_device(np.array(each)) for each in tensors[f"collected/{name}"]]
        for name in (*line.scalars, *line.evaluated)
    ]
    return loop


def frozen(content: Any) -> Array:
    """Return an array with the same elements that cannot be written."""
    array = np.ascontiguousarray(content).reshape(np.shape(content))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
