"""What a watch over a training found."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nncdbg.comparison.check_results import (
    FAILED,
    NOT_APPLICABLE,
    NOT_CHECKED,
    PASSED,
    CheckResult,
    not_checked,
)
from nncdbg.engine.ops.aten.operators import facts_of
from nncdbg.errors import RunError
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.presentation.source_files import short_path
from nncdbg.representation import PrintedRecord
from nncdbg.text.counting import counted, listed
from nncdbg.torch.guard_findings import (
    ERROR,
    NOT_THIS_UPDATE,
    RESULTS,
    STATES,
    UPDATE,
    UpdateCounts,
    optimizer_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text

    from nncdbg.torch.compiled import CompiledPart
    from nncdbg.torch.guard_findings import GuardTrip
    from nncdbg.torch.module_watch import BadModule
    from nncdbg.torch.operator_watch import BadOperator
    from nncdbg.torch.recorded_step import RecordedStep

_WHERE = {STATES: "in states", RESULTS: "in a marked step"}
"""Words for the places of a NaN that is in no gradient."""

_MOST = 3
"""The most tensors that a sentence names."""


@dataclass(slots=True)
class BadStep:
    """One step with NaN or Inf.

    `where` is "loss", "gradients", "states", "results", "update", or "error" for a step that ended by an
    exception of the class `error`; `bad` maps the names of tensors to counts such as
    ``"2 NaN of 12"``.  `report` has the op where the value originates, from a second run of the step, which
    is `recorded`; both are None if the step could not run again, and `notes` say why.  With the tier "live",
    `recorded` is the first run.  `modules` are the first modules with NaN or Inf, with the tier "hooks", and
    `operators` the first operators, with "native".  `compiled_part` is the smallest compiled graph that has
    the NaN or Inf, if the step has none when it runs eagerly.
    """

    step: int
    where: str
    bad: dict[str, str]
    location: tuple[str, int] | None
    """File and line of the user's code that makes the update."""
    optimizer: str = ""
    """The class of the optimizer, and its learning rate."""
    report: Report | None = None
    recorded: RecordedStep | None = None
    notes: list[str] = field(default_factory=list)
    modules: list[BadModule] = field(default_factory=list)
    operators: list[BadOperator] = field(default_factory=list)
    compiled_part: CompiledPart | None = None
    error: str = ""

    @classmethod
    def of(cls, trip: GuardTrip) -> BadStep:
        """Return the record of what the guard found."""
        optimizer = trip.optimizer
        location = trip.lines[0] if trip.lines else None
        return cls(
            trip.step,
            trip.where,
            trip.bad,
            location,
            "" if optimizer is None else optimizer_text(optimizer),
            notes=list(trip.notes),
            modules=trip.modules,
            operators=trip.operators,
            error=trip.error,
        )

    @property
    def origin(self) -> WatchFinding | None:
        """Return the finding at the op where the value originates."""
        findings = self.report.findings if self.report is not None else ()
        return next((finding for finding in findings if finding.first), None)

    @property
    def is_intended(self) -> bool:
        """Return whether the second run finds no operator with an effect on what is bad.

        A number of the script is none, such as the -inf of a mask.
        """
        recorded, origin = self.recorded, self.origin
        made = origin is not None and origin.trips and (not origin.op or not facts_of(origin.op).fills)
        return recorded is not None and recorded.same_states and not made

    @property
    def is_seen(self) -> bool:
        """Return whether something with NaN or Inf was seen, not only an exception that NaN may raise."""
        return bool(self.bad or self.origin or self.modules or self.operators or self.compiled_part)

    def __str__(self) -> str:
        """Return one sentence about what is bad."""
        names = [f"{name} ({counts})" for name, counts in self.bad.items()]
        words = listed(names, _MOST)
        if any(note.startswith(NOT_THIS_UPDATE) for note in self.notes):
            return f"step {self.step}: NaN or Inf after the update of {self.optimizer}: {words}"
        if self.where == "update":
            return f"step {self.step}: {self.optimizer} made NaN or Inf from finite gradients: {words}"
        if self.where == ERROR:
            return f"step {self.step}: NaN or Inf before {self.error}{f': {words}' if words else ''}"
        where = _WHERE.get(self.where, "before the update")
        return f"step {self.step}: NaN or Inf {where}: {words}"

    def key(self) -> tuple[Any, ...]:
        """Return what two steps with the same origin have in common."""
        found = self.origin
        if found is None:
            return self.where, *sorted(self.bad)
        return found.op, found.site.file, found.site.source_line, found.site.graph

    def starts_with(self, names: Collection[str]) -> bool:
        """Return whether the NaN was in a parameter or state of these names before the step."""
        found = self.origin
        return found is not None and not found.op and found.value in names

    def lines(self) -> Iterator[Text]:
        """Return the lines that are printed, with their styles."""
        from rich.text import Text

        yield Text(str(self), "bold red")
        if self.location is not None:
            file, line = self.location
            yield Text(f"  from {short_path(file)}:{line}", "dim")
        bad: list[BadModule | BadOperator] = [*self.modules, *self.operators]
        for each in bad:
            yield Text(f"  {each}")
            if each.location is not None:
                file, line = each.location
                yield Text(f"    {each.relation} {short_path(file)}:{line}", "dim")
        if self.compiled_part is not None:
            yield Text(f"  {self.compiled_part}")
        for note in self.notes:
            yield Text(f"  note: {note}", "dim")
        if self.report is not None:
            yield from self.report.lines()

    def as_dict(self) -> dict[str, Any]:
        """Return the step as a JSON object."""
        location = None if self.location is None else {"file": self.location[0], "line": self.location[1]}
        return {
            "step": self.step,
            "where": self.where,
            "bad": dict(self.bad),
            "location": location,
            "optimizer": self.optimizer,
            "notes": list(self.notes),
            "modules": [module.as_dict() for module in self.modules],
            "operators": [operator.as_dict() for operator in self.operators],
            "compiled_part": None if self.compiled_part is None else self.compiled_part.as_dict(),
            "report": None if self.report is None else self.report.as_dict(),
        }


@dataclass(slots=True)
class TrainingReport(PrintedRecord):
    """The result of a watch over a training: the steps with NaN or Inf, one for each origin.

    `counts` are those of the updates, also within the training.  `skipped` counts those that the reaction
    "skip" left out, and `repeated` the steps with an origin that was reported before.  `numbers` are those of
    all steps with NaN or Inf.
    """

    bad_steps: list[BadStep] = field(default_factory=list)
    skipped: int = 0
    repeated: int = 0
    counts: UpdateCounts = field(default_factory=UpdateCounts)
    numbers: set[int] = field(default_factory=set)
    interrupted: bool = False
    """Whether the training was interrupted."""

    @property
    def checks(self) -> list[CheckResult]:
        """Return the results of the checks before and after the updates, and of the searches for origins."""
        none = "the gradient scaler left out each update" if self.skipped_by_scaler else "no update was seen"
        unseen = CheckResult("", PASSED) if self.steps or self.passes else CheckResult("", NOT_CHECKED, none)
        after = [each.where == UPDATE for each in self.bad_steps]
        found = [
            CheckResult(name, FAILED) if failed else replace(unseen, check=name)
            for name, failed in (("gradients", not all(after)), (UPDATE, any(after)))
        ]
        without = next((each for each in self.bad_steps if not (each.origin or each.compiled_part)), None)
        if without is not None:
            why = without.notes[0] if without.notes else "no op was found"
            found.append(CheckResult("origin", NOT_CHECKED, f"step {without.step}: {why}"))
        elif self.bad_steps:
            found.append(CheckResult("origin", PASSED))
        else:
            found.append(CheckResult("origin", NOT_APPLICABLE, "no step has NaN or Inf"))
        if self.interrupted:
            later = f"steps after {self.steps + self.skipped_by_scaler}"
            found.append(CheckResult(later, NOT_CHECKED, "the training was interrupted"))
        marked, elsewhere = self.counts.of_modules_only, self.counts.on_other_threads
        if marked:
            what = f"results of operators in {counted(marked, 'marked step')}"
            found.append(CheckResult(what, NOT_CHECKED, "the tier live checks those of modules: use guard"))
        if elsewhere:
            why = "only the thread of the watch is checked"
            found.append(CheckResult(f"{counted(elsewhere, 'update')} on other threads", NOT_CHECKED, why))
        return found

    @property
    def steps(self) -> int:
        """The number of updates so far, with those that the reaction "skip" left out."""
        return self.counts.steps

    @property
    def passes(self) -> int:
        """The number of steps so far in a training without an optimizer."""
        return self.counts.passes

    @property
    def skipped_by_scaler(self) -> int:
        """The number of updates that a gradient scaler has left out because of NaN or Inf."""
        return self.counts.skipped_by_scaler

    @property
    def seen(self) -> bool:
        """Return whether the watch has seen an update, or a step with NaN or Inf."""
        return self.steps > 0 or self.passes > 0 or not self.ok

    @property
    def ok(self) -> bool:
        """Return whether no step had NaN or Inf."""
        return not self.bad_steps

    @property
    def status(self) -> str:
        """ "tripped" after NaN or Inf, "not checked" if something was not checked, else "ok"."""
        if not self.ok:
            return "tripped"
        return NOT_CHECKED if any(each.result == NOT_CHECKED for each in self.checks) else "ok"

    @property
    def exit_code(self) -> int:
        """1 if a step had NaN or Inf, otherwise 0."""
        return int(not self.ok)

    @property
    def origin(self) -> WatchFinding | None:
        """Return the first finding at an op where a value originates."""
        return next((each.origin for each in self.bad_steps if each.origin is not None), None)

    def __str__(self) -> str:
        """Return the text that `nncdbg watch` prints."""
        return "\n".join(line.plain for line in self.lines())

    __repr__ = __str__

    def lines(self) -> Iterable[Text]:
        """Return the lines of the whole report, with their styles."""
        from rich.text import Text

        yield self._verdict()
        for each in self.bad_steps:
            yield Text()
            yield from each.lines()
        yield from self._counts()

    def summary(self) -> Iterable[Text]:
        """Return the last lines of `nncdbg watch`, after the steps with NaN or Inf."""
        yield self._verdict()
        yield from self._counts()

    def _verdict(self) -> Text:
        from rich.text import Text

        steps = max(len(self.numbers), len({each.step for each in self.bad_steps}))
        words = {"ok": "ok", NOT_CHECKED: "no NaN or Inf"}
        verdict = words.get(self.status) or f"tripped: NaN or Inf in {counted(steps, 'step')}"
        updates = counted(self.steps - self.skipped, "update")
        if self.passes and not self.steps:
            updates = f"{counted(self.passes, 'step')} without an optimizer"
        styles = {"ok": "bold green", NOT_CHECKED: "bold yellow"}
        return Text(f"training: {verdict}, {updates}", styles.get(self.status, "bold red"))

    def _counts(self) -> Iterable[Text]:
        from rich.text import Text

        for count, noun, words in (
            (self.repeated, "more step", "with an origin or parameters that are reported above"),
            (self.skipped, "step", "without an update, because of the reaction skip"),
            (
                self.skipped_by_scaler,
                "step",
                "without an update, because the gradient scaler found NaN or Inf",
            ),
        ):
            if count:
                yield Text(f"{counted(count, noun)} {words}", "dim")
        for left in not_checked(self.checks):
            yield Text(f"not checked: {left}", "dim")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "status": self.status,
            "steps": self.steps,
            "bad_steps": [each.as_dict() for each in self.bad_steps],
            "skipped": self.skipped,
            "skipped_by_scaler": self.skipped_by_scaler,
            "repeated": self.repeated,
            "checks": [each.as_dict() for each in self.checks],
        }


class NaNFound(RunError):
    """A watched training has NaN or Inf; `bad_step` says where, and `report` is that of the training."""

    exit_code = 1

    def __init__(self, bad_step: BadStep, report: TrainingReport) -> None:
        text = "\n".join(line.plain for line in bad_step.lines())
        super().__init__(text)
        self.bad_step = bad_step
        self.report = report
