"""Baselines of accepted findings: a watch with a baseline fails only on new findings.

A finding is identified by its kind, cause, op, graph and value, not by its line, so edits above it do not
change its identity.  Names that are only numbers (`%12`, `val_7`, `onnx::Log_31`) change with every node
inserted before them.  A missing known finding and a new one that differ only in such a name are therefore
the same finding, reported as moved.

    {
     "nncdbg_baseline": 1,
     "model": "net.onnx",
     "inputs": ["x"],
     "outputs": ["probs"],
     "findings": [
      {"kind": "inf", "cause": "log of zero", "op": "Log", "graph": "entropy", "value": "q", "role": "birth"}
     ]
    }

A `"note"` in a finding says why it is accepted; rewriting the file keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from nncdbg.errors import LoadError, RunError, UsageError
from nncdbg.ir.records import Program
from nncdbg.nan_watch.records import Key, Report, WatchFinding, key_of
from nncdbg.nan_watch.reports import not_written, write_file
from nncdbg.process.files import read_regular
from nncdbg.text.counting import counted, listed
from nncdbg.text.lexemes import name_text

_VERSION = 1
_HARMLESS = ("masked", "healed")
"""Roles that never reach an output; accepting one does not accept a finding that does."""
_HINT = "write one with --write-baseline"
_SHOWN = 10
"""Known findings listed in one note."""


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """One accepted finding; `note` says why it was accepted ("" for none)."""

    graph: str
    value: str
    op: str
    kind: str
    cause: str
    role: str = "birth"
    note: str = ""

    @property
    def key(self) -> Key:
        """Return the identity of the finding."""
        return self.graph, self.value, self.op, self.kind, self.cause

    def covers(self, finding: WatchFinding) -> bool:
        """Return whether this entry accepts `finding`: the same key, or a finding that moved here."""
        return self.role not in _HARMLESS or finding.role in _HARMLESS

    def as_dict(self) -> dict[str, str]:
        """Return the entry as a JSON object."""
        fields = asdict(self)
        return fields if self.note else {name: text for name, text in fields.items() if name != "note"}


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted findings of one model, identified by its file name, inputs and outputs."""

    model: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    known: tuple[AcceptedFinding, ...] = ()

    @classmethod
    def of(cls, report: Report, program: Program, earlier: Baseline | None = None) -> Baseline:
        """Return a baseline that accepts all findings that trip in `report`, with the notes of `earlier`."""
        notes = {each.key: each.note for each in earlier.known} if earlier is not None else {}
        entries: dict[Key, AcceptedFinding] = {}
        for finding in report.tripping:
            key = key_of(finding)
            if key not in entries or not entries[key].covers(finding):
                entries[key] = AcceptedFinding(*key, finding.role, notes.get(key, ""))
        entry = program.graphs[program.entry]
        return cls(
            Path(report.model).name,
            tuple(value.name for value in entry.inputs),
            tuple(value.name for value in entry.outputs),
            tuple(sorted(entries.values(), key=lambda each: each.key)),
        )

    def text(self) -> str:
        """Return the content of the file: sorted, one finding per line, for readable diffs."""
        head = {
            "nncdbg_baseline": _VERSION,
            "model": self.model,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
        }
        lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
        rows = ",\n".join(f"  {json.dumps(each.as_dict())}" for each in self.known)
        findings = f' "findings": [\n{rows}\n ]' if rows else ' "findings": []'
        return "\n".join(["{", *lines, findings, "}", ""])

    def check(self, model: str, program: Program) -> None:
        """Raise UsageError if this baseline belongs to another model than the one in the file `model`."""
        entry = program.graphs[program.entry]
        name = Path(model).name
        own = {value.name for value in (*entry.inputs, *entry.outputs)}
        if self.model and name and self.model != name:
            raise UsageError(
                f"the baseline is for {self.model}, but the model is {name}",
                hint=f'write a new baseline; for a renamed model, set "model": "{name}" in the file',
            )
        theirs = {*self.inputs, *self.outputs}
        if own and theirs and not own & theirs:
            raise UsageError(
                f"the baseline is for another {name or 'model'}: no input or output name matches",
                hint="write a new baseline; the old baseline is for "
                f"{listed(self.inputs, _SHOWN, 'nothing')} -> {listed(self.outputs, _SHOWN, 'nothing')}",
            )


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """A report compared with a baseline; `report` has no accepted findings.

    `accepted` are the known findings seen again, `gone` the known ones not seen, `moved` pairs of a known
    finding and its new form.
    """

    report: Report
    accepted: tuple[WatchFinding, ...]
    gone: tuple[AcceptedFinding, ...]
    moved: tuple[tuple[AcceptedFinding, WatchFinding], ...]


def compare(report: Report, baseline: Baseline, program: Program) -> BaselineComparison:
    """Return the report without the findings that the baseline accepts, so that only others trip.

    Notes in the report count the accepted findings, and list moved findings, and missing ones if the run
    finished.  If the report does not list all findings, its error says that new ones may be among the rest.

    Raises UsageError for the baseline of another model.
    """
    baseline.check(report.model, program)
    tripping = list(report.tripping)
    seen = {key_of(finding) for finding in tripping}
    by_key = {each.key: each for each in baseline.known}
    unseen = [each for each in baseline.known if each.key not in seen]
    moved = _moved([finding for finding in tripping if key_of(finding) not in by_key], unseen)
    accepted = {}
    for finding in tripping:
        known = by_key.get(key_of(finding)) or moved.get(key_of(finding))
        if known is not None and known.covers(finding):
            accepted[id(finding)] = finding
    hidden = _too_many(report)
    whole = _finished_without_error(report) and hidden is None
    renamed = {each.key for each in moved.values()}
    gone = tuple(each for each in unseen if each.key not in renamed) if whole else ()
    pairs = tuple((moved[key_of(each)], each) for each in accepted.values() if key_of(each) in moved)
    changed = replace(
        report,
        findings=[each for each in report.findings if id(each) not in accepted],
        notes=[*report.notes, *_notes(len(accepted), gone, pairs)],
        error=report.error or hidden,
    )
    return BaselineComparison(changed, tuple(accepted.values()), gone, pairs)


def _finished_without_error(report: Report) -> bool:
    return report.error is None and not report.interrupted and not any(case.error for case in report.cases)


def _too_many(report: Report) -> UsageError | None:
    """Return an error if a tripping finding may be unlisted; tripping findings are listed first."""
    hidden = report.unlisted
    if not hidden or not all(finding.trips for finding in report.findings):
        return None
    return UsageError(
        f"a baseline needs all findings, but {hidden} are not listed",
        hint=f"list all findings with --max-findings {len(report.findings) + hidden}",
    )


def _moved(findings: Iterable[WatchFinding], unseen: Iterable[AcceptedFinding]) -> dict[Key, AcceptedFinding]:
    """Map new findings to the unseen known ones that differ only in an automatic name's number."""
    waiting: dict[Key, list[AcceptedFinding]] = {}
    for known in unseen:
        waiting.setdefault(_without_number(known.key), []).append(known)
    found: dict[Key, AcceptedFinding] = {}
    for finding in findings:
        key = key_of(finding)
        stem = _without_number(key)
        if key not in found and stem != key and waiting.get(stem):
            found[key] = waiting[stem].pop(0)
    return found


_NUMBERED = re.compile(r"(?P<stem>.*?)_?\d*(?P<output>_output_\d+)?", re.DOTALL)
_AUTOMATIC = {"", "val", "value", "tmp", "t", "v", "var", "node", "tensor"}
"""Stems of names that exporters number automatically."""


def _without_number(key: Key) -> Key:
    """Return the key with `#` for the number of an automatic name; other names are unchanged."""
    graph, value, op, kind, cause = key
    match = _NUMBERED.fullmatch(value)
    assert match is not None  # Every name matches: all its parts may be empty.
    last = re.split(r"/|::", match["stem"])[-1].casefold()
    if last not in _AUTOMATIC and last != op.casefold():
        return key
    return graph, f"{match['stem']}#{match['output'] or ''}", op, kind, cause


def _notes(
    accepted: int, gone: Sequence[AcceptedFinding], moved: Sequence[tuple[AcceptedFinding, WatchFinding]]
) -> list[str]:
    notes = [f"{counted(accepted, 'known finding')} accepted by the baseline, not listed"]
    notes += [
        f"moved: known in %{name_text(known.value)}, now in %{name_text(finding.site.value)}"
        for known, finding in moved[:_SHOWN]
    ]
    if gone:
        names = listed([f"{known.kind} in %{name_text(known.value)}" for known in gone], _SHOWN)
        notes.append(f"no longer found ({len(gone)}): {names}; --write-baseline updates the baseline")
    return notes


# -- the file ------------------------------------------------------------------------------------------


def read_baseline(file: str | Path) -> Baseline:
    """Return the baseline in a file.

    Raises LoadError, with the position, if the file cannot be read or is not a baseline.
    """
    path = Path(file)
    try:
        content = json.loads(read_regular(path))
    except FileNotFoundError:
        raise LoadError(f"the baseline {path} does not exist", hint=_HINT) from None
    except OSError as error:
        raise LoadError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError(f"the baseline {path} is not JSON: {error}", hint=_HINT) from None
    try:
        read = msgspec.convert(content, _Document)
    except (msgspec.ValidationError, RecursionError) as wrong:
        raise LoadError(f"{path} is not a baseline: {wrong}", hint=_HINT) from None
    return Baseline(read.model, read.inputs, read.outputs, read.findings)


def write_baseline(file: str | Path, report: Report, program: Program) -> Baseline:
    """Write a baseline that accepts all findings that trip in `report`, keeping the notes in the file.

    Raises RunError if the run did not finish, UsageError if not all findings are listed,
    LoadError if the file is not a baseline, NotWritten if it cannot be written.
    """
    path = Path(file)
    if not _finished_without_error(report):
        raise RunError(
            f"cannot write the baseline {path}: the run did not finish",
            hint="fix the failure or raise the limits, and run the watch again",
        )
    hidden = _too_many(report)
    if hidden is not None:
        raise hidden
    baseline = Baseline.of(report, program, read_baseline(path) if path.exists() else None)
    try:
        write_file(path, baseline.text())
    except OSError as error:
        raise not_written("the baseline", path, error) from None
    return baseline


class _Document(msgspec.Struct):
    nncdbg_baseline: Literal[1]
    model: str
    findings: tuple[AcceptedFinding, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
