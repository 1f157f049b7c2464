"""`nncdbg diff MODULE:FUNCTION --compile-b` and `--autocast-b`: a PyTorch module against its own variants."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from nncdbg.engine.graph import Array, Program
    from nncdbg.opening.programs import OpenedProgram

_HINT = "name a function that returns a pair: (module, arguments)"


@dataclass(frozen=True, slots=True)
class ModuleSides:
    """A captured module as side A; side B is a program (autocast), or values by name (compiled)."""

    a: OpenedProgram
    b: Program | None = None
    values: dict[str, Array] | None = None
    names: dict[str, str] | None = None


def module_sides(options: Namespace) -> ModuleSides:
    """Capture the module that `MODULE:FUNCTION` returns, and run or capture its variant.

    Raises UsageError if it returns anything else, and the errors of `nncdbg.torch.capture` and
    `nncdbg.torch.compiled_values`.
    """
    module, arguments = _module(options)
    from nncdbg.opening.programs import OpenedProgram
    from nncdbg.torch.capture import capture
    from nncdbg.torch.compiled import compiled_values, value_names

    program = capture(module, arguments)
    configuration = configuration_of(options).completed({"backend": program.saved.backend})
    a = OpenedProgram(program, configuration)
    if options.autocast_b is not None:
        return ModuleSides(a, capture(module, arguments, autocast=options.autocast_b))
    values = compiled_values(module, arguments, backend=options.compile_b)
    names = value_names(program, values)
    return ModuleSides(a, values={name: values[name] for name in names}, names=names)


def variant_comparison(
    sides: ModuleSides, tolerance: Tolerance, given: Iterable[str]
) -> tuple[Debugger, PairedRuns | Lockstep | GoldenRun, list[str]]:
    """Return side A at its entry, the comparison with side B, and notes on its inputs.

    `given` are the names of inputs from the user; compiled values are those of the original inputs.
    """
    from nncdbg.engine.divergence.call import counterpart, inputs_of_side
    from nncdbg.engine.divergence.golden import GoldenRun
    from nncdbg.engine.divergence.lockstep import BUDGET, compared
    from nncdbg.opening.programs import OpenedProgram

    if sides.b is None and list(given):
        raise UsageError(
            "--compile-b runs the module with its own arguments: --input cannot be used",
            hint="change the arguments that the function returns",
        )
    with inputs_of_side("A"):
        a = sides.a.debugger(statistics=False)
    if sides.b is None:
        return a, GoldenRun(a, sides.values or {}, sides.names or {}, tolerance, BUDGET), list(_random(a))
    program, inputs, notes = counterpart(sides.b, a, None)
    with inputs_of_side("B"):
        b = OpenedProgram(program, sides.a.configuration).debugger(inputs=inputs, dims={}, statistics=False)
    return a, compared(a, b, tolerance), [*notes, *_random(a)]


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
    if not is_python_name(options.model):
        raise UsageError(f"{option} needs MODULE:FUNCTION, not {options.model}", hint=_HINT)
    found = python_object(options.model, Path())
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{option}: {options.model} is of type {type(found).__name__}", hint=_HINT)
    return found
