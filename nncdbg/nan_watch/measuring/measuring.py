"""Measurements besides origins: carried values, ranges, and growing trouble, judged against gates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nncdbg.comparison.check_results import NOT_APPLICABLE, NOT_CHECKED, CheckResult
from nncdbg.dtypes import FLOATS, name_of
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.compilation.effects import parameters_of
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.diagnosis.finding_records import ENTRANCE
from nncdbg.engine.execution.events import Event, Iterated
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.values.values import Values
from nncdbg.errors import ExpressionError, NotComputed, UsageError
from nncdbg.expression import Expression, condition, nodes
from nncdbg.expression.evaluator import Evaluator
from nncdbg.ir.kinds import is_transfer
from nncdbg.ir.records import type_of
from nncdbg.ir.search import candidates
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import MEASURES, RANGE, Gates, Threshold
from nncdbg.nan_watch.measuring.growth_metrics import GrowthMetrics
from nncdbg.nan_watch.measuring.latest_iterations import maker_of, norm_and_change, step_frame
from nncdbg.nan_watch.measuring.tracks import Track, Trip
from nncdbg.nan_watch.recording import Recording, check_model, compare
from nncdbg.nan_watch.records import Operand, WatchFinding
from nncdbg.nan_watch.sites import site_of
from nncdbg.stats import summarize
from nncdbg.text.counting import listed
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop

Visit: TypeAlias = "tuple[Code, str, int, int, Any, Any]"
"""(block, name of the value, statement that computed it, which result it is, value before, value now)."""


class Carried:
    """Receives the event of each iteration, and makes `metrics` record the gates that trip."""

    def __init__(self, metrics: GrowthMetrics, gates: Sequence[Threshold], debugger: Debugger) -> None:
        self._metrics = metrics
        self._gates = [gate for gate in gates if gate.kind in ("update", "runaway")]
        self._debugger = debugger
        self._learned = parameters_of(debugger.program) if self._gates else {}
        if self._gates:
            debugger.control.listen(self._hear)
        self._first: dict[tuple[Code, str], float] = {}
        """The first norm of each carried value, by block and name."""

    def _hear(self, event: Event) -> None:
        if isinstance(event, Iterated) and not self._debugger.timeline.replaying:
            for visit in self._visits(event):
                self._judge(*visit)

    def _visits(self, event: Iterated) -> Iterator[Visit]:
        frame, before = event.frame, event.before
        code = frame.code
        if code.epoch is not None:
            yield from self._parameters(event)
            return
        last = code.operands[len(code.nodes)]
        for index, value in enumerate(code.graph.inputs[1:]):
            old, new = before[2 + index], frame.slots[2 + index]
            pc = code.definition[last[index]]
            if pc >= 0 and code.runs_kernel(pc) and old is not new and _comparable(old, new):
                slots = [*code.result_slots(pc)]
                yield code, value.name, pc, slots.index(last[index]), old, new

    def _parameters(self, event: Iterated) -> Iterator[Visit]:
        """Yield the parameters of a training with the statements of the step's graph that update them."""
        popped = step_frame(self._debugger.control.machine, event.frame.code)
        for index, value in enumerate(event.frame.code.graph.inputs[1:]):
            old, new = event.before[2 + index], event.frame.slots[2 + index]
            if popped is not None and value.name in self._learned and _comparable(old, new):
                yield popped.code, value.name, *maker_of(value.name, popped.code), old, new

    def _judge(self, code: Code, name: str, pc: int, index: int, old: Any, new: Any) -> None:
        gates = [gate for gate in self._gates if gate.concerns(name, code.graph.name)]
        for gate in gates:
            measured = (
                self._runaway(code, name, old, new) if gate.kind == "runaway" else _update(name, old, new)
            )
            if measured is not None and gate.exceeded(measured[0]):
                track = self._metrics.track(code, pc, index, name_of(new.dtype))
                self._metrics.trip(track, gate, measured, Statement(code, pc))

    def _runaway(self, code: Code, name: str, old: Any, new: Any) -> tuple[float, str] | None:
        key = (code, name)
        if key not in self._first or int(self._debugger.control.stack[-1].iteration) == 1:
            self._first[key] = self._size(old)
        first, now = self._first[key], self._size(new)
        if not first or math.isnan(now):
            return None
        return (
            now / first,
            f"the norm of %{name_text(name)} is {now:.4g}, and was {first:.4g} when the loop began",
        )

    def _size(self, value: Any) -> float:
        """Return the root of the mean square: the norm over the root of the number of elements."""
        row = self._metrics.row(value)
        return math.hypot(row[2], row[3])


def _comparable(old: Any, new: Any) -> bool:
    known, other = type_of(old), type_of(new)
    return known is not None and known == other and getattr(known, "dtype", "") in FLOATS


def _update(name: str, old: Any, new: Any) -> tuple[float, str] | None:
    before, change = norm_and_change(old, new)
    if not before or not math.isfinite(change):
        return None
    return (
        change / before,
        f"%{name_text(name)} changed by {change:.4g} in one iteration, and its norm was {before:.4g}",
    )


FEWEST_SAMPLES = 4
"""Least samples per unit for a verdict on dead units."""


def judge(tracks: Iterable[Track], gates: Gates) -> Iterator[WatchFinding]:
    """Return a finding for each gate that tripped at a statement, in execution order."""
    for track in tracks:
        for trip in track.trips.values():
            yield _finding(track, trip)
        for gate in gates.thresholds:
            if gate.kind == "dead" and track.units is not None:
                dead = _dead(track, gate)
                if dead is not None:
                    yield _finding(track, dead)


def not_judged(tracks: Iterable[Track], gates: Gates) -> Iterator[CheckResult]:
    """Return the gates whose measurements could not be judged, and why."""
    dead = next((str(gate) for gate in gates.thresholds if gate.kind == "dead"), None)
    if dead is None:
        return
    units = [(f"%{name_text(track.site.value)}", track.units) for track in tracks if track.units is not None]
    few = [name for name, unit in units if unit.alive is not None and unit.samples < FEWEST_SAMPLES]
    changing = [name for name, unit in units if unit.alive is None]
    if few:
        yield CheckResult(dead, NOT_CHECKED, f"{listed(few, 3)} had fewer than {FEWEST_SAMPLES} samples")
    if changing:
        yield CheckResult(dead, NOT_CHECKED, f"{listed(changing, 3)} changed the number of units")
    if not units:
        yield CheckResult(dead, NOT_APPLICABLE, "no statement is an activation that can be 0")


def _dead(track: Track, gate: Threshold) -> Trip | None:
    units = track.units
    assert units is not None
    if units.alive is None or units.samples < FEWEST_SAMPLES:
        return None
    if not gate.concerns(track.site.value, track.site.graph, track.site.node):
        return None
    dead = int((~units.alive).sum())
    actual = dead / units.alive.size
    if not gate.exceeded(actual):
        return None
    share = f"{dead} of {units.alive.size} units of %{name_text(track.site.value)} ({gate.shown(actual)})"
    fact = f"{share} are 0 in all {units.samples} samples"
    return Trip(gate, fact, actual, stats=track.summary, count=track.visits)


def _finding(track: Track, trip: Trip) -> WatchFinding:
    gate = trip.gate
    worst = f"{gate.shown(trip.worst)} at worst; " if trip.worst != trip.actual else ""
    return WatchFinding(
        gate.kind,
        "birth",
        track.site,
        iteration=trip.iteration,
        inputs=trip.inputs,
        stats=trip.stats,
        evidence=f"{trip.fact}; {worst}{gate.clause()}",
        hint=MEASURES[gate.kind].hint,
        actual=trip.worst,
        threshold=gate.limit,
        count=trip.count,
        case=trip.case,
        trips=True,
    )


@dataclass(slots=True)
class _Range:
    expression: Expression
    numbers: list[int] = field(default_factory=list)
    """The data breakpoints on its values."""
    asked: int = 0
    """Number of evaluations: times when all its values were available."""


class Ranges:
    """The ranges of a watch on one debugger, as data breakpoints that do not end the run.

    Raises ExpressionError for one that does not parse, matches nothing, or reads no value.
    """

    def __init__(self, debugger: Debugger, texts: tuple[str, ...]) -> None:
        self._debugger = debugger
        self._found: dict[tuple[Any, ...], WatchFinding] = {}
        self._ranges = [self._range(text) for text in texts]

    def _range(self, text: str) -> _Range:
        made = _Range(self._debugger.values.read(text))
        if made.expression.reads_result:
            # Stop after every statement whose results make the expression over `$out` true.
            graphs = [graph for _, graph in blocks(self._debugger.program)]
            ops = {node.op for graph in graphs for node in graph.nodes if node.outputs}
            with self._debugger.breakpoints.traps.together():
                for op in sorted(op for op in ops if not is_transfer(op)):
                    made.numbers.append(self._debugger.break_at(op=op, when=made.expression.text).number)
            made.asked = 1  # The breakpoints evaluate it, and stop only where it is true.
            return made
        written = sorted(made.expression.names & candidates(self._debugger.program, "data"))
        if not written:
            raise ExpressionError(
                f"the gate range:{text} uses no computed value",
                hint="use a computed value, as in range:max(%h) > 1e4, or $out for every result",
            )
        with self._debugger.breakpoints.traps.together():
            made.numbers += [self._debugger.watch_value(f"%{name_text(name)}").number for name in written]
        return made

    @property
    def findings(self) -> list[WatchFinding]:
        return list(self._found.values())

    @property
    def unchecked(self) -> list[CheckResult]:
        """Return the ranges that were never evaluated."""
        return [
            CheckResult(
                f"{RANGE}:{each.expression.text}",
                NOT_CHECKED,
                "its values were never available at the same time",
            )
            for each in self._ranges
            if not each.asked
        ]

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than these breakpoints stops it."""
        for each in self._ranges:
            if not each.expression.reads_result:
                self._judge(each, self._debugger.control.stack[-1])
        while True:
            stop = move()
            hit = [each for each in self._ranges if set(each.numbers) & set(stop.breakpoints)]
            for each in hit:
                assert stop.frame is not None
                self._judge(each, stop.frame)
            if stop.reason not in ("data", "breakpoint") or not hit or self._debugger.ended:
                return stop

    def _judge(self, each: _Range, frame: Frame) -> None:
        scope = self._debugger.values
        if each.expression.reads_result:
            out = scope.variable("out")
            if not isinstance(out, np.ndarray) or out.dtype.kind in "OUS":
                return
        try:
            holds = condition(each.expression, scope)
            each.asked += 1
            if not holds:
                return
            fact = "; ".join(_facts(each.expression, scope))
        except NotComputed:
            return
        code = frame.code
        # Before a block's first statement, the written values are its inputs or carried values.
        pc = frame.pc - 1 if frame.pc else ENTRANCE
        key = (each.expression.text, code, pc)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + 1)
            return
        written = code.graph.inputs if pc == ENTRANCE else code.nodes[pc].outputs
        names = each.expression.names
        value = next((out.name for out in written if each.expression.reads_result or out.name in names), "")
        self._found[key] = WatchFinding(
            RANGE,
            "birth",
            site_of(code, pc, value, self._debugger),
            iteration=tuple(frame.iteration for frame in self._debugger.control.stack if frame.is_loop),
            inputs=tuple(_operands(each.expression, scope)),
            evidence=f"{fact}; the gate is range:{each.expression.text}",
            hint="use `why` to see how the value was computed",
            trips=True,
        )


def _operands(expression: Expression, scope: Values) -> Iterator[Operand]:
    for name in sorted(expression.names):
        content = scope.value(name)
        known = type_of(content)
        tensor = isinstance(content, np.ndarray) and not content.dtype.hasobject
        yield Operand(name, str(known) if known else None, summarize(content) if tensor else None)


def _facts(expression: Expression, scope: Values) -> Iterator[str]:
    """Return each comparison of the expression that holds, with the values of both sides."""
    evaluator = Evaluator(expression.text, scope)
    any_true = False
    for node in _comparisons(expression.root):
        sides = [(part, evaluator.evaluate(part)) for part in node.operands]
        if evaluator.truth(node):
            any_true = True
            yield (
                ", ".join(
                    f"{expression.text[part.start : part.end].strip()} is {_shown(value)}"
                    for part, value in sides
                    if not isinstance(part, nodes.LiteralExpression)
                )
                or expression.text
            )
    if not any_true:
        yield f"{expression.text} is true"


def _comparisons(root: nodes.ExpressionNode) -> Iterator[nodes.Compare]:
    """Return the comparisons that decide the result, through `and` and `or`."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, nodes.Compare):
            yield node
        elif isinstance(node, nodes.Boolean):
            stack += [node.right, node.left]


def _shown(value: Any) -> str:
    if np.ndim(value):
        return f"{type_of(np.asarray(value))}"
    return f"{float(value):.6g}" if isinstance(value, (float, np.floating)) else str(value)


class Measuring:
    """Measurements of one run, attached to a debugger at its start.

    Gates that measure need a debugger made with `statistics=True`.
    `found` returns the findings of ranges; `tracks` holds the measurements, for `verdict`, possibly together
    with those of other runs.  `keep` measures even without a gate that needs it; `good` is the recorded
    run to compare with.  Raises UsageError for a gate that matches nothing, and for a recording of another
    model.
    """

    def __init__(
        self, debugger: Debugger, gates: Gates, *, keep: bool = False, good: Recording | None = None
    ) -> None:
        if good is not None:
            check_model(good, debugger.program)
        self._ranges = Ranges(debugger, gates.ranges)
        wanted = gates.measured or keep or good is not None
        self._metrics = GrowthMetrics(debugger, gates.thresholds) if wanted else None
        if self._metrics is not None:
            Carried(self._metrics, gates.thresholds, debugger)

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than a range stops it."""
        return self._ranges.run(move)

    @property
    def tracks(self) -> list[Track]:
        """The measurements of each statement, in execution order."""
        return self._metrics.tracks if self._metrics is not None else []

    def found(self) -> tuple[list[WatchFinding], list[CheckResult]]:
        """Return the findings of the ranges, and the ranges that were never evaluated."""
        return self._ranges.findings, self._ranges.unchecked


def check_good(gates: Gates, good: Recording | None) -> None:
    """Raise UsageError for a gate that compares, without a recording to compare with."""
    if good is None and any(gate.kind == "change" for gate in gates.thresholds):
        raise UsageError(
            "the gate `change` needs a recorded good run",
            hint="record a good run with --record FILE, then use --against FILE",
        )


def verdict(
    tracks: list[Track], gates: Gates, good: Recording | None
) -> tuple[list[WatchFinding], list[CheckResult]]:
    """Return the findings in the measurements of one run or more, and the gates that could not judge."""
    findings = list(judge(tracks, gates))
    unchecked = list(not_judged(tracks, gates))
    if good is not None:
        changed, left = compare(good, tracks, gates)
        findings += changed
        unchecked += left
    return findings, unchecked
