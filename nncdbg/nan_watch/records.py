"""Results of a watch as plain records, the same in Python and in every report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.comparison import check_results
from nncdbg.comparison.check_results import NOT_CHECKED, PASSED, CheckResult, not_checked
from nncdbg.errors import StoppedRun, failure_code
from nncdbg.opening.corpus.cases import CODES, FAILED, Case
from nncdbg.representation import PrintedRecord, represent
from nncdbg.stats.summary import Summary

if TYPE_CHECKING:
    from rich.text import Text

    from nncdbg.comparison.verification import Verification
    from nncdbg.ir.records import Node
    from nncdbg.nan_watch.measuring.gates import ReportContext
    from nncdbg.stats.series import TrackedSeries


@dataclass(slots=True)
class ParameterHistory:
    """The Euclidean norms of a parameter at the steps of a `TrainingHistory`; NaN where one is not finite.

    `norms` are those of the parameter before the step, `ratios` those of its update divided by them, and
    `gradient_norms` those of the gradient that the update uses; `gradient` is its name ("" if unknown).
    """

    name: str
    gradient: str = ""
    norms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    shrinkage: list[float] = field(default_factory=list)
    """The share of the parameter that each update takes away: 0.1 if it is multiplied by 0.9."""

    @property
    def series(self) -> tuple[list[float], ...]:
        """Return every list with one element per step."""
        return self.norms, self.ratios, self.gradient_norms, self.shrinkage

    def as_dict(self) -> dict[str, Any]:
        """Return the norms as a JSON object."""
        return {
            "name": self.name,
            "gradient": self.gradient,
            "norm": list(self.norms),
            "update_ratio": list(self.ratios),
            "gradient_norm": list(self.gradient_norms),
        }


@dataclass(slots=True)
class ActivationHistory:
    """The units (channels, neurons) of an activation over the steps of a `TrainingHistory`.

    `dead` has the number of units that were flat for every sample of a step, None where it is not known.
    `dead_now` units were flat in all of the last steps; `since` is the first measured step from which on all
    of these were (None without one).  `line` counts from 1 in the program's text.
    """

    name: str
    graph: str
    line: int | None
    units: int
    dead: list[int | None]
    dead_now: int = 0
    since: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class TrainingHistory:
    """The measured steps of one ``run`` line: all of the first and the last, and some between them.

    `results` maps each scalar float result of the graph to its values.  All lists have the length of `steps`.
    """

    graph: str
    steps: list[int] = field(default_factory=list)
    results: dict[str, list[float]] = field(default_factory=dict)
    parameters: list[ParameterHistory] = field(default_factory=list)
    activations: list[ActivationHistory] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    """The learning rates that the steps compute, by name."""

    @property
    def series(self) -> Sequence[list[Any]]:
        """Return every list with one element per step."""
        scalars = (*self.results.values(), *self.rates.values())
        return [self.steps, *scalars, *(one for each in self.parameters for one in each.series)]

    def as_dict(self) -> dict[str, Any]:
        """Return the history as a JSON object."""
        return {
            "graph": self.graph,
            "steps": list(self.steps),
            "results": {name: list(values) for name, values in self.results.items()},
            "parameters": [each.as_dict() for each in self.parameters],
            "activations": [each.as_dict() for each in self.activations],
        }


ROLES = ("birth", "masked", "healed", "propagated")
"""Origin; origin without effect on an output; finite result of non-finite operands; propagation."""

OK, TRIPPED = "ok", "tripped"

REUSE = "reuse"
"""The kind of a read of reused memory, which the gate `guard` covers."""

_GATES = {REUSE: "guard", "schedule": "race"}
"""The gates of kinds of findings without a gate of their own."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of the statement at that time; `type` is formatted, `stats` is None except for tensors."""

    name: str
    type: str | None
    stats: Summary | None

    def as_dict(self) -> dict[str, Any]:
        """Return the operand as a JSON object."""
        stats = None if self.stats is None else self.stats.as_dict()
        return {"name": self.name, "type": self.type, "stats": stats}


@dataclass(frozen=True, slots=True)
class FindingSite:
    """The location of a statement in the program text and in the user's model.

    `line` counts from 1 in the program's text; `graph` is the graph or layer, `node` the model's name of
    the node ("" for none), `value` the affected result; `file` and `source_line` are the location in the
    user's model; `text` is the statement's line in the program's text.
    """

    line: int | None
    graph: str
    node: str
    op: str
    value: str
    file: str | None = None
    source_line: int | None = None
    text: str = field(default="", compare=False)
    stack: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    """The callers of this location, innermost first."""

    @classmethod
    def of(cls, line: int | None, graph: str, node: Node, value: str, text: str) -> FindingSite:
        """Return the location of a node, with that in the user's model."""
        place = node.location
        if place is None:
            return cls(line, graph, "", node.op, value, text=text)
        return cls(line, graph, place.name or "", node.op, value, place.file, place.line, text, place.stack)

    def location(self) -> dict[str, Any] | None:
        """Return `{"file", "line"}` in the user's model; None if it is unknown."""
        return None if self.file is None else {"file": self.file, "line": self.source_line}


@dataclass(frozen=True, slots=True)
class TracebackLine:
    """A line of the user's source that ran; `function` and `text` are "" if they are unknown."""

    file: str
    line: int
    function: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class SourceTraceback:
    """The lines of the user's source that led to a statement, outermost first, as in a traceback of Python.

    `part` says how the statement belongs to the innermost line: "" if this line runs it, "backward of" if it
    computes a derivative of the line, "update of NAME by" for a parameter, and "first used by" if the line
    uses an input.  `names` are the Python names of the innermost line after it has run; one that held
    another tensor before it also occurs as `NAME before`.
    """

    lines: tuple[TracebackLine, ...]
    part: str = ""
    names: tuple[Operand, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the traceback and the names as a JSON object."""
        return {
            "traceback": [asdict(each) for each in self.lines],
            "traceback_of": self.part,
            "names": [each.as_dict() for each in self.names],
        }


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step of a ``run`` line, from 0, and its epoch, from 0; the epoch is None for a run without data."""

    step: int
    epoch: int | None = None

    def __str__(self) -> str:
        """Return `step 37, epoch 1`."""
        return f"step {self.step}" + ("" if self.epoch is None else f", epoch {self.epoch}")


@dataclass(frozen=True, slots=True)
class FindingUse:
    """One visit of a statement, with its iterations and calls, outermost first."""

    site: FindingSite
    iteration: tuple[int, ...] = ()
    calls: tuple[FindingSite, ...] = ()
    at_step: TrainingStep | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the visit as a JSON object."""
        visit = _visit_fields(self.iteration, self.at_step)
        return {**(_site_fields(self.site) or {}), **visit, "calls": [*map(_site_fields, self.calls)]}


@dataclass(frozen=True, slots=True)
class WatchFinding:
    """One finding at one statement.

    `kind` is a gate kind (nan, inf, uninitialized, ...); `role` one of `ROLES`; `first` marks the
    finding at the origin.  `iteration` holds the iterations of the enclosing loops, outermost first;
    `at_step` is the step of a training, whose number is the first of these.
    `cause`, `evidence` and `hint` are those of `diagnosis.cause.Cause` ("" if unknown); `within` is the
    statement of the op's micro program where it happened.
    `calls` are the statements that called the enclosing functions, outermost first.  `used` is the first
    statement that an input or parameter influences.  `other` is another statement to blame: the culprit of
    wrong reuse, or the statement that freed the memory.  `actual` is the quantity that tripped a gate with a
    limit, `threshold` that limit.  `count` is the number of occurrences, `case` the case of a corpus.
    """

    kind: str
    role: str
    site: FindingSite
    first: bool = False
    iteration: tuple[int, ...] = ()
    inputs: tuple[Operand, ...] = ()
    stats: Summary | None = None
    reaches_output: bool = True
    cause: str = ""
    evidence: str = ""
    hint: str = ""
    within: FindingSite | None = None
    other: FindingSite | None = None
    calls: tuple[FindingSite, ...] = ()
    used: FindingUse | None = None
    actual: float | None = None
    threshold: float | None = None
    count: int = 1
    case: str | None = None
    trips: bool = False
    """Whether it trips a gate of this watch."""
    at_step: TrainingStep | None = None
    verdict: str = ""
    """What is wrong with the training or loop around it: see `measuring.training` ("" outside of loops)."""
    source: SourceTraceback | None = None
    """The user's source that led to the statement; None if it was not recorded."""

    def __str__(self) -> str:
        """Return one sentence about what failed."""
        return str(represent("finding", self))

    @property
    def is_warning(self) -> bool:
        """Return whether it is a measurement that trips no gate."""
        return self.threshold is not None and not self.trips

    @property
    def line(self) -> int | None:
        """Return the line of the statement in the program's text, from 1."""
        return self.site.line

    @property
    def statement(self) -> str:
        """Return the statement as in the program's text."""
        return self.site.text

    @property
    def op(self) -> str:
        """Return the op of the statement."""
        return self.site.op

    @property
    def value(self) -> str:
        """Return the name of the affected result, without the `%`."""
        return self.site.value

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        site = self.site
        return {
            "kind": self.kind,
            "role": self.role,
            "first": self.first,
            "line": site.line,
            "graph": site.graph,
            **_visit_fields(self.iteration, self.at_step),
            "node": site.node,
            "op": site.op,
            "value": site.value,
            "location": site.location(),
            **(self.source or SourceTraceback(())).as_dict(),
            "inputs": [operand.as_dict() for operand in self.inputs],
            "stats": self.stats.as_dict() if self.stats is not None else None,
            "reaches_output": self.reaches_output,
            "cause": self.cause,
            "evidence": self.evidence,
            "verdict": self.verdict,
            "hint": self.hint,
            "within": _site_fields(self.within),
            "other": _site_fields(self.other),
            "calls": [*map(_site_fields, self.calls)],
            "used": self.used.as_dict() if self.used is not None else None,
            "actual": self.actual,
            "threshold": self.threshold,
            "count": self.count,
            "case": self.case,
            "trips": self.trips,
        }


def _visit_fields(iteration: tuple[int, ...], at_step: TrainingStep | None) -> dict[str, Any]:
    step = {} if at_step is None else {"step": at_step.step, "epoch": at_step.epoch}
    return {"iteration": list(iteration), **step}


def _site_fields(site: FindingSite | None) -> dict[str, Any] | None:
    if site is None:
        return None
    return {"line": site.line, "graph": site.graph, "op": site.op, "value": site.value}


@dataclass(slots=True)
class Report(PrintedRecord):
    """The result of a watch over one run, or over all cases of a corpus.

    `ops` counts executed statements; `seconds` is the duration of the runs.  `counts` maps each role to its
    number of findings, listed or not; `results` holds the result of each check, before the findings are
    judged (see `checks`); `notes` holds remarks about the inputs.  `error` is the error that ended the run
    early.  `cases` holds the verdict on each case of a corpus, in order.
    """

    model: str = ""
    ops: int = 0
    seconds: float = 0.0
    findings: list[WatchFinding] = field(default_factory=list)
    unlisted: int = 0
    """Number of findings beyond the listed ones (see `limit`)."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROLES, 0))
    results: list[CheckResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: Exception | None = None
    cases: list[Case] = field(default_factory=list)
    interrupted: bool = False
    """Whether the user interrupted the watch."""
    training: list[TrainingHistory] = field(default_factory=list)
    """The norms over the steps of each ``run`` line; empty for several runs."""
    tracks: list[TrackedSeries] = field(default_factory=list)
    """The tracked numbers; empty for several runs."""
    observers: Verification | None = None
    """Whether observers change the outputs, if that was verified."""
    watched: ReportContext | None = field(default=None, compare=False)
    """The program's text and the gates, for `str`."""

    def __str__(self) -> str:
        """Return the text that `nncdbg watch` prints."""
        return "\n".join(line.plain for line in self.lines()).rstrip("\n")

    __repr__ = __str__

    def lines(self) -> Iterable[Text]:
        """Return the lines that `nncdbg watch` prints, with their styles."""
        watched = () if self.watched is None else (self.watched,)
        lines: Iterable[Text] = represent("watch report", self, *watched)
        return lines

    def limit(self, most: int) -> None:
        """Keep at most `most` findings, in their order; that at the origin and those that trip come first.

        Of the statements that only propagate, the last is kept first: it shows how far the value got.
        """
        ranks = {role: rank for rank, role in enumerate(ROLES)}
        indices = range(len(self.findings))
        found = self.findings
        end = max((i for i in indices if found[i].role == "propagated"), default=None)
        order = lambda i: (not found[i].first, not found[i].trips, ranks.get(found[i].role, 0), i != end, i)  # noqa: E731
        kept = sorted(indices, key=order)[:most]
        self.unlisted += len(found) - len(kept)
        self.findings = [found[index] for index in sorted(kept)]

    @property
    def tripping(self) -> Iterator[WatchFinding]:
        """Return the findings that trip a gate."""
        return (finding for finding in self.findings if finding.trips)

    @property
    def checks(self) -> list[CheckResult]:
        """Return the result of each check: failed if a finding trips it; if no run finished, none passed."""
        names = {each.check for each in self.results}
        kinds = {finding.kind for finding in self.tripping}
        tripped = {kind if kind in names else _GATES.get(kind, kind) for kind in kinds}
        return [self._judged(each, tripped) for each in self.results]

    def _judged(self, made: CheckResult, tripped: Collection[str]) -> CheckResult:
        if re.split(r"[:<>]", made.check, maxsplit=1)[0] in tripped:
            return CheckResult(made.check, check_results.FAILED)
        if made.result == PASSED and self.error is not None:
            return CheckResult(made.check, NOT_CHECKED, "the run did not finish")
        return made

    @property
    def unchecked(self) -> list[str]:
        """Return what was not checked, and why."""
        return [*not_checked(self.results)]

    @property
    def status(self) -> str:
        """ "tripped" if a gate tripped, "failed" if a run did not finish, "not checked" if something was not
        checked, else "ok".
        """
        if any(True for _ in self.tripping):
            return TRIPPED
        failed = self.error is not None or any(case.error for case in self.cases)
        if failed:
            return FAILED
        return NOT_CHECKED if any(each.result == NOT_CHECKED for each in self.results) else OK

    @property
    def ok(self) -> bool:
        """Return whether no gate tripped and every run finished; `status` also says what was not checked."""
        return self.status in (OK, NOT_CHECKED)

    @property
    def exit_code(self) -> int:
        """Return 130 after an interruption, else the highest code that applies.

        1 if a gate tripped, 2 if inputs did not fit, 3 for an unreadable file or an op without a kernel, 4 if
        a run failed.  For a run stopped by a budget: 1 if a gate tripped before, else 4.
        """
        if self.interrupted:
            return 130
        tripped = int(any(True for _ in self.tripping))
        codes = [tripped, *(CODES.get(case.status, 0) for case in self.cases)]
        if self.error is not None and not (tripped and isinstance(self.error, StoppedRun)):
            codes.append(failure_code(self.error))
        return max(codes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        found: dict[str, Any] = {
            "status": self.status,
            "model": self.model,
            "ops": self.ops,
            "seconds": self.seconds,
            "findings": [finding.as_dict() for finding in self.findings],
            "unlisted": self.unlisted,
            "counts": dict(self.counts),
            "checks": [each.as_dict() for each in self.checks],
            "unchecked": self.unchecked,
            "notes": list(self.notes),
        }
        if self.error is not None:
            found["error"] = str(self.error)
        if self.interrupted:
            found["interrupted"] = True
        if self.training:
            found["training"] = [each.as_dict() for each in self.training]
        if self.tracks:
            found["tracks"] = [each.as_dict() for each in self.tracks]
        if self.observers is not None:
            found["observers"] = self.observers.as_dict()
        if self.cases:
            found["cases"] = [case.as_dict() for case in self.cases]
        return found


Key: TypeAlias = "tuple[str, str, str, str, str]"
"""(graph, value, op, kind, cause) of a finding; without its line, its numbers and its case."""


def key_of(finding: WatchFinding) -> Key:
    """Return the identity of a finding."""
    site = finding.site
    return (site.graph, site.value, site.op, finding.kind, finding.cause)


def fingerprint(finding: WatchFinding) -> str:
    """Return the key as a digest of 32 characters, the same in every process."""
    content = json.dumps(key_of(finding)).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
