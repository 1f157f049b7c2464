"""Findings that are known and accepted: a watch with a baseline fails on new ones only.

A finding is known by its kind, cause, op, graph and value, not by its line, so that edits above it
leave it known.  Names that are only numbers (`%12`, `val_7`, `onnx::Log_31`) change with every node that
is put in before them: a known finding that is gone and a new one that differs in such a name alone are
the same one, moved, and that is told.

    {
     "nncdbg_baseline": 1,
     "model": "net.onnx",
     "inputs": ["x"],
     "outputs": ["probs"],
     "findings": [
      {"kind": "inf", "cause": "log of zero", "op": "Log", "graph": "entropy", "value": "q", "role": "birth"}
     ]
    }

A `"note"` beside the fields of a finding says why it is accepted; it stays when the file is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from nncdbg.engine.errors import LoadError, RunError, UsageError
from nncdbg.engine.graph import Program
from nncdbg.nan_watch.fingerprint import Key, key_of
from nncdbg.nan_watch.records import Report, WatchFinding
from nncdbg.nan_watch.reports.writing import not_written, write_file

_VERSION = 1
_FIELDS = ("graph", "value", "op", "kind", "cause")
_HARMLESS = ("masked", "healed")
"""Roles that never reach an output: who accepted one of these has not accepted more."""
_SHOWN = 10
"""Known findings that a note names."""


@dataclass(frozen=True, slots=True)
class Known:
    """One accepted finding; `note` says why, "" where nobody said."""

    key: Key
    role: str = "birth"
    note: str = ""

    def covers(self, finding: WatchFinding) -> bool:
        """Whether accepting this one accepts `finding`, which has the same key or has moved here."""
        return self.role not in _HARMLESS or finding.role in _HARMLESS

    def as_dict(self) -> dict[str, str]:
        """Fit for JSON."""
        fields = dict(zip(_FIELDS, self.key, strict=True)) | {"role": self.role}
        return fields | {"note": self.note} if self.note else fields


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted findings of one model, which is known by its file's name and its inputs and outputs."""

    model: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    known: tuple[Known, ...] = ()

    @classmethod
    def of(cls, report: Report, program: Program, earlier: Baseline | None = None) -> Baseline:
        """A baseline that accepts all that trips in `report`; notes of an `earlier` one are kept."""
        notes = {each.key: each.note for each in earlier.known} if earlier is not None else {}
        entries: dict[Key, Known] = {}
        for finding in report.tripping:
            key = key_of(finding)
            if key not in entries or not entries[key].covers(finding):
                entries[key] = Known(key, finding.role, notes.get(key, ""))
        entry = program.graphs[program.entry]
        return cls(
            _file_name(report.model),
            tuple(value.name for value in entry.inputs),
            tuple(value.name for value in entry.outputs),
            tuple(sorted(entries.values(), key=lambda each: each.key)),
        )

    def text(self) -> str:
        """The file: sorted, one finding a line, so that a change of it can be reviewed."""
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
        """Raises UsageError if this is the baseline of another model than the one in the file `model`."""
        entry = program.graphs[program.entry]
        name = _file_name(model)
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
                f"{_listed(self.inputs)} -> {_listed(self.outputs)}",
            )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A report against a baseline: `report` has the findings with only the new ones tripping.

    `accepted` are the known findings seen again, `gone` the known ones not seen, `moved` pairs of a known
    one with the finding that it has become.
    """

    report: Report
    accepted: tuple[WatchFinding, ...]
    gone: tuple[Known, ...]
    moved: tuple[tuple[Known, WatchFinding], ...]


def compare(report: Report, baseline: Baseline, program: Program) -> Comparison:
    """Let only what the baseline does not know trip the gates.  Raises UsageError for another model's.

    Notes in the report say what was accepted, what is gone (if the run came to its end) and what has moved.
    Where the report does not list all findings, a new one could be among the others: its error says so.
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
    whole = _came_to_its_end(report) and hidden is None
    renamed = {each.key for each in moved.values()}
    gone = tuple(each for each in unseen if each.key not in renamed) if whole else ()
    pairs = tuple((moved[key_of(each)], each) for each in accepted.values() if key_of(each) in moved)
    changed = replace(
        report,
        findings=[replace(each, trips=each.trips and id(each) not in accepted) for each in report.findings],
        notes=[*report.notes, *_notes(len(accepted), gone, pairs)],
        error=report.error or hidden,
    )
    return Comparison(changed, tuple(accepted.values()), gone, pairs)


def _came_to_its_end(report: Report) -> bool:
    return report.error is None and not report.interrupted and not any(case.error for case in report.cases)


def _too_many(report: Report) -> UsageError | None:
    """The error where a finding that trips may not be listed: those that trip are listed before all else."""
    hidden = report.unlisted
    if not hidden or not all(finding.trips for finding in report.findings):
        return None
    return UsageError(
        f"a baseline needs all findings, but {hidden} are not listed",
        hint=f"list all findings with --max-findings {len(report.findings) + hidden}",
    )


def _moved(findings: Iterable[WatchFinding], unseen: Iterable[Known]) -> dict[Key, Known]:
    """Which unseen known finding each new one is, where names that are only numbers have changed."""
    waiting: dict[Key, list[Known]] = {}
    for known in unseen:
        waiting.setdefault(_without_number(known.key), []).append(known)
    found: dict[Key, Known] = {}
    for finding in findings:
        key = key_of(finding)
        stem = _without_number(key)
        if key not in found and stem != key and waiting.get(stem):
            found[key] = waiting[stem].pop(0)
    return found


_NUMBERED = re.compile(r"(?P<stem>.*?)_?\d*(?P<output>_output_\d+)?", re.DOTALL)
_AUTOMATIC = {"", "val", "value", "tmp", "t", "v", "var", "node", "tensor"}
"""Names that get a number from whoever wrote the model, and not from a person."""


def _without_number(key: Key) -> Key:
    """The key with `#` for the number of an automatic name; as it is where the name is a person's."""
    graph, value, op, kind, cause = key
    match = _NUMBERED.fullmatch(value)
    assert match is not None  # Every name matches: all its parts may be empty.
    last = re.split(r"/|::", match["stem"])[-1].casefold()
    if last not in _AUTOMATIC and last != op.casefold():
        return key
    return graph, f"{match['stem']}#{match['output'] or ''}", op, kind, cause


def _notes(accepted: int, gone: Sequence[Known], moved: Sequence[tuple[Known, WatchFinding]]) -> list[str]:
    notes = [f"{accepted} known finding{'' if accepted == 1 else 's'} accepted by the baseline"]
    notes += [
        f"moved: known in %{known.key[1]}, now in %{finding.site.value}" for known, finding in moved[:_SHOWN]
    ]
    if gone:
        names = _listed([f"{each.key[3]} in %{each.key[1]}" for each in gone])
        notes.append(f"no longer found ({len(gone)}): {names}; --write-baseline updates the baseline")
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "nothing"


def _file_name(model: str) -> str:
    return Path(model).name


# -- the file ------------------------------------------------------------------------------------------


def read_baseline(file: str | Path) -> Baseline:
    """The baseline in a file.

    Raises LoadError if it cannot be read or is none, with the place.
    """
    path = Path(file)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(
            f"the baseline {path} does not exist", hint="write one with --write-baseline"
        ) from None
    except OSError as error:
        raise LoadError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LoadError(
            f"the baseline {path} is not JSON: {error}", hint="write one with --write-baseline"
        ) from None
    try:
        read = msgspec.convert(content, _Document)
    except msgspec.ValidationError as wrong:
        raise LoadError(
            f"{path} is not a baseline: {wrong}", hint="write one with --write-baseline"
        ) from None
    return Baseline(read.model, read.inputs, read.outputs, tuple(map(_known, read.findings)))


def write_baseline(file: str | Path, report: Report, program: Program) -> Baseline:
    """Write the baseline that accepts all that trips in `report`; notes in the one that is there stay.

    Raises RunError if the run did not finish, UsageError if not all findings are listed,
    LoadError if the file is something else than a baseline, NotWritten if it cannot be written.
    """
    path = Path(file)
    if not _came_to_its_end(report):
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


class _Row(msgspec.Struct):
    graph: str
    value: str
    op: str
    kind: str
    cause: str
    role: str = "birth"
    note: str = ""


class _Document(msgspec.Struct):
    nncdbg_baseline: Literal[1]
    model: str
    findings: list[_Row]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def _known(row: _Row) -> Known:
    return Known((row.graph, row.value, row.op, row.kind, row.cause), row.role, row.note)
