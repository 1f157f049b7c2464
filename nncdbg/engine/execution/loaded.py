"""The compiled blocks of a program, with their lines and names; blocks are compiled on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nncdbg.engine.backends.composed import MicroKernels
from nncdbg.engine.compilation.code import Code, Compiler, walk
from nncdbg.engine.execution.events import Failed, Interrupted, Outcome
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.execution.linking import Allocation, Instrument, Linker, Wrap
from nncdbg.engine.execution.machine import Machine, Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.engine.frontends.formula import formula_of
from nncdbg.engine.ops.schema import check_opsets, split
from nncdbg.errors import GraphError, NncdbgError, StoppedRun
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import Array, Constant, Node, Path, Program, TensorType, Type, type_of
from nncdbg.ir.walk import node_at, walk_nodes
from nncdbg.text.listing import Listing
from nncdbg.text.short_names import ProgramNames, names_of
from nncdbg.text.torch_names import origin_text
from nncdbg.textual_repr.printer import listing


@dataclass(slots=True)
class Loaded:
    """The compiled code of a program: the entry at once, called graphs and micro programs on first use.

    `linker.codes` holds every code; `arrived` is called for each one that is added during the run.
    """

    program: Program
    listing: Listing
    linker: Linker
    arrived: Callable[[Code], None] = lambda code: None
    rebound: frozenset[str] = frozenset()
    """The states that the program updates: names that a block may define again."""
    tracked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The values of each graph that are read when the graph has ended."""
    aliases: Callable[[], Mapping[str, str]] = dict
    """Returns the names in the user's source at this moment, each with its value's name."""
    shared: dict[str, Any] = field(default_factory=dict)
    """What the targets of one debugger share."""
    _called: dict[tuple[Any, ...], Code] = field(default_factory=dict)
    _called_with: dict[tuple[Any, ...], Code] = field(default_factory=dict)
    """Name and the dtypes themselves to the code in `_called`: the fastest search."""
    _formulas: dict[tuple[Any, ...], Code | None] = field(default_factory=dict)
    _arrays: dict[int, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.program.summary()}; {len(self.linker.codes)} blocks compiled>"

    @property
    def codes(self) -> Sequence[Code]:
        """The blocks compiled so far, the entry graph first."""
        return self.linker.codes

    def entry(self, inputs: Sequence[Array]) -> Code:
        """Return the entry's code for these inputs.

        Raises GraphError for an unsupported opset, and for errors at any sizes.  If only the sizes of these
        inputs do not match, the statement fails when it runs, so that the user can step up to it.
        """
        used = {split(node.op)[0] for node in walk_nodes(self.program)}
        check_opsets(self.program.opsets, used)
        graph = self.program.graphs[self.program.entry]
        types = [type_of(array) for array in inputs]
        try:
            return self._compile(self.program, graph.name, types)
        except GraphError:
            if all(
                known is None or value.type == known for value, known in zip(graph.inputs, types, strict=True)
            ):
                raise
        declared = [
            value.type or (TensorType(known.dtype) if known else None)
            for value, known in zip(graph.inputs, types, strict=True)
        ]
        return self._compile(self.program, graph.name, declared)

    def call(self, name: str, inputs: Sequence[Any]) -> Code:
        """Return the code of a called graph, one per combination of element types."""
        dtypes = (name, *[getattr(value, "dtype", None) for value in inputs])
        found = self._called_with.get(dtypes)
        if found is None:
            found = self._called_with[dtypes] = self._called_for(name, inputs)
        return found

    def _called_for(self, name: str, inputs: Sequence[Any]) -> Code:
        types = [type_of(value) for value in inputs]
        key = (name, *(known.dtype if known else None for known in types))
        if key not in self._called:
            graph = self.program.graphs[name]
            if len(types) != len(graph.inputs):
                raise GraphError(f"@{name} takes {len(graph.inputs)} operands, not {len(types)}")
            merged = [
                value.type
                if known is None or getattr(value.type, "dtype", None) == known.dtype
                else TensorType(known.dtype)
                for value, known in zip(graph.inputs, types, strict=True)
            ]
            self._called[key] = self._compile(self.program, name, merged)
        return self._called[key]

    def formula(self, frame: Frame) -> Code | None:
        """Return the micro program of a frame's statement, for its operands; None for a primitive."""
        code, pc = frame.code, frame.pc
        if not code.runs_kernel(pc):
            return None
        return self.formula_for(code, pc, code.operands_of(pc, frame.slots))

    def formula_for(self, code: Code, pc: int, operands: Sequence[Any]) -> Code | None:
        """Return the micro program of a statement for these operands; None for a primitive."""
        types = [type_of(value) for value in operands]
        key = (code, pc, tuple(types))
        if key not in self._formulas:
            program = formula_of(code.nodes[pc], types, code.opsets)
            if program is not None and len(program.graphs[program.entry].outputs) < _wanted(code.nodes[pc]):
                program = None  # The formula computes the main results only; this statement uses more.
            given = [known for known in types if known is not None]
            self._formulas[key] = (
                self._compile(program, program.entry, given, formula=program) if program is not None else None
            )
        return self._formulas[key]

    def listing_of(self, code: Code) -> Listing:
        """Return the text that contains the statements of a code."""
        return self._text(code.formula)

    def _text(self, formula: Program | None) -> Listing:
        if formula is None:
            return self.listing
        if "printed" not in formula.kept:
            formula.kept["printed"] = listing(formula)
        return formula.kept["printed"]  # type: ignore[no-any-return]

    def line(self, code: Code, pc: int) -> int | None:
        """Return the line of a statement in the listing of its program or micro program."""
        return self.listing_of(code).line(code.path, pc)

    def names_of(self, code: Code) -> ProgramNames:
        """Return the names of the program of a block: the debugged program, or a micro program."""
        return names_of(code.formula or self.program)

    def names_in(self, code: Code) -> Sequence[str]:
        """Return the names visible in a block."""
        return self.names_of(code).visible(code.path)

    def _compile(
        self, program: Program, name: str, types: Sequence[Type | None], formula: Program | None = None
    ) -> Code:
        def complain(path: Path, pc: int, error: NncdbgError) -> NncdbgError:
            return _underlined(error, self._text(formula), path, pc, program)

        compiler = Compiler(program, lambda constant: self._read(constant, program), complain, self.rebound)
        code = compiler.compile(program.graphs[name], types)
        if formula is not None:
            for each in walk(code):
                each.formula = formula
        elif (names := self.tracked.get(name)) is not None:
            for each in walk(code):
                each.read_at_end = tuple(slot for slot, name in enumerate(each.names) if name in names)
        self.linker.link(code)
        self.arrived(code)
        return code

    def _read(self, constant: Constant, program: Program) -> Array:
        # One array per constant, shared by all frames of a graph.
        key = id(constant)
        if key not in self._arrays:
            self._arrays[key] = initial_data(constant, program)
        return self._arrays[key]


class MicroPrograms:
    """Runs micro programs of a program's statements on NumPy arrays, apart from the debugged run.

    `track` wraps each of their statements.
    """

    def __init__(self, program: Program, listing: Listing, track: Wrap | None = None) -> None:
        self._running = Running()
        linker = Linker(MicroKernels(), Allocation(), generator_of(self._running, 0))
        linker.instrument({Instrument.TRACKER: track})
        self._loaded = Loaded(program, listing, linker)

    def of(self, code: Code, pc: int, operands: Sequence[Any]) -> Code | None:
        """Return the micro program of a statement for these operands; None if it has none."""
        return self._loaded.formula_for(code, pc, operands)

    def run(self, formula: Code, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results over these operands.  Raises NncdbgError if a statement fails."""
        given = [value for value in operands if value is not None]
        return run_apart(self._loaded, formula, given, self._running)


def run_apart(
    loaded: Loaded, code: Code, operands: Sequence[Any], running: Running, seconds: float | None = None
) -> Sequence[Any]:
    """Return the results of a block that runs apart from a debugged run.

    `running` is that of the linker of `loaded`.  Raises NncdbgError if a statement fails, and StoppedRun
    between two statements after `seconds`.
    """
    around = running.frames
    machine = Machine(code, operands, loaded.call, running, loaded.linker.backend)
    outcome = machine.run() if seconds is None else _run_within(machine, seconds)
    running.frames = around
    if isinstance(outcome, Interrupted):
        raise StoppedRun(f"the run took longer than {seconds:g} s")
    if isinstance(outcome, Failed):
        raise outcome.error if isinstance(outcome.error, NncdbgError) else NncdbgError(str(outcome.error))
    frame = machine.frames[0]
    return frame.code.operands_of(-1, frame.slots)


def _run_within(machine: Machine, seconds: float) -> Outcome:
    timer = threading.Timer(seconds, machine.interrupt)
    timer.daemon = True
    timer.start()
    outcome = machine.run()
    timer.cancel()
    timer.join()
    # A late interruption has replaced instructions that the next run would execute.
    for frame in machine.frames:
        frame.code.arm()
    return outcome


def _wanted(node: Node) -> int:
    """Return the number of outputs that the statement names, up to its last one."""
    return max((index for index, value in enumerate(node.outputs, 1) if value.name), default=0)


def _underlined(error: NncdbgError, text: Listing, path: Path, pc: int, program: Program) -> NncdbgError:
    """Return the error with its statement underlined and its source position in the user's model."""
    error.excerpt = text.excerpt(path, pc)
    node = node_at(program, path, pc)
    error.source = (origin_text(node) or None) if node is not None else None
    return error
