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
from io import TextIOWrapper

from nncdbg import extensions
from nncdbg.errors import UsageError
from nncdbg.opening.command_line import (
    add_complete_run,
    add_prompt,
    one_shot,
    option,
)
from nncdbg.presentation.exit_codes import CRASHED, exit_code_of
from nncdbg.terminal.journal.files import is_run
from nncdbg.version import __version__

COMMANDS = {name: words for name, (_, words) in extensions.SHELL.items()}
"""Commands of the shell, with one line of help."""

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
        command: Callable[[Sequence[str]], int] | None = extensions.find(extensions.ONE_SHOT, arguments[0])
        assert command is not None
        return command(arguments[1:])
    if arguments and is_run(arguments[0]):
        from nncdbg.terminal.journal.log import runs_main

        return runs_main(arguments)
    if not arguments:
        prompt.parser().print_help(sys.stderr)
        return 2
    _check_command(arguments)
    return prompt(arguments)


def _listed() -> str:
    """Return the commands for the help, a line each."""
    width = max(map(len, COMMANDS)) + 2
    model = {"MODEL": "open a model at the prompt, with the options below"}
    return "\n".join(f"  nncdbg {name:<{width}}{words}" for name, words in (model | COMMANDS).items())


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


class _Version(argparse.Action):
    """An option that prints the version and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **fields: object) -> None:
        super().__init__(option_strings, dest, nargs=0, **fields)  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"nncdbg {__version__}")
        parser.exit()


@one_shot(
    "nncdbg",
    f"{_DESCRIPTION}\n\ncommands (each has --help):\n{_listed()}",
    add_complete_run,
    option(
        "--break",
        action="append",
        default=[],
        dest="breaks",
        metavar="SPEC",
        help="LINE|OP|@graph|%%value [if EXPR] [hits N] (repeatable)",
    ),
    add_prompt,
    option("--version", action=_Version, help="print the version"),
    usage="nncdbg MODEL [options]\n       nncdbg COMMAND ...",
)
def prompt(options: argparse.Namespace) -> int:
    """Open a model at the prompt."""
    from nncdbg.terminal.repl import start

    return start(options)


if __name__ == "__main__":
    raise SystemExit(run())
