"""What a run takes and what it consists of: times, memory, streams, kernels, dead units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from nncdbg.dtypes import name_of
from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.code import EVICTED, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.units import TrainingUnits, UnitActivity, latest_run, steps_in_journal
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.launch import CompiledProgram
from nncdbg.engine.memory.buffers import address_of
from nncdbg.engine.observers.statement_times import StatementTime as EngineTime
from nncdbg.engine.observers.statement_times import TimedBlock, TimedStatement
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.values.computed import named_contents
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.kinds import is_transfer
from nncdbg.ir.records import Array, TensorType
from nncdbg.ir.streams import AwaitedEvent as StreamEvent
from nncdbg.ir.streams import lanes, stream_name, stream_of, stream_states, streams_of
from nncdbg.target.cells import Cells, Places, role_of
from nncdbg.target.records import (
    AwaitedEvent,
    BlockTime,
    Buffer,
    DeadUnits,
    Memory,
    StatementTime,
    Stream,
    TimedEvent,
    Times,
)

if TYPE_CHECKING:
    from nncdbg.engine.diagnosis.units import UnitActivity

_WORK = 10_000
"""Limit for the exact test of whether two strided tensors have common elements."""


def times_of(loaded: CompiledProgram) -> Times:
    """Return what was measured of the statements and blocks of a program so far."""
    times, entry, cells = loaded.times, loaded.codes[0].path, Places(loaded)

    def statement(each: EngineTime) -> StatementTime:
        kernel, code = each.kernel, each.code
        return StatementTime(
            cells.place(code, each.pc),
            kernel.calls,
            kernel.total,
            kernel.least,
            kernel.median,
            not code.transfers(each.pc),
            code.types,
            each.nonfinite,
        )

    return Times(
        times.on,
        times.executed,
        times.kernels,
        times.around,
        [statement(each) for each in times.statements.values() if each.kernel.calls],
        {
            path: BlockTime(cells.place(each.code, -1), each.inside.calls, each.inside.total)
            for path, each in times.blocks.items()
        },
        entry,
    )


def timed_events(
    loaded: CompiledProgram, run: tuple[int, int]
) -> tuple[list[TimedEvent], Mapping[int, tuple[int, str]]]:
    """Return the executions of a run, and the lane and title of each stream (-1: the host) in a timeline.

    `run` is its begin and end, in nanoseconds of the clock.
    """
    cells, scheduled = Places(loaded), bool(streams_of(loaded.program))

    def event(each: TimedStatement | TimedBlock) -> TimedEvent:
        code = each.code
        if isinstance(each, TimedBlock):
            place = cells.place(code, -1)
            is_run = code.epoch is not None
            return TimedEvent(
                place, each.begin, each.end, is_block=True, iteration=each.iteration, is_run=is_run
            )
        stream = stream_of(code.graph, each.pc) if scheduled else 0
        return TimedEvent(
            cells.place(code, each.pc), each.begin, each.end, each.kernel, stream, types=code.types
        )

    whole = TimedBlock(loaded.codes[0], *run)
    return [*map(event, (whole, *(loaded.times.timeline or ())))], lanes(loaded.program)


def memory_of(debugger: Debugger) -> Memory:
    """Return the memory of a run, counted again."""
    checkpoints, allocation = debugger.timeline.checkpoints, debugger.loaded.allocation
    checkpoints.recount()
    streams = None
    if streams_of(debugger.program):
        sizes = results_by_stream(debugger.control.stack)
        streams = {stream_name(stream): size for stream, size in sizes.items()}
    return Memory(
        allocation.name,
        checkpoints.live_bytes(),
        dict(allocation.workspaces.sizes),
        allocation.total_bytes,
        checkpoints.budget,
        streams,
    )


def results_by_stream(frames: Iterable[Frame]) -> dict[int, int]:
    """Return the bytes of the results in frames, by the stream of the statement that returns them.

    A value in several frames counts once, in the outermost one.  Constants and inputs do not count.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    for frame in frames:
        for slot, pc in enumerate(frame.code.definition):
            content = frame.slots[slot]
            size = getattr(content, "nbytes", None)
            if pc < 0:
                seen.add(id(content))
            elif size is not None and id(content) not in seen:
                seen.add(id(content))
                stream = stream_of(frame.code.graph, pc)
                found[stream] = found.get(stream, 0) + int(size)
    return dict(sorted(found.items()))


def streams_at(cells: Cells, depth: int) -> Sequence[Stream]:
    """Return the streams of a schedule at the next statement of the frame at a depth of the stack."""
    debugger = cells.debugger
    frame = debugger.control.stack[depth]
    code = frame.code

    def event(each: StreamEvent) -> AwaitedEvent:
        place = None if each.recorder is None else cells.place(code, each.recorder)
        return AwaitedEvent(each.number, place, each.reached)

    return [
        Stream(
            state.number,
            state.name,
            state.device,
            None if state.pc is None else cells.place(code, state.pc),
            tuple(map(event, state.events)),
        )
        for state in stream_states(debugger.program, code.graph, frame.pc)
    ]


# -- buffers ---------------------------------------------------------------------------------------


def buffers_of(cells: Cells, depth: int, value: str | int) -> Iterator[Buffer]:
    """Yield the memory of a value, then each other value with a part of it: an alias, a view, an overlap.

    A value whose memory was freed and reused is listed with that reason.  Repeated visits of one value
    with the same memory are one.  Raises NotComputed.
    """
    if isinstance(value, int):
        frame = cells.debugger.control.stack[depth]
        return _buffers(cells, frame.code, value, frame.slots[value])
    values = cells.debugger.values_at(depth)
    place = values.place(value)
    content = place.slots[place.slot]
    if content is EVICTED:
        content = values.content(value)
    return _buffers(cells, place.code, place.slot, content)


def _buffers(cells: Cells, code: Code, slot: int, content: Any) -> Iterator[Buffer]:
    yield buffer_of(cells, code, slot, content)
    if not isinstance(content, np.ndarray):
        return
    seen = {(code, slot, address_of(content), content.nbytes)}
    for home, other, array in named_contents(cells.debugger.values):
        if not isinstance(array, np.ndarray) or not np.may_share_memory(content, array):
            continue
        key = home, other, address_of(array), array.nbytes
        relation = _relation(content, array)
        captured = any(other == inner for _, inner in home.captures)
        if key in seen or captured or not relation:
            continue
        seen.add(key)
        yield buffer_of(cells, home, other, array, relation)


def buffer_of(cells: Cells, code: Code, slot: int, content: Any, relation: str = "") -> Buffer:
    """Return the memory of the content of a slot."""
    place, role = cells.place(code, code.definition[slot]), role_of(code, slot)
    gone = cells.debugger.timeline.standing(content)
    if not isinstance(content, np.ndarray):
        return Buffer(code.names[slot], role, place, type(content).__name__, gone=gone, relation=relation)
    return Buffer(
        code.names[slot],
        role,
        place,
        _type_text(content),
        address_of(content),
        content.nbytes,
        gone,
        relation,
    )


def _type_text(array: Array) -> str:
    return str(TensorType(name_of(array.dtype), tuple(array.shape)))


def _relation(content: Array, other: Array) -> str:
    """Return how the memory of `other` relates to that of `content`; "" if no byte is common."""
    distance = address_of(other) - address_of(content)
    same_order = content.strides == other.strides and content.shape == other.shape
    if not distance and content.dtype == other.dtype and same_order:
        return "same elements"
    if not distance and content.nbytes == other.nbytes:
        return f"same memory, as {_type_text(other)}"
    try:
        shares = np.shares_memory(content, other, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return f"its {other.nbytes} bytes at offset {distance} may overlap"
    return f"its {other.nbytes} bytes at offset {distance} overlap" if shares else ""


# -- kernels --------------------------------------------------------------------------------------


def kernel_name(backend: Backend, code: Code, pc: int) -> str | None:
    """Return the function or library that runs a statement; None if the machine itself does."""
    if pc == len(code.nodes):
        return None
    op = code.nodes[pc].op
    if is_transfer(op):
        return None
    found = lookup(op, version_of(op, code.opsets))
    if not backend.runs_op_kernels or found is None:
        return backend.name
    if found.ufunc is not None:
        return f"{backend.name}.{found.ufunc}"
    if found.reference:
        return f"onnx.reference {op}"
    kernel = found.kernel
    module, name = getattr(kernel, "__module__", None), getattr(kernel, "__qualname__", None)
    return backend.name if module is None or name is None else f"{module}.{name}"


_MICRO_OPS: WeakKeyDictionary[Code, dict[int, tuple[str, ...]]] = WeakKeyDictionary()
"""Cache by block and pc; the entries of a freed program are dropped."""


def micro_ops(code: Code, pc: int) -> tuple[str, ...]:
    """Return the ops of a statement's micro program if its operands' types are fully known; else none."""
    cached = _MICRO_OPS.setdefault(code, {})
    if pc not in cached:
        cached[pc] = _find_micro_ops(code, pc)
    return cached[pc]


def _find_micro_ops(code: Code, pc: int) -> tuple[str, ...]:
    if code.transfers(pc):
        return ()
    types = []
    for slot in code.operands[pc]:
        type = code.types.get(code.names[slot]) if slot else None
        if slot and not (isinstance(type, TensorType) and _is_complete(type)):
            return ()
        types.append(type if isinstance(type, TensorType) else None)
    try:
        program = formula_of(code.nodes[pc], types, code.opsets)
    except NncdbgError:
        return ()  # the statement fails when it runs, and reports the reason then
    return () if program is None else tuple(node.op for node in program.graphs[program.entry].nodes)


def _is_complete(type: TensorType) -> bool:
    return type.shape is not None and all(isinstance(size, int) for size in type.shape)


# -- dead units ------------------------------------------------------------------------------------


def dead_units(cells: Cells) -> tuple[int, int, Sequence[DeadUnits]] | None:
    """Return (first step, last step, units) over the steps of a training in the history; None without one.

    Raises UsageError if no ``run`` line has run.
    """

    debugger = cells.debugger
    machine = debugger.control.machine
    run = latest_run(machine)
    if run is None:
        raise UsageError("no `run` line has run yet", hint="`info units` counts over the steps of a training")
    units = TrainingUnits(debugger.program, debugger.backend)
    steps = [*steps_in_journal(machine, run)][::-1]
    for step, _, visits in steps:
        units.see(step, visits)
    return (steps[0][0], steps[-1][0], [_units(cells, each) for each in units.found]) if steps else None


def _units(cells: Cells, each: UnitActivity) -> DeadUnits:
    dead = each.dead_since(len(each.dead))
    return DeadUnits(
        name=each.name,
        place=cells.at(each.at),
        calls=tuple(map(cells.at, each.calls)),
        dead=dead.count if dead is not None else 0,
        units=dead.units if dead is not None else each.last_alive.size,
        flat=each.flat,
        samples=sum(each.samples.values()),
    )
