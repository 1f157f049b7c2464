"""The command `nncdbg`: select the mode and report errors.

Heavy imports are deferred, so that `nncdbg --help` responds at once.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from io import TextIOWrapper

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_check,
    add_journal,
    add_kernels,
    add_machine,
    add_model,
    add_order,
    add_outputs,
    add_prompt,
    add_states_in_place,
    add_tracks,
)
from nncdbg.presentation.exit_codes import CRASHED, exit_code_of
from nncdbg.terminal.journal.files import is_run
from nncdbg.version import __version__

COMMANDS = {
    "watch": (
        "nncdbg.nan_watch.commands.watch",
        "find where the first NaN of a model or training script originates",
    ),
    "run": ("nncdbg.terminal.one_shot.run", "run to the end; print outputs with statistics"),
    "profile": ("nncdbg.terminal.one_shot.profile", "measure the times of statements, ops and layers"),
    "diff": ("nncdbg.terminal.one_shot.diff", "compare two models, backends, dtypes, or runs of a journal"),
    "autotune": ("nncdbg.terminal.one_shot.autotune", "choose the fastest correct kernel of each statement"),
    "races": ("nncdbg.nan_watch.commands.races", "check a schedule of streams and events without a run"),
    "record": ("nncdbg.terminal.one_shot.record", "save a training step of a PyTorch script as a program"),
    "replay": (
        "nncdbg.terminal.one_shot.replay",
        "replay a recorded session, and compare its stops",
    ),
    "debug": ("nncdbg.terminal.one_shot.debug", "run a PyTorch script, and stop it at operators"),
    "attach": ("nncdbg.terminal.one_shot.debug:attach_main", "attach to the ranks of a distributed job"),
    "runs": ("nncdbg.terminal.journal.log:runs_main", "list the runs of a journal"),
    "log": ("nncdbg.terminal.journal.log", "show a run of a journal: curves, checkpoints, events"),
    "sql": ("nncdbg.terminal.journal.sql", "query the tables of a journal"),
    "export": ("nncdbg.terminal.journal.sql:export_main", "write runs for TensorBoard or MLflow"),
    "reduce": ("nncdbg.nan_watch.commands.reduce", "find the smallest program with the same finding"),
    "bisect": ("nncdbg.nan_watch.commands.bisect", "find the ops that must stay f32 in half precision"),
    "print": ("nncdbg.terminal.one_shot.text", "print the program text"),
    "listing": ("nncdbg.dap_server.sources.listing_file", "write the listing of a model, as editors show it"),
    "dap": ("nncdbg.dap_server.command", "serve the Debug Adapter Protocol, for editors"),
    "lsp": ("nncdbg.textual_repr.language_server.command", "serve the Language Server Protocol, for editors"),
    "repl": ("nncdbg.terminal.connected", "open a prompt for an editor's debug session"),
    "ops": ("nncdbg.terminal.one_shot.ops", "list all ops, or describe one"),
}
"""Maps one-shot commands to (`module:function`, one line of help); the function is `main` by default.

`function(arguments)` returns the exit code.
"""

_DESCRIPTION = "The debugger for computation graphs: break, step, step back, inspect and change tensors."

_PREPARATION = "nncdbg.stats.preparation"
_SCRIPT = "nncdbg.torch.script"


def run() -> int:
    """Run `main` as the whole process, and return its exit code.

    Unless it has run a script, the process ends with `os._exit`, after all other exit functions: Python would
    first free each record of the program, which takes seconds for a large one. Python also cannot finalize
    while a thread compiles the statistics in LLVM, as in the first sessions after an installation.
    The objects of a script end as under Python: its open files are written.
    """
    code = CRASHED

    def leave() -> None:
        if _SCRIPT not in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    atexit.register(leave)  # Exit functions run in reverse order: this one is last.
    code = main()
    script, preparation = map(sys.modules.get, (_SCRIPT, _PREPARATION))
    if script is not None:
        script.last_script_as_main()
    elif preparation is not None:
        preparation.abandon()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run `nncdbg` with these arguments (default: the process's).

    Return the exit code of `exit_code_of`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _tolerate_odd_characters()
    return exit_code_of(partial(_chosen, arguments))


def _tolerate_odd_characters() -> None:
    """Escape characters that the terminal cannot show or decode, so that they are not fatal."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _chosen(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        module, _, function = COMMANDS[arguments[0]][0].partition(":")
        command: Callable[[Sequence[str]], int] = getattr(import_module(module), function or "main")
        return command(arguments[1:])
    if arguments and is_run(arguments[0]):
        from nncdbg.terminal.journal.log import runs_main

        return runs_main(arguments)
    return _prompt(arguments)


def _prompt(arguments: Sequence[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    _check_command(arguments)
    options = parser.parse_args(arguments)
    from nncdbg.terminal.repl import start

    return start(options)


def _check_command(arguments: Sequence[str]) -> None:
    """Raise UsageError if the first word is not a file and resembles a command, as in `nncdbg rnu`."""
    from difflib import get_close_matches

    word = arguments[0]
    near = get_close_matches(word, COMMANDS, 1)
    if near and len(arguments) > 1 and not os.path.exists(word) and "." not in word:
        rest = " ".join(arguments[1:])
        raise UsageError(
            f"there is no file or command {word}", hint=f"did you mean `nncdbg {near[0]} {rest}`?"
        )


def _parser() -> ArgumentParser:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  nncdbg {name:<{width}}{words}" for name, (_, words) in COMMANDS.items()]
    lines.insert(0, f"  nncdbg {'MODEL':<{width}}open a model at the prompt, with the options below")
    parser = ArgumentParser(
        "nncdbg",
        f"{_DESCRIPTION}\n\ncommands (each has --help):\n" + "\n".join(lines),
        usage="nncdbg MODEL [options]\n       nncdbg COMMAND ...",
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
    add = parser.add_argument
    place = "LINE|OP|@graph|%%value [if EXPR] [hits N]"
    add("--break", action="append", default=[], dest="breaks", metavar="SPEC", help=f"{place} (repeatable)")
    add_prompt(parser)
    add("--version", action=_Version, help="print the version")
    return parser


class _Version(argparse.Action):
    """An option that prints the version and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **fields: object) -> None:
        super().__init__(option_strings, dest, nargs=0, **fields)  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"nncdbg {__version__}")
        parser.exit()


if __name__ == "__main__":
    raise SystemExit(run())
