"""Runs of a journal as JSON documents."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nncdbg.opening.journal.ranks import origin_among, ranks_of
from nncdbg.presentation.elements import json_number

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run


def runs_document(journal: Journal, *, details: bool = False) -> str:
    """Return the runs with the last value of each track; a value without a JSON number is its name.

    With `details`, each run is as in `run_document`.
    """
    runs = [
        _details(journal, run) if details else {**_fields(run), "tracks": _tracks(journal, run, whole=False)}
        for run in journal.runs()
    ]
    return json.dumps({"journal": str(journal.path), "runs": runs}, allow_nan=False)


def run_document(journal: Journal, run: Run, track: str | None = None) -> str:
    """Return a run with all values of its tracks, or of one of them, and all that its log lists."""
    content = {"journal": str(journal.path), **_details(journal, run, track)}
    return json.dumps(content, allow_nan=False)


def _details(journal: Journal, run: Run, track: str | None = None) -> dict[str, Any]:
    return {
        **_fields(run),
        "tracks": _tracks(journal, run, whole=True, only=track),
        "checkpoints": [_fields(each) for each in journal.checkpoints(run)],
        "kept_values": [_fields(each) for each in journal.kept_values(run)],
        **{
            title: [_fields(each) for each in read(run)]
            for title, read in (
                ("events", journal.events),
                ("edits", journal.edits),
                ("notes", journal.notes),
                ("commands", journal.commands),
            )
        },
        "ranks": _ranks(journal, run),
        "forks": [other.number for other in journal.runs() if other.parent == run.number],
    }


def _ranks(journal: Journal, run: Run) -> list[dict[str, Any]]:
    """Return the ranks of the training; `origin` is whether the first NaN or Inf originates there."""
    ranks = ranks_of(journal, run)
    origin = origin_among(ranks)
    return [{**asdict(each), "origin": each is origin} for each in ranks]


def _tracks(journal: Journal, run: Run, *, whole: bool, only: str | None = None) -> list[dict[str, Any]]:
    found = []
    for name, part in journal.tracks(run):
        if only is not None and name != only:
            continue
        steps, values = journal.values(run, name, part)
        record: dict[str, Any] = {"name": name, "part": part}
        if whole:
            record |= {"steps": steps.tolist(), "values": [json_number(value) for value in values.tolist()]}
        else:
            record["last"] = json_number(float(values[-1])) if len(values) else None
        found.append(record)
    return found


def _fields(record: Any) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in asdict(record).items()}


def _plain_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
