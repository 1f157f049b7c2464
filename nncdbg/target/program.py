"""A program in the debugger as a target."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from types import CodeType
from typing import Any

import numpy as np

from nncdbg.comparison.kernels import StatementKernel
from nncdbg.comparison.schedule_problems import ScheduleProblem
from nncdbg.dtypes import name_of
from nncdbg.engine.compilation.code import EVICTED, UNSET, Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.undo_log import last_visit, left_micro_program
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import version_of
from nncdbg.engine.schedules.validation import validated
from nncdbg.engine.stopping.stops import LogMessage
from nncdbg.engine.stopping.stops import Stop as EngineStop
from nncdbg.engine.time.checkpoints import Edit, edits_of
from nncdbg.engine.time.timeline import Branch as EngineBranch
from nncdbg.engine.time.timeline import Mark
from nncdbg.engine.values.computed import ComputedValue
from nncdbg.engine.values.editing import late_decisions
from nncdbg.errors import NotComputed, UsageError
from nncdbg.expression import spelled
from nncdbg.ir.records import Array, Program
from nncdbg.ir.source_trace import SourceTrace
from nncdbg.ir.walk import fitting_trace
from nncdbg.stats import Summary
from nncdbg.stats.histograms import summarize_by_pieces
from nncdbg.stats.inspection import ROW_SIZE, summary_of
from nncdbg.stats.series import TrackedSeries
from nncdbg.target.cells import Cells
from nncdbg.target.measures import (
    buffers_of,
    dead_units,
    kernel_name,
    memory_of,
    micro_ops,
    streams_at,
    times_of,
)
from nncdbg.target.records import (
    Branch,
    Buffer,
    Computed,
    DeadUnits,
    Edited,
    Finding,
    FinishedBlock,
    Frame,
    GradientCheck,
    GradientStage,
    Memory,
    Message,
    MicroCheck,
    Moment,
    Now,
    Place,
    Setup,
    Slope,
    Stop,
    Stream,
    Times,
    Traced,
    ValueState,
    Visit,
)
from nncdbg.target.selecting import selected_values
from nncdbg.target.source import SourceView
from nncdbg.target.stops import ProgramStops
from nncdbg.target.target import Explanation, Group, Scope, Target
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import Listing
from nncdbg.text.short_names import ProgramNames


class ProgramTarget(Target):
    """A program, in a debugger."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._cells = Cells(debugger)
        if self.source is not None:
            debugger.loaded.aliases = self.source.aliases
        self._said: Callable[[LogMessage], None] | None = None
        """What received the messages before `listen`."""

    def __eq__(self, other: object) -> bool:
        """Return whether both are targets of the same debugger."""
        return isinstance(other, ProgramTarget) and other._debugger is self._debugger

    def __hash__(self) -> int:
        return hash(id(self._debugger))

    # -- the program -------------------------------------------------------------------------------

    @property
    def program(self) -> Program:  # type: ignore[override]
        return self._debugger.program

    @property
    def stops(self) -> ProgramStops:  # type: ignore[override]
        return self._program_stops

    @property
    def _program_stops(self) -> ProgramStops:
        """The stops of the program itself, which a script has besides its own."""
        return ProgramStops(self._debugger, self._cells, self.source)

    @property
    def convenience(self) -> dict[str, Any]:  # type: ignore[override]
        return self._debugger.values.convenience

    @property
    def selected(self) -> int:
        return self._debugger.selected

    @selected.setter
    def selected(self, number: int) -> None:
        self._debugger.selected = number

    @property
    def lowered(self) -> Program:
        return self._debugger.loaded.program

    @property
    def listing(self) -> Listing:
        return self._debugger.loaded.listing

    @property
    def setup(self) -> Setup:
        debugger, inputs = self._debugger, self._debugger.inputs
        # A replay chooses these sizes in the same way, and says so.
        chosen = {note.missing for note in inputs.notes}
        return Setup(
            inputs=inputs,
            backend=debugger.backend.name,
            on_host=debugger.backend.on_host,
            allocator=debugger.loaded.allocation.name,
            seed=inputs.seed,
            dims={name: size for name, size in inputs.dims.items() if ("dim", name) not in chosen},
            given=inputs.given,
            notes=tuple(map(str, debugger.notes)),
            files=tuple(self._files()),
            reuses_memory=debugger.timeline.overwrites,
            facts=tuple((note.fact, note.missing) for note in debugger.notes),
            crash_box=box.box if (box := debugger.loaded.black_box) is not None else None,
        )

    def _files(self) -> Iterator[str]:
        program = self.program
        folder = FilePath(program.source or "").parent
        for name in program.stores:
            yield str(folder / name)
        if not program.readers:
            return
        from nncdbg.engine.frontends.onnx_store import OnnxStore

        for reader in program.readers:
            if isinstance(reader, OnnxStore):
                yield from map(str, reader.external.files)

    def python_names(self) -> Mapping[str, Any]:
        return {"debugger": self._debugger}

    def place(self, path: Sequence[str | int], pc: int) -> Place:
        return self._cells.in_program(tuple(path), pc)

    def blocks(self, start: int = 0) -> Sequence[Place]:
        return self._cells.blocks(start)

    def definition(self, block: Place, name: str) -> Place | None:
        return self._cells.definition(block, name)

    def names(self, frame: int | None = None) -> ProgramNames:
        return self._debugger.loaded.names_of(self._debugger.control.stack[self._depth(frame)].code)

    def place_names(self, kind: str) -> Iterable[str]:
        if kind == "value":
            return self._debugger.values.names()
        return self._debugger.breakpoints.placement.named.known[kind]

    def lines(self, place: str) -> tuple[str, tuple[int, ...]]:
        return self._program_stops.lines(place)

    @property
    def source(self) -> SourceView | None:
        shared = self._debugger.loaded.shared
        if "source" not in shared:
            trace = fitting_trace(self.program)
            shared["source"] = None if trace is None else self._source_view(trace)
        found: SourceView | None = shared["source"]
        return found

    def _source_view(self, trace: SourceTrace) -> SourceView | None:
        return SourceView(self, trace)

    # -- moving ------------------------------------------------------------------------------------

    @property
    def stop(self) -> Stop:
        found, shared = self._debugger.stop, self._debugger.loaded.shared
        kept: tuple[EngineStop, Stop] | None = shared.get("stop")
        if kept is None or kept[0] is not found:
            kept = shared["stop"] = found, self._record(found)
        return kept[1]

    def _record(self, stop: EngineStop) -> Stop:
        frame, found = stop.frame, stop.finding
        finding = None
        if found is not None:
            at = self._cells.at(found.binding)
            finding = Finding(found.kind, found.detail, at, found.output, found.operand)
        return Stop(
            reason=stop.reason,
            place=None if frame is None else self._cells.place(frame.code, frame.pc),
            node=stop.node,
            line=stop.line,
            detail=stop.detail,
            breakpoints=stop.breakpoints,
            finding=finding,
            error=stop.error,
            shows_values=stop.shows_values,
        )

    @property
    def now(self) -> Now:
        timeline, control = self._debugger.timeline, self._debugger.control
        machine, outermost = control.machine, control.stack[0]
        return Now(
            branch=timeline.branch,
            tick=timeline.tick,
            ended=machine.ended,
            replayed=timeline.replayed,
            floor=machine.floor,
            undoable=timeline.undoable,
            last_edit=timeline.last_edit,
            settled=control.settled,
            paused=control.paused,
            no_past=None if machine.tick else control.no_past,
            left_micro=left_micro_program(machine),
            done=(outermost.pc, len(outermost.code.nodes)),
            problems=tuple(machine.problems),
        )

    def run(self, *, heed: bool = True, to: Iterable[int] | Place | None = None) -> Stop:
        if to is None:
            self._debugger.run(heed=heed)
        elif isinstance(to, Place):
            self._debugger.move(self._debugger.control.move_to, self._there(to), to.pc)
        else:
            self._debugger.run_to_lines(to)
        return self.stop

    def _there(self, place: Place) -> Callable[[Code], bool]:
        """Return whether a block is that of a place, perhaps compiled for other types."""
        path, lines, listing_of = place.path, place.listing.lines, self._debugger.loaded.listing_of
        return lambda code: code.path == path and listing_of(code).lines == lines

    def last_visit(self, place: Place) -> int | None:
        return last_visit(self._debugger.control.machine, self._there(place), place.pc)

    def inside(self) -> tuple[bool, CodeType | None]:
        return self._debugger.control.micro_program() is not None, _kernel_code(self._debugger)

    def step_over(self, stream: int | None = None) -> Stop:
        if stream is None:
            self._debugger.step_over()
        else:
            self._debugger.step_stream(stream)
        return self.stop

    def step_into(self, *, micro: bool = False) -> Stop:
        self._debugger.step_into(micro=micro)
        return self.stop

    def step_out(self, *, back: bool = False) -> Stop:
        if back:
            self._debugger.reverse_step_out()
        else:
            self._debugger.step_out()
        return self.stop

    def step_back(self, *, into: bool = False, micro: bool = False) -> Stop:
        if into:
            self._debugger.step_back_into()
        else:
            self._debugger.step_back(micro=micro)
        return self.stop

    def reverse_continue(self) -> Stop:
        self._debugger.reverse_continue()
        return self.stop

    def stay(self) -> Stop:
        """Report the latest stop again, to what supervises the program."""
        self._debugger.move(lambda: self._debugger.stop)
        return self.stop

    def go_to(self, moment: str | int | Moment = 0, *, line: int | None = None) -> Stop:
        if line is not None:
            self._debugger.go_to_line(line)
        else:
            self._debugger.go_to(self._mark(moment) if isinstance(moment, Moment) else moment)
        return self.stop

    def _mark(self, moment: Moment) -> Mark:
        """Return the mark of a moment, with the edits at that time, or a mark at this place."""
        known = self._debugger.timeline.marks.get(moment.name)
        if known is not None and (known.branch, known.tick) == (moment.branch, moment.tick):
            return known
        return Mark("", moment.branch, moment.tick)

    def pause(self, on: bool = True) -> None:
        if on:
            self._debugger.pause()
        else:
            self._debugger.control.forget_pause()

    def messages(self) -> Sequence[str]:
        kept = self._debugger.control.messages
        found = kept[:]
        # The program may append messages meanwhile, in another thread.
        del kept[: len(found)]
        return found

    # -- frames and values -------------------------------------------------------------------------

    def _depth(self, number: int | None) -> int:
        """Return the depth of a frame by its number, by default that of the selected one."""
        count = len(self._debugger.control.stack)
        number = max(0, self.selected) if number is None else number
        if not 0 <= number < count:
            raise UsageError(f"there is no frame {number}", hint="list the frames with `where`")
        return count - 1 - number

    def frames(self) -> Sequence[Frame]:
        return [self._cells.frame(depth) for depth in reversed(range(len(self._debugger.control.stack)))]

    def frame(self, number: int | None = None) -> Frame:
        return self._cells.frame(self._depth(number))

    def scope(self, frame: int | None = None, between: Callable[[], None] | None = None) -> Scope:
        values = self._debugger.values_at(self._depth(frame))
        return values if between is None else replace(values, between=between)

    def value(self, name: str) -> Array:
        return self._debugger.value(name)

    def evaluate(self, text: str) -> Any:
        return self._debugger.evaluate(text)

    def host(self, content: Any) -> Any:
        return self._debugger.backend.to_host(content)

    def device(self, content: Any) -> str | None:
        return self._debugger.backend.device(content)

    def summary(self, content: Any, between: Callable[[], None] | None = None) -> Summary | None:
        if between is None:
            log = self._debugger.observers.log
            row = log.row_of(content) if log is not None else None
            return None if row is None else summary_of(row, name_of(content.dtype))
        if isinstance(content, (np.ndarray, np.generic)):
            return summarize_by_pieces(np.asarray(content), between)
        backend = self._debugger.backend
        measured = backend.to_device(np.zeros(ROW_SIZE))
        backend.summarize(content, measured)
        return summary_of(backend.to_host(measured).tolist(), name_of(content.dtype))

    def cells(self, group: Group, frame: int | None = None, pc: int | None = None) -> Sequence[int]:
        return self._cells.numbers(self._depth(frame), group, pc)

    def contents(self, numbers: Iterable[int], frame: int | None = None) -> Iterator[Any]:
        return self._cells.contents(self._depth(frame), numbers)

    def state(self, value: str | int, frame: int | None = None) -> ValueState:
        if isinstance(value, int):
            return self._cells.cell(self._depth(frame), value)
        values = self._debugger.values_at(self._depth(frame))
        nearest = None
        for place in values.places(value):
            nearest = nearest or place
            if place.computed:
                nearest = place
                break
        if nearest is None:
            place = values.place(value)
            raise AssertionError(f"{place} is not on the way to %{name_text(value)}")
        code, slot, depth = nearest.code, nearest.slot, nearest.depth
        if depth is not None and code.names[slot] != value:
            # A result of the next statement that the user has set, which is in no slot.
            return self._cells.cell(depth, code.slot_of[value])
        return self._cells.in_slots(code, nearest.slots, slot, depth, done=nearest.computed)

    def visits(self, value: str | Sequence[int], frame: int | None = None) -> Iterator[Visit]:
        if isinstance(value, str):
            return (Visit(*each) for each in self._debugger.values_at(self._depth(frame)).visits(value))
        return self._cells.visits(self._depth(frame), value)

    @property
    def races(self) -> Sequence[ScheduleProblem]:
        """The races of the program's schedule, as its validation reports them."""
        return [each for each in validated(self.program).problems if each.kind == "race"]

    def finished(self) -> Iterator[FinishedBlock]:
        """Yield the finished visits of blocks in the history since the last edit, latest first."""
        return self._cells.finished()

    def computed(self, which: str = "", *, latest: bool = True) -> Iterator[Computed]:
        return map(self._computed, selected_values(self._debugger, which, latest=latest))

    def _computed(self, each: ComputedValue) -> Computed:
        dropped = each.content is EVICTED
        place = self._cells.place(each.code, each.pc)
        return Computed(each.name, place, None if dropped else each.content, dropped, each.from_kernel)

    def set_value(self, name: str, value: Any, index: Any = None, frame: int | None = None) -> Edited:
        debugger = self._debugger
        awaited = name in debugger.awaited
        scope = None if frame is None else debugger.values_at(self._depth(frame))
        branch = debugger.set_value(name, value, index, scope=scope)
        if awaited:
            return Edited(None, None, self.frame(0).line)
        return Edited(branch.number, branch.parent, None, tuple(late_decisions(debugger.values)))

    @property
    def outputs(self) -> Mapping[str, Array] | None:
        return self._debugger.outputs

    @property
    def states(self) -> Mapping[str, Array]:
        return self._debugger.states

    @property
    def tracks(self) -> Sequence[TrackedSeries]:
        return self._debugger.tracks

    # -- moments -----------------------------------------------------------------------------------

    @property
    def marks(self) -> Mapping[str, Moment]:
        return {name: self._moment(mark) for name, mark in self._debugger.timeline.marks.items()}

    def _moment(self, mark: Mark) -> Moment:
        at = None if mark.at is None else self._cells.at(mark.at)
        return Moment(mark.branch, mark.tick, mark.name, "mark", at)

    def mark(self, name: str, to: str | None = None) -> None:
        timeline = self._debugger.timeline
        if to is None:
            self._debugger.mark(name)
        elif to:
            timeline.rename_mark(name, to)
        else:
            timeline.forget_mark(name)

    def moments(self, branch: int) -> Sequence[Moment]:
        return [*self._moments(self._debugger.timeline.branches[branch])]

    def _moments(self, branch: EngineBranch) -> Iterator[Moment]:
        """Yield the moments of a branch itself, without those of its parent."""
        timeline, number, at = self._debugger.timeline, branch.number, self._cells.at
        following, checkpoints, edits = timeline.state_of(branch)
        if branch.parent is None:
            yield Moment(number, 0, "", "start", at(checkpoints[0].next_statement))
        for state in checkpoints[1:]:
            if state.tick > branch.tick:
                yield Moment(number, state.tick, "", "checkpoint", at(state.next_statement))
        of_parent = () if branch.parent is None else timeline.state_of(timeline.branches[branch.parent])[2]
        inherited = {id(each.changes) for each in edits_of(of_parent)}
        for edit in edits:
            if isinstance(edit, Edit):
                if id(edit.changes) not in inherited:
                    yield Moment(number, edit.tick, spelled(edit.name), "edit", at(edit.at))
            elif edit.tick > branch.tick:
                yield Moment(number, edit.tick, str(edit.code.graph.name), "micro")
        yield from (each for each in self.marks.values() if each.branch == number)
        kind = "now" if branch.saved is None else "left"
        yield Moment(number, timeline.tick_on(branch), "", kind, at(following))

    @property
    def branches(self) -> Mapping[int, Branch]:
        timeline = self._debugger.timeline
        return {
            number: Branch(
                number=number,
                parent=each.parent,
                since=each.tick,
                title=each.title,
                tick=timeline.tick_on(each),
                current=number == timeline.branch,
                ahead=tuple(
                    Moment(number, edit.tick, edit.name, "edit", self._cells.at(edit.at))
                    for edit in timeline.ahead_on(each)
                ),
            )
            for number, each in timeline.branches.items()
        }

    def on_branch(self, name: str, branch: int) -> Array:
        timeline = self._debugger.timeline
        machine = timeline.other(branch, timeline.tick)
        if machine.tick < timeline.tick and not machine.ended:
            raise NotComputed(
                f"the run of branch {branch} to this step was interrupted", hint="repeat the command"
            )
        for frame in reversed(machine.frames):
            slot = frame.code.slot_at(name, frame.pc)
            if slot is None or (frame.code.definition[slot] >= frame.pc and not machine.ended):
                continue
            content = frame.slots[slot]
            if content is not UNSET and content is not EVICTED:
                return np.asarray(content)
        raise NotComputed(
            f"{spelled(name)} is not available on branch {branch} after {counted(machine.tick, 'statement')}",
            hint="go to a step where both branches have the value",
        )

    # -- diagnosis ---------------------------------------------------------------------------------

    def explain(
        self,
        value: str | Sequence[int] | tuple[Place, int | None],
        summarize: Callable[[Any], Summary | None],
        frame: int | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Explanation:
        # Imported late: the rules are many, and most runs need none.
        from nncdbg.target.explaining import ProgramExplanation

        return ProgramExplanation(self._cells, value, self._depth(frame), summarize, between)

    def causes(self, between: Callable[[], None] = lambda: None) -> Sequence[Traced]:
        from nncdbg.target.explaining import causes_of_finding

        return causes_of_finding(self._cells, between)

    def gradient(self, y: str, xs: Sequence[str]) -> Sequence[GradientStage]:
        values = self._debugger.values
        stages = values.backward_chain(y, xs)
        listing = self._debugger.loaded.listing_of(values.place(y).code)
        found = []
        for stage in stages:
            line = stage.place.removeprefix("line ")
            words = listing.statement(int(line)).strip() if line else stage.statement.text()
            found.append(GradientStage(stage.place, words, stage.cotangents))
        return found

    def check_gradient(self, y: str, x: str) -> GradientCheck:
        from nncdbg.engine.divergence import gradient_check

        found = gradient_check.checked_gradient(self._debugger, y, x)

        def slope(each: gradient_check.Slope) -> Slope:
            return Slope(
                each.index,
                each.gradient,
                each.numeric,
                each.below,
                each.above,
                each.difference,
                found.relative(each),
            )

        worst = found.worst
        return GradientCheck(
            type=found.type,
            ok=found.ok,
            smooth=tuple(map(slope, found.smooth)),
            kinks=tuple(map(slope, found.kinks)),
            worst=None if worst is None else slope(worst),
        )

    def dead_units(self) -> tuple[int, int, Sequence[DeadUnits]] | None:
        return dead_units(self._cells)

    @property
    def micro(self) -> MicroCheck | None:
        micro = self._debugger.micro
        if micro is None:
            return None
        coverage, differing = micro.coverage, micro.disagreement
        if differing is None:
            return MicroCheck(str(coverage), coverage.as_dict())
        return MicroCheck(str(coverage), coverage.as_dict(), differing.name, differing.micro)

    # -- measures ----------------------------------------------------------------------------------

    def times(self, on: bool | None = None) -> Times:
        if on is not None:
            self._debugger.times.measure(on)
        return times_of(self._debugger.loaded)

    def memory(self) -> Memory:
        return memory_of(self._debugger)

    def buffers(self, value: str | int, frame: int | None = None) -> Iterator[Buffer]:
        return buffers_of(self._cells, self._depth(frame), value)

    def streams(self, frame: int = 0) -> Sequence[Stream]:
        return streams_at(self._cells, self._depth(frame))

    def kernels(self, *, fallen: bool = False) -> Sequence[StatementKernel]:
        loaded = self._debugger.loaded
        return loaded.fallbacks if fallen else loaded.kernels()

    def implementation(self, place: Place) -> tuple[str | None, Sequence[str]]:
        code = self._cells.code(place)
        return kernel_name(self._debugger.backend, code, place.pc), micro_ops(code, place.pc)

    # -- while the program runs --------------------------------------------------------------------

    def listen(self, message: Callable[[Message], None] | None) -> None:
        control = self._debugger.control
        if self._said is None:
            self._said = control.said
        if message is None:
            control.said = self._said
            return
        send = message

        def said(each: LogMessage) -> None:
            send(Message(each.text, self._cells.place(each.frame.code, each.frame.pc), each.line))

        control.said = said

    def between_statements(self, action: Callable[[], None]) -> None:
        self._debugger.control.between_statements(action)


def _kernel_code(debugger: Debugger) -> CodeType | None:
    """Return the code of the Python function that runs the next statement; None if there is none."""
    frame = debugger.control.stack[-1]
    if debugger.ended or frame.pc == len(frame.code.nodes):
        return None
    if not debugger.backend.runs_op_kernels or not frame.code.runs_kernel(frame.pc):
        return None
    name = frame.code.nodes[frame.pc].op
    op = lookup(name, version_of(name, frame.code.opsets))
    if op is None or op.kernel is None or op.ufunc is not None:
        return None
    # Show the user's function, not its decorator.
    code = getattr(inspect.unwrap(op.kernel), "__code__", None)
    return code if isinstance(code, CodeType) else None


def target_of(debugger: object) -> ProgramTarget:
    """Return the target for a Debugger of the Python API.  Raises UsageError for other objects."""
    if not isinstance(debugger, Debugger):
        raise UsageError(
            f"`execute` needs a Debugger, not an object of type {type(debugger).__name__}",
            hint='use nncdbg.execute(nncdbg.Debugger("model.onnx"), "why")',
        )
    return ProgramTarget(debugger)
