"""`nncdbg.torch.watch`: check each step of a training, and report the op where a NaN originates."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from nncdbg import extensions
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.ops.causes import RECEIVED
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.nan_watch.measuring.gates import Gates, ReportContext
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.training.records import BadStep, NaNFound, TrainingReport
from nncdbg.nan_watch.watching import usual_allocation, watch_run
from nncdbg.opening.progress import RunningProgram
from nncdbg.presentation.run_progress import under_way
from nncdbg.presentation.screen import Screen
from nncdbg.stats.inspection import is_finite
from nncdbg.torch.compiled import smallest_compiled_part
from nncdbg.torch.guard import Guard
from nncdbg.torch.guard_findings import ERROR, GRADIENTS, LOSS, RESULTS, STATES, UPDATE, GuardTrip
from nncdbg.torch.named_models import Models, Optimizers
from nncdbg.torch.ranks import no_origin_note, origin_ranks
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.second_run import UNREPEATED

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop


def with_facts(finding: WatchFinding, trip: GuardTrip) -> WatchFinding:
    """Return a finding with a hint that agrees with what is known about the step."""
    if not finding.site.op and finding.cause == "bad parameter":
        return replace(finding, hint=_hint_of_state(finding.site.value, trip))
    if not finding.site.op and trip.where == UPDATE:
        return replace(finding, hint="the update reads it: check the options and the state of the optimizer")
    if finding.cause == "bad input" and trip.where == STATES and finding.site.value in trip.bad:
        return replace(finding, hint="the call at the line of this step gave it memory that was bad already")
    if finding.cause == "bad input" and any(each.startswith(UNREPEATED) for each in trip.notes):
        return replace(
            finding, hint="see the note about a call without gradients; to record it, use --tier live"
        )
    if finding.cause == "overflow" and trip.where != UPDATE:
        if trip.moved:
            clip = "clip gradients with torch.nn.utils.clip_grad_norm_"
            return replace(finding, hint=f"lower the learning rate, or {clip}")
        smaller = "use a smaller initialization" if trip.step == 1 else "lower the learning rate"
        return replace(finding, hint=f"{finding.hint}, or {smaller}")
    return finding


def _hint_of_state(name: str, trip: GuardTrip) -> str:
    """Return the hint for a parameter, buffer or moment that was NaN or Inf before the step."""
    if trip.step == 1:
        return (
            "it was so before the first step: initialize it, which torch.empty does not do, or check the "
            "file from which it was loaded"
        )
    if name in trip.written:
        return (
            "no update made it: look for code between the steps that writes it without an operator of the "
            f"step, such as `{name}.data = ...` or its NumPy array"
        )
    return f"step {trip.step - 1}, or code after it, may have written it: record that step, and watch it"


TIERS = ("guard", "hooks", "native", "live")
REACTIONS = ("raise", "report", "skip", "stop")

_BESIDES_GRADIENTS = (STATES, RESULTS, ERROR)
"""Where a NaN or Inf may be intended, such as the -inf of a mask: it is reported if an operator made it."""

_LISTED = 3
"""Findings of a step that a report lists: the origin, and what it reaches."""


@contextmanager
def watch(
    model: Models | None = None,
    optimizer: Optimizers | None = None,
    *,
    tier: str = "guard",
    on_nan: str = "raise",
    keep_update: bool = False,
    found: Callable[[BadStep], None] | None = None,
) -> Iterator[TrainingReport]:
    """Check loss and gradients before each update of the block, and the parameters after it.

    If one is NaN or Inf, the step runs again under the recorder, and the report names the op where the value
    originates, its line and its cause.  `model` and `optimizer` are as for `record`; without them, all that
    train are watched.

    If an exception ends a step with a NaN or Inf, the report names the op too, and the exception is raised.

    `on_nan` is the reaction: "raise" raises NaNFound in the update; "report" prints each origin once, and
    the training continues; "skip" also leaves out the update; "stop" opens the prompt at the origin.
    With the tier "hooks", the outputs of modules and their gradients are checked as well, and the report
    names the first module with NaN or Inf, even if the step cannot run again.  The tier "native" checks the
    results of each operator on the CPU instead, in C++, and the report names the first operator.
    With the tier "live", each operator is recorded as it runs, so that no step runs again.
    With `keep_update`, parameters and moments are copied before each update.  If the optimizer makes a NaN or
    Inf from finite gradients, the update runs again under the recorder, and "skip" undoes it.
    `found` is called with each step that is reported, before the reaction.

    Raises UsageError for an unknown tier or reaction, inside of another watch, and if the tier "native"
    cannot compile its observer.
    """
    _check("tier", tier, TIERS)
    _check("on_nan", on_nan, REACTIONS)
    watching = _Watching(on_nan, found)
    counts = watching.report.counts
    with Guard(model, optimizer, watching.react, keep_update=keep_update, tier=tier, counts=counts):
        yield watching.report


@dataclass(slots=True)
class _Watching:
    """The reaction to what the guard of a watch finds."""

    on_nan: str
    found: Callable[[BadStep], None] | None
    report: TrainingReport = field(default_factory=TrainingReport)
    known: set[object] = field(default_factory=set)
    """The keys of the steps in the report."""
    interrupted: bool = False
    """Whether Ctrl-C came while the origin was searched."""

    def react(self, trip: GuardTrip) -> bool:
        """Report a trip of the guard; return whether to leave out the update."""
        bad = None if trip.follows else _reported(trip, self._interrupt)
        if trip.where in _BESIDES_GRADIENTS and (bad is None or bad.is_intended or not bad.is_seen):
            trip.intended = bad is not None
            return False
        skips = self.on_nan == "skip" and (trip.where != UPDATE or trip.undoable)
        self.report.numbers.add(trip.step)
        counts = self.report.counts
        # The guard does not count the update of a step that a gradient scaler skips.
        begun = trip.optimizer is not None and trip.step > counts.steps + counts.skipped_by_scaler
        self.report.skipped += skips and (begun or trip.where == UPDATE)
        if bad is None:
            self.report.repeated += 1
        else:
            self._add(bad)
        return skips

    def _add(self, bad: BadStep) -> None:
        """Add a step to the report unless it is known, and react to it.  Raises NaNFound."""
        report = self.report
        if bad.key() in self.known or bad.starts_with(
            {name for each in report.bad_steps for name in each.bad}
        ):
            report.repeated += 1
            return
        self.known.add(bad.key())
        report.bad_steps.append(bad)
        if self.found is not None:
            self.found(bad)
        if self.on_nan == "raise" and not self.interrupted and bad.where != ERROR:
            raise NaNFound(bad, report)
        screen = Screen()
        for line in bad.lines():
            screen.err.print(line, soft_wrap=True)
        if self.interrupted:
            self.interrupted = False
            signal.raise_signal(signal.SIGINT)
        elif self.on_nan == "stop":
            _open_prompt(bad)

    def _interrupt(self) -> None:
        """Interrupt the script after the report."""
        self.interrupted = True


def _check(name: str, asked: str, words: tuple[str, ...]) -> None:
    if asked not in words:
        near = get_close_matches(str(asked), words, 1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise UsageError(f"there is no {name} {asked!r}: use {', '.join(words)}", hint=hint)


def _reported(trip: GuardTrip, interrupt: Callable[[], None]) -> BadStep:
    """Return the record of a trip, with a report of its second run; Ctrl-C ends it and calls `interrupt`."""
    bad = BadStep.of(trip)
    if trip.moved:
        bad.notes.append(trip.moved)
    if trip.recorded is not None:
        # A NaN beside the states that has no effect on them is no finding.
        gates = Gates.of("nan,inf", strict=trip.where not in _BESIDES_GRADIENTS)
        repeated = _examine(bad, trip.recorded, interrupt, gates)
        if bad.report is not None:
            bad.report.findings = [with_facts(finding, trip) for finding in bad.report.findings]
            ranks: Sequence[int] = ()
            if trip.where in (LOSS, GRADIENTS):
                ranks = origin_ranks(trip.step, own=bad.origin is not None)
            if bad.origin is None:
                compiled = trip.compiler is not None
                facts = {
                    "compiled": compiled,
                    "repeated": repeated,
                    "received": any(finding.cause == RECEIVED for finding in bad.report.findings),
                    "communicates": trip.communicates,
                }
                bad.notes.append(no_origin_note(**facts, ranks=ranks))
                if compiled and not repeated:
                    _search_compiled(bad, trip.recorded, trip.compiler)
    if bad.origin is None or bad.origin.used is None:
        bad.notes += [f"{name} had {counts} before the step" for name, counts in trip.before.items()][
            :_LISTED
        ]
    return bad


def _examine(bad: BadStep, recorded: RecordedStep, interrupt: Callable[[], None], gates: Gates) -> bool:
    """Watch a recorded step, and add the step and the report to a record.

    Return whether one of its bad tensors is NaN or Inf in this run, too.
    """

    def run() -> Stop:
        activity = f"step {bad.step}: searching for the origin"
        with under_way(RunningProgram(debugger), Screen(), pause, activity):
            return debugger.run()

    def pause() -> None:
        interrupt()
        debugger.pause()

    try:
        allocator = usual_allocation(None, "torch", statistics=False)
        debugger = Debugger(recorded.program, recorded.inputs, backend="torch", allocator=allocator)
        report = watch_run(debugger, gates, max_findings=_LISTED, run=run)
        report.watched = ReportContext.of(recorded.program, gates)
    except NncdbgError as error:
        bad.notes.append(f"the recorded step does not run in the debugger: {error.message}")
        return False
    bad.recorded = recorded
    if report.error is not None and debugger.stop.reason == "pause":
        bad.notes.append("Ctrl-C has ended the search for the origin")
        return False
    report.model = f"step {bad.step}"
    bad.report = report
    bad.notes += recorded.notes
    made = {**debugger.states, **(debugger.outputs or {})}
    again = (made.get(recorded.changed.get(name, name)) for name in bad.bad)
    return any(value is not None and not is_finite(value) for value in again)


def _search_compiled(bad: BadStep, recorded: RecordedStep, compiler: Any) -> None:
    """Add the smallest part of a step that is bad only if it is compiled."""
    try:
        bad.compiled_part = smallest_compiled_part(recorded, compiler)
    except Exception as error:  # noqa: BLE001  The compiler may raise anything for a part of a graph.
        bad.notes.append(f"the compiled graphs were not searched: {type(error).__name__}: {error}")
    else:
        if bad.compiled_part is None:
            bad.notes.append("compiled as one graph each, the passes have no NaN or Inf of their own")


def _open_prompt(bad: BadStep) -> None:
    """Open the prompt at the origin, if there is a terminal; `continue` returns to the training."""
    origin = bad.origin
    if bad.recorded is None or origin is None or origin.line is None or not sys.stdin.isatty():
        return
    debugger = Debugger(bad.recorded.program, bad.recorded.inputs, backend="torch")
    debugger.break_at(line=origin.line)
    debugger.run()
    # The prompt is a user interface, which this package does not import.
    break_here: Any = extensions.find(extensions.SCRIPTS, "prompt")
    break_here(f"step {bad.step}, before the operator of finding 1")
    debugger.step_over()


class TrainingWatch:
    """The watch of one training; `options` are those of `nncdbg.torch.watch`.

    It also ends when it raises NaNFound: libraries do not report each exception to their callbacks.
    """

    def __init__(self, **options: Any) -> None:
        self.report = TrainingReport()
        """The report of this training, or of the last one."""
        self._options = options
        self._found = options.pop("found", None)
        self._entered = ExitStack()

    def begin(self, model: Models, optimizer: Optimizers) -> None:
        """Watch a training.  Raises UsageError for unknown options, and inside of another watch."""
        self.end()
        self.report = self._entered.enter_context(
            watch(model, optimizer, found=self._on_found, **self._options)
        )

    def end(self, error: BaseException | None = None) -> None:
        """End the watch, if it is active; `error` is that of a training that failed."""
        self._entered.__exit__(None if error is None else type(error), error, None)

    def _on_found(self, bad: BadStep) -> None:
        if self._found is not None:
            self._found(bad)
        if self._options.get("on_nan", "raise") == "raise":
            self.end()
