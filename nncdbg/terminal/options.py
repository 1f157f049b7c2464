"""Options that commands share, and the way from them to a debugger.  Imports nothing heavy."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from nncdbg.engine.errors import LoadError, UsageError
from nncdbg.engine.process.address_space import check_address_space
from nncdbg.terminal import opening
from nncdbg.terminal.one_shot.failure import failure_document

if TYPE_CHECKING:
    from nncdbg.engine.compilation.linking import Allocation
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.observers import Verification
    from nncdbg.engine.graph import Program
    from nncdbg.engine.stopping.control import Stop
    from nncdbg.presentation.screen import Screen

T = TypeVar("T")

INPUT_FORMS = (
    "FILE.npy, FILE.npz:KEY, FILE.png:STEPS, a number or list, or zeros|ones|normal|uniform|arange[SIZES]"
)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors have the shape of all others."""

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
        """As argparse has it; `said` in the result holds the options that stood there."""
        words = sys.argv[1:] if args is None else args
        self._json = "--json" in words and "--json" in self._option_string_actions
        options, rest = super().parse_known_args(args, namespace)
        stood = {word.partition("=")[0] for word in words}
        options.said = {each.dest for each in self._actions if stood & {*each.option_strings}}
        return options, rest

    def error(self, message: str) -> NoReturn:
        error = UsageError(message, hint=f"see `{self.prog} --help`")
        if self._json:
            print(failure_document(error))
        raise error


def add_model(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a graph: FILE.onnx, FILE.nnc (graph text), or a repro bundle"
    )
    add_opening(parser)


def add_opening(parser: Parser) -> None:
    """How a graph is opened."""
    parser.add_argument("--flat", action="store_true", help="show one graph instead of layers")
    parser.add_argument(
        "--allow-store",
        action="append",
        default=[],
        metavar="DIR",
        help="additional folder for the weights of graph text (repeatable)",
    )


def add_machine(parser: Parser) -> None:
    """Inputs, and how the graph is run."""
    add = parser.add_argument
    add("--input", action="append", default=[], metavar="NAME=DATA", help=f"{INPUT_FORMS} (repeatable)")
    add("--dim", action="append", default=[], metavar="NAME=SIZE", help="set a symbolic size (repeatable)")
    add("--seed", type=int, default=0, help="seed for random inputs and random ops (default: 0)")
    add("--backend", default="numpy", help="numpy, onnxruntime or cupy (default: numpy)")
    add("--fallback", action="store_true", help="use NumPy for ops without a kernel in the backend")
    add(
        "--op-library",
        action="append",
        default=[],
        metavar="FILE.py",
        help="Python file with custom kernels (repeatable)",
    )
    add("--allocator", help="debug, arena, poison or plain (default: debug; plain on a device)")
    add("--history", metavar="BYTES", help="memory for old values, such as 4GiB (default: a quarter of RAM)")
    add("--max-ops", type=int, metavar="N", help="stop after N statements")


def add_check(parser: Parser) -> None:
    """What runs beside the kernels."""
    words = "micro: compare each kernel with its micro program (slow)"
    parser.add_argument("--check", choices=["micro"], help=words)


def add_verification(parser: Parser) -> None:
    """Whether observing changes the run."""
    words = "verify first that observers change no bit of an output"
    parser.add_argument("--verify-observers", action="store_true", help=words)


def verify_observers(
    options: argparse.Namespace,
    program: Program,
    inputs: Mapping[str, Any],
    dims: Mapping[str, int],
    screen: Screen,
) -> Verification:
    """The outputs with and without observers, for the options of `add_machine`."""
    from nncdbg.engine.divergence.observers import verify_observers
    from nncdbg.presentation.run_progress import under_way

    def make(allocator: str | Allocation, statistics: bool, checks: bool) -> Debugger:
        check = getattr(options, "check", None) if checks else None
        fields = argparse.Namespace(**{**vars(options), "allocator": allocator, "check": check})
        return make_debugger_of(fields, program, inputs, dims, statistics=statistics)

    def move(debugger: Debugger) -> Stop:
        with under_way(debugger, screen):
            return debugger.run(heed=False)

    return verify_observers(make, move, options.allocator)


def add_prompt(parser: Parser) -> None:
    """Where the prompt's commands come from and go to."""
    add = parser.add_argument
    add("-x", "--source", action=_Script, default=[], metavar="FILE", help="run the commands in FILE first")
    add("-ex", "--command", action=_Script, dest="source", metavar="COMMAND", help="run COMMAND first")
    add("--record", metavar="FILE", help="record the setup and the typed commands in FILE")
    add("--force", action="store_true", help="overwrite an existing recording")
    add("--replay", metavar="FILE", help="replay a recorded session with its inputs, then exit")
    add("--allow-python", action="store_true", help="allow recordings to run Python (`py`)")


class _Script(argparse.Action):
    """Keep `-x FILE` and `-ex COMMAND` in the order of the command line: (is a file, text) each."""

    def __call__(
        self, parser: argparse.ArgumentParser, options: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        given = getattr(options, self.dest)
        setattr(options, self.dest, [*given, (self.metavar == "FILE", value)])


def load_program(path: str, *, flat: bool = False, stores: Sequence[str] = ()) -> Program:
    """Return the program in a file or repro bundle.  Options and errors are those of `nncdbg.load`.

    Raises RunError where this process may not use the memory that it takes.
    """
    check_address_space()
    if not os.path.exists(path):
        raise LoadError(f"there is no file {path}", hint=f"searched {os.path.dirname(os.path.abspath(path))}")
    bundle = opening.bundle_at(path)
    if bundle is not None:
        return bundle.program
    from nncdbg.engine.frontends import load

    return load(path, flat=flat, stores=stores)


def chosen_program(options: argparse.Namespace, path: str | None = None) -> Program:
    """Return the program of `path` (default: the model), opened as the options of `add_opening` say.

    Raises UsageError for a folder of `--allow-store` that is not one.
    """
    for folder in options.allow_store:
        if not os.path.isdir(folder):
            raise UsageError(
                f"--allow-store {folder}: "
                + ("not a folder" if os.path.exists(folder) else "no such folder"),
                hint=f"searched {os.getcwd()}" if not os.path.isabs(folder) else None,
            )
    return load_program(path or options.model, flat=options.flat, stores=options.allow_store)


def make_debugger(options: argparse.Namespace, program: Program, *, statistics: bool = True) -> Debugger:
    """A debugger for the options of `add_machine`, and of `add_check` where there are these."""
    inputs, dims = given_inputs(options)
    return make_debugger_of(options, program, inputs, dims, statistics=statistics)


def given_inputs(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, int]]:
    """Inputs and sizes as the options of `add_machine` have them, those of a bundle too; op libraries loaded.

    A bundle also gives the options that nobody has given.
    """
    from nncdbg.engine.inputs.binding import parse_dim, parse_spec
    from nncdbg.engine.ops.library import load_op_library

    bundled = opening.settle(options)
    for library in options.op_library:
        load_op_library(library)
    inputs = _each_once(map(parse_spec, options.input), "input")
    dims = _each_once(map(parse_dim, options.dim), "dim")
    return {**bundled, **{name.removeprefix("%"): data for name, data in inputs.items()}}, dims


def make_debugger_of(
    options: argparse.Namespace,
    program: Program,
    inputs: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    statistics: bool,
) -> Debugger:
    """A debugger for the options of `add_machine` with these inputs."""
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.process.black_box import BlackBox

    model = getattr(options, "model", None)

    return Debugger(
        program,
        inputs,
        backend=options.backend,
        fallback=options.fallback,
        allocator=options.allocator,
        dims=dims,
        check=getattr(options, "check", None),
        max_ops=options.max_ops,
        seed=options.seed,
        history=options.history,
        statistics=statistics,
        black_box=BlackBox(model) if model is not None else None,
    )


def _each_once(pairs: Iterable[tuple[str, T]], option: str) -> dict[str, T]:
    given: dict[str, T] = {}
    for name, value in pairs:
        if name in given:
            raise UsageError(f'--{option} sets "{name}" twice')
        given[name] = value
    return given


def say_notes(screen: Screen, debugger: Debugger) -> None:
    """What the user should know of the inputs, on standard error."""
    for note in debugger.notes:
        screen.note(str(note))
