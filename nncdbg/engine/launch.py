"""The compiled code of a program, linked for runs that begin one after another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np

from nncdbg.comparison.kernels import StatementKernel
from nncdbg.engine.backends import Backend, Call, Kernels
from nncdbg.engine.backends.cupy import CuPy
from nncdbg.engine.backends.kernel_choice import KernelChoice, kernel_statements
from nncdbg.engine.backends.mixed_backends import Fallback
from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.compilation.partial import Part
from nncdbg.engine.compilation.states import rebound
from nncdbg.engine.compilation.tracked_values import TrackedLine, kept_to_the_end
from nncdbg.engine.diagnosis.instrumentation import Instrumentation
from nncdbg.engine.execution.crash_log import CrashLog
from nncdbg.engine.execution.findings import Finding, Report
from nncdbg.engine.execution.linking import Allocation, Cover, Instrument, Linker
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.machine import Machine, Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.engine.execution.stream_issue import StreamIssue
from nncdbg.engine.execution.user_results import UserResults
from nncdbg.engine.observers.statement_times import StatementTimes
from nncdbg.ir.records import Node, Path, Type, type_of
from nncdbg.ir.search import candidates, constant_names
from nncdbg.ir.streams import scheduled


class CompiledProgram(Loaded):
    """Owns the compiled code of a program, its allocation and its observers; `begin` starts a run.

    A Debugger has one run.  After `release`, another Debugger can run inputs of the same types without
    compiling, if the first one set no values, caught no findings and measured nothing.
    """

    def __init__(
        self,
        part: Part,
        backend: Backend,
        allocation: Allocation,
        seed: int,
        fallback: bool,
        statistics: bool,
        black_box: CrashLog | None = None,
        states: Collection[str] = (),
        tracked: Sequence[TrackedLine] = (),
        choice: KernelChoice | None = None,
    ) -> None:
        """`choice` has the statements that run kernels of other backends.

        `states` are the constants of the entry graph that begin on the device: data of states.

        `tracked` are the lines with tracks, whose values are kept until their graphs have ended.
        """
        self.allocation = allocation
        self.running = Running()
        self.user_results = UserResults(backend.to_device)
        self._fallback = Fallback(backend) if fallback else None
        self._choice = choice
        covers: list[Cover] = [self._chosen] if choice is not None else []
        covers += [each.cover for each in (self._fallback, self.user_results) if each is not None]
        # The instructions are linked first when the program begins, after `times` is made.
        covers.append(lambda kernels, call, statement: self.times.cover(kernels, call, statement))
        self.black_box = black_box
        if black_box is not None:
            covers.append(
                lambda kernels, call, statement: black_box.cover(
                    kernels, call, statement, self.line(statement.code, statement.pc), self.running
                )
            )
        program = part.program
        self.places = part.places
        """For a permuted or partial program: the block and number of each statement before."""
        generator = generator_of(self.running, seed, part.places)
        linker = Linker(backend, allocation, generator, covers)
        kept = kept_to_the_end(program, tracked)
        super().__init__(program, program.as_listing(), linker, rebound=rebound(program), tracked=kept)
        self.times = StatementTimes(linker, self.running)
        if isinstance(backend, CuPy) and scheduled(program):
            linker.issue = StreamIssue(backend.begin_streams(program.streams), program, self.running)
            linker.instrument({Instrument.STREAMS: linker.issue.wrap})
        self.found: Report = _ignore
        """Called with each finding of the run."""
        self.observers = Instrumentation(self, lambda finding: self.found(finding), statistics)
        self.names = frozenset(candidates(program, "value") | constant_names(program))
        """The names of all values and constants."""
        self._entry: Code | None = None
        self._types: list[tuple[str, Type | None]] = []
        self._states = frozenset(states)
        self._first: dict[int, Any] = {}
        """The data of states on the device, by their slots in the entry graph."""

    def _chosen(self, kernels: Kernels, call: Call, statement: Statement) -> Kernels:
        assert self._choice is not None
        return self._choice.cover(kernels, call, statement, self.line(statement.code, statement.pc))

    @property
    def fallbacks(self) -> list[StatementKernel]:
        """The statements that ran on NumPy because their backend, in `lacking`, has no kernel for them."""
        return [
            replace(kernel, backend="numpy", reason="fallback", lacking=kernel.backend)
            for kernel in map(self._kernel_at, self._fallen)
        ]

    def kernels(self) -> list[StatementKernel]:
        """Return the kernel of each statement, in the order of the listing; fallbacks so far are known."""
        own = [not each.code.formula for each in self._fallen]
        fallen = {each.line: each for each in compress(self.fallbacks, own)}
        kernels = (self._kernel_of(*each) for each in kernel_statements(self.program))
        found = [fallen.get(each.line, each) for each in kernels]
        return sorted(found, key=lambda kernel: kernel.line or 0)

    @property
    def _fallen(self) -> Sequence[Statement]:
        return self._fallback.fallen if self._fallback is not None else ()

    def _kernel_at(self, statement: Statement) -> StatementKernel:
        """Return the kernel of a statement of the program, or of a micro program."""
        code, line = statement.code, self.line(statement.code, statement.pc)
        return self._kernel_of(code.path if code.formula is None else (), code.nodes[statement.pc], line)

    def _kernel_of(self, path: Path, node: Node, line: int | None) -> StatementKernel:
        """Return the kernel of a statement as chosen before the run; `path` is () in a micro program."""
        value = next((each.name for each in node.outputs if each.name), "")
        own = StatementKernel(line, node.op, value, self.linker.backend.name)
        selector = self._choice.selector(path, node, line) if self._choice is not None and path else None
        if self._choice is None or selector is None:
            return own
        chosen = self._choice.backend_of(path, node, line).name
        return replace(own, backend=chosen, reason="chosen", selector=selector.text)

    def accepts(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether the compiled code can run these inputs."""
        return _types(inputs) == self._types

    def begin(self, inputs: Mapping[str, Any]) -> Machine:
        """Return a machine at the first statement.  Compiles the entry graph for the first inputs.

        Raises GraphError as `entry` does.
        """
        if self._entry is None:
            self._entry = self.entry(list(inputs.values()))
            self._types = _types(inputs)
            self._first = self._placed_states(self._entry)
        else:
            self.allocation.begin_again()
        placed = [*map(self.linker.backend.to_device, inputs.values())]
        self.observers.check_devices(placed)
        if self.linker.issue is not None:
            self.linker.issue.begin(self._entry.graph.name)
        machine = Machine(self._entry, placed, self.call, self.running, self.linker.backend, self.allocation)
        machine.remembers = not self.linker.evicts
        for slot, content in self._first.items():
            machine.frames[0].slots[slot] = content
        return machine

    def _placed_states(self, entry: Code) -> dict[int, Any]:
        """Return the data of states on the device: calls pass them on, so statements convert none."""
        slots = zip(entry.names, entry.template, strict=True)
        data = {slot: each for slot, (name, each) in enumerate(slots) if name in self._states}
        to_device = self.linker.backend.to_device
        return {slot: to_device(each) for slot, each in data.items() if isinstance(each, np.ndarray)}

    def release(self) -> CompiledProgram:
        """Drop every value of the run and the references to its debugger; return the program."""
        self.observers.unfollow()
        self.times.detach()
        self.running.frames = []
        self.found, self.arrived = _ignore, _ignore
        self.allocation.begin(self.begin({}), lambda: None, self.line)
        return self


def _types(inputs: Mapping[str, Any]) -> list[tuple[str, Type | None]]:
    return [(name, type_of(array)) for name, array in inputs.items()]


def _ignore(arrived: Finding | Code) -> None:
    """Ignore findings and blocks: there is no run."""
