"""Units of a layer (channels, neurons): dead units, and the saturated share of an activation.

Only these quantities read a result again, and only results of activations.

A unit is dead over the steps of a training if it is flat for every sample. A unit whose results are all 0
after ReLU has no gradient, so it does not learn. The results of the latest steps are in the undo log, so
counting changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.execution.undo_log import Finished, Position, finished_visits
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, Program
from nncdbg.ir.walk import graphs_called

if TYPE_CHECKING:
    from nncdbg.engine.backends import Backend

EDGE = 0.01
"""Distance from its bound at which an activation is saturated, as a share of its range."""

_FURTHEST = 16
"""Statements searched backward for the layer of an activation."""


def op_of(code: Code, pc: int) -> Op | None:
    """Return the declaration of the op of a statement."""
    name = code.nodes[pc].op
    return lookup(name, version_of(name, code.opsets))


def cuts(code: Code, pc: int, op: Op) -> bool:
    """Return whether a statement is an activation with results cut off at 0: ReLU, or ``Max(x, 0)``."""
    return 0.0 in _cut_off(code, pc, op)


def flat_values(code: Code, pc: int, op: Op) -> tuple[float, ...]:
    """Return the results of an activation where its derivative is 0; empty for other statements.

    0 for ReLU, 0 and 6 for ``Clip(x, 0, 6)``, -1 and 1 for Tanh, whose results are rounded to these limits.
    """
    found = [*_cut_off(code, pc, op)]
    if op.bounds is not None and op.shares is None:
        found += op.bounds
    return tuple(sorted({*found}))


def _cut_off(code: Code, pc: int, op: Op) -> list[float]:
    """Return the values at which an activation cuts its results off."""
    given = [code.template[slot] for slot in code.operands[pc]]
    bounds = [given[index] for index in op.limits if index < len(given)]
    limits = [float(each.flat[0]) for each in bounds if _is_one_number(each)]
    return limits if op.limits and len(given) > 1 else [0.0] if op.rectifies else []


def _is_one_number(content: Any) -> bool:
    is_array = isinstance(content, np.ndarray) and not content.dtype.hasobject and content.size > 0
    return is_array and bool((content == content.flat[0]).all())


def unit_axis(code: Code, pc: int, rank: int) -> int:
    """Return the axis of the units in an activation's layer, else the usual one."""
    found = layer_axis(code, pc, rank)
    return usual_axis(rank) if found is None else found


def usual_axis(rank: int) -> int:
    """Return the axis on which units usually are: 1 above rank 3, else the last."""
    return 1 if rank > 3 else rank - 1


def layer_axis(code: Code, pc: int, rank: int) -> int | None:
    """Return the axis of the units in the layer before an activation; None if no layer is found."""
    for _ in range(_FURTHEST):
        op = op_of(code, pc)
        axis = None if op is None else op.unit_axis
        if axis is not None and axis < rank:
            return axis % rank
        before = [code.definition[slot] for slot in code.operands[pc] if code.definition[slot] >= 0]
        if not before or code.nodes[pc].op == "Transpose":
            break
        pc = before[0]
    return None


def feeds_layer(code: Code, pc: int) -> bool:
    """Return whether a result reaches a layer, a block or a call in its graph, or leaves the graph's block.

    False only for results that are at once part of a loss, such as the terms of a hinge loss.
    """
    waiting = [pc]
    seen = {pc}
    while waiting:
        slots = {*code.result_slots(waiting.pop())}
        for reader, node in enumerate(code.nodes):
            if reader in seen or not slots & code.reads(reader):
                continue
            op = op_of(code, reader)
            if node.subgraphs or node.kind is Kind.CALL or (op is not None and op.unit_axis is not None):
                return True
            seen.add(reader)
            waiting.append(reader)
    return False


def alive_units(result: Array, axis: int, flat: Sequence[float] = (0.0,)) -> npt.NDArray[np.bool_]:
    """Return bool[units]: the units with an element that is none of the `flat` values."""
    others = tuple(each for each in range(result.ndim) if each != axis)
    alive = result != flat[0]
    for value in flat[1:]:
        alive &= result != value
    return np.asarray(alive.any(axis=others))


def saturated(op: Op, result: Array, attributes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of elements of an activation's result at its bounds, and the number of elements.

    For an op that normalizes along `axis`: the number of rows with an element at the upper bound, and the
    number of rows.  Rows of one element are not counted.
    """
    assert op.bounds is not None
    low, high = op.bounds
    edge = EDGE * (high - low)
    if op.shares is None:
        return int(np.count_nonzero((result <= low + edge) | (result >= high - edge))), result.size
    axis = attributes.get("axis")
    axis = -1 if axis is None else int(axis)
    if result.ndim == 0 or result.shape[axis] < 2:
        return 0, 0
    highest = result.max(axis=axis)
    return int(np.count_nonzero(highest >= high - edge)), highest.size


Visits: TypeAlias = "list[tuple[tuple[Position, ...], Finished]]"
"""The finished frames and iterations of one step, with the statements that called them."""

_NEVER = -1


@dataclass(slots=True)
class UnitActivity:
    """The units of one activation at some steps of a run.

    `calls` are the statements that lead to it, outermost first; `flat` the results at which a unit does not
    learn; `last_alive` the latest step in which each unit had another result, -1 for none.
    """

    at: Statement
    calls: tuple[Statement, ...]
    flat: tuple[float, ...]
    last_alive: npt.NDArray[np.int64]
    dead: dict[int, int] = field(default_factory=dict)
    """The number of units that were flat for all samples of a step."""
    samples: dict[int, int] = field(default_factory=dict)
    _alive: npt.NDArray[np.bool_] | None = None
    """The units that are live in the step that was seen last."""
    _step: int = _NEVER

    @property
    def name(self) -> str:
        """The name of the activation's result."""
        return self.at.code.nodes[self.at.pc].outputs[0].name

    def see(self, step: int, alive: npt.NDArray[np.bool_], samples: int) -> None:
        """Add the results of a step, or further ones of the same step."""
        self._alive = alive if self._alive is None or step != self._step else self._alive | alive
        self._step = step
        np.maximum(self.last_alive, np.where(alive, step, _NEVER), out=self.last_alive)
        self.dead[step] = alive.size - int(np.count_nonzero(self._alive))
        self.samples[step] = self.samples.get(step, 0) + samples

    def dead_since(self, steps: int) -> DeadUnits | None:
        """Return the units that were dead in the latest `steps` counted steps; None without one."""
        known = sorted(self.dead)
        dead = self.last_alive < known[-min(steps, len(known))]
        if not dead.any():
            return None
        since = next(step for step in known if step > self.last_alive[dead].max())
        never = int(np.count_nonzero(self.last_alive[dead] < known[0]))
        later = [step for step in known if step >= since]
        count = int(np.count_nonzero(dead))
        return DeadUnits(
            count, dead.size, since, len(later), sum(map(self.samples.__getitem__, later)), never
        )


@dataclass(frozen=True, slots=True)
class DeadUnits:
    """`count` of `units` units were flat for all samples of the counted steps from `since` on.

    `samples` is the number of samples of each unit in these `steps` steps; `never` is the number of these
    units that were flat in every counted step.
    """

    count: int
    units: int
    since: int
    steps: int
    samples: int
    never: int

    @property
    def share(self) -> float:
        return self.count / self.units


class TrainingUnits:
    """Counts the dead units of the activations in the graphs that a program differentiates."""

    def __init__(self, program: Program, backend: Backend) -> None:
        self._backend = backend
        self._roots = {line.of for line in program.backwards}
        self._graphs = _reached(program, self._roots)
        self._activations: dict[Code, list[tuple[int, tuple[float, ...]]]] = {}
        self._found: dict[tuple[tuple[Position, ...], Code, int], UnitActivity | None] = {}

    @property
    def found(self) -> Iterator[UnitActivity]:
        """Yield what is known of each activation, in the order of its first visit."""
        return (each for each in self._found.values() if each is not None)

    def see(self, step: int, visits: Visits) -> None:
        """Add the finished visits of a step; `visits` begins with the latest one."""
        for calls, each in reversed(visits):
            if each.code not in self._activations:
                self._activations[each.code] = [*self._search(each.code)]
            for pc, flat in self._activations[each.code]:
                (slot,) = each.code.result_slots(pc)
                result = self._backend.to_host(each.slots[slot])
                is_array = isinstance(result, np.ndarray) and result.size > 0 and not result.dtype.hasobject
                if is_array and name_of(result.dtype) in FLOATS:
                    self._add(step, calls, each.code, pc, flat, result)

    def _search(self, code: Code) -> Iterator[tuple[int, tuple[float, ...]]]:
        if code.formula is not None or code.path[0] not in self._graphs:
            return
        is_root = len(code.path) == 1 and code.path[0] in self._roots
        for pc, node in enumerate(code.nodes):
            op = op_of(code, pc)
            flat = flat_values(code, pc, op) if op is not None else ()
            if flat and len(node.outputs) == 1 and (not is_root or feeds_layer(code, pc)):
                yield pc, flat

    def _add(
        self,
        step: int,
        calls: tuple[Position, ...],
        code: Code,
        pc: int,
        flat: tuple[float, ...],
        result: Any,
    ) -> None:
        axis = layer_axis(code, pc, result.ndim)
        if axis is None and result.ndim < 2:
            return
        alive = alive_units(result, usual_axis(result.ndim) if axis is None else axis, flat)
        key = calls, code, pc
        if key not in self._found:
            # The two outermost calls are those of the driver.
            statements = tuple(Statement(*call) for call in calls[2:])
            unknown = np.full(alive.size, _NEVER, np.int64)
            self._found[key] = UnitActivity(Statement(code, pc), statements, flat, unknown)
        known = self._found[key]
        if known is not None and known.last_alive.size == alive.size:
            known.see(step, alive, result.size // max(1, alive.size))
        else:
            self._found[key] = None  # The number of units changes: they are not units of a layer.


def steps_in_journal(machine: Machine, run: Code) -> Iterator[tuple[int, Sequence[Any], Visits]]:
    """Yield (step, slots, visits) of each whole step of a ``run`` line in the journal, latest first.

    `run` is the block of the ``run`` line; evaluations are left out.
    """
    step: tuple[int, Sequence[Any], Visits] | None = None
    for calls, each in finished_visits(machine):
        if each.code is run:
            if step is not None:
                yield step
            step = int(each.slots[1]), each.slots, []
        # An evaluation has calls of the driver too, but not from the ``run`` line itself.
        elif step is not None and [code for code, _ in calls if code.path[0] == run.path[0]][-1:] == [run]:
            step[2].append((calls, each))
    if step is not None and not machine.floor:
        yield step


def latest_run(machine: Machine) -> Code | None:
    """Return the block of the ``run`` line that runs now, else of the latest one in the journal."""
    running = (frame.code for frame in machine.frames if frame.code.epoch is not None)
    finished = (each.code for each in machine.finished() if each.code.epoch is not None)
    return next(chain(running, finished), None)


def _reached(program: Program, roots: Collection[str]) -> set[str]:
    """Return the graphs that these graphs call, and they themselves."""
    graphs = program.graphs
    return {name for root in roots if root in graphs for name in graphs_called(root, graphs)}
