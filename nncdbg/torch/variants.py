"""Variants of a PyTorch program or module that `nncdbg diff` compares with it: compiled, or autocast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nncdbg.errors import UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.diff import VariantSides
from nncdbg.opening.programs import OpenedProgram, open_program
from nncdbg.opening.python_programs import is_python_name, python_object
from nncdbg.text.torch_names import is_torch

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.ir.records import Array

_PAIR_HINT = "name a function that returns a pair: (module, arguments)"


def variant_sides(configuration: RunConfiguration, compiler: str, dtype: str | None) -> VariantSides:
    """Open the program, or capture the module that `MODULE:FUNCTION` returns, and its variant.

    Side B is under autocast to `dtype`, else under torch.compile with the backend `compiler`.  Raises
    UsageError if it cannot be made of the program, and the errors of `open_program`, of
    `nncdbg.torch.capture` and of `nncdbg.torch.compiled_values`.
    """
    option = "--autocast-b" if dtype is not None else "--compile-b"
    if is_python_name(configuration.program):
        return _module_sides(configuration, option, compiler, dtype)
    opened = open_program(configuration)
    if not any(is_torch(node.op) for graph in opened.program.graphs.values() for node in graph.nodes):
        raise UsageError(
            f"{option} needs a program of PyTorch, not {configuration.program}",
            hint="use a recorded step, an exported program, or MODULE:FUNCTION",
        )
    if dtype is not None:
        from nncdbg.torch.capture import autocast_program

        return VariantSides(opened, autocast_program(opened.program, dtype), False)

    def compiled(a: Debugger) -> tuple[dict[str, Array], dict[str, str]]:
        from nncdbg.torch.compiled import compiled_program_values

        values = compiled_program_values(a, compiler)
        return values, {name: name for name in values}

    return VariantSides(opened, compiled, False)


def _module_sides(
    configuration: RunConfiguration, option: str, compiler: str, dtype: str | None
) -> VariantSides:
    pair: Any = python_object(configuration.program, Path())
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise UsageError(
            f"{option}: {configuration.program} is of type {type(pair).__name__}", hint=_PAIR_HINT
        )
    module, arguments = pair
    from nncdbg.torch.capture import capture
    from nncdbg.torch.compiled import compiled_program, compiled_values, runs_operators, value_names

    program = capture(module, arguments)
    a = OpenedProgram(program, configuration.completed({"backend": program.saved.backend}))
    if dtype is not None:
        return VariantSides(a, capture(module, arguments, autocast=dtype), True)
    if configuration.inputs:
        raise UsageError(
            "--compile-b runs the module with its own arguments: --input cannot be used",
            hint="change the arguments that the function returns",
        )
    if runs_operators(compiler):
        return VariantSides(a, compiled_program(module, arguments, backend=compiler), True)
    values = compiled_values(module, arguments, backend=compiler)
    names = value_names(program, values)
    return VariantSides(a, lambda _: ({name: values[name] for name in names}, names), True)
