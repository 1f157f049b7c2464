"""Places, frames and values of a debugger as records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nncdbg.engine.compilation.code import EVICTED, UNSET, Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.frame import Frame as EngineFrame
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.undo_log import Finished, finished_visits
from nncdbg.engine.time.timeline import Timeline
from nncdbg.ir.records import Graph, Path
from nncdbg.ir.walk import block_at
from nncdbg.target.records import FinishedBlock, Frame, Place, Role, Status, ValueState, Visit
from nncdbg.target.target import Group
from nncdbg.text.lexemes import name_text

DROPPED = "was dropped to keep within the history budget"


class Places:
    """Makes records of the places in the compiled blocks of a program."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._codes: dict[int, Code] = {}
        """The blocks in the records made so far, by their key, so that a key stays that of its block."""
        self._places: dict[tuple[int, int], Place] = {}

    def place(self, code: Code, pc: int) -> Place:
        """Return a statement of a block; with `pc` -1, its beginning."""
        block = id(code)
        place = self._places.get((block, pc))
        if place is not None:
            return place
        self._codes[block] = code
        listing = self.loaded.listing_of(code)
        line = listing.line(code.path, pc) if pc >= 0 else listing.headers.get(code.path, 1)
        place = Place(block, code.path, pc, code.graph, listing, line, _micro(code))
        self._places[block, pc] = place
        return place

    def at(self, statement: Statement) -> Place:
        return self.place(statement.code, statement.pc)

    def code(self, place: Place) -> Code:
        """Return the block of a place."""
        code = self._codes.get(place.block)
        return code or next(each for each in self.loaded.codes if id(each) == place.block)

    def blocks(self, start: int) -> Sequence[Place]:
        """Return the beginning of each compiled block, without the first `start` ones."""
        return [self.place(code, -1) for code in self.loaded.codes[start:]]

    def definition(self, block: Place, name: str) -> Place | None:
        """Return where the value that a block sees by this name is defined; None if it sees no such value."""
        code: Code | None = self.code(block)
        while code is not None:
            slot = code.slot_of.get(name)
            if slot is not None and all(inner != slot for _, inner in code.captures):
                return self.place(code, code.definition[slot])
            code = code.parent
        return None

    def in_program(self, path: Path, pc: int) -> Place:
        """Return a statement of the program, which need not be compiled."""
        loaded = self.loaded
        code = next((each for each in loaded.codes if each.path == path and each.formula is None), None)
        if code is not None:
            return self.place(code, pc)
        listing = loaded.listing
        line = listing.line(path, pc) if pc >= 0 else listing.header_line(path)
        return Place(0, path, pc, block_at(loaded.program, path), listing, line)


class Cells(Places):
    """Makes records of the places, frames and slots of one debugger."""

    def __init__(self, debugger: Debugger) -> None:
        super().__init__(debugger.loaded)
        self.debugger = debugger
        self._frames: dict[int, tuple[object, object, Frame]] = {}
        """By depth the latest record of a frame, after its moment and the stop then."""
        self._groups: dict[Code, NamedSlots] = {}

    # -- frames ------------------------------------------------------------------------------------

    def frame(self, depth: int) -> Frame:
        """Return the frame at a depth of the stack, 0 for the outermost."""
        stack, stop = self.debugger.control.stack, self.debugger.stop
        frame = stack[depth]
        moment = id(frame), frame.entered, frame.iteration, frame.pc, len(stack)
        latest = self._frames.get(depth)
        if latest is not None and latest[0] == moment and latest[1] is stop:
            return latest[2]
        pc, ran = stop.statement_in(frame)
        place = self.place(frame.code, frame.pc)
        record = Frame(
            number=len(stack) - 1 - depth,
            depth=depth,
            title=_title(stack, depth),
            place=place,
            current=self.place(frame.code, pc) if pc != frame.pc else place,
            ran=ran,
            visit=(id(frame.code), frame.entered, frame.iteration),
            entered=frame.entered,
            iteration=frame.iteration,
            is_loop=frame.is_loop,
            is_run=frame.code.epoch is not None,
            epoch=frame.epoch,
            times=frame.times,
            names=frame.code.slot_of.keys(),
            outer=tuple(_outer(frame.code)),
            collected=tuple(frame.collected),
            types=frame.code.types,
            callees=frame.code.graphs,
        )
        if len(self._frames) > len(stack):
            # The stops of frames that were left keep their values in memory.
            self._frames = {level: kept for level, kept in self._frames.items() if level < len(stack)}
        self._frames[depth] = moment, stop, record
        return record

    # -- values ------------------------------------------------------------------------------------

    def numbers(self, depth: int, group: Group, pc: int | None = None) -> Sequence[int]:
        """Return the slots of a group of values of a frame; `pc` is the statement, by default the next."""
        frame = self.debugger.control.stack[depth]
        code, pc = frame.code, frame.pc if pc is None else pc
        match group:
            case "operands":
                return code.operands[pc]
            case "read":
                own = code.operands[pc]
                return [*own, *sorted(code.reads(pc) - set(own))]
            case "results":
                return code.result_slots(pc) if pc < len(code.nodes) else ()
            case "returned":
                return code.operands[-1]
            case "inputs" | "carried":
                first = 1 if group == "inputs" else 2
                inputs = enumerate(code.graph.inputs[first - 1 :], first)
                return [slot for slot, value in inputs if value.name]
        named = self._groups.get(code)
        if named is None:
            named = self._groups[code] = NamedSlots.of(code)
        named = named.at(code, frame.pc)
        match group:
            case "given":
                return named.given
            case "constants":
                return named.constants
        done = len(named.written) if self.debugger.ended else bisect_left(named.definition, pc)
        return named.written[:done] if group == "computed" else named.written[done:]

    def contents(self, depth: int, slots: Iterable[int]) -> Iterator[Any]:
        """Yield the contents of slots of a frame on the stack; None for one that is not available."""
        debugger = self.debugger
        frame, standing = debugger.control.stack[depth], debugger.timeline.standing
        definition, held, ended = frame.code.definition, frame.slots, debugger.ended
        for slot in slots:
            content = held[slot]
            missing = content is UNSET or content is EVICTED or not (definition[slot] < frame.pc or ended)
            yield None if missing or standing(content) is not None else content

    def cell(self, depth: int, slot: int) -> ValueState:
        """Return the value in a slot of a frame on the stack."""
        debugger = self.debugger
        frame = debugger.control.stack[depth]
        code, name = frame.code, frame.code.names[slot]
        done = code.definition[slot] < frame.pc or debugger.ended
        if not done and code.definition[slot] == frame.pc and name in debugger.awaited:
            supplied = debugger.values.supplied(frame, slot)
            if supplied is not UNSET:
                return self.in_slots(code, [*frame.slots[:slot], supplied], slot, depth, done=True)
            state = self.in_slots(code, frame.slots, slot, depth, done=False)
            return replace(state, status="awaited", reason="is not set: its op has no kernel")
        plain = not name or not debugger.program.states
        present = plain or debugger.values.is_present(frame, slot)
        return self.in_slots(code, frame.slots, slot, depth, done=done, present=present)

    def in_slots(
        self,
        code: Code,
        slots: Sequence[Any],
        slot: int,
        depth: int | None,
        *,
        done: bool,
        present: bool = True,
    ) -> ValueState:
        """Return the value in a slot of the frame at a depth of the stack, None for one that was left."""
        content, name = slots[slot], code.names[slot]
        status, reason = state_of(self.debugger.timeline, content, done)
        held = status == "computed" or status == "gone"
        return ValueState(
            name=name,
            number=slot,
            status=status,
            content=content if held else None,
            role=role_of(code, slot),
            place=self.place(code, code.definition[slot]),
            type=code.types.get(name) if name else None,
            reason=reason,
            present=present,
            whole=not held or self.debugger.loaded.allocation.whole(content),
            depth=depth,
        )

    def visits(self, depth: int, slots: Sequence[int]) -> Iterator[Visit]:
        """Yield the contents of slots at the earlier visits of the block of a frame, newest first."""
        machine = self.debugger.control.machine
        code = machine.frames[depth].code
        for step, visit in machine.finished_by_step():
            if visit.code is code:
                held = (visit.slots[slot] for slot in slots)
                contents = tuple(None if one is UNSET or one is EVICTED else one for one in held)
                yield Visit(step, contents, visit.tick - 1)

    def finished(self) -> Iterator[FinishedBlock]:
        """Yield the finished visits of blocks in the history since the last edit, latest first."""
        debugger = self.debugger
        for calls, visit in finished_visits(debugger.control.machine):
            if visit.tick <= debugger.timeline.last_edit:
                return
            code = visit.code
            if code.formula is None and all(each.formula is None for each, _ in calls):
                callers = tuple((each.path, pc) for each, pc in calls)
                yield FinishedBlock(callers, code.path, self._first_results(visit))

    def _first_results(self, visit: Finished) -> Iterator[tuple[int, Any]]:
        """Yield (statement, first result) of the executed statements whose result is still in memory."""
        last = -1
        for slot, pc in enumerate(visit.code.definition):
            content = visit.slots[slot]
            if pc > last and content is not UNSET and content is not EVICTED:
                last = pc
                if self.debugger.timeline.standing(content) is None:
                    yield pc, content


@dataclass(frozen=True, slots=True)
class NamedSlots:
    """The named slots of a block, in the order in which they are written."""

    written: tuple[int, ...]
    definition: tuple[int, ...]
    """The statement that writes each of them."""
    given: tuple[int, ...]
    """Those set when the block begins: its inputs, and its captures from the enclosing block."""
    constants: tuple[int, ...]

    @classmethod
    def of(cls, code: Code) -> NamedSlots:
        named = [(slot, pc) for slot, pc in enumerate(code.definition) if code.names[slot]]
        given = [slot for slot, pc in named if pc < 0]
        return cls(
            tuple(slot for slot, pc in named if pc >= 0),
            tuple(pc for _, pc in named if pc >= 0),
            tuple(slot for slot in given if role_of(code, slot) != "constant"),
            tuple(slot for slot in given if role_of(code, slot) == "constant"),
        )

    def at(self, code: Code, pc: int) -> NamedSlots:
        """Return the slots without those that hold another value of a state than the one read at `pc`."""
        if not code.definitions:
            return self

        def current(slot: int) -> bool:
            name = code.names[slot]
            return name not in code.definitions or code.slot_at(name, pc) == slot

        pairs = [pair for pair in zip(self.written, self.definition, strict=True) if current(pair[0])]
        return NamedSlots(
            tuple(slot for slot, _ in pairs),
            tuple(pc for _, pc in pairs),
            tuple(filter(current, self.given)),
            tuple(filter(current, self.constants)),
        )


def state_of(timeline: Timeline, content: Any, done: bool = True) -> tuple[Status, str]:
    """Return the state of the content of a slot, and why it is not available."""
    if not done or content is UNSET:
        return "waiting", "is not computed yet"
    if content is EVICTED:
        return "dropped", DROPPED
    gone = timeline.standing(content)
    return ("computed", "") if gone is None else ("gone", f"is no longer valid: {gone}")


def role_of(code: Code, slot: int) -> Role:
    """Return what makes the value in a slot."""
    if code.definition[slot] >= 0:
        return "result"
    if any(inner == slot for _, inner in code.captures):
        return "captured"
    if slot > len(code.graph.inputs):
        return "constant"
    return "carried" if code.parent is not None else "input"


def _outer(code: Code) -> Iterator[Graph]:
    """Yield the blocks around a block, the nearest first."""
    while code.parent is not None:
        code = code.parent
        yield code.graph


def _micro(code: Code) -> str | None:
    return None if code.formula is None else str(code.graph.name)


def _title(stack: Sequence[EngineFrame], depth: int) -> str:
    """Return `@layer1`, `@refine #3`, `@run step 3 of 300, epoch 1 of 5`, `the then branch`, or the like.

    Steps and epochs count from 0, as `$step` does.
    """
    frame = stack[depth]
    code, name = frame.code, name_text(frame.code.graph.name)
    if code.epoch is not None:
        return f"@{name} {frame.progress}"
    if frame.is_loop:
        return f"{'@' + name if name else 'loop'} #{frame.iteration}"
    if code.formula is not None and len(code.path) == 1:
        outer = stack[depth - 1]
        return f"the micro program of {outer.code.nodes[outer.pc].op}"
    if len(code.path) > 1 and not name:
        return "the then branch" if code.path[-1] == 0 else "the else branch"
    return f"@{name}"
