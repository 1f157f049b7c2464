"""Runs as TensorBoard event files, written by the library `tensorboard`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.engine.errors import UsageError
from nncdbg.journal.export.run_facts import file_name, remarks, step_times

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run


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
        _check_new(target)
    for target, (run, part) in targets.items():
        try:
            writer = EventFileWriter(str(target))
            for event in _events(journal, run, part):
                writer.add_event(event)
            writer.close()
        except OSError as error:
            raise UsageError(f"cannot write event files in {target}: {error.strerror or error}") from None
    return [*targets]


def _check_new(target: Path) -> None:
    if target.is_dir() and any(target.glob("events.out.tfevents.*")):
        raise UsageError(
            f"{target} already has event files, and TensorBoard would show both",
            hint="delete the folder, or choose another one",
        )


def _events(journal: Journal, run: Run, part: str) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    times = step_times(journal, run)
    for name, of_part in journal.tracks(run):
        if of_part != part:
            continue
        steps, values = journal.values(run, name, part)
        for step, value, time in zip(steps.tolist(), values.tolist(), times(steps).tolist(), strict=True):
            scalar = Summary.Value(tag=name, simple_value=value)
            yield Event(wall_time=time, step=step, summary=Summary(value=[scalar]))
    if part == "train":
        for tag, text in _texts(journal, run):
            summary = Summary(value=[_text_value(tag, text)])
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


def _text_value(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    metadata = create_summary_metadata(display_name=None, description=None)
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(text))
