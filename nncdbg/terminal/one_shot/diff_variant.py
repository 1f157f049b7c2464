"""`nncdbg diff A --compile-b` and `--autocast-b`: a PyTorch module or program against its own variants."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.names import is_torch
from nncdbg.opening.command_line import configuration_of
from nncdbg.opening.python_programs import is_python_name, python_object

if TYPE_CHECKING:
    from nncdbg.engine.comparison.tolerance import Tolerance
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.divergence.golden import GoldenRun
    from nncdbg.engine.divergence.lockstep import Lockstep
    from nncdbg.engine.divergence.paired_runs import PairedRuns
    from nncdbg.ir.records import Array, Program
    from nncdbg.opening.programs import OpenedProgram

Compiled: TypeAlias = "Callable[[Debugger], tuple[dict[str, Array], dict[str, str]]]"
"""Returns compiled values by name, and their names in the program of a debugger at its entry."""

_HINT = "name a function that returns a pair: (module, arguments)"


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
    if is_python_name(options.model):
        return _module_sides(options)
    from nncdbg.opening.programs import open_program

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

    ops = {node.op for graph in a.program.graphs.values() for node in graph.nodes if is_torch(node.op)}
    drawing = sorted(op for op in ops if (found := signature(op)) is not None and found.random)
    if drawing:
        yield f"{drawing[0]} draws other random numbers on side B; call module.eval() to avoid it"


def _module(options: Namespace) -> tuple[Any, Any]:
    """Return the module and its arguments."""
    option = "--autocast-b" if options.autocast_b is not None else "--compile-b"
    found = python_object(options.model, Path())
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{option}: {options.model} is of type {type(found).__name__}", hint=_HINT)
    return found
