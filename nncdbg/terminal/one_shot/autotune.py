"""`nncdbg autotune`: measure the kernels of all backends per statement, and choose one for each."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import failure_code
from nncdbg.opening.command_line import (
    JSON,
    add_kernels,
    add_machine,
    add_model,
    configuration_of,
    one_shot,
    option,
)
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.comparison.kernels import MeasuredKernel, TunedStatement, Tuning
    from nncdbg.presentation.screen import Screen


@one_shot(
    "nncdbg autotune",
    "Run a graph, and measure the kernels of all backends for each statement on copies of its operands.",
    add_model,
    add_machine,
    add_kernels,
    option(
        "--candidate",
        action="append",
        default=[],
        metavar="BACKEND",
        help="measure this backend (default: all that are installed; repeatable)",
    ),
    option("-o", "--output", metavar="FILE", help="write the choice to FILE"),
    JSON,
    epilog="use the choice in a run: nncdbg run MODEL --kernels FILE",
)
def main(options: Namespace) -> int:
    """Return 0 if the graph ran to its end, 4 if it failed, 3 if an op has no kernel."""
    from nncdbg.presentation.screen import Screen

    return _autotune(options, Screen())


def _autotune(options: Namespace, screen: Screen) -> int:
    from nncdbg.opening.complete_run import tune
    from nncdbg.opening.programs import kernel_file_text
    from nncdbg.presentation.run_progress import shown
    from nncdbg.process.files import new_file

    tuning, error = tune(configuration_of(options), options.candidate, shown(screen, "measuring"))
    if error is not None:
        screen.complain(error)
        return failure_code(error)
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
