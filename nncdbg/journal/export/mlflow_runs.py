"""Runs as runs of MLflow, written by the library `mlflow` or `mlflow-skinny`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.journal.export.run_facts import remarks, step_times

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run

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

    facts = {
        **run.configuration,
        "versions": run.versions,
        "seed": run.seed,
        "command": shlex.join(run.command),
    }
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
        why, hint = (
            "MLflow does not support this URI",
            "use http://..., sqlite:///FILE or another URI of MLflow",
        )
    elif "MLFLOW_ALLOW_FILE_STORE" in text:
        why = "this version of MLflow writes to folders only on request"
        hint = "use a server or a database, or set MLFLOW_ALLOW_FILE_STORE=true"
    return UsageError(f"cannot export to MLflow at {uri}: {why.strip()}", hint=hint)
