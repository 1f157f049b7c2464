"""`nncdbg reduce`: find the smallest program and inputs with the same finding."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.nan_watch.commands import terminable
from nncdbg.nan_watch.measuring.gates import USUAL
from nncdbg.opening.command_line import JSON, add_machine, add_model, configuration_of, one_shot, option
from nncdbg.presentation.exit_codes import INTERRUPTED
from nncdbg.presentation.run_progress import print_notes
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.nan_watch.reduction.reducing import Reduced, ReductionJob
    from nncdbg.nan_watch.reduction.reduction import ReductionProgress
    from nncdbg.presentation.screen import Screen


@one_shot(
    "nncdbg reduce",
    "Reduce MODEL to the smallest program and inputs with the same finding: a repro bundle.",
    add_model,
    add_machine,
    option("-o", "--output", metavar="DIR", help="the bundle (MODEL.reduced)"),
    option("--state", metavar="FILE", help="save progress in FILE, to resume after an interruption"),
    option("--fail-on", metavar="GATES", help=f"the gates ({','.join(USUAL)})"),
    option("--strict", action="store_true", help="also count findings that do not affect an output"),
    JSON,
    epilog="exit code: 0 reduced, 2 no finding, 130 interrupted (the best result so far is written)",
)
def main(options: Namespace) -> int:
    """Return 0 if reduced and verified, 2 if a watch finds nothing, 130 if interrupted."""
    from nncdbg.nan_watch.configuration import watch_configuration
    from nncdbg.nan_watch.reduction.reducing import ReductionJob, verify
    from nncdbg.opening.programs import open_program
    from nncdbg.presentation.screen import Screen

    screen = Screen()
    started = time.perf_counter()
    opened = open_program(configuration_of(options))
    # Random inputs are drawn once, here.
    debugger = opened.debugger(statistics=False)
    print_notes(debugger.notes, screen)
    configuration = watch_configuration(opened, options.fail_on, options.strict)
    job = ReductionJob(
        opened.program, debugger.inputs, configuration, Path(options.state) if options.state else None
    )
    folder = Path(options.output or f"{Path(options.model).stem}.reduced")
    with shown(screen, job), terminable():
        reduced = job.run(folder, model=options.model)
    if not reduced.interrupted:
        verify(folder, reduced.signature, configuration)
    seconds = time.perf_counter() - started
    if options.json:
        print(json.dumps(_document(reduced, folder, seconds)))
    else:
        _print(screen, reduced, folder, seconds)
    return INTERRUPTED if reduced.interrupted else 0


@contextmanager
def shown(screen: Screen, job: ReductionJob) -> Iterator[None]:
    """Show a progress bar on a terminal during a reduction."""
    if not screen.err.is_terminal or screen.err.is_dumb_terminal:
        yield
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=screen.err, transient=True) as bar:
        job.on_progress = _progress_updates(bar, bar.add_task("", total=None, facts=""))
        yield


def _progress_updates(bar: Any, task: Any) -> Callable[[ReductionProgress], None]:
    most = 0

    def update(progress: ReductionProgress) -> None:
        nonlocal most
        most = max(most, progress.statements)
        facts = f"{progress.statements} statements, {progress.bytes} bytes, {progress.runs} runs"
        done = most - progress.statements if most > 1 else None
        bar.update(task, description=progress.phase, facts=facts, total=most or None, completed=done or 0)

    return update


def _document(reduced: Reduced, folder: Path, seconds: float) -> dict[str, Any]:
    return {
        "status": "interrupted" if reduced.interrupted else "ok",
        "bundle": str(folder),
        "statements": reduced.case.statements,
        "bytes": reduced.case.bytes,
        "runs": reduced.runs,
        "seconds": seconds,
        "finding": reduced.finding.as_dict(),
    }


def _print(screen: Screen, reduced: Reduced, folder: Path, seconds: float) -> None:
    case = reduced.case
    screen.put(str(reduced.signature))
    if reduced.finding.evidence:
        screen.put(reduced.finding.evidence)
    screen.put()
    screen.put((folder / "program.nnc").read_text(encoding="utf-8", errors="replace").rstrip())
    screen.put()
    size = f"{counted(case.statements, 'statement')} and {case.bytes} bytes of data"
    screen.put(f"{size}, after {reduced.runs} runs in {seconds:.1f} s")
    if reduced.interrupted:
        screen.note("interrupted: this is the smallest bundle so far")
    screen.note(f"`nncdbg {folder}` opens the bundle at the finding")
