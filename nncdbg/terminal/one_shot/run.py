"""`nncdbg run`: run to the end, then print the outputs with statistics."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.errors import NncdbgError, UsageError, failure_code
from nncdbg.opening.command_line import (
    add_complete_run,
    add_json,
    add_verification,
    configuration_of,
    error_document,
    one_shot,
    option,
)
from nncdbg.presentation.run_progress import (
    shown,
)
from nncdbg.presentation.stops import fallback_line

if TYPE_CHECKING:
    from nncdbg.comparison.verification import DeterminismVerification, Verification
    from nncdbg.opening.complete_run import CompleteRun
    from nncdbg.opening.progress import RunningProgram
    from nncdbg.presentation.screen import Screen


@one_shot(
    "nncdbg run",
    "Run a graph to its end and print its outputs with their statistics.",
    add_complete_run,
    add_verification,
    option(
        "--verify-determinism",
        action="store_true",
        help="verify that a second run, and the recorded step, have the same bits",
    ),
    option("--save-outputs", metavar="DIR", help="write each output to a .npy or .json file in DIR"),
    option("--save-states", metavar="FILE", help="write the states to a .safetensors file"),
    option(
        "--accesses",
        metavar="FILE",
        help="with --backend cupy: write the streams, events and bytes of a scheduled program, for races",
    ),
    add_json,
)
def main(options: Namespace) -> int:
    """Return 0 if the graph ran to its end, 4 if it failed, 3 if an op has no kernel.

    Returns 1 if --verify-observers or --verify-determinism found a difference.
    """
    from nncdbg.presentation.screen import Screen

    screen = Screen()
    try:
        return _run(options, screen)
    except NncdbgError as error:
        if options.json:
            print(json.dumps(_without_run(error)))
        raise


def _run(options: Namespace, screen: Screen) -> int:
    from nncdbg.opening.complete_run import (
        opened_for_run,
        run_completely,
        verify_determinism,
        verify_observers,
    )

    configuration = configuration_of(options)
    opened = opened_for_run(configuration, options.save_states)
    # The results of a recorded step are those of its own inputs.
    checksums = {} if configuration.inputs else opened.program.saved.checksums
    checking = shown(screen, notes=False)
    verified: list[Verification | DeterminismVerification] = []
    if options.verify_observers:
        verified.append(verify_observers(opened, checking))
    if options.verify_determinism:
        verified.append(verify_determinism(opened, checking, checksums))

    def around(running: RunningProgram) -> AbstractContextManager[None]:
        screen.name_values(running.program)
        return shown(screen)(running)

    run = run_completely(
        opened,
        f"{options.model}{' --in-place-states' if configuration.in_place_states else ''}",
        around,
        {} if options.verify_determinism else checksums,
        save_states=options.save_states,
        accesses=options.accesses,
    )
    error = run.error
    files = _save(run, options.save_outputs) if error is None and options.save_outputs else {}
    if run.saved_states is not None:
        screen.note(f"saved {run.saved_states} states in {options.save_states}")
    if run.check is not None:
        screen.note(run.check_words)
    for each in run.fallbacks:
        screen.note(fallback_line(each))
    if options.json:
        document = _document(run, error, files)
        if run.reproduction is not None:
            document["reproduction"] = {"equal": run.reproduced, "text": run.reproduction}
        print(json.dumps(document | {each.title: each.as_dict() for each in verified}))
    elif error is None:
        _print_outputs(screen, run, files)
    for verification in verified:
        screen.note(str(verification))
    error = error or run.journal_problem
    if run.journal and run.journal_problem is None:
        screen.note(f"wrote {run.journal}")
    if run.reproduction:
        screen.note(run.reproduction)
    if error is not None:
        screen.complain(error)
        return failure_code(error)
    if run.recorded.changed:
        screen.note(f"{run.recorded}: `--verify-determinism` compares two runs")
    return 0 if all(each.ok for each in verified) and run.reproduced else 1


def _print_outputs(screen: Screen, run: CompleteRun, files: dict[str, str]) -> None:
    from nncdbg.expression import spelled
    from nncdbg.presentation.tensor_text import described
    from nncdbg.presentation.tracks import put_tracks

    for name, content in run.outputs.items():
        screen.put_line(described(name, content, screen.line_layout))
    for path in files.values():
        screen.note(f"saved {path}")
    put_tracks(screen, run.tracks)
    for name, content in run.outputs.items():
        if found := _nonfinite(content):
            screen.note(f"{spelled(name)} has {' and '.join(found)}: `nncdbg watch` finds the origin")
            return


def _nonfinite(content: Any) -> list[str]:
    """Return which of Inf and NaN a value has."""
    from nncdbg.stats import summarize

    if not isinstance(content, (np.ndarray, np.generic)):
        return []
    summary = summarize(np.asarray(content))
    counts = {"Inf": summary.posinf or summary.neginf, "NaN": summary.nan}
    return [kind for kind, count in counts.items() if count]


def _document(run: CompleteRun, error: NncdbgError | None, files: dict[str, str]) -> dict[str, Any]:
    """Return the document of `--json`."""
    document: dict[str, Any] = {
        "status": "ok" if error is None else "failed",
        "outputs": [_output(name, content, files) for name, content in run.outputs.items()],
        "tracks": [each.as_dict() for each in run.tracks],
        "seconds": run.seconds,
        "ops": run.ops,
        "notes": run.notes,
        "backend": run.backend,
        "fallbacks": [{"line": each.line, "op": each.op} for each in run.fallbacks],
        "kernels": [each.as_dict() for each in run.kernels],
    }
    if error is not None:
        document["error"] = error_document(error)
    return document if run.check is None else {**document, "check": run.check}


def _without_run(error: NncdbgError) -> dict[str, Any]:
    """Return the document of a run that could not begin."""
    empty: dict[str, Any] = {"status": "failed", "outputs": [], "tracks": [], "seconds": 0.0, "ops": 0}
    return {**empty, "notes": [], "fallbacks": [], "kernels": [], "error": error_document(error)}


def _output(name: str, content: Any, files: dict[str, str]) -> dict[str, Any]:
    from nncdbg.ir.records import holds_maps, type_of
    from nncdbg.presentation.tensor_files import maps_as_json
    from nncdbg.stats import summarize

    entry: dict[str, Any] = {"name": name, "type": str(type_of(content)) if type_of(content) else None}
    entry["stats"] = summarize(content).as_dict() if isinstance(content, np.ndarray) else None
    if holds_maps(content):
        entry |= {"type": f"seq({content[0].type})", "items": maps_as_json(content)}
    if name in files:
        entry["file"] = files[name]
    return entry


def _save(run: CompleteRun, folder: str) -> dict[str, str]:
    """Write every output to a file; in file names, only letters, digits and `_ . -` are kept."""
    from nncdbg.ir.records import holds_maps
    from nncdbg.presentation.tensor_files import write_maps, write_tensors

    directory = Path(folder)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create the folder {folder}: {error.strerror}") from None
    files: dict[str, str] = {}
    taken: set[str] = set()
    for name, content in run.outputs.items():
        stem = (
            "".join(char if char.isalnum() or char in "_.-" else "_" for char in name).lstrip(".") or "output"
        )
        while stem in taken:
            stem += "_"
        taken.add(stem)
        files[name] = str(
            write_maps(directory / f"{stem}.json", content)
            if holds_maps(content)
            else write_tensors(directory / f"{stem}.npy", {name: content})
        )
    return files
