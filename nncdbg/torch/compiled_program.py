"""What a program of PyTorch's operators computes under `torch.compile`, as golden values for the program.

Each phase, `@forward` and `@backward`, is compiled as one graph, as `torch.compile` compiles what
AOTAutograd traces.  Other graphs, such as the optimizer, run eagerly on the compiled results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nncdbg.engine.backends import Call, Execute
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.operators import allocates_only
from nncdbg.engine.ops.aten.signatures import RANDOM, signature
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import CONTROL_OPS
from nncdbg.ir.records import Array, Node, Program, Value
from nncdbg.text.counting import counted
from nncdbg.text.torch_names import NUMBER, RECORDED
from nncdbg.torch.compiled import check_backend, naming_compiler, runs_operators
from nncdbg.torch.finiteness import not_finite
from nncdbg.torch.recorded_step import BACKEND, RecordedStep
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


# -- the smallest part that is bad only if it is compiled ----------------------------------

LONGEST_SEARCH = 60.0
"""Seconds after which a search ends with the smallest part so far."""

_LISTED = 6
"""The most operators in a sentence."""


@dataclass(frozen=True, slots=True)
class CompiledPart:
    """Statements that give a NaN or Inf if they are compiled as one graph, and none if they run eagerly.

    `counts` are those of the result of the last one: ``"2 NaN of 12"``.  `complete` is whether the search
    has ended, so that no smaller part was found.
    """

    nodes: tuple[Node, ...]
    counts: str
    complete: bool

    def __str__(self) -> str:
        """Return one sentence about the part."""
        ops = list(dict.fromkeys(node.op for node in self.nodes))
        place = self.nodes[-1].location
        listed = ", ".join(ops[:_LISTED]) + (f" and {len(ops) - _LISTED} more" if len(ops) > _LISTED else "")
        where = "" if place is None or place.file is None else f" (last at {place.file}:{place.line})"
        size = "the smallest compiled graph that has it" if self.complete else "a compiled graph that has it"
        return (
            f"{size}: {counted(len(self.nodes), 'statement')}, {listed}{where}; its result has "
            f"{self.counts}, and none if the graph runs eagerly"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the part as a JSON object."""
        places = [node.location for node in self.nodes]
        return {
            "statements": [
                {"op": node.op, "file": place and place.file, "line": place and place.line}
                for node, place in zip(self.nodes, places, strict=True)
            ],
            "counts": self.counts,
            "complete": self.complete,
        }


def smallest_compiled_part(step: RecordedStep, compiler: Any) -> CompiledPart | None:
    """Return the smallest part found of a step that only compiled code makes bad; None if there is none.

    `compiler` is the backend of `torch.compile`, a name or a function.  The forward and the backward pass are
    compiled as one graph each, then parts of the one with the bad result.
    """
    debugger = Debugger(step.program, step.inputs, backend=BACKEND, statistics=False)
    ended = monotonic() + LONGEST_SEARCH
    run = ProgramRun(debugger, compiler)
    with torch.no_grad():
        for phase in _phases(debugger, run):
            part = _Search(run, phase, compiler, ended).smallest()
            if part is not None:
                return part
    return None


@dataclass(slots=True)
class _Step:
    """A statement that ran eagerly, with its tensors."""

    place: tuple[Code, int]
    given: Sequence[Any]
    results: Sequence[Any]

    @property
    def node(self) -> Node:
        code, pc = self.place
        return code.nodes[pc]

    @property
    def is_compiled(self) -> bool:
        """Whether a compiled graph runs it: it takes random numbers and recorded results as operands."""
        return RANDOM not in self.node.attributes and not stays_eager(self.node.op)


def _phases(debugger: Debugger, run: ProgramRun) -> list[list[_Step]]:
    """Return the statements of the forward and backward pass, in the order in which they run eagerly."""
    program = debugger.loaded.program
    inputs = [debugger.backend.to_device(debugger.inputs[each.name]) for each in program.graph.inputs]
    found: list[list[_Step]] = []

    def phase(name: str, operands: Sequence[Any]) -> Sequence[Any]:
        if is_phase(name):
            found.append([])
        return run.results(name, operands, execute, phase)

    def execute(place: tuple[Code, int], given: Sequence[Any]) -> Sequence[Any]:
        results = run.execute(place, given)
        if found:
            found[-1].append(_Step(place, given, results))
        return results

    run.results(program.entry, inputs, execute, phase)
    return found


@dataclass(slots=True)
class _Search:
    run: ProgramRun
    steps: Sequence[_Step]
    compiler: Any
    ended: float
    """The time at which the search ends."""
    counts: dict[int, str] = field(default_factory=dict)
    """The counts of the last bad result, by its step."""

    def smallest(self) -> CompiledPart | None:
        """Return the smallest part with a bad result; None if none is bad."""
        kept: Sequence[int]
        every = range(len(self.steps))
        bad = self._bad(every, every)
        if not bad or not self._bad(range(bad[-1] + 1), bad[-1:]):
            return None
        # The first one that is bad after the steps before it alone.
        low, high = 0, len(bad) - 1
        while low < high:
            middle = (low + high) // 2
            if self._if_bad(range(bad[middle] + 1), bad[middle]):
                high = middle
            else:
                low = middle + 1
        last, kept = bad[high], range(bad[high] + 1)
        for smaller in (self._ancestors, self._later, self._single):
            kept = smaller(kept, last)
        self._bad(kept, [last])
        complete = monotonic() < self.ended
        return CompiledPart(tuple(self.steps[each].node for each in kept), self.counts[last], complete)

    def _ancestors(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return those of the steps on which the last one depends, if they are bad."""
        needed, found = {id(each) for each in self.steps[last].given}, [last]
        for index in reversed(kept[:-1]):
            step = self.steps[index]
            if any(id(each) in needed for each in step.results):
                needed |= {id(each) for each in step.given}
                found.append(index)
        return self._if_bad(found[::-1], last) or kept

    def _later(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return the steps without as many of the first ones as possible."""
        low, high = 0, len(kept) - 1  # The steps from `low` on are bad.
        while low < high:
            middle = (low + high + 1) // 2
            if self._if_bad(kept[middle:], last):
                low = middle
            else:
                high = middle - 1
        return kept[low:]

    def _single(self, kept: Sequence[int], last: int) -> Sequence[int]:
        """Return the steps without those that can be left out alone."""
        for index in kept[:-1]:
            kept = self._if_bad([each for each in kept if each != index], last) or kept
        return kept

    def _if_bad(self, kept: Sequence[int], last: int) -> Sequence[int] | None:
        return kept if monotonic() < self.ended and self._bad(kept, [last]) else None

    def _bad(self, kept: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """Return those of the wanted steps with a bad result if these steps are compiled as one graph."""
        inside = [each for each in kept if self.steps[each].is_compiled]
        made: set[int] = set()
        outside: dict[int, torch.Tensor] = {}
        for each in inside:
            for tensor in self.steps[each].given:
                if isinstance(tensor, torch.Tensor) and id(tensor) not in made:
                    outside[id(tensor)] = tensor
            made |= set(map(id, self.steps[each].results))
        outputs: list[tuple[int, torch.Tensor]] = [
            (each, result)
            for each in wanted
            if self.steps[each].is_compiled and not allocates_only(self.steps[each].node.op)
            for result in self.steps[each].results
            if isinstance(result, torch.Tensor) and result.dtype.is_floating_point
        ]

        def function(*tensors: Any) -> list[Any]:
            known: dict[int, Any] = dict(zip(outside, tensors, strict=True))
            for each in inside:
                step = self.steps[each]
                results = self.run.execute(step.place, [known.get(id(given), given) for given in step.given])
                known.update(zip(map(id, step.results), results, strict=True))
            return [known[id(result)] for _, result in outputs]

        given = [*outside.values()]
        graph = make_fx(function, tracing_mode="fake")(*given)
        compiled = torch.compile(graph, backend=self.compiler, dynamic=False)(*given)
        found = []
        for (each, eager), result in zip(outputs, compiled, strict=True):
            if bool((~torch.isfinite(result) & torch.isfinite(eager)).any()):
                self.counts[each] = not_finite(result)
                found.append(each)
        return list(dict.fromkeys(found))
