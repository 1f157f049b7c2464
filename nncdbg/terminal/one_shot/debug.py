"""`nncdbg debug SCRIPT` runs a PyTorch script under the live debugger; `attach` joins its ranks."""

from __future__ import annotations

import json
import sys
import threading
import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg import extensions
from nncdbg.commands.recording.script import RecordedScript
from nncdbg.commands.stopping import break_
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.escaping import printable
from nncdbg.opening.command_line import (
    add_commands,
    add_recording,
    add_script,
    one_shot,
    option,
)
from nncdbg.presentation.ranks import (
    divergence_document,
    divergence_lines,
    ranks_lines,
    report_document,
    wait_lines,
)
from nncdbg.process.rank_notes import (
    RankReport,
    find_job,
    find_mismatches,
    find_waits,
    read_digests,
    reports_of_job,
)
from nncdbg.process.ranks import choose_rank

if TYPE_CHECKING:
    from nncdbg.commands.recording.script import RecordedScript
    from nncdbg.terminal.live_prompt import LivePrompt


@one_shot(
    "nncdbg debug",
    "Run a PyTorch script, and stop at operators, modules, parameters, lines, NaN and Inf.\n"
    "The script needs no change.",
    add_script,
    option(
        "--break",
        action="append",
        default=[],
        dest="breaks",
        metavar="SPEC",
        help="PLACE [if EXPR] [hits N] (repeatable)",
    ),
    option("--catch", metavar="KINDS", help="stop where a NaN or Inf originates: nan, inf or nan,inf"),
    option("--history", action="store_true", help="record each step as it runs, to step back in all of it"),
    option("--listen", metavar="HOST:PORT", help="stop in an editor that attaches there"),
    option("--force", action="store_true", help="overwrite an existing recording"),
    option("--rank", type=int, help="under torchrun, the rank that stops (default: $NNCDBG_RANK, or 0)"),
    option("--ranks", action="store_true", help="under torchrun, debug all ranks: `nncdbg attach --ranks`"),
    option("--wait", action="store_true", help="with --ranks, wait until a prompt is attached"),
    add_commands,
    add_recording,
    runs_script=True,
    usage="nncdbg debug [options] SCRIPT [ARGUMENT ...]\n"
    "       nncdbg debug [options] -m MODULE [ARGUMENT ...]",
    epilog="PLACE is an operator (aten.addmm), a module (@encoder.out, @out.backward), a phase (@backward,\n"
    "@optimizer), a parameter or gradient (%fc.weight, %fc.weight.grad) or FILE:LINE.  Without\n"
    "--break and --catch, a prompt opens first.  Ctrl-C stops at the next operator.\n\n"
    "The options may also follow SCRIPT.  All other arguments there, and all after --, are for the\n"
    "script.",
)
def main(options: Namespace) -> int:
    """Return 0 if the script succeeded or the user quit.

    Raises LoadError for a script that cannot be read, RunError for one that fails, UsageError for a place
    that cannot be a breakpoint.
    """
    return debug(options)


def debug(options: Namespace) -> int:
    """Run a script as `main` does, with the options of its command line."""
    if not options.script and not options.module:
        raise UsageError("there is no script", hint="nncdbg debug train.py")
    from nncdbg.torch.script import run_to_end, script_runner

    script = script_runner(options.script, options.module, options.arguments)
    from nncdbg.terminal.live_prompt import ScriptLeft

    target = options.module or options.script
    debugged = options.ranks or choose_rank(options.rank)
    _check_ranks(options)

    listens = debugged and (options.listen or options.ranks)
    entered, thread = ExitStack(), threading.get_ident()

    def run() -> None:
        with entered:
            if options.ranks:
                _enter_ranks(entered, options, target)
            elif debugged and options.listen:
                _enter_listening(entered, options)
            elif debugged:
                _enter_prompt(entered, options, target)
            script()

    def at_exit(failure: NncdbgError | None) -> int:
        if threading.get_ident() == thread:
            entered.close()
        if listens:
            code = 0 if failure is None else failure.exit_code
            _of_scripts("end")(code)
        return _ended(failure)

    try:
        failure = run_to_end(target, run, at_exit)
    except ScriptLeft:
        return 0
    if failure is not None and listens:
        _of_scripts("exit")(failure.exit_code)
    return _ended(failure)


def _ended(failure: NncdbgError | None) -> int:
    """Return 0 for a script that succeeded.  Raises the failure of another one."""
    if failure is not None:
        raise failure
    return 0


def _enter_prompt(entered: ExitStack, options: Namespace, target: str) -> None:
    """Stop at a prompt.  Raises ScriptLeft if the user quits before the script starts."""
    from nncdbg.commands.recording.setup import setup_of_script
    from nncdbg.presentation.screen import Screen
    from nncdbg.terminal.live_prompt import LivePrompt, pausing_on_interrupt

    prompt = LivePrompt(target, Screen(), history=options.history)
    prompt.script = _recorded_script(options)
    entered.callback(prompt.recorder.stop)
    if options.record:
        setup = setup_of_script(prompt.script)
        recorder, confirm = prompt.recorder, prompt.confirm
        recorder.start(options.record, setup, prompt.target, force=options.force, confirm=confirm)
    _set_up(prompt, options)
    entered.callback(prompt.note_unreached)
    if sys.stdin.isatty():
        entered.enter_context(pausing_on_interrupt(prompt.training))
    entered.enter_context(prompt.training)


def _recorded_script(options: Namespace) -> RecordedScript:
    """Return the script as a recording keeps it."""
    from nncdbg.commands.recording.script import PROMPT_OF_DEBUG, RecordedScript

    own = {name: getattr(options, name) for name in ("history", "breaks", "catch", "source")}
    file = options.module or options.script
    return RecordedScript(file, bool(options.module), options.arguments, PROMPT_OF_DEBUG, own)


def debug_recorded(script: RecordedScript) -> int:
    """Run a recorded script as `nncdbg debug` did; the prompts read the commands of the recording."""
    named = {"module": None, "script": None, ("module" if script.module else "script"): script.file}
    others = {"listen": None, "rank": None, "record": None, "force": False, "ranks": False, "wait": False}
    return debug(Namespace(**named, **others, **script.options, arguments=script.arguments))


def _enter_listening(entered: ExitStack, options: Namespace) -> None:
    """Stop in an editor, which is attached before the script starts.  Raises UsageError."""
    if options.breaks or options.catch or options.source or options.record:
        raise UsageError(
            "--listen takes no --break, --catch, -x, -ex and --record",
            hint="set breakpoints in the editor that attaches",
        )
    entered.enter_context(_of_scripts("listen")(options.listen, history=options.history))


def _check_ranks(options: Namespace) -> None:
    """Raise UsageError for options that do not go together."""
    if options.wait and not options.ranks:
        raise UsageError("--wait needs --ranks", hint="--listen waits without it")
    if options.ranks and (options.listen or options.rank is not None):
        raise UsageError("--ranks takes no --listen and --rank: each rank listens")
    if options.ranks and (options.breaks or options.catch or options.source or options.record):
        raise UsageError(
            "--ranks takes no --break, --catch, -x, -ex and --record",
            hint="set breakpoints at the prompt of `nncdbg attach --ranks`",
        )


def _enter_ranks(entered: ExitStack, options: Namespace, target: str) -> None:
    """Let `nncdbg attach --ranks` stop this rank.  Raises UsageError outside of torchrun."""
    rank = _of_scripts("rank")(target, history=options.history, wait=options.wait)
    entered.enter_context(rank)


def _of_scripts(name: str) -> Any:
    """Return a function of the user interface for editors, which this one does not import."""
    return extensions.find(extensions.SCRIPTS, name)


def _set_up(prompt: LivePrompt, options: Namespace) -> None:
    """Set the stops of the command line, run its commands, and read more unless there are any."""
    for spec in options.breaks:
        break_(prompt, spec)
    if options.catch:
        prompt.stops.catch(options.catch.replace(",", " ").split(), None)
    for is_file, text in options.source:
        prompt.echo(f"source {text}" if is_file else text)
        if is_file:
            prompt.play(text)
        else:
            prompt.execute(text)
    if not (options.breaks or options.catch or prompt.over):
        prompt.begin()


_PACE = 0.2
"""Seconds between two reads of the notes."""


@one_shot(
    "nncdbg attach",
    "Attach to the ranks of a job that runs under `torchrun ... -m nncdbg debug --ranks train.py`.",
    option("job", metavar="JOB", nargs="?", help="the job"),
    option("--ranks", action="store_true", help="attach to all ranks of the job"),
    option("--report", action="store_true", help="print where the ranks are and which is missing; exit"),
    option("--json", action="store_true", help="print the report as JSON"),
    option(
        "--patience",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="report ranks that wait at least this long (default: 2)",
    ),
    usage="nncdbg attach --ranks [JOB] [options]",
    epilog="JOB is the port at which the ranks meet (MASTER_PORT); the default is the only job.",
)
def attach_main(options: Namespace) -> int:
    """Open the prompt of a job, or print a report.

    Return 1 if ranks wait for one that is missing at a collective.  Raises UsageError if there is no job.
    """
    if not options.ranks:
        raise UsageError("nncdbg attach needs --ranks", hint="nncdbg attach --ranks")
    folder = find_job(options.job)
    if options.report or options.json:
        return _report(folder, options)
    from nncdbg.terminal.ranks.prompt import attach

    return attach(folder)


def _report(folder: Path, options: Namespace) -> int:
    """Print where the ranks are, and which are missing at a collective."""
    reports = _settled(folder, options.patience)
    now = time.time()
    waits = [each for each in find_waits(reports) if now - each.since >= options.patience]
    digests = read_digests(folder, [each.process.rank for each in reports])
    if options.json:
        document = {"job": folder.name, **report_document(reports, now)}
        document["divergences"] = divergence_document(digests)
        print(json.dumps(document))
    else:
        process = reports[0].process
        lines = [
            f"job {folder.name}: {process.script} on {process.ranks} ranks",
            *ranks_lines(reports, now),
            *([*wait_lines(reports, now)] or ["no rank waits for another"]),
            *divergence_lines(digests),
        ]
        print(*map(printable, lines), sep="\n")
    return 1 if waits or find_mismatches(reports) else 0


def _settled(folder: Path, patience: float) -> list[RankReport]:
    """Return the notes when no rank is missing at a collective, or one is for `patience` seconds."""
    ending = time.monotonic() + patience
    while True:
        reports = reports_of_job(folder)
        waits = find_waits(reports)
        if not waits or time.monotonic() >= ending:
            return reports
        time.sleep(_PACE)
