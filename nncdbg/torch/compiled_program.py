"""What a program of PyTorch's operators computes under `torch.compile`, as golden values for the program.

Each phase, `@forward` and `@backward`, is compiled as one graph, as `torch.compile` compiles what
AOTAutograd traces.  Other graphs, such as the optimizer, run eagerly on the compiled results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nncdbg.engine.backends import Call, Execute
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.errors import UsageError
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.names import NUMBER, RECORDED, allocates_only
from nncdbg.engine.ops.aten.signatures import RANDOM, signature
from nncdbg.ir.kinds import CONTROL_OPS
from nncdbg.ir.records import Array, Program, Value
from nncdbg.torch.compiled import check_backend, naming_compiler, runs_operators
from nncdbg.torch.recorded_step import BACKEND
from nncdbg.torch.recording import BACKWARD, FORWARD

_Place: TypeAlias = "tuple[Code, int]"
"""A statement: its code and its position there."""

_Execute: TypeAlias = "Callable[[_Place, Sequence[Any]], Sequence[Any]]"

_DROPOUT = "aten.native_dropout.default"


def compiled_program_values(debugger: Debugger, backend: str) -> dict[str, Array]:
    """Compile the phases of a program, run them on the inputs of a debugger, and return values by name.

    They are the results of the compiled graphs and of each graph that these call, such as modules.  Backends
    that run one operator after the other give the results of each statement.  Random numbers are those of the
    program: compiled graphs take them as operands, and so they do with the results of operators that the
    compiler cannot run, such as an LSTM of oneDNN.

    Raises UsageError for an unknown backend and for statements that cannot be compiled, such as control flow;
    LoadError if torch cannot compile it.
    """
    check_backend(backend)
    program = debugger.loaded.program
    _check(program, debugger.backend.name)
    run = ProgramRun(debugger, backend)
    with torch.no_grad(), naming_compiler("the program", backend):
        run.run([debugger.backend.to_device(debugger.inputs[each.name]) for each in program.graph.inputs])
    nodes = program.executed(program.graph)
    given = {value.name for node in nodes if stays_eager(node.op) for value in node.outputs}
    return {
        name: host_array(value)
        for name, value in run.values.items()
        if isinstance(value, torch.Tensor) and name not in given
    }


def _check(program: Program, backend: str) -> None:
    """Raise UsageError for another backend, and for statements that a compiled graph cannot have."""
    if backend != BACKEND:
        raise UsageError(f"--compile-b needs the backend torch, not {backend}", hint="omit --backend")
    for node in program.executed(program.graph):
        if node.op in CONTROL_OPS or node.op == NUMBER:
            raise UsageError(
                f"--compile-b cannot compile a program with `{node.op}`",
                hint="compare a module instead: nncdbg diff MODULE:FUNCTION --compile-b",
            )
        found = signature(node.op)
        if found is not None and found.random and RANDOM not in node.attributes:
            raise UsageError(
                f"--compile-b cannot compile {node.op}: it draws other numbers when it is compiled",
                hint="export the module after module.eval()",
            )


@dataclass(slots=True)
class ProgramRun:
    """Runs the graphs of a program on tensors: the phases compiled, the others statement by statement."""

    debugger: Debugger
    backend: str
    values: dict[str, Any] = field(default_factory=dict)
    """The results of compiled graphs by name."""
    _codes: dict[str, Code] = field(default_factory=dict)
    _kernels: dict[_Place, tuple[Call, Execute]] = field(default_factory=dict)
    _constants: dict[tuple[Code, int], Any] = field(default_factory=dict)
    """The constants of codes by slot, as tensors; a graph that is traced takes them as operands."""

    def run(self, inputs: Sequence[Any]) -> None:
        """Run the program.  Without phases, such as an exported program, it is compiled as a whole."""
        program = self.debugger.loaded.program
        if any(is_phase(node.op[1:]) for node in self.debugger.program.graph.nodes):
            self.results(program.entry, inputs, self.execute, self._phase)
        else:
            self._compiled(program.entry, inputs)

    def _phase(self, name: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a graph outside of compiled phases."""
        if is_phase(name):
            return self._compiled(name, operands)
        return self.results(name, operands, self.execute, self._phase)

    def _eager(self, name: str, operands: Sequence[Any], execute: _Execute) -> Sequence[Any]:
        """Return the results of a graph whose statements `execute` runs."""
        return self.results(name, operands, execute, partial(self._eager, execute=execute))

    def _compiled(self, name: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a compiled graph; those of the graphs that it calls are results as well."""
        drawn: dict[_Place, Any] = {}

        def drawing(place: _Place, given: Sequence[Any]) -> Sequence[Any]:
            node = place[0].nodes[place[1]]
            # An LSTM of oneDNN makes what its backward needs only in this mode.
            with torch.set_grad_enabled(stays_eager(node.op)):
                results = self.execute(place, given)
            if RANDOM in node.attributes or stays_eager(node.op):
                drawn[place] = results
            return results

        self._eager(name, operands, drawing)
        constants = self._constants
        tensors = [*operands, *constants.values(), *chain.from_iterable(drawn.values())]
        names: list[str] = []

        def function(*tensors: Any) -> list[Any]:
            rest = iter(tensors[len(operands) :])
            self._constants = {place: next(rest) for place in constants}
            known = {place: [next(rest) for _ in results] for place, results in drawn.items()}
            found = self._traced(name, tensors[: len(operands)], known)
            names[:] = found
            return list(found.values())

        with naming_compiler(f"@{name}", self.backend):
            try:
                graph = make_fx(function, tracing_mode="fake")(*tensors)
            finally:
                self._constants = constants
            results = torch.compile(graph, backend=self.backend, dynamic=False)(*tensors)
        found = dict(zip(names, results, strict=True))
        self.values |= found
        return [found[value.name] for value in self.debugger.loaded.program.graphs[name].outputs]

    def _traced(
        self, name: str, operands: Sequence[Any], drawn: Mapping[_Place, list[Any]]
    ) -> dict[str, Any]:
        """Return the results by name that a compiled graph gives: of all graphs, or of all statements."""
        found: dict[str, Any] = {}
        each_statement = runs_operators(self.backend)

        def execute(place: _Place, given: Sequence[Any]) -> Sequence[Any]:
            known = drawn.get(place)
            results = self.execute(place, given) if known is None else self._with_drawn(place, given, known)
            node = place[0].nodes[place[1]]
            if each_statement and not allocates_only(node.op):
                found.update(_named(node.outputs, results))
            return results

        def call(name: str, operands: Sequence[Any]) -> Sequence[Any]:
            results = self.results(name, operands, execute, call)
            found.update(_named(self.debugger.loaded.program.graphs[name].outputs, results))
            return results

        call(name, operands)
        return found

    def results(
        self,
        name: str,
        operands: Sequence[Any],
        execute: _Execute,
        call: Callable[[str, Sequence[Any]], Sequence[Any]],
    ) -> Sequence[Any]:
        """Return the results of a graph, whose statements `execute` runs, and whose calls `call`."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = self.debugger.loaded.call(name, operands)
            for slot, content in enumerate(code.template):
                if isinstance(content, np.ndarray):
                    self._constants[code, slot] = self.debugger.backend.to_device(content)
        slots = [self._constants.get((code, slot), each) for slot, each in enumerate(code.template)]
        slots[1 : 1 + len(operands)] = operands
        for pc, node in enumerate(code.nodes):
            given = [slots[slot] for slot in code.operands[pc]]
            results = call(node.op[1:], given) if node.op.startswith("@") else execute((code, pc), given)
            for slot, result in zip(code.result_slots(pc), results, strict=False):
                slots[slot] = result
        return [slots[slot] for slot in code.operands[len(code.nodes)]]

    def execute(self, place: _Place, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a statement."""
        call, run = self._kernel(place)
        results = run(*operands)
        return list(results) if call.several else [results]

    def _kernel(self, place: _Place) -> tuple[Call, Execute]:
        if place not in self._kernels:
            call = call_of(*place, partial(self.debugger.loaded.linker.generator, place[0].path, place[1]))
            self._kernels[place] = call, self.debugger.backend.bind(call).run
        return self._kernels[place]

    def _with_drawn(self, place: _Place, operands: Sequence[Any], drawn: list[Any]) -> Sequence[Any]:
        """Return the results of a statement that draws random numbers, from the numbers drawn before."""
        call, _ = self._kernel(place)
        if call.node.op != _DROPOUT:
            return drawn
        # Only the mask is random.
        mask, kept = drawn[1], 1 - call.attributes["p"]
        return [operands[0] * mask * (1 / kept if kept else 0.0), *drawn[1:]]


def stays_eager(op: str) -> bool:
    """Return whether a compiled graph takes the results of an operator as operands.

    The compiler cannot run recorded results, and operators with a memory format of oneDNN, such as an LSTM.
    """
    return op == RECORDED or op.startswith("aten.mkldnn_")


def is_phase(name: str) -> bool:
    """Return whether a graph is a forward or backward pass, which is compiled as one graph."""
    return name.partition(".")[0] in (FORWARD, BACKWARD)


def _named(values: Sequence[Value], results: Sequence[Any]) -> dict[str, Any]:
    return {value.name: each for value, each in zip(values, results, strict=False) if value.name}
