"""`nncdbg diff`: compare models, backends, allocators, element types or golden values, value by value."""

from __future__ import annotations

import json
import shlex
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import (
    ArgumentParser,
    add_kernels,
    add_machine,
    add_opening,
    add_prompt,
    add_states_in_place,
    configuration_of,
    errors_in_json,
    kernels_of,
)
from nncdbg.opening.configuration import settings
from nncdbg.opening.corpus.options import add_corpus, check_corpus, corpus_fields
from nncdbg.presentation.run_progress import note_messages, print_notes, under_way
from nncdbg.target.program import ProgramTarget
from nncdbg.terminal.journal.files import is_run
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.comparison.report import DiffReport
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.golden import GoldenRun
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.divergence.paired_runs import PairedRuns
    from nncdbg.ir.records import Array, Program
    from nncdbg.opening.configuration import RunConfiguration
    from nncdbg.opening.diff_corpus_report import DiffCase, DiffCorpusReport
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.presentation.screen import Screen


def main(arguments: Sequence[str]) -> int:
    """Return 0 if the outputs agree, 1 if they differ, else the exit code of a side's failure."""
    if any(map(is_run, arguments)):
        from nncdbg.terminal.journal.diff import main as compare_runs

        return compare_runs(arguments)
    from nncdbg.presentation.screen import Screen

    options = _options(arguments)
    with errors_in_json(options):
        run = _diff if options.inputs_dir is None else compare_corpus
        return run(options, Screen(), arguments)


def _options(arguments: Sequence[str]) -> Namespace:
    parser = ArgumentParser(
        "nncdbg diff",
        "Compare two runs value by value: the statement that differs, and how the error grows.",
        usage="nncdbg diff A [B] [options]\n       nncdbg diff FILE.db#RUN FILE.db#RUN [options]",
        epilog=(
            "exit code: 0 if the outputs agree, 1 if they differ (--strict: if any value differs)\n\n"
            "FILE.db#RUN is a run of a journal; for the options, see `nncdbg diff FILE.db#RUN --help`"
        ),
    )
    add = parser.add_argument
    add("model", metavar="A", help=settings()["program"][1].help)
    add("other", metavar="B", nargs="?", help="second graph (default: A with the options that end in -b)")
    add("--golden", metavar="FILE.npz", help="compare with recorded values instead of side B")
    add("--names", metavar="FILE", help="map golden names to value names: JSON, or lines `GOLDEN VALUE`")
    add_opening(parser)
    add_machine(parser)
    add_kernels(parser)
    add_states_in_place(parser)
    add_corpus(parser)
    add("--backend-b", metavar="BACKEND", help="side B's backend (default: --backend, or its program's)")
    add(
        "--kernel-b",
        action="append",
        default=[],
        dest="kernels_b",
        metavar="OP|%VALUE|LINE=BACKEND",
        help="on side B, run an op, value or line on another backend",
    )
    add("--allocator-b", metavar="ALLOCATOR", help="side B's allocator (default: side A's)")
    add("--dtype-b", metavar="DTYPE", help="cast side B's float weights and inputs to f16, bf16, f32 or f64")
    add(
        "--compile-b",
        nargs="?",
        const="inductor",
        metavar="BACKEND",
        help="side B: the PyTorch module or recorded step under torch.compile (default: inductor)",
    )
    add(
        "--autocast-b",
        metavar="DTYPE",
        help="side B: the module or recorded step under autocast to f16 or bf16",
    )
    add("--rtol", type=float, help="relative tolerance (default: f32 1e-4, f64 1e-7, f16 2e-2, bf16 1e-1)")
    add("--atol", type=float, help="absolute tolerance (default: f32 1e-5 x largest element, f64 1e-9, ...)")
    add("--ulp", type=int, help="tolerance in ULPs; alone, it replaces the other tolerances")
    add("--strict", action="store_true", help="also exit with 1 if only intermediate values differ")
    add("--all", action="store_true", help="print all causes, differences and rows of the table")
    add("--json", action="store_true", help="print one JSON document on standard output")
    add("--stop", action="store_true", help="open the prompt on side A, after the first divergence")
    add_prompt(parser)
    options = parser.parse_args(arguments)
    options.kernels_b = kernels_of(options.kernels_b)
    check_diff_corpus(parser, options)
    another = options.other or options.backend_b or options.allocator_b or options.dtype_b
    another = another or options.kernels_b
    variants = [options.compile_b, options.autocast_b]
    if any(variants) and (another or options.golden or all(variants)):
        parser.error("--compile-b and --autocast-b are the whole side B: use one of them alone")
    if options.compile_b and options.stop:
        parser.error("--stop needs a side B with statements: it cannot be used with --compile-b")
    another = another or any(variants)
    if options.golden is not None and another:
        parser.error("--golden and side B cannot be combined: use one of them")
    if options.names is not None and options.golden is None:
        parser.error("--names maps the names of a golden file: add --golden")
    if options.golden is not None and options.stop:
        parser.error("--stop needs a side B: it cannot be used with --golden")
    if options.golden is None and not another:
        parser.error(
            "both sides are the same: add a second model, --backend-b, --kernel-b, --allocator-b, --dtype-b, "
            "--compile-b or --autocast-b"
        )
    if options.stop and options.json:
        parser.error("--stop opens a prompt, --json prints one document: choose one of them")
    if not options.stop and (options.source or options.record or options.replay):
        parser.error("--source, --record and --replay need the prompt that --stop opens")
    return options


def _diff(options: Namespace, screen: Screen, arguments: Sequence[str]) -> int:
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.engine.divergence.call import inputs_of_side
    from nncdbg.engine.divergence.golden import GoldenRun
    from nncdbg.engine.divergence.lockstep import compared
    from nncdbg.opening.programs import open_program

    tolerance = Tolerance(options.rtol, options.atol, options.ulp, options.autocast_b)
    sides = variant_sides(options) if options.compile_b or options.autocast_b else None
    opened = sides.a if sides is not None else open_program(configuration_of(options))
    start = time.perf_counter()
    comparison: Lockstep | PairedRuns | GoldenRun
    other = opened.configuration
    if sides is not None:
        a, comparison, notes = variant_comparison(sides, tolerance)
    elif options.golden is not None:
        a, comparison, notes = _golden(options, opened, tolerance)
    else:
        with inputs_of_side("A"):
            a = opened.debugger(statistics=False)
        b, other, notes = _side_b(options, opened, a)
        note_messages(ProgramTarget(b), screen, "side B: ")
        comparison = compared(a, b, tolerance, same_places=True if options.other is None else None)
        screen.name_values(a.program, b.program)
    note_messages(ProgramTarget(a), screen, "side A: ")
    print_notes(ProgramTarget(a), screen)
    for note in notes:
        screen.note(note)
    with under_way(ProgramTarget(a), screen, comparison.pause):
        report = comparison.run()
    if options.json:
        notes = [*map(str, a.notes), *notes]
        seconds = time.perf_counter() - start
        print(json.dumps(_document(options, opened.configuration, other, report, seconds, notes)))
    else:
        _print(screen, options, report, arguments)
    if options.stop and not report.equal and not isinstance(comparison, GoldenRun):
        _converse(options, screen, opened, comparison)
    return int(report.trips(strict=options.strict))


def _golden(
    options: Namespace, opened: OpenedProgram, tolerance: Tolerance
) -> tuple[Debugger, GoldenRun, list[str]]:
    """Return the program with inputs from the golden file, its comparison, and notes on these inputs."""
    from nncdbg.engine.divergence.golden import GoldenRun, golden_inputs, load_golden, load_names
    from nncdbg.engine.divergence.lockstep import BUDGET

    golden = load_golden(Path(options.golden))
    names = load_names(Path(options.names)) if options.names is not None else {}
    program, given = opened.program, opened.configuration.inputs
    found = golden_inputs(program.graphs[program.entry], golden, names)
    a = opened.debugger(inputs={**found, **given}, statistics=False)
    notes = [f"input %{name_text(name)} comes from the golden file" for name in found if name not in given]
    return a, GoldenRun(a, golden, names, tolerance, BUDGET), notes


def _side_b(
    options: Namespace, opened: OpenedProgram, a: Debugger
) -> tuple[Debugger, RunConfiguration, list[str]]:
    """Return side B, its configuration, and notes on its inputs."""
    from nncdbg.engine.divergence.call import counterpart, inputs_of_side
    from nncdbg.opening.programs import OpenedProgram, open_program

    configuration, asked = opened.configuration, configuration_of(options)
    if options.other is not None:
        opened = open_program(replace(asked, program=options.other))
        # Side B runs on the backend of its own program, unless the user gave one.
        own = opened.configuration
        configuration = own if opened.folder is not None else replace(configuration, backend=own.backend)
    other, inputs, notes = counterpart(opened.program, a, options.dtype_b, asked.inputs)
    with inputs_of_side("B"):
        b = OpenedProgram(other, configuration).debugger(
            inputs=inputs,
            dims={},
            backend=options.backend_b or configuration.backend,
            allocator=options.allocator_b or configuration.allocator,
            kernels={**configuration.kernels, **options.kernels_b},
            statistics=False,
        )
    return b, configuration, [*notes, *(f"side B: {note}" for note in b.notes)]


def _converse(
    options: Namespace, screen: Screen, opened: OpenedProgram, comparison: Lockstep | PairedRuns
) -> None:
    """Open the prompt on side A at the first divergence, with side B available."""
    from nncdbg.commands.session import CommandSession
    from nncdbg.engine.divergence.lockstep import Companion
    from nncdbg.terminal.repl import converse

    first = comparison.report.first
    debugger = opened.debugger()
    target, companion = ProgramTarget(debugger), Companion(comparison)
    session = CommandSession(target, options.model, screen)
    session.companion = lambda name: companion.value(debugger, name)
    comparison.b.debugger.restart()

    def greet() -> None:
        stop = target.go_to(first.a.tick if first is not None else comparison.report.ops[0])
        screen.put("side A has stopped after this statement; `diff %value` compares a value with side B")
        session.arrived(stop, written=stop.reason != "end")

    converse(session, options, greet)


# -- output ------------------------------------------------------------------------------------------


def _document(
    options: Namespace,
    a: RunConfiguration,
    b: RunConfiguration,
    report: DiffReport,
    seconds: float,
    notes: list[str],
) -> dict[str, Any]:
    sides = {
        "a": {
            "model": options.model,
            "backend": a.backend,
            "kernels": a.kernels,
            "allocator": a.allocator,
            "dtype": None,
        },
        "b": {
            "model": options.other or options.model,
            "backend": options.backend_b or b.backend,
            "kernels": {**b.kernels, **options.kernels_b},
            "allocator": options.allocator_b or b.allocator,
            "dtype": options.dtype_b,
        },
    }
    if options.compile_b or options.autocast_b:
        sides["b"] |= {"compile": options.compile_b, "autocast": options.autocast_b}
    if options.golden is not None:
        sides["b"] = {"golden": options.golden, "names": options.names}
    tolerance = {name: getattr(options, name) for name in ("rtol", "atol", "ulp")}
    return {**report.as_dict(), "sides": sides, "tolerance": tolerance, "seconds": seconds, "notes": notes}


def _print(screen: Screen, options: Namespace, report: DiffReport, arguments: Sequence[str]) -> None:
    from nncdbg.presentation.divergence import print_report

    print_report(screen, report, everything=options.all)
    if not report.equal and not (options.stop or options.golden or options.compile_b):
        screen.note(f"to stop there and compare values: nncdbg diff {shlex.join(arguments)} --stop")


_SINGLE = ("golden", "compile_b", "autocast_b", "stop")
"""Options of comparisons of one run."""


def check_diff_corpus(parser: ArgumentParser, options: Namespace) -> None:
    """Raise UsageError for options that cannot be combined."""
    check_corpus(parser, options)
    if options.inputs_dir is None:
        for name in ("jobs", "budget"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} needs several inputs: add --inputs-dir DIR")
        return
    for name in _SINGLE:
        if getattr(options, name):
            flag = name.replace("_", "-")
            parser.error(f"--inputs-dir and --{flag} cannot be combined: compare one input with --{flag}")


def compare_corpus(options: Namespace, screen: Screen, arguments: Sequence[str]) -> int:
    """Print the comparison of each case, and return the exit code."""
    from nncdbg.comparison.tolerance import Tolerance
    from nncdbg.opening.corpus.source import CorpusProgram
    from nncdbg.opening.diff_corpus import DiffTask, run_diff_corpus
    from nncdbg.opening.programs import open_program
    from nncdbg.presentation.corpus_divergence import print_corpus_report
    from nncdbg.presentation.run_progress import case_progress

    asked = configuration_of(options)
    sides = [asked] if options.other is None else [asked, replace(asked, program=options.other)]
    opened = [open_program(each) for each in sides]
    programs = [CorpusProgram(each, side.program) for each, side in zip(sides, opened, strict=True)]
    task = DiffTask(
        programs[0],
        programs[1] if len(programs) > 1 else None,
        options.backend_b,
        options.allocator_b,
        options.dtype_b,
        Tolerance(options.rtol, options.atol, options.ulp),
        options.kernels_b,
    )
    start = time.perf_counter()
    with case_progress(screen) as progress:
        report = run_diff_corpus(task, options.inputs_dir, progress=progress, **corpus_fields(options))
    if options.json:
        print(json.dumps(_corpus_document(options, report, time.perf_counter() - start)))
    else:
        for note in report.notes:
            screen.note(note)
        print_corpus_report(screen, report)
        command = _corpus_command(options, opened[0].program, report.differing, arguments)
        if command:
            screen.note(f"the complete report of {report.differing[0].name}: {command}")
    return report.exit_code(strict=options.strict)


def _corpus_document(options: Namespace, report: DiffCorpusReport, seconds: float) -> dict[str, Any]:
    tolerance = {name: getattr(options, name) for name in ("rtol", "atol", "ulp")}
    sides = {
        "a": {"model": options.model},
        "b": {
            "model": options.other or options.model,
            "backend": options.backend_b,
            "allocator": options.allocator_b,
            "dtype": options.dtype_b,
        },
    }
    return {
        **report.as_dict(),
        "sides": sides,
        "tolerance": tolerance,
        "seconds": seconds,
        "notes": report.notes,
    }


def _corpus_command(
    options: Namespace, program: Program, differing: Sequence[DiffCase], arguments: Sequence[str]
) -> str:
    """Return the command that compares the first case that differs; "" if its inputs have no spelling."""
    from nncdbg.opening.corpus.cases import case_files, case_inputs

    if not differing:
        return ""
    case = next(each for each in case_files(options.inputs_dir)[0] if each.name == differing[0].name)
    inputs = case_inputs(case, program.graphs[program.entry])
    if not all(isinstance(data, str) for data in inputs.values()):
        return ""
    given = [word for name, data in inputs.items() for word in ("--input", f"{name}={data}")]
    return f"nncdbg diff {shlex.join([*_of_one_input(arguments), *given])}"


def _of_one_input(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the options of a corpus."""
    kept, rest = [], iter(arguments)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name not in ("--inputs-dir", "--jobs", "--executor", "--budget"):
            kept.append(word)
        elif not equals:
            next(rest, None)
    return kept


Compiled: TypeAlias = "Callable[[Debugger], tuple[dict[str, Array], dict[str, str]]]"
"""Returns compiled values by name, and their names in the program of a debugger at its entry."""

_PAIR_HINT = "name a function that returns a pair: (module, arguments)"


@dataclass(frozen=True, slots=True)
class VariantSides:
    """A program as side A; side B is another program (autocast), or values of the same (compiled)."""

    a: OpenedProgram
    b: Program | Compiled
    draws_again: bool
    """Whether side B draws other random numbers."""


def variant_sides(options: Namespace) -> VariantSides:
    """Open the program, or capture the module that `MODULE:FUNCTION` returns, and its variant.

    Raises UsageError if side B cannot be made of it, and the errors of `open_program`, of
    `nncdbg.torch.capture` and of `nncdbg.torch.compiled_values`.
    """
    from nncdbg.opening.programs import open_program
    from nncdbg.opening.python_programs import is_python_name
    from nncdbg.text.torch_names import is_torch

    if is_python_name(options.model):
        return _module_sides(options)

    opened = open_program(configuration_of(options))
    if not any(is_torch(node.op) for graph in opened.program.graphs.values() for node in graph.nodes):
        option = "--autocast-b" if options.autocast_b is not None else "--compile-b"
        raise UsageError(
            f"{option} needs a program of PyTorch, not {options.model}",
            hint="use a recorded step, an exported program, or MODULE:FUNCTION",
        )
    if options.autocast_b is not None:
        from nncdbg.torch.capture import autocast_program

        return VariantSides(opened, autocast_program(opened.program, options.autocast_b), False)

    def compiled(a: Debugger) -> tuple[dict[str, Array], dict[str, str]]:
        from nncdbg.torch.compiled_program import compiled_program_values

        values = compiled_program_values(a, options.compile_b)
        return values, {name: name for name in values}

    return VariantSides(opened, compiled, False)


def _module_sides(options: Namespace) -> VariantSides:
    module, arguments = _module(options)
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.torch.capture import capture
    from nncdbg.torch.compiled import compiled_program, compiled_values, runs_operators, value_names

    configuration = configuration_of(options)
    program = capture(module, arguments)
    a = OpenedProgram(program, configuration.completed({"backend": program.saved.backend}))
    if options.autocast_b is not None:
        return VariantSides(a, capture(module, arguments, autocast=options.autocast_b), True)
    if configuration.inputs:
        raise UsageError(
            "--compile-b runs the module with its own arguments: --input cannot be used",
            hint="change the arguments that the function returns",
        )
    if runs_operators(options.compile_b):
        return VariantSides(a, compiled_program(module, arguments, backend=options.compile_b), True)
    values = compiled_values(module, arguments, backend=options.compile_b)
    names = value_names(program, values)
    return VariantSides(a, lambda _: ({name: values[name] for name in names}, names), True)


def variant_comparison(
    sides: VariantSides, tolerance: Tolerance
) -> tuple[Debugger, PairedRuns | Lockstep | GoldenRun, list[str]]:
    """Return side A at its entry, the comparison with side B, and notes on its inputs."""
    from nncdbg.engine.divergence.call import counterpart, inputs_of_side
    from nncdbg.engine.divergence.golden import GoldenRun
    from nncdbg.engine.divergence.lockstep import BUDGET, compared
    from nncdbg.opening.programs import OpenedProgram

    with inputs_of_side("A"):
        a = sides.a.debugger(statistics=False)
    random = [*_random(a)] if sides.draws_again else []
    if callable(sides.b):
        values, names = sides.b(a)
        return a, GoldenRun(a, values, names, tolerance, BUDGET), random
    program, inputs, notes = counterpart(sides.b, a, None)
    with inputs_of_side("B"):
        b = OpenedProgram(program, sides.a.configuration).debugger(inputs=inputs, dims={}, statistics=False)
    return a, compared(a, b, tolerance), [*notes, *random]


def _random(a: Debugger) -> Iterator[str]:
    """Yield a note if the module draws random numbers."""
    from nncdbg.engine.ops.aten.signatures import signature
    from nncdbg.text.torch_names import is_torch

    ops = {node.op for graph in a.program.graphs.values() for node in graph.nodes if is_torch(node.op)}
    drawing = sorted(op for op in ops if (found := signature(op)) is not None and found.random)
    if drawing:
        yield f"{drawing[0]} draws other random numbers on side B; call module.eval() to avoid it"


def _module(options: Namespace) -> tuple[Any, Any]:
    """Return the module and its arguments."""
    from nncdbg.opening.python_programs import python_object

    option = "--autocast-b" if options.autocast_b is not None else "--compile-b"
    found = python_object(options.model, Path())
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{option}: {options.model} is of type {type(found).__name__}", hint=_PAIR_HINT)
    return found
