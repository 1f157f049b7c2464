"""Command lines: the parser, the shared options, and the run configuration built from them.

Imports no heavy modules.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.configuration import RunConfiguration, settings
from nncdbg.process.address_space import check_address_space

if TYPE_CHECKING:
    from nncdbg.comparison.launches import PlacedPlan
    from nncdbg.ir.records import Program
    from nncdbg.opening.corpus.engines import CaseExecution

T = TypeVar("T")


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser whose errors are printed like all others."""

    _json = False

    def __init__(self, prog: str, description: str, **fields: object) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **fields,  # type: ignore[arg-type]
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else args
        self._json = "--json" in arguments and "--json" in self._option_string_actions
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        error = UsageError(message, hint=f"see `{self.prog} --help`")
        if self._json:
            print(_failure_document(error))
        raise error


Part: TypeAlias = Callable[[ArgumentParser], object]
"""Adds options to the parser of a command."""


def option(*flags: str, **fields: Any) -> Part:
    """Return what adds an argument, with the parameters of `add_argument`."""
    return lambda parser: parser.add_argument(*flags, **fields)


def add_json(parser: ArgumentParser) -> None:
    """Add the option for a document on standard output, to a command that reports errors itself."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def JSON(parser: ArgumentParser) -> None:  # noqa: N802
    """Add the same option to a command whose errors are printed as JSON, too."""
    add_json(parser)


@dataclass(frozen=True, slots=True)
class OneShotCommand:
    """A command of the shell: its options, and the function that runs it and returns the exit code.

    `name` is what the user types, as ``nncdbg run``; `texts` are the usage and the epilog of the help.
    `check` raises UsageError for options that do not go together.  With `runs_script`, the options end at
    a script, and `arguments` are those of the script.
    """

    run: Callable[[argparse.Namespace], int]
    name: str
    description: str
    parts: Sequence[Part]
    texts: Mapping[str, str]
    check: Callable[[ArgumentParser, argparse.Namespace], None] | None
    runs_script: bool

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command with the words after its name.  Raises UsageError, and its own errors."""
        options = self.options(arguments)
        if JSON not in self.parts:
            return self.run(options)
        with errors_in_json(options):
            return self.run(options)

    def parser(self) -> ArgumentParser:
        parser = ArgumentParser(self.name, self.description, **self.texts)
        for add in self.parts:
            add(parser)
        return parser

    def options(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options; `typed` are the words themselves.  Raises UsageError."""
        parser = self.parser()
        own, of_script = script_arguments(parser, arguments) if self.runs_script else ([*arguments], [])
        options = parser.parse_args(own)
        options.typed = [*arguments]
        if self.runs_script:
            options.arguments = of_script
        if self.check is not None:
            self.check(parser, options)
        return options


def one_shot(
    name: str,
    description: str,
    *parts: Part,
    check: Callable[[ArgumentParser, argparse.Namespace], None] | None = None,
    runs_script: bool = False,
    **texts: str,
) -> Callable[[Callable[[argparse.Namespace], int]], OneShotCommand]:
    """Declare the decorated function as a command of the shell; `nncdbg.extensions` names it."""
    return lambda run: OneShotCommand(run, name, description, parts, texts, check, runs_script)


def check_least(parser: ArgumentParser, options: Namespace, name: str, words: str = "use 1 or more") -> None:
    """Raise UsageError for a number below 1."""
    number = getattr(options, name)
    if number is not None and number < 1:
        parser.error(f"--{name.replace('_', '-')} {number}: {words}")


def script_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Split a command line `[OPTION ...] SCRIPT [ARGUMENT ...]` into the parser's arguments and the script's.

    After the script, only the parser's options in full are its own, up to `--`.  All words after
    `-m MODULE` are the module's, as for `python -m`.
    """
    own: list[str] = []
    of_script: list[str] = []
    rest = list(arguments)
    script_seen = False
    while rest:
        word = rest.pop(0)
        if script_seen and word == "--":
            return own, [*of_script, *rest]
        name, equals, _ = word.partition("=")
        option = parser._option_string_actions.get(name)
        if option is not None and (not equals or name.startswith("--")):
            own.append(word)
            if option.nargs != 0 and not equals and rest:
                own.append(rest.pop(0))
            if option.dest == "module" and not script_seen:
                return own, rest
        elif script_seen:
            of_script.append(word)
        else:
            own.append(word)
            script_seen = not word.startswith("-")
    return own, of_script


# -- options ---------------------------------------------------------------------------------


def add_model(parser: ArgumentParser) -> None:
    """Add the model, and the options for opening it."""
    _, program = settings()["program"]
    parser.add_argument("model", metavar=program.metavar, help=program.help)
    add_opening(parser)


_MODEL, _INPUTS, _KERNELS, _RUN = "opening the model", "inputs", "kernels and memory", "running"
_JOURNAL, _SESSION = "journal of a training", "session"


def _group(parser: ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the group of options with this title in the help, which is made on first use."""
    found = (each for each in parser._action_groups if each.title == title)
    return next(found, None) or parser.add_argument_group(title)


def _add(parser: ArgumentParser, *names: str, title: str, shown_default: str = "", **more: Any) -> None:
    """Add the flags of these fields to the group `title` of the help; an omitted flag is None."""
    add = _group(parser, title).add_argument
    for name in names:
        field, setting = settings()[name]
        note = shown_default or setting.shown_default or (f"{field.default}" if field.default else "")
        details: dict[str, Any] = {"metavar": setting.metavar, **more}
        if field.type == "bool":
            details, note = {"action": "store_true"}, ""
        elif field.type in ("int", "int | None"):
            details["type"], note = int, note or ("0" if field.default == 0 else "")
        elif field.default is MISSING:
            details["action"], note = "append", ""
        words = f"{setting.help} (default: {note})" if note else setting.help
        if details.get("action") == "append":
            words += " (repeatable)"
        # argparse formats the text with %.
        add(setting.flag, dest=name, default=None, help=words.replace("%", "%%"), **details)


def _adder(title: str, *names: str, **more: Any) -> Callable[[ArgumentParser], None]:
    """Return the function that adds the flags of these fields to the group `title` of the help."""
    return lambda parser: _add(parser, *names, title=title, **more)


add_opening = _adder(_MODEL, "flat", "training", "stores", "steps", "states", "strict_states")
"""Add the options for opening a model."""

_add_order = _adder(_RUN, "order")
"""Add the order of a schedule in which the program runs."""

_add_tracks = _adder(_RUN, "tracks")
"""Add the numbers to track in each step."""

add_kernels = _adder(_KERNELS, "kernels", "kernel_file")
"""Add the backends of single statements."""

_add_journal = _adder(
    _JOURNAL,
    *("journal", "checkpoint_every", "checkpoint_budget", "journal_statistics"),
    *("journal_values", "journal_values_every", "journal_codec", "on_journal_error", "note"),
    *("fork", "changes", "fork_program", "resume"),
)
"""Add the journal of a training, its checkpoints, and forks of a run."""

add_states_in_place = _adder(_KERNELS, "in_place_states")
"""Add the option that updates overwrite states."""

add_outputs = _adder(_RUN, "outputs")
"""Add the values to compute in a partial run."""

_add_check = _adder(_RUN, "check", choices=["micro"])
"""Add the comparison of kernels with their micro programs."""


def add_run(parser: ArgumentParser) -> None:
    """Add the model, and all options for running it and for the journal of the run."""
    for add in (add_model, add_machine, add_kernels, add_states_in_place, _add_journal, _add_tracks):
        add(parser)


def add_complete_run(parser: ArgumentParser) -> None:
    """Add the same options, those for a part or an order of the program, and the check of kernels."""
    for add in (add_run, _add_order, add_outputs, _add_check):
        add(parser)


def add_script(parser: ArgumentParser, metavar: str = "SCRIPT") -> None:
    """Add the script of a command that runs one, or a module in its place."""
    words = f"a Python file, run as `python {metavar} ARGUMENT ...`"
    parser.add_argument("script", metavar=metavar, nargs="?", help=words)
    words = "run a module, as `python -m MODULE ARGUMENT ...`"
    parser.add_argument("-m", dest="module", metavar="MODULE", help=words)


add_recording = _adder(_SESSION, "record")
"""Add the file in which the session is recorded."""


def add_verification(parser: ArgumentParser) -> None:
    """Add the check that observing does not change the run."""
    words = "verify first that observers change no bit of an output"
    parser.add_argument("--verify-observers", action="store_true", help=words)


def add_machine(parser: ArgumentParser, default_allocator: str = "") -> None:
    """Add the inputs, and the options for running the program; the help shows the default allocator."""
    _add(parser, "inputs", "dims", "seed", title=_INPUTS)
    _add(parser, "backend", "fallback", "op_libraries", title=_KERNELS)
    _add(parser, "allocator", shown_default=default_allocator, title=_KERNELS)
    _add(parser, "history", "max_ops", title=_RUN)


def add_prompt(parser: ArgumentParser) -> None:
    """Add the options for the source and destination of the prompt's commands."""
    add_commands(parser)
    add_recording(parser)
    add = _group(parser, _SESSION).add_argument
    add("--force", action="store_true", help="overwrite an existing recording")
    add("--replay", metavar="FILE", help="replay a recorded session, with its inputs and options")
    add("--allow-python", action="store_true", help="allow recordings to run Python (`py`)")


def add_commands(parser: ArgumentParser) -> None:
    """Add the options for commands that the prompt runs first."""
    add = _group(parser, _SESSION).add_argument
    add("-x", "--source", action=_Script, default=[], metavar="FILE", help="run the commands in FILE first")
    add("-ex", "--command", action=_Script, dest="source", metavar="COMMAND", help="run COMMAND first")


class _Script(argparse.Action):
    """Keep `-x FILE` and `-ex COMMAND` in the order of the command line: (is a file, text) each."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        given = getattr(options, self.dest)
        setattr(options, self.dest, [*given, (self.metavar == "FILE", value)])


# -- the configuration -----------------------------------------------------------------------


def configuration_of(options: argparse.Namespace) -> RunConfiguration:
    """Return the run configuration of these options.

    Raises UsageError for an input or size that is malformed or set twice, and for a path that is not a
    folder; RunError if the memory limit of the process is too low.
    """
    check_address_space()
    from nncdbg.engine.inputs.binding import parse_dim, parse_spec

    given = {name: value for name in settings() if (value := getattr(options, name, None)) is not None}
    for folder in given.get("stores", ()):
        if not os.path.isdir(folder):
            raise UsageError(
                f"--allow-store {folder}: "
                + ("not a folder" if os.path.exists(folder) else "no such folder"),
                hint=f"searched {os.getcwd()}" if not os.path.isabs(folder) else None,
            )
    pairs: tuple[tuple[str, Callable[[str], tuple[str, Any]]], ...] = (
        *(("inputs", parse_spec), ("tracks", _track), ("dims", parse_dim)),
        *(("kernels", _kernel), ("changes", _change)),
    )
    for name, parse in pairs:
        if name in given:
            given[name] = _each_once(map(parse, given[name]), settings()[name][1].flag)
    return RunConfiguration(program=options.model, **given, given=frozenset(given))


def _change(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f'"{text}" is not NAME=VALUE', hint="write, for example, --set lr=1e-4")
    return name, value


def kernels_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the backends of statements, from texts such as ``Conv=torch``.

    Raises UsageError for one that is malformed, and a selector that is given twice.
    """
    return _each_once(map(_kernel, texts), "--kernel")


def _kernel(text: str) -> tuple[str, str]:
    """Parse ``Conv=torch``.  A value may have an equals sign in its name, but a backend has none."""
    selector, equals, name = map(str.strip, text.rpartition("="))
    if not equals or not selector or not name:
        raise UsageError(
            f'--kernel "{text}" is not OP|%VALUE|LINE=BACKEND', hint="write, for example, Conv=torch"
        )
    return selector, name


def _track(text: str) -> tuple[str, str]:
    """Parse ``acc=mean(%hit)``.  Raises UsageError unless it is a name and an expression."""
    name, _, expression = map(str.strip, text.partition("="))
    if not name or not expression or expression.startswith("="):
        raise UsageError(f'--track "{text}" is not NAME=EXPR', hint="write, for example, acc=mean(%hit)")
    return name, expression


def _each_once(pairs: Iterable[tuple[str, T]], flag: str) -> dict[str, T]:
    given: dict[str, T] = {}
    for name, value in pairs:
        if name in given:
            raise UsageError(f'{flag} sets "{name}" twice')
        given[name] = value
    return given


# -- failures --------------------------------------------------------------------------------


def error_document(error: NncdbgError) -> dict[str, Any]:
    """Return an error as `--json` prints it."""
    return {
        "message": error.message,
        "line": error.excerpt.line if error.excerpt else None,
        "source": error.source,
        "operands": list(error.operands),
        "hint": error.hint,
    }


def _failure_document(error: NncdbgError) -> str:
    """Return the JSON document of a command that failed before it had a result."""
    return json.dumps({"status": "failed", "error": error_document(error)})


@contextmanager
def errors_in_json(options: argparse.Namespace) -> Iterator[None]:
    """Print an error of the body as a JSON document on standard output if `--json` is given; raise it."""
    try:
        yield
    except NncdbgError as error:
        if options.json:
            print(_failure_document(error))
        raise


# -- corpora and schedules ------------------------------------------------------------------


def add_corpus(parser: ArgumentParser, *, runs: bool = False) -> None:
    """Add the folder of cases and where they run; with `runs`, the number of runs of each."""
    add = parser.add_argument
    add("--inputs-dir", metavar="DIR", help="run each file or folder in DIR as a case")
    if runs:
        add(
            "--runs",
            type=int,
            default=1,
            metavar="N",
            help="run with N seeds, starting at --seed (default: 1)",
        )
    add("--jobs", type=int, metavar="N", help="number of parallel processes (default: one per core)")
    add(
        "--executor",
        metavar="EXECUTOR",
        help="run the cases on dask, ray or mpi, or dask=ADDRESS (default: processes)",
    )
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="stop after SECONDS and report the results so far",
    )


def check_corpus(parser: ArgumentParser, options: Namespace) -> None:
    """Raise UsageError for options of `add_corpus` that are invalid, or that need several runs."""
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget {options.budget}: use seconds, such as --budget 60")
    if options.executor is not None:
        from nncdbg.opening.corpus.engines import checked_name

        checked_name(options.executor)
        runs = getattr(options, "runs", None)
        if not options.inputs_dir and runs in (None, 1):
            ways = "--inputs-dir DIR" if runs is None else "--inputs-dir DIR or --runs N"
            parser.error(f"--executor needs several runs: add {ways}")


def case_execution(options: Namespace) -> CaseExecution:
    """Return how the cases run that the options of `add_corpus` describe."""
    from nncdbg.opening.corpus.engines import PROCESSES, CaseExecution

    return CaseExecution(options.jobs, options.executor or PROCESSES, options.budget)


def add_schedule(parser: ArgumentParser) -> None:
    """Add the options for a schedule and its memory plan."""
    add = parser.add_argument
    add("--schedule", metavar="FILE", help="use the schedule in FILE instead of the margins of the text")
    add("--streams", type=int, metavar="N", help="make a schedule with at most N streams per device")
    add(
        "--device",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="with --streams: run the values that match PATTERN on DEVICE, as in --device 'enc*=cuda:1'",
    )
    add(
        "--bind",
        action="append",
        default=[],
        metavar="M=N",
        help="run stream M of the schedule on stream N; the margins show it as sM->N",
    )
    add("--plan", metavar="FILE", help="the offsets of the values in one arena, a memory plan")


def scheduled_program(program: Program, options: Namespace) -> tuple[Program, PlacedPlan | None]:
    """Return a program with the schedule that the options of `add_schedule` name, and its memory plan.

    Raises UsageError for options that cannot be combined, and files that do not fit the program.
    """
    plan = None
    if options.plan:
        from nncdbg.engine.memory.plan_file import read_plan

        plan = read_plan(options.plan, program)
    program = _scheduled(program, plan, options)
    if options.bind:
        from nncdbg.engine.schedules.validation import bound

        program = bound(program, dict(_binding(each) for each in options.bind))
    return program, plan


def _scheduled(program: Program, plan: PlacedPlan | None, options: Namespace) -> Program:
    if options.schedule and options.streams is not None:
        raise UsageError(
            "--schedule and --streams cannot be combined",
            hint="--streams makes a schedule, --schedule reads one",
        )
    if options.schedule:
        from nncdbg.opening.schedule_file import read_schedule

        return read_schedule(options.schedule, program)
    if options.streams is not None:
        from nncdbg.engine.schedules.scheduler import with_schedule

        devices = dict(_device(each) for each in options.device)
        return with_schedule(program, streams=options.streams, devices=devices, plan=plan)
    if options.device:
        raise UsageError("--device needs --streams", hint="add --streams 4")
    return program


def _binding(text: str) -> tuple[int, int]:
    numbers = [each.strip().removeprefix("s") for each in text.split("=")]
    if len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,9}", each) for each in numbers):
        raise UsageError(
            f"--bind {text}: write M=N with the numbers of two streams", hint="for example --bind 3=4"
        )
    return int(numbers[0]), int(numbers[1])


def _device(text: str) -> tuple[str, str]:
    pattern, mark, device = text.rpartition("=")
    if not (mark and pattern and device):
        raise UsageError(f"--device {text}: write PATTERN=DEVICE", hint="for example --device 'enc*=cuda:1'")
    return pattern, device
