"""The starts of the steps of a training: what a restart needs, and a machine made from it.

The steps of all ``run`` lines are numbered on, so that a step has one number in a run: with a line of 100
steps before it, `$step` 3 of the second line is step 103.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from nncdbg.engine.compilation.code import EPOCH, EVICTED, UNSET, Code, last_uses
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.inference.types import common_type, type_of_array
from nncdbg.errors import LoadError
from nncdbg.ir.records import Array, Literal, Node, TensorType
from nncdbg.text.lexemes import name_text

_Number = Annotated[int, Meta(ge=0)]


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

    Raises LoadError if they are not those of a step of the program.
    """
    machine = start.clone()
    driver = machine.frames[0]
    code = driver.code
    machine.frames = [driver]
    try:
        place = msgspec.convert(position, _Position)
    except msgspec.ValidationError as error:
        raise _misfit(f"its position has another form: {error}") from None
    driver.pc = place.pc
    if place.pc > len(code.nodes) or any(
        slot >= len(code.definition) or code.definition[slot] >= place.pc for slot in place.outer.values()
    ):
        raise _misfit("its position is not in the program")
    for slot, written in enumerate(code.definition):
        if 0 <= written < driver.pc:
            driver.slots[slot] = EVICTED
    for key, slot in place.outer.items():
        driver.slots[slot] = to_device(_fitting(tensors, key, None))
    if place.iteration is not None:
        line = next((each for each in lines if each.pc == driver.pc), None)
        if line is None or place.iteration >= line.steps:
            raise _misfit("its position is not in a `run` line of the program")
        machine.frames.append(_loop(driver, line, place, tensors, to_device))
    machine.tick = machine.floor = place.tick
    return machine


class _Position(msgspec.Struct):
    """The position of a checkpoint, as `step_start` makes it, with a known tick."""

    pc: _Number
    tick: _Number
    outer: dict[str, _Number]
    iteration: _Number | None = None
    entered: _Number = 0


def _misfit(why: str) -> LoadError:
    return LoadError(
        f"the checkpoint does not belong to the program: {why}", hint="open another step, or another run"
    )


def _fitting(tensors: Mapping[str, Any], key: str, wanted: object) -> Array:
    """Return a tensor of a checkpoint that cannot be written.  Raises LoadError for another type."""
    if key not in tensors:
        raise _misfit(f'it has no tensor "{key}"')
    array = frozen(tensors[key])
    if isinstance(wanted, TensorType) and common_type(wanted, type_of_array(array)) is None:
        raise _misfit(f'"{key}" is {type_of_array(array)}, and the program has {wanted}')
    return array


def _loop(
    driver: Frame,
    line: NumberedRun,
    place: _Position,
    tensors: Mapping[str, Any],
    to_device: Callable[[Any], Any],
) -> Frame:
    body, iteration = line.body, place.iteration or 0
    loop = Frame(body, body.template.copy(), line.steps)
    loop.iteration, loop.entered = iteration, place.entered
    loop.slots[1] = to_device(np.array(iteration, np.int64))
    for number, value in enumerate(body.graph.inputs[1:]):
        key = f"state/{value.name}"
        key = key if key in tensors else f"moment/{value.name}"
        loop.slots[2 + number] = to_device(_fitting(tensors, key, value.type))
    for source, target in body.captures:
        loop.slots[target] = driver.slots[source]
    for name in (*line.scalars, *line.evaluated):
        series: Any = tensors.get(f"collected/{name}")
        if np.ndim(series) != 1 or len(series) != iteration:
            raise _misfit(f"it does not have one result %{name_text(name)} of each step")
        loop.collected.append([to_device(np.array(each)) for each in series])
    return loop


def frozen(content: Any) -> Array:
    """Return an array with the same elements that cannot be written."""
    array = np.ascontiguousarray(content).reshape(np.shape(content))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
