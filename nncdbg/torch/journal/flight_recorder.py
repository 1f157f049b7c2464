"""`nncdbg.torch.flight_recorder`: write the journal of a training, and save the steps that fail."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nncdbg.errors import UsageError
from nncdbg.opening.journal.policy import CheckpointPolicy
from nncdbg.opening.journal.ranks import INF, NAN, RECEIVED
from nncdbg.presentation.screen import Screen
from nncdbg.process.ranks import journal_of_rank
from nncdbg.torch.guard import Guard
from nncdbg.torch.guard_findings import LOSS, STATES, GuardTrip, StepObserver
from nncdbg.torch.journal.recorded_ranks import RecordedRanks
from nncdbg.torch.journal.resuming import Resumed, resume
from nncdbg.torch.journal.run_journal import (
    Findings,
    RunJournal,
    Terminated,
    TerminationHandler,
    deferred_termination,
    new_run,
    save_start,
)
from nncdbg.torch.journal.tracking import (
    ACTIVE,
    RECREATIONS,
    SpikeDetector,
    SpikeRule,
    TrackedValues,
    scalar_losses,
    total_loss,
)
from nncdbg.torch.journal.training_objects import KeptStart, Stateful, TrainingObjects
from nncdbg.torch.named_models import Models, Optimizers
from nncdbg.torch.ranks import rank_of_process
from nncdbg.torch.recorded_step import RecordedStep
from nncdbg.torch.step_state import RandomState

_BATCHES = ("reference", "value", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """The options of `flight_recorder`, as they are used."""

    keep: int
    policy: CheckpointPolicy | None
    spike: SpikeRule | None
    batch: str | None
    fetch_every: int
    skip_bad_updates: bool
    resumed: Resumed | None
    name: str | None
    configuration: Mapping[str, Any]
    note: str | None
    stops: bool
    """Whether an error of the journal ends the training."""


class FlightRecorder(StepObserver):
    """Records a training while it is entered, or between `start` and `stop`; see `flight_recorder`."""

    def __init__(self, objects: TrainingObjects, path: str, options: RecorderOptions) -> None:
        self.path = path
        self.memory = 0
        """The bytes of the starts that are kept, once a step with moments has begun."""
        self._objects = objects
        self._options = options
        self._spikes = None if options.spike is None else SpikeDetector(options.spike)
        self._next = 0 if options.resumed is None else options.resumed.step
        """The number of the next step to begin, or of the one that runs."""
        self._step = -1
        """The number of the last step that began."""
        self._begun = False
        """Whether the step of the next update has begun."""
        self._fetched = False
        """Whether a batch was fetched since it began."""
        self._updating = False
        """Whether an update has begun."""
        self._began_at = 0.0
        self._starts: deque[KeptStart] = deque()
        """The kept starts, oldest first."""
        self._losses: list[Any] = []
        """The losses of the backward passes of the step so far."""
        self._spiked = False
        """Whether the last step had a spike: of several in a row, the first one is saved."""
        self._reported_memory = False
        self._nan_kind = NAN
        """The kind of the event of the last NaN or Inf."""
        self._followed = False
        """Whether NaN or Inf that come from an earlier finding were entered."""
        self._status = "ended"
        self._process = os.getpid()
        self._entered = ExitStack()

    # -- begin and end -----------------------------------------------------------------------

    def __enter__(self) -> FlightRecorder:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.stop(error)

    def start(self) -> None:
        """Begin to record.  Raises UsageError inside of a watch or another recorder.

        Under `nncdbg record --at`, the objects continue at the step of the command, and nothing is written.
        """
        if RECREATIONS:
            RECREATIONS[-1].begin(self._objects)
            return
        with ExitStack() as entering:
            self._guard = Guard(self._objects.models, self._objects.optimizers, self._found, observer=self)
            entering.enter_context(self._guard)
            options, parent = self._options, self._options.resumed
            if parent is not None and os.path.realpath(self.path) != os.path.realpath(parent.path):
                parent = None  # In another journal, the run is no fork.
            self._ranks = RecordedRanks.join()
            member = {} if self._ranks is None else self._ranks.member.as_configuration()
            self._journal = RunJournal(
                self.path,
                new_run(
                    {**options.configuration, **member},
                    name=options.name,
                    parent=None if parent is None else parent.run,
                    parent_step=None if parent is None else parent.step,
                ),
                stops=options.stops,
            )
            self._findings = Findings(self._journal)
            self._values = TrackedValues(partial(self._journal.write, "value"), options.fetch_every)
            self._terminating = TerminationHandler(self._terminated, self._journal.when_free)
            entering.callback(self._terminating.remove)
            ACTIVE.append(self)
            entering.callback(ACTIVE.remove, self)
            loader = self._objects.loader
            if loader is not None:
                loader.before_batch, loader.after_batch = self._before_batch, self._after_batch
                entering.callback(loader.follow_no_longer)
            self._entered = entering.pop_all()
        if options.note:
            self._journal.write("note", options.note)
        Screen().note(f"run {self.number} is recorded in {self.path}")

    def stop(self, error: BaseException | None = None) -> None:
        """End the run; with the error that ended the training, save its step first.

        Raises the error of the journal if it shall end the training and no other error has ended it.
        """
        if self not in ACTIVE or os.getpid() != self._process:
            return
        if self._ranks is not None:
            self._ranks.begin_end()
        try:
            if error is not None and error is self._journal.failure:
                self._status = "failed"
            elif error is not None:
                self._save_failed(error)
        finally:
            self._terminating.remove()
            with deferred_termination() as terminated:
                self._entered.__exit__(None if error is None else type(error), error, None)
                self._values.fetch()
                self._journal.end(self._status)
                if self._ranks is not None:
                    self._ranks.end(self.path, self.number, terminated)
        terminating = self._terminating
        # These refer to this object, which has the model: without them it needs no garbage collection.
        del self._guard, self._terminating
        self._starts.clear()
        if isinstance(error, Terminated):
            terminating.finish()
        if error is None:
            self._journal.check()

    def _save_failed(self, error: BaseException) -> None:
        if isinstance(error, Terminated):
            self._findings.save_step(self._last, "interrupted by SIGTERM", self._guard.record_step)
        elif isinstance(error, (KeyboardInterrupt, SystemExit)):
            if self._status == "ended" and (isinstance(error, KeyboardInterrupt) or error.code):
                self._status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self._findings.save_starts([*self._starts])
        else:
            self._status = "failed"
            # Of several lines, the first and the last one: the message of an error in a worker of a
            # DataLoader has the traceback of the worker.
            lines = [line for line in str(error).splitlines() if line.strip()]
            message = lines[0] if len(lines) == 1 else " ... ".join([*lines[:1], *lines[-1:]])
            self._add("exception", f"{type(error).__name__}: {message}", self._guard.record_step, self._last)

    def leave_process(self) -> None:
        """Record nothing: this process is a fork, such as a worker of a DataLoader."""
        self._journal.leave_process()
        self._terminating.remove()

    @property
    def number(self) -> int:
        """The number of the run in its file."""
        return RECREATIONS[-1].saved.run if RECREATIONS else self._journal.number

    @property
    def _last(self) -> int:
        """The number of the step that runs, or of the last one that ran."""
        return self._next if self._begun else max(self._step, 0)

    # -- steps -------------------------------------------------------------------------------

    def track(self, name: str, value: Any | Callable[[], Any], part: str, weight: float) -> None:
        """Track a value, as `nncdbg.torch.track` does."""
        if os.getpid() != self._process:
            raise UsageError(f"{name} cannot be tracked: the flight recorder is active in another process")
        if self._step < 0:
            raise UsageError(
                f"{name} cannot be tracked before the first step",
                hint="track values after the forward pass of a step",
            )
        with self._guard.tape.own_work:
            if callable(value) and not isinstance(value, torch.Tensor):
                value = value()
            self._values.add(name, self._step, value, part, weight)

    def step_begins(self) -> None:
        if self._objects.loader is None and not self._begun:
            self._begin(self._guard.tape.random_state(), None)
            self._save_if_due()

    def _before_batch(self) -> None:
        """Begin a step where its first batch is fetched: a restart fetches it again."""
        if self._guard.here and not (self._begun and self._fetched):
            with self._guard.tape.own_work:
                self._begin(RandomState(), self._objects.loader.position)

    def _after_batch(self, batch: Any) -> None:
        if self._guard.here:
            if self._options.batch == "value":
                self._starts[-1].batches.append(batch)
            if not self._fetched:
                self._fetched = True
                with self._guard.tape.own_work:
                    self._save_if_due()

    def _begin(self, random: RandomState, position: Any) -> None:
        """Keep the start of the next step."""
        self._begun, self._fetched = True, False
        self._step = self._next
        self._losses = []
        self._values.begin_step(self._step)
        starts = self._starts
        if not starts or starts[-1].step != self._step:
            full = len(starts) == self._options.keep
            starts.append(starts.popleft() if full else KeptStart(self._objects))
        starts[-1].capture(self._step, random, position)
        # How much memory the kept starts take is known once there are moments.
        if not self._reported_memory and any(each.state for each in self._objects.optimizers):
            from rich.filesize import decimal

            self._reported_memory, keep = True, self._options.keep
            self.memory = starts[-1].size * keep
            Screen().note(f"the starts of the last {keep} steps take {decimal(self.memory)} of memory")
        self._began_at = time.perf_counter()

    def _save_if_due(self) -> None:
        start, policy = self._starts[-1], self._options.policy
        if policy is None or not self._journal.writes or not policy.due(start.step, start.epoch or 0):
            return
        save_start(self._journal, start)
        for step in policy.written(start.step, start.epoch or 0, start.size):
            self._journal.write("remove_checkpoint", step)

    def losses(self, losses: Iterable[Any]) -> None:
        if self._updating and self._losses:
            return  # A closure that is evaluated again, at other parameters.
        self._losses += scalar_losses(losses)

    def update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        self._updating = True
        if not self._begun and self._objects.loader is None:
            # A step without a module: parameters and moments are as they were at its start.
            self._begin(RandomState(), None)
            self._save_if_due()
        if self._spikes is None or not self._losses:
            return
        loss = float(total_loss(self._losses, self._objects.scaler))
        score = self._spikes.score(loss)
        if score is not None and not self._spiked:
            self._add("spike", f"the loss {loss:.6g} is a spike: score {score:.3g}", self._guard.record_step)
        self._spiked = score is not None

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        if self._losses:
            loss = total_loss(self._losses, self._objects.scaler)
            self._values.add("loss", self._next, loss, "train", 1)
        epoch = None if self._objects.loader is None else self._objects.loader.epoch
        seconds = time.perf_counter() - self._began_at
        self._journal.write("step", self._next, epoch=epoch, seconds=seconds)
        self._next += 1
        self._begun = self._updating = False
        self._losses = []
        self._journal.check()

    # -- findings ----------------------------------------------------------------------------

    def _found(self, trip: GuardTrip) -> bool:
        """Save the step of a NaN or Inf; return whether to leave out the update."""
        if trip.where == STATES and not any("NaN" in counts for counts in trip.bad.values()):
            return False  # An Inf in a state may be intended, such as a mask.
        skips = self._options.skip_bad_updates and trip.where != "update"
        if trip.follows:
            if not self._followed:
                self._followed = True
                message = "NaN or Inf of an earlier step, from here on"
                self._journal.write("event", self._nan_kind, self._next, message)
            return skips

        def recorded(notes: list[str]) -> RecordedStep | None:
            notes += trip.notes
            return trip.recorded

        alone = trip.recorded
        finite_alone = trip.where != LOSS and alone is not None and alone.bad_gradients is False
        if trip.received or (self._ranks is not None and finite_alone):
            self._nan_kind = RECEIVED  # Another rank has sent the NaN or Inf.
        else:
            self._nan_kind = NAN if any("NaN" in counts for counts in trip.bad.values()) else INF
        (name, counts), *others = trip.bad.items()
        more = f", as {len(others)} more have NaN or Inf" if others else ""
        place = f", at {os.path.basename(trip.lines[0][0])}:{trip.lines[0][1]}" if trip.lines else ""
        self._add(self._nan_kind, f"{name} has {counts}{more}{place}", recorded)
        return skips

    def _add(
        self,
        kind: str,
        message: str,
        record: Callable[[list[str]], RecordedStep | None],
        step: int | None = None,
    ) -> None:
        self._findings.add(kind, self._next if step is None else step, message, [*self._starts], record)

    def _terminated(self) -> None:
        """Save the kept starts at once: after SIGTERM, SIGKILL may follow soon."""
        self._status = "interrupted"
        self._findings.save_starts([*self._starts])
        self._journal.write("event", "signal", self._last, "SIGTERM")
        self._values.fetch()
        self._journal.write("flush")


def flight_recorder(
    model: Models,
    optimizer: Optimizers,
    path: str | os.PathLike[str],
    *,
    keep: int = 3,
    checkpoint_every: int | str | None = None,
    checkpoint_budget: str | None = None,
    spike: SpikeRule | float | None = 10.0,
    batch: str | None = "reference",
    loader: Any = None,
    scheduler: Stateful | Sequence[Stateful] | None = None,
    scaler: Stateful | None = None,
    fetch_every: int = 10,
    skip_bad_updates: bool = False,
    resumed: Resumed | None = None,
    name: str | None = None,
    configuration: Mapping[str, Any] | None = None,
    note: str | None = None,
    on_journal_error: str = "warn",
) -> FlightRecorder:
    """Return a context manager that records a training as a run of the journal `path`.

    Each step, its loss and the values of `nncdbg.torch.track` are written.  The starts of the last `keep`
    steps are kept in memory: parameters, buffers, moments, `scheduler`, `scaler`, the states of the random
    generators, and the position of `loader`, a `track_loader`.  They are written as checkpoints, and the step
    is recorded and saved as a folder, when a loss or a gradient is NaN or Inf, when the loss is a spike (see
    `SpikeRule`; a number is its threshold), when the block raises, and at SIGTERM.

    With `checkpoint_every`, checkpoints are also written at this distance: 50 (steps), "3epochs" or "30s";
    older ones are removed beyond `checkpoint_budget` ("4GiB").  The batch of a checkpoint is its position in
    the data ("reference"), or also its tensors ("value"), or not kept (None).  Values are read from their
    device after `fetch_every` steps.  With `skip_bad_updates`, updates with NaN or Inf are left out.
    `resumed` is the result of `resume`: the run is then a fork.  In a training on several ranks, rank 0
    writes ``run.db``, rank 1 ``run.db-rank1``, and one report names the rank on which a NaN originates.

    Raises UsageError for wrong arguments, inside of a watch or another recorder, and for a file that cannot
    be written; LoadError for a file that is not a journal.
    """
    objects = TrainingObjects(model, optimizer, scheduler=scheduler, scaler=scaler, loader=loader)
    if not objects.models or not objects.optimizers:
        raise UsageError("a flight recorder needs a model and an optimizer")
    if not isinstance(keep, int) or keep < 1:
        raise UsageError(f"keep={keep}: the number of steps must be 1 or more")
    if not isinstance(fetch_every, int) or fetch_every < 1:
        raise UsageError(f"fetch_every={fetch_every}: the number of steps must be 1 or more")
    if batch not in _BATCHES:
        raise UsageError(f"there is no batch={batch!r}: use 'reference', 'value' or None")
    if batch == "value" and loader is None:
        raise UsageError(
            "batch='value' needs the loader of the batches",
            hint="loader = nncdbg.torch.track_loader(loader), and pass loader=loader",
        )
    if on_journal_error not in ("warn", "stop"):
        raise UsageError(f"there is no on_journal_error={on_journal_error!r}: use 'warn' or 'stop'")
    policy = None
    if checkpoint_every is not None:
        policy = CheckpointPolicy.of(str(checkpoint_every), checkpoint_budget)
    rank, ranks = rank_of_process()
    options = RecorderOptions(
        keep=keep,
        policy=policy,
        spike=SpikeRule.of(spike),
        batch=batch,
        fetch_every=fetch_every,
        skip_bad_updates=skip_bad_updates,
        resumed=resumed,
        name=name,
        configuration=dict(configuration or {}),
        note=note,
        stops=on_journal_error == "stop",
    )
    file = os.fspath(path)
    return FlightRecorder(objects, file if ranks == 1 else journal_of_rank(file, rank), options)


class RecordedTraining:
    """The recorder of one training; `options` are those of `nncdbg.torch.flight_recorder`.

    `resume`, the address to continue at, is an option as well.
    """

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._resume = options.pop("resume", None)
        self.recorder: FlightRecorder | None = None
        """The recorder of this training, or of the last one."""
        self._path = path
        self._options = options

    def begin(
        self,
        model: Models,
        optimizer: Optimizers,
        *,
        check: Callable[[], None] = lambda: None,
        **objects: Any,
    ) -> int | None:
        """Record a training; return the step of the checkpoint at which it continues, if any.

        `check` is called once the objects are restored.  Raises what it raises, and UsageError for wrong
        options, and inside of a watch.
        """
        options = {**objects, **self._options}
        if self._resume is not None:
            kept = {name: options.get(name) for name in ("scheduler", "scaler", "loader")}
            options["resumed"] = resume(model, optimizer, self._resume, **kept)
            check()
        recorder = flight_recorder(model, optimizer, self._path, **options)
        recorder.start()
        self.recorder = recorder
        start = options.get("resumed")
        if RECREATIONS:
            start = RECREATIONS[-1].saved
            check()
        if start is None:
            return None
        if options.get("loader") is not None:
            options["loader"].count_epochs()
        return int(start.step)

    def end(self, error: BaseException | None = None) -> None:
        """End the run, if one is active; `error` is that of a training that failed."""
        if self.recorder is not None:
            self.recorder.stop(error)
