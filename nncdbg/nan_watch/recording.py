"""Recordings of a good run: the statistics of each statement, to compare later runs with.

The file is JSON, one statement per line, sorted by key, so that `diff` can compare two of them:

    {"nncdbg_recording": 1, "model": "net.onnx", "program": "5d41…",
     "statements": {
      "main %h Conv": {"order": 3, "visits": 1, "dtype": "f32", "min": -1.5, …},
      …}}

A statement's key is its graph path, the name of its value, and its op; all iterations and calls share
one entry.  The statistics are those of `Summary`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nncdbg.comparison.check_results import NOT_CHECKED, CheckResult
from nncdbg.errors import LoadError, UsageError
from nncdbg.ir.records import Program
from nncdbg.ir.walk import blocks
from nncdbg.nan_watch.measuring.gates import MEASURES, Gates, Threshold
from nncdbg.nan_watch.measuring.tracks import Track
from nncdbg.nan_watch.records import Operand, WatchFinding
from nncdbg.process.files import draft_of, read_regular
from nncdbg.stats.summary import Summary
from nncdbg.text.counting import counted

VERSION = 1

_LARGEST = 1 << 28
"""Largest accepted recording in bytes."""

_LEAST_SHARED = 0.5
"""Least share of the recorded statements that an edited version of the same model must contain."""

_FIELDS = Summary.__slots__


@dataclass(frozen=True, slots=True)
class Recorded:
    """A statement of the good run, with its statistics."""

    order: int
    visits: int
    dtype: str
    summary: Summary


@dataclass(frozen=True, slots=True)
class Recording:
    """A good run: `statements` by key; `program` identifies the model by its statements, not its weights."""

    model: str
    program: str
    statements: Mapping[str, Recorded]


def fingerprint(program: Program) -> str:
    """Return a digest of the names and ops of a program's statements."""
    digest = hashlib.blake2b(digest_size=16)
    for path, graph in blocks(program):
        for node in graph.nodes:
            line = [list(map(str, path)), node.op, [value.name for value in node.outputs]]
            digest.update(json.dumps(line).encode())
    return digest.hexdigest()


def record(program: str, model: str, tracks: Iterable[Track]) -> Recording:
    """Return a recording of a good run; `program` is the fingerprint of its program."""
    statements = {
        _key(track): Recorded(order, track.visits, track.dtype, track.summary)
        for order, track in enumerate(tracks)
        if track.summary is not None
    }
    return Recording(Path(model).name, program, statements)


def write(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording atomically.  Raises LoadError if that fails."""
    statements = {
        key: {"order": each.order, "visits": each.visits, "dtype": each.dtype, **each.summary.as_dict()}
        for key, each in sorted(recording.statements.items())
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in statements.items())
    text = (
        f'{{"nncdbg_recording": {VERSION}, "model": {json.dumps(recording.model)},\n'
        f' "program": {json.dumps(recording.program)},\n "statements": {{\n{lines}\n }}}}\n'
    )
    try:
        with draft_of(Path(path)) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LoadError(f"cannot write the recording {path}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file.  Raises LoadError if it cannot be read or is not a recording."""
    try:
        if os.path.getsize(path) > _LARGEST:
            raise LoadError(f"the recording {path} is larger than {_LARGEST:,} bytes")
        document = json.loads(read_regular(path))
    except OSError as error:
        raise LoadError(f"cannot read the recording {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"the recording {path} is damaged: {error}") from error
    if not isinstance(document, dict) or "nncdbg_recording" not in document:
        raise LoadError(f"{path} is not a recording of a run", hint="record a run with --record FILE")
    if document["nncdbg_recording"] != VERSION:
        raise LoadError(
            f"the recording {path} has version {document['nncdbg_recording']!r}, "
            f"but this nncdbg reads version {VERSION}",
            hint="record the good run again with this nncdbg",
        )
    try:
        statements = {key: _recorded(each) for key, each in document["statements"].items()}
        return Recording(str(document["model"]), str(document["program"]), statements)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"the recording {path} is damaged: {error!r}") from error


def check_model(good: Recording, program: Program) -> None:
    """Raise UsageError for a recording of another model.

    An edited version of the same model is accepted; its shared statements are compared.
    """
    if fingerprint(program) == good.program:
        return
    names = {
        (value.name, node.op)
        for _, graph in blocks(program)
        for node in graph.nodes
        for value in node.outputs
    }
    places = [key.rpartition(" ") for key in good.statements]
    shared = sum((place.partition(" %")[2], op) in names for place, _, op in places)
    if shared < _LEAST_SHARED * len(good.statements):
        raise UsageError(
            f"the recording is for another model, {good.model}: "
            f"only {shared} of its {counted(len(good.statements), 'statement')} are in this model",
            hint="record a good run of this model with --record FILE",
        )


def compare(
    good: Recording, tracks: list[Track], gates: Gates
) -> tuple[list[WatchFinding], list[CheckResult]]:
    """Return the statements that changed beyond the gate `change`, and the statements not compared.

    Both are complete; the findings are in execution order.  New and missing statements are not compared.
    """
    asked = [gate for gate in gates.thresholds if gate.kind == "change"]
    limits = asked or [Threshold("change", MEASURES["change"].limit or 0.0, True)]
    findings = []
    for track in tracks:
        known = good.statements.get(_key(track))
        if known is None or track.summary is None:
            continue
        change, fact = _change(known.summary, track.summary)
        for gate in limits:
            if gate.concerns(track.site.value, track.site.graph, track.site.node) and gate.exceeded(change):
                findings.append(_finding(track, known, gate, change, fact))
    keys = [_key(track) for track in tracks]
    seen = {*keys}
    gone = [key for key in good.statements if key not in seen]
    fresh = [key for key in keys if key not in good.statements]
    left = [f"{len(gone)} recorded statements did not run: {_listed(gone)}"] if gone else []
    if fresh:
        left.append(f"{counted(len(fresh), 'statement')} are not in the recording: {_listed(fresh)}")
    return findings, [CheckResult(str(gate), NOT_CHECKED, words) for gate in limits for words in left]


def _finding(track: Track, known: Recorded, gate: Threshold, change: float, fact: str) -> WatchFinding:
    size = f", a change of {gate.shown(change)}" if math.isfinite(change) else ""
    return WatchFinding(
        "change",
        "birth",
        track.site,
        inputs=(Operand(f"{track.site.value} (good)", None, known.summary),),
        stats=track.summary,
        evidence=f"{fact}{size}; {gate.clause()}",
        hint=MEASURES["change"].hint,
        actual=change,
        threshold=gate.limit,
        count=track.visits,
        trips=True,
    )


def _change(good: Summary, now: Summary) -> tuple[float, str]:
    """Return the largest change relative to the range of the good run, and both values of that statistic.

    If NaN or Inf appeared or disappeared, the change is infinite.
    """
    for name in ("nan", "posinf", "neginf"):
        before, after = getattr(good, name) > 0, getattr(now, name) > 0
        if before != after:
            return math.inf, f"{name} was {getattr(good, name)} and is {getattr(now, name)}"
    if good.min is None or now.min is None:
        changed = good.min is not now.min
        return (math.inf if changed else 0.0), "one of the runs has no finite element"
    assert good.max is not None
    scale = max(abs(good.min), abs(good.max))
    worst, fact = 0.0, "nothing changed"
    for name in ("min", "max", "mean", "std"):
        before, after = getattr(good, name), getattr(now, name)
        difference = abs(after - before)
        change = difference / scale if scale else math.inf if difference else 0.0
        if change > worst:
            worst, fact = change, f"{name} was {before:.6g} and is {after:.6g}"
    return worst, fact


def _listed(keys: list[str]) -> str:
    shown = "; ".join(sorted(keys)[:3])
    return shown if len(keys) <= 3 else f"{shown}; …"


def _key(track: Track) -> str:
    """Return graph, value and op; the op comes last and has no blanks, so the value's name may have some."""
    graph, value, op = track.key
    return f"{graph} %{value} {op}"


def _recorded(document: Mapping[str, Any]) -> Recorded:
    low, high, mean, std = (None if document[name] is None else float(document[name]) for name in _FIELDS[:4])
    nan, posinf, neginf, zero, subnormal, count = (int(document[name]) for name in _FIELDS[4:])
    summary = Summary(low, high, mean, std, nan, posinf, neginf, zero, subnormal, count)
    return Recorded(int(document["order"]), int(document["visits"]), str(document["dtype"]), summary)
