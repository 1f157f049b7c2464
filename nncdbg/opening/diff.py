"""The comparison behind `nncdbg diff`: two programs, two ways to run one, or a run and recorded values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from nncdbg.comparison.report import DiffReport
from nncdbg.comparison.tolerance import Tolerance
from nncdbg.engine.divergence.call import counterpart, inputs_of_side
from nncdbg.engine.divergence.golden import GoldenRun, golden_inputs, load_golden, load_names
from nncdbg.engine.divergence.lockstep import BUDGET, Lockstep, SideBValues, compared
from nncdbg.engine.divergence.paired_runs import PairedRuns
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.programs import OpenedProgram, open_program
from nncdbg.opening.progress import RunningProgram
from nncdbg.text.lexemes import name_text
from nncdbg.text.torch_names import is_torch

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger
    from nncdbg.ir.records import Array, Program

Compiled: TypeAlias = "Callable[[Debugger], tuple[dict[str, Array], dict[str, str]]]"
"""Returns compiled values by name, and their names in the program of a debugger at its entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideB:
    """How side B differs from side A; what is None is as on side A."""

    program: str | None = None
    backend: str | None = None
    allocator: str | None = None
    dtype: str | None = None
    """The element type to which weights and inputs are cast."""
    kernels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VariantSides:
    """A program as side A; side B is another program (autocast), or values of the same (compiled)."""

    a: OpenedProgram
    b: Program | Compiled
    draws_again: bool
    """Whether side B draws other random numbers."""


class ProgramDiff:
    """A comparison at the entry of both sides; `notes` are those on the inputs of side B."""

    def __init__(
        self,
        opened: OpenedProgram,
        comparison: Lockstep | PairedRuns | GoldenRun,
        notes: Iterable[str],
        configuration_b: RunConfiguration | None = None,
    ) -> None:
        self._opened = opened
        self._comparison = comparison
        self.notes = [*notes]
        self.configurations = opened.configuration, configuration_b or opened.configuration
        """The run configurations of both sides, before what only side B has."""
        self.a = RunningProgram(comparison.a.debugger)
        self.b = None if isinstance(comparison, GoldenRun) else RunningProgram(comparison.b.debugger)

    def pause(self) -> None:
        """Interrupt both sides before the next statement; `run` raises KeyboardInterrupt."""
        self._comparison.pause()

    def run(self) -> DiffReport:
        """Run both sides and compare.  Raises the error of a side that fails."""
        return self._comparison.run()

    def side_a(self) -> tuple[Debugger, Callable[[str], tuple[str, Any]]]:
        """Return another run of side A, at its entry, and a function that returns a value of side B.

        The function takes a name of side A in the selected frame, and returns side B's name and content.
        """
        assert not isinstance(self._comparison, GoldenRun)
        debugger, companion = self._opened.debugger(), SideBValues(self._comparison)
        self._comparison.b.debugger.restart()
        return debugger, lambda name: companion.value(debugger, name)


def diff_of_sides(
    opened: OpenedProgram, asked: RunConfiguration, side_b: SideB, tolerance: Tolerance
) -> ProgramDiff:
    """Return the comparison of a program, opened with the configuration of side A, with side B.

    Raises the errors of `open_program`, and InputError with its side.
    """
    with inputs_of_side("A"):
        a = opened.debugger(statistics=False)
    other, base = opened, opened.configuration
    if side_b.program is not None:
        other = open_program(replace(asked, program=side_b.program))
        # Side B runs on the backend of its own program, unless the user gave one.
        own = other.configuration
        base = own if other.folder is not None else replace(base, backend=own.backend)
    program, inputs, notes = counterpart(other.program, a, side_b.dtype, asked.inputs)
    with inputs_of_side("B"):
        b = OpenedProgram(program, base).debugger(
            inputs=inputs,
            dims={},
            backend=side_b.backend or base.backend,
            allocator=side_b.allocator or base.allocator,
            kernels={**base.kernels, **side_b.kernels},
            statistics=False,
        )
    comparison = compared(a, b, tolerance, same_places=True if side_b.program is None else None)
    return ProgramDiff(opened, comparison, [*notes, *(f"side B: {note}" for note in b.notes)], base)


def diff_of_golden(
    opened: OpenedProgram, file: str, names_file: str | None, tolerance: Tolerance
) -> ProgramDiff:
    """Return the comparison of a program with recorded values, which are also its inputs.

    `names_file` maps recorded names to names of values.  Raises LoadError for files that cannot be read.
    """
    golden = load_golden(Path(file))
    names = load_names(Path(names_file)) if names_file is not None else {}
    program, given = opened.program, opened.configuration.inputs
    recorded = golden_inputs(program.graphs[program.entry], golden, names)
    a = opened.debugger(inputs={**recorded, **given}, statistics=False)
    notes = (f"input %{name_text(name)} comes from the golden file" for name in recorded if name not in given)
    return ProgramDiff(opened, GoldenRun(a, golden, names, tolerance, BUDGET), notes)


def diff_of_variant(sides: VariantSides, tolerance: Tolerance) -> ProgramDiff:
    """Return the comparison of a program with a compiled or autocast variant."""
    with inputs_of_side("A"):
        a = sides.a.debugger(statistics=False)
    random = [*_random(a.program)] if sides.draws_again else []
    if callable(sides.b):
        return ProgramDiff(sides.a, GoldenRun(a, *sides.b(a), tolerance, BUDGET), random)
    program, inputs, notes = counterpart(sides.b, a, None)
    with inputs_of_side("B"):
        b = OpenedProgram(program, sides.a.configuration).debugger(inputs=inputs, dims={}, statistics=False)
    return ProgramDiff(sides.a, compared(a, b, tolerance), [*notes, *random])


def _random(program: Program) -> Iterator[str]:
    """Yield a note if a PyTorch program draws random numbers."""
    from nncdbg.engine.ops.aten.signatures import signature

    ops = {node.op for graph in program.graphs.values() for node in graph.nodes if is_torch(node.op)}
    drawing = sorted(op for op in ops if (rule := signature(op)) is not None and rule.random)
    if drawing:
        yield f"{drawing[0]} draws other random numbers on side B; call module.eval() to avoid it"
