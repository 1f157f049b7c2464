"""`nncdbg run`: run to the end, then print the outputs with statistics."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.errors import NncdbgError, UsageError, failure_code
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_check,
    add_determinism,
    add_journal,
    add_kernels,
    add_machine,
    add_model,
    add_order,
    add_outputs,
    add_states_in_place,
    add_tracks,
    add_verification,
    configuration_of,
    error_document,
)
from nncdbg.presentation.run_progress import (
    note_messages,
    print_notes,
    under_way,
    verify_determinism,
    verify_observers,
)
from nncdbg.target.program import ProgramTarget

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.verification import DeterminismVerification, Verification
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the graph ran to its end, 4 if it failed, 3 if an op has no kernel.

    Returns 1 if --verify-observers or --verify-determinism found a difference.
    """
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    screen = Screen()
    try:
        return _run(options, screen)
    except NncdbgError as error:
        if options.json:
            print(json.dumps(_document(None, 0.0, error, {})))
        raise


def _history(options: Namespace, opened: OpenedProgram) -> str | int | None:
    """Return the limit of the history: none where no journal and no states read old values."""
    configuration = opened.configuration
    keeps = configuration.journal or opened.restart is not None or options.save_states
    return configuration.history if keeps or configuration.history is not None else 0


def _run(options: Namespace, screen: Screen) -> int:
    from nncdbg.opening.journal.recording import journaled
    from nncdbg.opening.journal.reproduction import reproducing
    from nncdbg.opening.programs import open_program
    from nncdbg.opening.run import failure_of
    from nncdbg.opening.schedule_logs.run_accesses import recorded_accesses
    from nncdbg.opening.state_file import save_states
    from nncdbg.presentation.stops import fallbacks

    configuration = configuration_of(options)
    if options.save_states and configuration.outputs:
        raise UsageError(
            "--save-states needs the whole run, and --output runs a part of it", hint="leave out --output"
        )
    opened = open_program(configuration)
    frees = configuration.allocator in ("arena", "poison") and not configuration.in_place_states
    if options.save_states and opened.program.runs and frees:
        raise UsageError(
            f"--save-states needs the states at the end, and the allocator {configuration.allocator} frees a "
            "state after its last use",
            hint="add --in-place-states, or use --allocator debug",
        )
    # The results of a recorded step are those of its own inputs.
    recorded = not configuration.inputs
    verified: list[Verification | DeterminismVerification] = []
    if options.verify_observers:
        verified.append(verify_observers(opened, screen))
    if options.verify_determinism:
        verified.append(verify_determinism(opened, screen, recorded=recorded))
    debugger = opened.debugger(statistics=False, history=_history(options, opened))
    screen.name_values(debugger.program)
    print_notes(ProgramTarget(debugger), screen)
    note_messages(ProgramTarget(debugger), screen)
    start = time.perf_counter()
    with (
        recorded_accesses(debugger, options.accesses),
        reproducing(opened, debugger) as reproduction,
        journaled(opened, debugger) as recorder,
        under_way(ProgramTarget(debugger), screen),
    ):
        stop = debugger.run()
    unwritten = recorder.problem if recorder is not None and recorder.has_stopped else None
    if stop.reason == "pause" and not stop.detail and unwritten is None:
        raise KeyboardInterrupt
    seconds = time.perf_counter() - start
    in_place = " --in-place-states" if configuration.in_place_states else ""
    error = unwritten or failure_of(stop, f"{options.model}{in_place}")
    files = _save(debugger, options.save_outputs) if error is None and options.save_outputs else {}
    if error is None and options.save_states:
        save_states(debugger.states, options.save_states)
        screen.note(f"saved {len(debugger.states)} states in {options.save_states}")
    if debugger.micro is not None:
        screen.note(str(debugger.micro.coverage))
    for _, words in fallbacks(ProgramTarget(debugger)):
        screen.note(words)
    if options.json:
        document = _document(debugger, seconds, error, files)
        if reproduction is not None:
            document["reproduction"] = {"equal": not reproduction.difference, "text": str(reproduction)}
        print(json.dumps(document | {each.title: each.as_dict() for each in verified}))
    elif error is None:
        _print_outputs(screen, debugger, files)
    for each in verified:
        screen.note(str(each))
    if recorder is not None:
        error = error or recorder.problem
        if recorder.problem is None:
            screen.note(f"wrote {recorder}")
    if reproduction is not None and str(reproduction):
        screen.note(str(reproduction))
    if error is None:
        if recorded and not options.verify_determinism:
            _note_changed(screen, debugger, opened.program.saved.checksums)
        differs = reproduction is not None and reproduction.difference
        return 0 if all(each.ok for each in verified) and not differs else 1
    screen.complain(error)
    return failure_code(error)


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg run", "Run a graph to its end and print its outputs with their statistics."
    )
    add_model(parser)
    add_machine(parser)
    add_kernels(parser)
    add_states_in_place(parser)
    add_journal(parser)
    add_tracks(parser)
    add_order(parser)
    add_outputs(parser)
    add_check(parser)
    add_verification(parser)
    add_determinism(parser)
    parser.add_argument(
        "--save-outputs", metavar="DIR", help="write each output to a .npy or .json file in DIR"
    )
    parser.add_argument("--save-states", metavar="FILE", help="write the states to a .safetensors file")
    parser.add_argument(
        "--accesses",
        metavar="FILE",
        help="with --backend cupy: write the streams, events and bytes of a scheduled program, for races",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return parser.parse_args(arguments)


def _print_outputs(screen: Screen, debugger: Debugger, files: dict[str, str]) -> None:
    from nncdbg.expression import spelled
    from nncdbg.presentation.tensor_text import described
    from nncdbg.presentation.tracks import put_tracks
    from nncdbg.presentation.why import abnormal
    from nncdbg.target.explaining import ZEROS

    for name, content in (debugger.outputs or {}).items():
        screen.put_line(described(name, content, screen.line_layout))
    for path in files.values():
        screen.note(f"saved {path}")
    put_tracks(screen, ProgramTarget(debugger).tracks)
    found = abnormal(ProgramTarget(debugger), screen, [*(debugger.outputs or ())])
    if found is not None and found[1] != [ZEROS]:
        screen.note(f"{spelled(found[0])} has {' and '.join(found[1])}: `nncdbg watch` finds the origin")


def _note_changed(screen: Screen, debugger: Debugger, checksums: Mapping[str, str]) -> None:
    """Report outputs of a recorded step that differ from those of the training."""
    from nncdbg.engine.divergence.verification import recorded_outputs

    found = recorded_outputs(debugger, checksums)
    if found.changed:
        screen.note(f"{found}: `--verify-determinism` compares two runs")


def _document(
    debugger: Debugger | None, seconds: float, error: NncdbgError | None, files: dict[str, str]
) -> dict[str, Any]:
    """Return the document of `--json`; `debugger` is None if it could not be created."""
    outputs: dict[str, Any] = (debugger.outputs if debugger else None) or {}
    document: dict[str, Any] = {
        "status": "ok" if error is None else "failed",
        "outputs": [_output(name, content, files) for name, content in outputs.items()],
        "tracks": [each.as_dict() for each in debugger.tracks] if debugger else [],
        "seconds": seconds,
        "ops": debugger.timeline.tick if debugger else 0,
        "notes": [*map(str, debugger.notes)] if debugger else [],
        **_kernels(debugger),
    }
    if error is not None:
        document["error"] = error_document(error)
    if debugger is not None and debugger.micro is not None:
        document["check"] = debugger.micro.coverage.as_dict()
    return document


def _kernels(debugger: Debugger | None) -> dict[str, Any]:
    """Return the statements that fell back to NumPy, the backend, and the kernels of other backends."""
    if debugger is None:
        return {"fallbacks": [], "kernels": []}
    fallen = [{"line": each.line, "op": each.op} for each in debugger.loaded.fallbacks]
    other = [each.as_dict() for each in debugger.loaded.kernels() if each.reason != "default"]
    return {"backend": debugger.backend.name, "fallbacks": fallen, "kernels": other}


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


def _save(debugger: Debugger, folder: str) -> dict[str, str]:
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
    outputs: dict[str, Any] = debugger.outputs or {}
    for name, content in outputs.items():
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
