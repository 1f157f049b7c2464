"""Exports of runs: to MLflow, by the library `mlflow` or `mlflow-skinny`, and to TensorBoard event files."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run

Times = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]


def step_times(journal: Journal, run: Run) -> Times:
    """Return the function from step numbers to their ends, in seconds since 1970.

    A step ends after the durations of the run's steps up to it.  A duration that was not recorded counts as
    0, and a step of a parent ends at the start of the run.
    """
    recorded = journal.steps(run)
    own = recorded[recorded["step"] >= (run.parent_step or 0)]
    ends = np.cumsum(np.concatenate([[run.started.timestamp()], np.nan_to_num(own["seconds"])]))
    return lambda steps: ends[np.searchsorted(own["step"], steps, side="right")]


def remarks(journal: Journal, run: Run) -> dict[str, list[tuple[int | None, str]]]:
    """Return the step and the text of each note, event and edit of a run, by kind; no empty lists."""
    found: dict[str, list[tuple[int | None, str]]] = {
        "notes": [(note.step, note.text) for note in journal.notes(run)],
        "events": [(event.step, f"{event.kind}: {event.message}") for event in journal.events(run)],
        "edits": [(edit.step, f"%{name_text(edit.name)}: {edit.text}") for edit in journal.edits(run)],
    }
    return {kind: texts for kind, texts in found.items() if texts}


def file_name(name: str) -> str:
    """Return a name with `_` for all characters except letters, digits, `.`, `_` and `-`."""
    return re.sub(r"[^\w.-]", "_", name).strip(".") or "_"


_BATCH = 1000
"""Most metrics of a request to MLflow."""

_LONGEST = 500
"""Most characters of a parameter; servers of all versions accept as many."""

_STATUS = {"ended": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "lost": "KILLED"}
"""The status of a run in MLflow; other runs stay RUNNING there."""


def log_runs(journal: Journal, runs: Sequence[Run], uri: str, experiment: str) -> list[str]:
    """Create a run of MLflow for each run, and return the identifiers.

    A track is a metric, with its part before it if that is not `train`: `acc`, `test/acc`.  The
    configuration, the seed and the versions are parameters; the program and the remarks are artifacts.  A
    fork is a child of its parent if both are exported.  Raises UsageError without MLflow, and with its
    message if it fails.
    """
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise UsageError(
            "the export needs the package mlflow, which is not installed", hint="pip install nncdbg[mlflow]"
        ) from None
    identifiers: dict[int, str] = {}
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        number = found.experiment_id if found is not None else client.create_experiment(experiment)
        for run in runs:
            identifiers[run.number] = _log_run(client, journal, run, number, identifiers)
    except NncdbgError:
        raise
    except Exception as error:  # noqa: BLE001  MLflow raises other errors besides its own
        raise _failure(uri, error) from None
    return [*identifiers.values()]


def _log_run(client: Any, journal: Journal, run: Run, experiment: str, identifiers: Mapping[int, str]) -> str:
    tags = {"mlflow.runName": f"{run.number}-{run.name}", "mlflow.source.name": str(journal.path)}
    if run.parent is not None:
        tags |= {"nncdbg.parent": f"{run.parent}", "nncdbg.parent_step": f"{run.parent_step}"}
        if run.parent in identifiers:
            tags["mlflow.parentRunId"] = identifiers[run.parent]
    created = client.create_run(experiment, start_time=_milliseconds(run.started.timestamp()), tags=tags)
    identifier = str(created.info.run_id)
    _log_parameters(client, identifier, run)
    _log_metrics(client, identifier, journal, run)
    program = journal.program(run)
    if program is not None:
        client.log_text(identifier, program, "program.nnc" if run.kind == "graph" else "program.txt")
    for kind, texts in remarks(journal, run).items():
        lines = [f"{'' if step is None else f'step {step}: '}{text}\n" for step, text in texts]
        client.log_text(identifier, "".join(lines), f"{kind}.txt")
    if run.status in _STATUS:
        ended = None if run.ended is None else _milliseconds(run.ended.timestamp())
        client.set_terminated(identifier, _STATUS[run.status], ended)
    return identifier


def _log_parameters(client: Any, identifier: str, run: Run) -> None:
    from mlflow.entities import Param

    facts = {**run.configuration, "versions": run.versions, "seed": run.seed}
    facts["command"] = shlex.join(run.command)
    found = [Param(_metric_name(name), value[:_LONGEST]) for name, value in _flat(facts, "")]
    for start in range(0, len(found), 100):
        client.log_batch(identifier, params=found[start : start + 100])


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            yield f"{prefix}{name}", str(value)


def _log_metrics(client: Any, identifier: str, journal: Journal, run: Run) -> None:
    from mlflow.entities import Metric

    times = step_times(journal, run)
    for name, part in journal.tracks(run):
        title = _metric_name(name if part == "train" else f"{part}/{name}")
        steps, values = journal.values(run, name, part)
        metrics = [
            Metric(title, value, _milliseconds(time), step)
            for step, value, time in zip(steps.tolist(), values.tolist(), times(steps).tolist(), strict=True)
        ]
        for start in range(0, len(metrics), _BATCH):
            client.log_batch(identifier, metrics=metrics[start : start + _BATCH])


def _metric_name(name: str) -> str:
    """Return the name with the characters that MLflow accepts."""
    return "".join(char if char.isalnum() or char in "_-./ :" else "_" for char in name)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


_DATABASES = ("sqlite:", "mysql", "postgresql", "mssql")
"""How the URIs of databases begin."""


def _failure(uri: str, error: Exception) -> UsageError:
    text = str(error)
    why = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    hint = None
    if "Model registry functionality is unavailable" in text and uri.startswith(_DATABASES):
        why, hint = "databases need the whole package mlflow, not only mlflow-skinny", "pip install mlflow"
    elif "Model registry functionality is unavailable" in text:
        why = "MLflow does not support this URI"
        hint = "use http://..., sqlite:///FILE or another URI of MLflow"
    elif "MLFLOW_ALLOW_FILE_STORE" in text:
        why = "this version of MLflow writes to folders only on request"
        hint = "use a server or a database, or set MLFLOW_ALLOW_FILE_STORE=true"
    return UsageError(f"cannot export to MLflow at {uri}: {why.strip()}", hint=hint)


def write_event_files(journal: Journal, runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write an event file for each run and part, and return their folders, as `2-train_mlp/test`.

    A track is a series of scalars; its times are those of the steps.  The notes, events, edits, the
    configuration and the program are texts of the part train.  Raises UsageError without `tensorboard`, and
    for a folder that already has event files, because TensorBoard would show their values twice.
    """
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise UsageError(
            "event files need the package tensorboard, which is not installed",
            hint="pip install nncdbg[tensorboard]",
        ) from None
    targets = {
        folder / f"{run.number}-{file_name(run.name)}" / file_name(part): (run, part)
        for run in runs
        for part in sorted({"train", *(part for _, part in journal.tracks(run))})
    }
    for target in targets:
        if target.is_dir() and any(target.glob("events.out.tfevents.*")):
            raise UsageError(
                f"{target} already has event files, and TensorBoard would show both",
                hint="delete the folder, or choose another one",
            )
    for target, (run, part) in targets.items():
        try:
            writer = EventFileWriter(str(target))
            for event in _events(journal, run, part):
                writer.add_event(event)
            writer.close()
        except OSError as error:
            raise UsageError(f"cannot write event files in {target}: {error.strerror or error}") from None
    return [*targets]


def _events(journal: Journal, run: Run, part: str) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    times = step_times(journal, run)
    for name, of_part in journal.tracks(run):
        if of_part != part:
            continue
        steps, values = journal.values(run, name, part)
        for step, value, time in zip(steps.tolist(), values.tolist(), times(steps).tolist(), strict=True):
            scalar = Summary.Value(tag=name, simple_value=value)
            yield Event(wall_time=time, step=step, summary=Summary(value=[scalar]))
    if part == "train":
        metadata = create_summary_metadata(display_name=None, description=None)
        for tag, text in _texts(journal, run):
            value = Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(text))
            summary = Summary(value=[value])
            yield Event(wall_time=run.started.timestamp(), step=run.parent_step or 0, summary=summary)


def _texts(journal: Journal, run: Run) -> Iterator[tuple[str, str]]:
    """Yield tags and their texts in Markdown."""
    facts = {
        "configuration": run.configuration,
        "versions": run.versions,
        "command": run.command,
        "seed": run.seed,
    }
    yield "run", _code(json.dumps(facts, indent=1))
    program = journal.program(run)
    if program is not None:
        yield "program", _code(program)
    for kind, texts in remarks(journal, run).items():
        yield kind, "\n".join(f"- {'' if step is None else f'step {step}: '}{text}" for step, text in texts)


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
