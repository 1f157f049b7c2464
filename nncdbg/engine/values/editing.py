"""Change a value and recompute the values that depend on it.

The edit is in effect from this moment on.  Statements of the frames on the stack that have already
run and depend on the value run again; finished iterations of a loop stay as they were.  A value that
was set before in the same frame and iteration keeps its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, TypeAlias

import numpy as np

from nncdbg.dtypes import INTEGERS, name_of
from nncdbg.engine.compilation.code import EVICTED, UNSET, Statement
from nncdbg.engine.execution.events import Ended, Failed
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.inputs.input_arrays import EQUAL_ROWS, ragged
from nncdbg.engine.memory.region import note_change, writable_copy
from nncdbg.engine.time.checkpoints import Edit, edits_of
from nncdbg.engine.time.timeline import Branch
from nncdbg.engine.values.host_reads import changed_read, is_host_read
from nncdbg.engine.values.values import Values
from nncdbg.errors import RunError, UsageError
from nncdbg.expression import evaluate_index, parse_index
from nncdbg.ir.kinds import Kind
from nncdbg.ir.records import Array, type_of
from nncdbg.text.lexemes import name_text

Recall: TypeAlias = "Callable[[int, int], Any]"
"""(depth of the frame, slot) to the value that was evicted from it."""

Keeps: TypeAlias = "Callable[[int, int], bool]"
"""Returns whether the value at (depth of the frame, slot) was set before, and is kept."""

Store: TypeAlias = "Callable[[int, int, Any], None]"
"""Writes (depth of the frame, slot, content)."""


def change(scope: Values, name: str, value: Any, index: Any, to_device: Callable[[Array], Any]) -> Branch:
    """Set `%name`, or the part at `index`, and recompute its dependents in a new branch; return the branch.

    `index` is a NumPy index, or its text.  Raises UsageError or RunError, and then changes nothing.
    """
    machine, timeline = scope.machine, scope.timeline
    place = scope.place(name)
    if place.depth is None:
        raise UsageError(
            f"%{name_text(name)} belongs to a block that has ended",
            hint="step back into the block to change it",
        )
    if isinstance(index, str):
        index = evaluate_index(parse_index(index, scope.has, scope.names), scope)
    after = edited(name, scope.to_host(scope.content(name)), value, index)
    depth, slot = scope.home(name, place.depth, place.slot)
    branch = timeline.fork(f"%{name_text(name)} set")
    try:
        with timeline.quiet():
            earlier = edits_of(timeline.edits)
            edit = apply_edit(machine, depth, slot, name, to_device(after), timeline.recompute, earlier)
    except BaseException:
        timeline.abandon(branch)
        raise
    timeline.edits.append(edit)
    return branch


def edited(name: str, before: Array, value: Any, index: Any) -> Array:
    """Return a copy of `before` with `value` at `index` (None: everywhere).

    Raises UsageError if the shape, the type or a number does not fit; the tensor's type never changes.
    """
    if not isinstance(before, (np.ndarray, np.generic)):
        raise UsageError(f"cannot set %{name_text(name)}: it is not a tensor")
    given = given_value(name, value)
    if index is None and given.shape not in ((), before.shape):
        raise UsageError(
            f"%{name_text(name)} is {type_of(before)}, but the new value has shape {list(given.shape)}",
            hint="use a scalar or the same shape, or set a part: `set %v[0] = 1`",
        )
    after = np.array(before) if index is None else writable_copy(np.asarray(before))
    try:
        # `[()]` converts a one-element array to its string, because a string is stored unchanged.
        after[... if index is None else index] = _fitting(given, after.dtype)[()]
        if after.dtype.kind == "O" and not _is_text(after):
            raise TypeError("an element must be a single string")
        note_change(after, ... if index is None else index)
    except (IndexError, ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f"%{name_text(name)} of type {type_of(before)} cannot be set: {error}",
            hint="check the index, the shape and the type",
        ) from error
    return after


def given_value(name: str, value: Any) -> Array:
    """Return the array of a value to set.  Raises UsageError for a ragged list."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise UsageError(f"%{name_text(name)} cannot be set: {ragged(value)}", hint=EQUAL_ROWS) from error


def _is_text(array: Array) -> bool:
    return array.dtype.kind in "UT" or all(isinstance(item, str) for item in array.flat)


def _fitting(given: Array, dtype: np.dtype[Any]) -> Array:
    """Return the new value in the tensor's type.  Raises TypeError or ValueError if it cannot hold it.

    Floats are rounded, but finite values stay finite; everything else, NaN and Inf included, must be exact.
    """
    if given.size and _is_text(given) != (dtype.kind == "O"):
        raise TypeError("text is required" if dtype.kind == "O" else "text is not a number")
    if dtype.kind == "O":
        return given.astype(object)
    if given.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError("expected a real number, got a complex number")
    wide = np.complex128 if dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        cast, before = given.astype(dtype), given.astype(wide)
        after = cast.astype(wide)
    exact = dtype.kind == "b" or name_of(dtype) in INTEGERS
    same = (after == before) | (np.isnan(after) & np.isnan(before))
    kept = same if exact else np.where(np.isfinite(before), np.isfinite(after), same)
    if not kept.all():
        raise ValueError(f"{name_of(dtype)} cannot represent {given[~kept].flat[0]}")
    return cast


def apply_edit(
    machine: Machine,
    depth: int,
    slot: int,
    name: str,
    after: Array,
    recall: Recall,
    earlier: Sequence[Edit] = (),
) -> Edit:
    """Store `after` in a slot of the frame at `depth` and recompute the values that depend on it.

    `recall` returns the value of a slot of a frame before its eviction, or UNSET.  Values that one of the
    `earlier` edits set are kept.  Raises RunError if a statement fails, and then changes nothing.
    """
    kept: list[str] = []

    def keeps(level: int, position: int) -> bool:
        if not _was_set(machine.frames[level], level, position, earlier, recall):
            return False
        kept.append(machine.frames[level].code.names[position])
        return True

    changes: list[tuple[int, int, Any, Any]] = []

    def store(level: int, position: int, content: Any) -> None:
        slots = machine.frames[level].slots
        changes.append((level, position, slots[position], content))
        slots[position] = content

    store(depth, slot, after)
    dirty = {slot}
    late: list[Statement] = []
    try:
        for level in range(depth, len(machine.frames)):
            if level > depth:
                dirty = _entering(machine, level, dirty, store, keeps)
            if not dirty:
                break
            _again(machine, level, dirty, store, recall, keeps)
            late += _decided(machine, level, dirty)
    except BaseException:
        for level, position, before, _ in reversed(changes):
            machine.frames[level].slots[position] = before
        raise
    return Edit(machine.tick, name, tuple(changes), machine.next_statement, tuple(late), tuple(kept))


def _was_set(frame: Frame, level: int, position: int, edits: Sequence[Edit], recall: Recall) -> bool:
    """Return whether a slot holds a value that an edit stored since the frame at `level` was entered."""
    stored = [
        edit.changes[0][3]
        for edit in edits
        if edit.changes[0][:2] == (level, position) and edit.tick >= frame.entered
    ]
    if not stored:
        return False
    content = frame.slots[position]
    return any(each is (recall(level, position) if content is EVICTED else content) for each in stored)


def _decided(machine: Machine, level: int, dirty: set[int]) -> Iterator[Statement]:
    """Yield the decisions of one frame that were taken with a value that is `dirty` now."""
    frame = machine.frames[level]
    for pc in range(min(frame.pc, len(frame.code.nodes))):
        statement, operands = Statement(frame.code, pc), frame.code.operands[pc]
        decides = frame.code.nodes[pc].kind is Kind.BREAK or is_host_read(statement)
        if decides and operands[0] in dirty:
            yield statement
    # The first operand of `if` is its condition, that of `while` the number of iterations.
    inside = level + 1 < len(machine.frames) and frame.pc < len(frame.code.nodes)
    if (
        inside
        and frame.code.nodes[frame.pc].kind in (Kind.IF, Kind.WHILE)
        and frame.code.operands[frame.pc][0] in dirty
    ):
        yield Statement(frame.code, frame.pc)


def late_decisions(scope: Values) -> list[str]:
    """Return a sentence for each decision and each edited value that the latest edit does not change."""
    edits = edits_of(scope.timeline.edits)
    if not edits:
        return []
    edit, found = edits[-1], []
    for statement in edit.late:
        op, line = statement.code.nodes[statement.pc].op, scope.line(statement.code, statement.pc)
        if is_host_read(statement):
            # The sentence about a host read before the present statement, if its number changed.
            frame = next(each for each in reversed(scope.machine.frames) if each.code is statement.code)
            content = frame.code.results_of(statement.pc, frame.slots)[0]
            known = content is not UNSET and content is not EVICTED
            sentence = changed_read(statement, scope.to_host(content)) if known else None
            found += [f"line {line}: {sentence}"] if sentence is not None else []
            continue
        used = f"line {line}: `{op}` has already used %{name_text(edit.name)}, and keeps its decision"
        found.append(f"{used} (to change it, step back to line {line} first)")
    found += [
        f"%{name_text(name)} depends on %{name_text(edit.name)}, and keeps the value that was set"
        for name in edit.kept
    ]
    return found


def _entering(machine: Machine, level: int, dirty: set[int], store: Store, keeps: Keeps) -> set[int]:
    """Return the slots of an inner frame that hold values changed around it."""
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
                if source in dirty and not keeps(level, position):
                    store(level, position, outer.slots[source])
                    changed.add(position)
    return changed


def _again(machine: Machine, level: int, dirty: set[int], store: Store, recall: Recall, keeps: Keeps) -> None:
    """Run the executed statements of one frame that depend on `dirty` again, in order."""
    frame = machine.frames[level]
    for pc in range(min(frame.pc, len(frame.code.nodes))):
        if not (frame.code.reads(pc) & dirty) or frame.code.nodes[pc].kind is Kind.BREAK:
            continue
        positions = frame.code.result_slots(pc)
        free = [not keeps(level, position) for position in positions]
        if not any(free):
            continue
        if not _brought_back(frame, level, frame.code.reads(pc), recall):
            for position in compress(positions, free):
                store(level, position, EVICTED)
            continue
        results = _results_of(machine, level, pc)
        for position, content in compress(zip(positions, results, strict=True), free):
            store(level, position, content)
            dirty.add(position)


def _brought_back(frame: Frame, level: int, wanted: set[int], recall: Recall) -> bool:
    """Fill evicted slots again; return False if one is not available."""
    for slot in wanted:
        if frame.slots[slot] is EVICTED:
            value = recall(level, slot)
            if value is UNSET:
                return False
            frame.slots[slot] = value
    return True


def _results_of(machine: Machine, level: int, pc: int) -> list[Any]:
    """Return the present results of one statement of a frame, computed on a separate machine."""
    apart = machine.clone()
    del apart.frames[level + 1 :]
    apart.ended = False
    frame = apart.frames[level]
    frame.pc = pc
    while len(apart.frames) > level + 1 or frame.pc == pc:
        outcome = apart.step()
        if isinstance(outcome, Failed):
            raise RunError(
                f"cannot recompute the values that depend on the edit: {outcome.error}"
            ) from outcome.error
        if isinstance(outcome, Ended):
            break
    contents = frame.code.results_of(pc, frame.slots)
    return [UNSET if content is None else content for content in contents]
