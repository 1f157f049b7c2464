"""`nncdbg watch SCRIPT.py`: report the op where the first NaN of a training in PyTorch originates."""

from __future__ import annotations

import json
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.command_line import JSON, ArgumentParser, add_script, one_shot, option
from nncdbg.process.ranks import folder_of_rank
from nncdbg.text.counting import counted

if TYPE_CHECKING:
    from nncdbg.nan_watch.training.records import BadStep, TrainingReport

_REACTIONS = ("stop", "raise", "report", "skip")


def script_in(arguments: Sequence[str], parser: ArgumentParser) -> bool:
    """Return whether a command line of `nncdbg watch` runs a script; `parser` is that of a model."""
    own = watch_script.parser()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return True
        if not word.startswith("-"):
            return word.endswith(".py")
        options = own._option_string_actions | parser._option_string_actions
        option = options.get(word)
        if option is not None and option.nargs != 0 and rest:
            rest.pop(0)
    return False


@one_shot(
    "nncdbg watch",
    "Run a PyTorch script, and report the op where the first NaN of its training originates.\n"
    "The script needs no change.",
    partial(add_script, metavar="SCRIPT.py"),
    option(
        "--on-nan",
        choices=_REACTIONS,
        metavar="REACTION",
        help="stop at a prompt, raise, report and continue, or skip the update "
        "(default: stop on a terminal, else raise)",
    ),
    option(
        "--tier",
        default="guard",
        metavar="TIER",
        help="guard, hooks (checks modules), native (operators) or live (records steps)",
    ),
    option("--keep-update", action="store_true", help="copy the state before each update, to run it again"),
    option("--bundle", metavar="DIR", help="save the first step with NaN; `nncdbg DIR` opens it"),
    JSON,
    runs_script=True,
    usage=(
        "nncdbg watch [options] SCRIPT.py [ARGUMENT ...]\n"
        "       nncdbg watch [options] -m MODULE [ARGUMENT ...]"
    ),
    epilog=(
        "Loss and gradients are checked before each update, and parameters after it.  A step with NaN\n"
        "or Inf runs again under the recorder.\n\n"
        "The options may also follow SCRIPT.  All other arguments there, and all after --, are for the\n"
        "script.  A journal is written by the script: see nncdbg.torch.flight_recorder.\n\n"
        "exit code: 0 fine, 1 NaN or Inf, 2 wrong usage, 3 the script could not be read, 4 it failed"
    ),
)
def watch_script(options: Namespace) -> int:
    """Return 0 if no step has NaN or Inf, 1 if one has.

    Raises LoadError for a script that cannot be read, RunError for one that fails, and UsageError for one
    that trains nothing.
    """
    from nncdbg.torch.script import run_to_end, script_runner

    if not options.module and not options.script:
        raise UsageError("there is no script", hint="nncdbg watch train.py")
    script = script_runner(options.script, options.module, options.arguments)
    target = options.module or options.script
    if options.bundle:
        options.bundle = folder_of_rank(options.bundle)
        from nncdbg.opening.folder_writing import check_folder

        check_folder(Path(options.bundle))
    from nncdbg.nan_watch.training.records import TrainingReport
    from nncdbg.nan_watch.training.watching import watch

    report = TrainingReport()
    on_nan = options.on_nan or ("stop" if sys.stdin.isatty() and sys.stderr.isatty() else "raise")
    keep = partial(_keep, options)
    entered = ExitStack()
    thread = threading.get_ident()

    def run() -> None:
        nonlocal report
        with entered:
            if options.json:
                # Standard output carries the report alone.
                entered.enter_context(redirect_stdout(sys.stderr))
            report = entered.enter_context(
                watch(tier=options.tier, on_nan=on_nan, keep_update=options.keep_update, found=keep)
            )
            script()

    def at_exit(failure: NncdbgError | None) -> int:
        if threading.get_ident() == thread:
            with _printed(options):
                entered.close()
        return _ended(options, target, report, failure)

    failure: NncdbgError | None = None
    with _printed(options):
        failure = run_to_end(target, run, at_exit, lambda: _place(report))
    return _ended(options, target, report, failure)


def _place(report: TrainingReport) -> str:
    """Return how far the script has come, for the message of its failure."""
    if not report.steps and not report.passes:
        return ""
    done = counted(report.steps, "update") if report.steps else counted(report.passes, "step")
    return f"after {done}" + (", without NaN or Inf" if report.ok else "")


@contextmanager
def _printed(options: Namespace) -> Iterator[None]:
    """Print the NaN that ends the watch in the body."""
    from nncdbg.nan_watch.training.records import NaNFound
    from nncdbg.presentation.screen import Screen
    from nncdbg.torch.ranks import await_ranks

    try:
        yield
    except NaNFound as found:
        screen = Screen()
        if not options.json:
            for line in found.bad_step.lines():
                screen.put_wrapped(line)
        problem = await_ranks()
        if problem is not None:
            screen.note(problem)


def _ended(options: Namespace, target: str, report: TrainingReport, failure: NncdbgError | None) -> int:
    from nncdbg.presentation.screen import Screen
    from nncdbg.torch.guard_findings import ERROR
    from nncdbg.torch.script import ScriptInterrupted

    screen = Screen()
    interrupted = failure if isinstance(failure, ScriptInterrupted) and report.seen else None
    if report.ok and failure is not None and interrupted is None:
        raise failure
    if not report.seen:
        raise UsageError(
            f"{target} ended without a step of an optimizer: nothing was watched",
            hint="nncdbg watches backward passes, torch.optim optimizers and `with nncdbg.torch.step():`, "
            "in the process and on the thread that it starts",
        )
    if failure is not None and any(each.where == ERROR for each in report.bad_steps):
        screen.note(failure.message)
    if interrupted is not None:
        screen.note(interrupted.message)
        report.interrupted = True
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        for line in report.summary():
            screen.put_wrapped(line)
    return report.exit_code if interrupted is None else interrupted.exit_code


def _keep(options: Namespace, bad: BadStep) -> None:
    from nncdbg.presentation.screen import Screen

    if not options.bundle or options.bundle == getattr(options, "saved", None):
        return
    screen = Screen()
    if bad.recorded is None:
        screen.note(f"step {bad.step} was not recorded, so it is not in {options.bundle}")
        return
    bad.recorded.save(options.bundle, title=str(bad), notes=bad.notes)
    options.saved = options.bundle
    screen.note(f"`nncdbg {options.bundle}` opens step {bad.step}")
