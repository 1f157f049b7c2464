"""Changing a value and what follows from it: what depends on the value is computed again.

The edit holds from this moment on.  Statements of the frames on the stack that have already
run and depend on it run again; iterations of a loop that are over stay as they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.code import UNSET
from nncdbg.engine.errors import RunError, UsageError
from nncdbg.engine.events import Ended, Failed
from nncdbg.engine.graph import Array
from nncdbg.engine.machine import Machine
from nncdbg.engine.timeline import EVICTED, Edit
from nncdbg.engine.values import type_of


def edited(name: str, before: Array, value: Any, index: Any) -> Array:
    """A copy of `before` with `value` at `index` (None: everywhere).

    Raises UsageError where shape or type do not fit; the type of the tensor never changes.
    """
    after = np.array(before)
    given = np.asarray(value)
    if index is None and given.shape not in ((), after.shape):
        raise UsageError(
            f"%{name} is {type_of(before)}, the new value has shape {list(given.shape)}",
            hint="give a scalar or the same shape; set an index, as in `set %v[0] = 1`, for a part",
        )
    try:
        if index is None:
            after[...] = given.astype(after.dtype)
        else:
            after[index] = given.astype(after.dtype)
    except (IndexError, ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"%{name} of type {type_of(before)} cannot be set so: {error}",
            hint="check the index and the shape",
        ) from error
    return after


def apply_edit(machine: Machine, depth: int, slot: int, name: str, after: Array) -> Edit:
    """Store `after` in a slot of the frame at `depth` and compute again what depends on it.

    Raises RunError, with everything as it was, if a statement fails on the way.
    """
    changes: list[tuple[int, int, Any, Any]] = []

    def store(level: int, position: int, content: Any) -> None:
        slots = machine.frames[level].slots
        changes.append((level, position, slots[position], content))
        slots[position] = content

    store(depth, slot, after)
    dirty = {slot}
    try:
        for level in range(depth, len(machine.frames)):
            if level > depth:
                dirty = _entering(machine, level, dirty, store)
            if not dirty:
                break
            _again(machine, level, dirty, store)
    except Exception:
        for level, position, before, _ in reversed(changes):
            machine.frames[level].slots[position] = before
        raise
    return Edit(machine.tick, name, tuple(changes))


def _entering(machine: Machine, level: int, dirty: set[int], store: Any) -> set[int]:
    """The slots of an inner frame that hold what has changed around it."""
    outer, inner = machine.frames[level - 1], machine.frames[level]
    changed = set()
    for source, target in inner.code.captures:
        if source in dirty:
            store(level, target, outer.slots[source])
            changed.add(target)
    if inner.iteration == 0 and outer.pc < len(outer.code.nodes):
        operands = outer.code.operands[outer.pc]
        if inner.code.formula is not None:
            operands = tuple(position for position in operands if position)
        first = 2 if inner.is_loop else 1
        given = operands[1:] if inner.is_loop else operands
        if inner.code.graph.inputs:
            for position, source in enumerate(given, first):
                if source in dirty:
                    store(level, position, outer.slots[source])
                    changed.add(position)
    return changed


def _again(machine: Machine, level: int, dirty: set[int], store: Any) -> None:
    """Run the statements of one frame that have run and depend on `dirty` once more, in order."""
    frame = machine.frames[level]
    for pc in range(min(frame.pc, len(frame.code.nodes))):
        if not (frame.code.reads(pc) & dirty) or frame.code.nodes[pc].op == "break":
            continue
        target = frame.code.targets[pc]
        assert target is not None
        positions = range(target.start, target.stop) if isinstance(target, slice) else [target]
        if any(frame.slots[position] is EVICTED for position in frame.code.reads(pc)):
            for position in positions:
                store(level, position, EVICTED)
            continue
        results = _results_of(machine, level, pc)
        for position, content in zip(positions, results, strict=True):
            store(level, position, content)
            dirty.add(position)


def _results_of(machine: Machine, level: int, pc: int) -> list[Any]:
    """What one statement of a frame gives now, computed on a separate machine."""
    apart = machine.clone()
    del apart.frames[level + 1 :]
    apart.ended = False
    frame = apart.frames[level]
    frame.pc = pc
    while len(apart.frames) > level + 1 or frame.pc == pc:
        outcome = apart.step()
        if isinstance(outcome, Failed):
            raise RunError(
                f"computing again what depends on the edit failed: {outcome.error}"
            ) from outcome.error
        if isinstance(outcome, Ended):
            break
    target = frame.code.targets[pc]
    contents = frame.slots[target] if isinstance(target, slice) else [frame.slots[target]]  # type: ignore[index]
    return [UNSET if content is None else content for content in contents]
