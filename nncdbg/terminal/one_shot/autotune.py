"""`nncdbg autotune`: measure the kernels of all backends per statement, and choose one for each."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import failure_code
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_kernels,
    add_machine,
    add_model,
    configuration_of,
    errors_in_json,
)
from nncdbg.target.program import ProgramTarget
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.engine.tuning.records import MeasuredKernel, TunedStatement, Tuning
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the graph ran to its end, 4 if it failed, 3 if an op has no kernel."""
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    with errors_in_json(options):
        return _autotune(options, Screen())


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg autotune",
        "Run a graph, and measure the kernels of all backends for each statement on copies of its operands.",
        epilog="use the choice in a run: nncdbg run MODEL --kernels FILE",
    )
    add_model(parser)
    add_machine(parser)
    add_kernels(parser)
    add = parser.add_argument
    add(
        "--candidate",
        action="append",
        default=[],
        metavar="BACKEND",
        help="measure this backend (default: all that are installed; repeatable)",
    )
    add("-o", "--output", metavar="FILE", help="write the choice to FILE")
    add("--json", action="store_true", help="print one JSON document on standard output")
    return parser.parse_args(arguments)


def _autotune(options: Namespace, screen: Screen) -> int:
    from nncdbg.engine.tuning.tuner import KernelTuner, available_backends
    from nncdbg.opening.programs import kernel_file_text, open_program
    from nncdbg.opening.run import failure_of
    from nncdbg.presentation.run_progress import note_messages, print_notes, under_way
    from nncdbg.process.atomic_file import new_file

    backends, unavailable = available_backends(options.candidate)
    debugger = open_program(configuration_of(options)).debugger(statistics=False)
    print_notes(ProgramTarget(debugger), screen)
    note_messages(ProgramTarget(debugger), screen)
    tuner = KernelTuner(debugger, backends, unavailable)
    with under_way(ProgramTarget(debugger), screen, activity="measuring"):
        stop = debugger.run()
    if stop.reason == "pause" and not stop.detail:
        raise KeyboardInterrupt
    error = failure_of(stop, options.model)
    if error is not None:
        screen.complain(error)
        return failure_code(error)
    tuning = tuner.tuning
    text = kernel_file_text(tuning.as_dict())
    if options.json:
        print(json.dumps(json.loads(text)))
    else:
        put_tuning(screen, tuning)
    if options.output:
        with new_file(Path(options.output)) as file:
            file.write(text.encode())
        screen.note(f"wrote {options.output}: nncdbg run {options.model} --kernels {options.output}")
    return 0


def put_tuning(screen: Screen, tuning: Tuning) -> None:
    """Print the kernels of each statement with their times, the chosen one first."""
    for each in tuning.statements:
        screen.put(f"line {each.line}: {each.op} {each.selector}: {_measurements(each)}")
    saved = sum(each.saved for each in tuning.statements)
    own = tuning.backend
    moved = sum(each.chosen not in ("", own) for each in tuning.statements)
    count = counted(len(tuning.statements), "statement")
    screen.put(f"{moved} of {count} run faster on another backend than {own}, by {_duration(saved)} per run")
    for name, reason in tuning.unavailable.items():
        screen.note(f"{name} was not measured: {reason}")


def _measurements(tuned: TunedStatement) -> str:
    if tuned.left_out and not tuned.kernels:
        return f"left out: {tuned.left_out}"
    ordered = sorted(tuned.kernels, key=lambda kernel: (kernel.backend != tuned.chosen, _seconds(kernel)))
    return ", ".join(map(_measurement, ordered))


def _seconds(kernel: MeasuredKernel) -> float:
    return float("inf") if kernel.seconds is None else kernel.seconds


def _measurement(kernel: MeasuredKernel) -> str:
    if kernel.rejected:
        return f"{kernel.backend} rejected: {kernel.rejected}"
    return f"{kernel.backend} {'has no kernel' if kernel.seconds is None else _duration(kernel.seconds)}"


def _duration(seconds: float) -> str:
    """Return a time with three digits, in the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
