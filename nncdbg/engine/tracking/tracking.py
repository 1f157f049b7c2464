"""Compute the tracks of a run at the end of each step, from the values that its frames hold.

The tracks listen to the machine: they read slots of frames that end, and change nothing that runs.  The
numbers of several steps are computed together; until then, values in device memory stay there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.compilation.tracked_values import TRACKED, TrackedLine, data_batches, placed
from nncdbg.engine.execution.events import Event, Iterated, Popped, Pushed, Restored
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.machine import Machine
from nncdbg.engine.time.step_starts import ended_steps, lines_of
from nncdbg.engine.time.timeline import Timeline
from nncdbg.engine.tracking.series import RecordedTrack
from nncdbg.engine.values.values import copied
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable
from nncdbg.expression import Expression, evaluate
from nncdbg.expression.functions import DerivativeRequest
from nncdbg.expression.nodes import fault
from nncdbg.expression.operators import OperandError, number
from nncdbg.expression.tracked import VARIABLES
from nncdbg.ir.records import Array, TrackLine, type_of
from nncdbg.stats import summarize
from nncdbg.stats.series import Point, TrackedSeries, weighted_mean

if TYPE_CHECKING:
    from nncdbg.expression import Expression

Sink: TypeAlias = Callable[[str, int, float, str], None]
"""Receives (name, step, number, part) of each new number; the steps of all ``run`` lines are numbered on."""

EarlierPoints: TypeAlias = Mapping[tuple[str, str], Sequence[Point]]
"""The numbers of the steps before a session, by part and name."""

_NAMED = 5
"""Most names in the text of the object."""

FETCHED_STEPS = 16
"""Maximum number of steps whose numbers are computed together.

The values of these steps are copied from a device with one transfer.  On the host, the expressions of several
steps together take much less time than each one after the kernels of its step, which have filled the caches.
"""

FETCHED_BYTES = 64 << 20
"""Size of the values that wait, at which the numbers are computed earlier."""

_SECONDS = 0.5
"""Time after which values on the host do not wait for further steps."""


@dataclass(slots=True)
class _Loop:
    """The body of the loop of a line with tracks."""

    line: TrackedLine
    first_step: int
    """The number of steps of the ``run`` lines before it."""
    batches: Sequence[tuple[str, int]]
    """The data that only tracks read, by name, with the slots of their batches."""
    sample_slot: int | None
    """The slot of a batch; None for a run without data, or with one sample per step."""
    contents: dict[str, tuple[Any, int, int]]
    """The values of the present step so far, with the iteration and the tick at which they were read."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of one step of a run, or of one batch of an evaluation (`batch`), to be evaluated."""

    loop: _Loop
    contents: Mapping[str, Any]
    point: Point
    branch: int
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class _EvaluationEnded:
    """All batches of an evaluation have run: `batches` is their number."""

    loop: _Loop
    point: Point
    branch: int
    batches: int


class Tracking:
    """The tracks of one run of a program.

    `say` receives a message for each track that fails, once.
    """

    def __init__(
        self,
        lines: Sequence[TrackedLine],
        loaded: Loaded,
        machine: Machine,
        say: Callable[[str], None],
    ) -> None:
        self.timeline: Timeline
        """The history of the run; set before the first step."""
        self.sinks: list[Sink] = []
        self.read_earlier: Callable[[], EarlierPoints] = dict
        """Returns the numbers of the steps before this session; called once, when they are needed."""
        self._earlier: EarlierPoints | None = None
        self._lines = {line.place: line for line in lines}
        self._listing, self._backend = loaded.listing, loaded.linker.backend
        self._machine, self._say = machine, say
        self._graphs = {id(graph): key for key, graph in loaded.program.graphs.items()}
        self._loops: dict[Code, _Loop | None] = {}
        self._read: dict[tuple[int, Code], Sequence[tuple[str, int]]] = {}
        runs = lines_of(machine.frames[0].code)
        self._tracks = {
            (line.part, track.name): RecordedTrack(track.name, line.part, runs[line.place[0]].first_step)
            for line in lines
            for track, _ in line.tracks
        }
        self._parts: dict[tuple[str, int], dict[int, tuple[float | int, int]]] = {}
        """The numbers of the batches of the evaluation of a track in a step, with their samples."""
        self._waiting: list[_Step | _EvaluationEnded] = []
        self._fetched_at = time.monotonic()
        self._failed: set[tuple[str, str]] = set()
        self._sources = {key for line in lines for key in line.sources.values()}
        if lines:
            machine.listeners.append(self._hear)

    def __repr__(self) -> str:
        names = [name for _, name in self._tracks]
        return printable(f"<Tracking {', '.join(names[:_NAMED]) or 'nothing'}>")

    @property
    def series(self) -> list[TrackedSeries]:
        """The numbers of each track up to the present moment of the present branch."""
        self.fetch()
        if self._earlier is None and self._tracks:
            self._earlier = self.read_earlier()
        timeline, earlier = self.timeline, self._earlier or {}
        moment = timeline.branches, timeline.branch, self._machine.tick, ended_steps(self._machine)
        return [each.series(*moment, earlier.get(key, ())) for key, each in self._tracks.items()]

    # -- events --------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        match event:
            case Popped(frame):
                self._left(frame)
            case Iterated(frame, before):
                if (loop := self._loop(frame.code)) is not None:
                    self._step_ended(loop, frame, before, frame.iteration - 1)
            case Pushed(frame):
                if (loop := self._loop(frame.code)) is not None:
                    loop.contents.clear()
            case Restored():
                # What was read of this step may belong to another moment, or to another branch.
                self.fetch()
                self._parts.clear()
                for found in self._loops.values():
                    if found is not None:
                        found.contents.clear()

    def _left(self, frame: Frame) -> None:
        loop = self._loop(frame.code)
        if loop is not None:
            self._step_ended(loop, frame, frame.slots, frame.iteration)
            if loop.line.part == "test":
                ended = _EvaluationEnded(
                    loop, self._point_of_run(0), self.timeline.branch, frame.iteration + 1
                )
                self._waiting.append(ended)
            self.fetch()
        elif self._graphs.get(id(frame.code.graph)) in self._sources:
            self._read_values(frame)

    def _loop(self, code: Code) -> _Loop | None:
        """Return the line with tracks of which a code is the body; None for other codes."""
        try:
            return self._loops[code]
        except KeyError:
            found = self._loops[code] = self._made_loop(code)
            return found

    def _made_loop(self, code: Code) -> _Loop | None:
        if code.parent is None or not code.is_loop:
            return None
        pc = code.path[-2]
        assert isinstance(pc, int)
        node = code.parent.nodes[pc]
        line = self._lines.get(node.attributes.get(TRACKED))  # type: ignore[arg-type]
        if line is None:
            return None
        batches = [(name, code.slot_of[value]) for name, value in data_batches(node) if value in code.slot_of]
        sample_slot = code.result_slots(0)[0] if line.line.batch else None
        # The loop of an evaluation is in a branch of the body of its run.
        around = [code]
        while (parent := around[-1].parent) is not None:
            around.append(parent)
        run = next(each for each in lines_of(self._machine.frames[0].code) if each.body in around)
        return _Loop(line, run.first_step, batches, sample_slot, {})

    def _around(self, left: Frame) -> tuple[_Loop | None, int]:
        """Return the line with tracks whose graph a frame belongs to, and the iteration of its loop.

        The line is None for frames of other lines.
        """
        inner = left
        for frame in reversed(self._machine.frames):
            if frame.code.is_loop and (loop := self._loop(frame.code)) is not None:
                # An evaluation is inside the run, but not inside a call of the graph of the run.
                graph = self._graphs.get(id(inner.code.graph))
                return loop if graph == loop.line.line.graph else None, frame.iteration
            inner = frame
        return None, 0

    def _read_values(self, frame: Frame) -> None:
        """Read the tracked values of a graph that has ended."""
        loop, iteration = self._around(frame)
        if loop is None:
            return
        for name, slot in self._slots(loop, frame.code):
            content = frame.slots[slot]
            if content is not UNSET:
                loop.contents[name] = self._lasting(content), iteration, self._machine.tick

    def _slots(self, loop: _Loop, code: Code) -> Sequence[tuple[str, int]]:
        """Return the names and slots of the values of a graph that the tracks of a line read."""
        key = id(loop), code
        if key not in self._read:
            graph = self._graphs[id(code.graph)]
            self._read[key] = [
                (name, code.slot_of[name])
                for name, source in loop.line.sources.items()
                if source == graph and name in code.slot_of
            ]
        return self._read[key]

    def _lasting(self, content: Any) -> Any:
        """Return a value in memory that is not reused after its frame."""
        return copied(content) if self.timeline.overwrites else content

    # -- steps ---------------------------------------------------------------------------------

    def _step_ended(self, loop: _Loop, frame: Frame, slots: Sequence[Any], iteration: int) -> None:
        # After a step back, values of a later step are here, and those before an edit do not count.
        now, edited = self._machine.tick, self.timeline.last_edit
        contents = {
            name: content
            for name, (content, read_in, tick) in loop.contents.items()
            if read_in == iteration and edited < tick <= now
        }
        loop.contents.clear()
        for name, slot in loop.batches:
            contents[name] = self._lasting(slots[slot])
        samples = 1 if loop.sample_slot is None else slots[loop.sample_slot].shape[0]
        if loop.line.part == "train":
            epoch = iteration // frame.code.epoch if frame.code.epoch else 0
            point = Point(iteration, 0.0, samples, epoch, now)
            self._add(_Step(loop, contents, point, self.timeline.branch))
        else:
            point = self._point_of_run(samples)
            self._add(_Step(loop, contents, point, self.timeline.branch, iteration))

    def _point_of_run(self, samples: int) -> Point:
        """Return the step of the run around an evaluation, without its number."""
        run = next(frame for frame in self._machine.frames if frame.code.epoch is not None)
        return Point(run.iteration, 0.0, samples, run.epoch or 0, self._machine.tick)

    def _add(self, step: _Step) -> None:
        self._waiting.append(step)
        size = sum(getattr(each, "nbytes", 0) for each in step.contents.values())
        full = len(self._waiting) >= FETCHED_STEPS or size * len(self._waiting) > FETCHED_BYTES
        if full or (self._backend.on_host and time.monotonic() - self._fetched_at > _SECONDS):
            self.fetch()

    # -- numbers -------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Compute the numbers of the steps that wait."""
        waiting, self._waiting = self._waiting, []
        self._fetched_at = time.monotonic()
        fetched = iter(self._fetched(waiting))
        for each in waiting:
            if isinstance(each, _EvaluationEnded):
                self._combine(each)
            else:
                self._evaluate(each, next(fetched))

    def _fetched(self, waiting: Sequence[_Step | _EvaluationEnded]) -> list[Mapping[str, Any]]:
        """Return the values of each step on the host."""
        contents = [each.contents for each in waiting if isinstance(each, _Step)]
        if self._backend.on_host:
            return contents
        # A state that a step does not change is one value in several steps.
        different = {id(value): value for each in contents for value in each.values()}
        arrays = self._backend.to_host_together([*different.values()])
        on_host = dict(zip(different, arrays, strict=True))
        return [{name: on_host[id(value)] for name, value in each.items()} for each in contents]

    def _evaluate(self, step: _Step, contents: Mapping[str, Any]) -> None:
        values = StepValues(contents, step.point.step, step.point.epoch)
        part = step.loop.line.part
        for track, expression in step.loop.line.tracks:
            # A value is missing if the step did not run as a whole after a step back or an edit.
            if not expression.names <= contents.keys():
                continue
            number = self._number(track, expression, values, part)
            if number is None:
                continue
            if step.batch is None:
                self._record(track.name, step.loop, number, step.point, step.branch)
            else:
                parts = self._parts.setdefault((track.name, step.point.step), {})
                parts[step.batch] = number, step.point.samples

    def _number(
        self, track: TrackLine, expression: Expression, values: StepValues, part: str
    ) -> float | int | None:
        """Return the number of a track; None after an error, which is reported once."""
        try:
            return number_of(expression, values)
        except NncdbgError as error:
            if (part, track.name) not in self._failed:
                self._failed.add((part, track.name))
                step = values.variable("step")
                error.message = f"track {track.name} has no value at step {step}: {error.message}"
                self._say(str(placed(error, track, self._listing)))
            return None

    def _combine(self, ended: _EvaluationEnded) -> None:
        """Record the mean over the samples of an evaluation, or the sum of integers."""
        for track, _ in ended.loop.line.tracks:
            parts = self._parts.pop((track.name, ended.point.step), {})
            if len(parts) != ended.batches:
                continue
            numbers = [*parts.values()]
            if all(isinstance(number, int) for number, _ in numbers):
                total: float = sum(number for number, _ in numbers)
            else:
                total = weighted_mean([(float(number), samples) for number, samples in numbers])
            self._record(track.name, ended.loop, total, ended.point, ended.branch)

    def _record(self, name: str, loop: _Loop, number: float, at: Point, branch: int) -> None:
        point, part = Point(at.step, float(number), at.samples, at.epoch, at.tick), loop.line.part
        if self._tracks[part, name].add(branch, point):
            for sink in self.sinks:
                sink(name, loop.first_step + at.step, point.number, part)


class StepValues:
    """The values of a step on the host, by name, and its variables `$step` and `$epoch`."""

    def __init__(self, contents: Mapping[str, Any], step: int, epoch: int) -> None:
        self._contents = contents
        self._variables = {"step": step, "epoch": epoch}

    def has(self, name: str) -> bool:
        return name in self._contents

    def names(self) -> Iterable[str]:
        return self._contents

    def value(self, name: str) -> Array:
        found: Array = self._contents[name]
        return found

    def variable(self, name: str) -> object:
        return self._variables[name]

    def variables(self) -> Iterable[str]:
        return VARIABLES

    def summary(self, array: Array) -> Any:
        return summarize(array)

    def previous(self, name: str) -> Array:
        raise AssertionError("parse_tracked refuses prev")

    def derivative(self, wanted: DerivativeRequest, vectors: Sequence[Any]) -> Array:
        raise AssertionError("parse_tracked refuses derivatives")


def number_of(expression: Expression, values: StepValues) -> float | int:
    """Return the value of an expression as one number: an int for integers, else a float.

    Raises ExpressionError for a value of several elements or none, for text, and for invalid operands.
    """
    hint = None
    try:
        found = np.asarray(number(evaluate(expression, values)))
    except OperandError as error:
        fact = f"the value is no number: {error}"
    else:
        if found.size == 1 and found.dtype.kind in "biuf":
            return int(found.item()) if found.dtype.kind in "iu" else float(found.item())
        fact = f"the value {type_of(found)} is not one real number"
        hint = f"write mean({expression.text})"
    raise fault(expression.text, 0, len(expression.text), fact, hint=hint)
