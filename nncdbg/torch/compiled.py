"""What `torch.compile` makes of a module or a program: golden values, and the part with a NaN or Inf."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree

from nncdbg.engine.backends import Call, Execute
from nncdbg.engine.backends.composed import call_of
from nncdbg.engine.compilation.code import Code
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.frontends.exported.calls import positional_arguments, tracing
from nncdbg.engine.ops.aten.arrays import host_array
from nncdbg.engine.ops.aten.internals import backend_named, compiling_nothing
from nncdbg.engine.ops.aten.operators import DETACH, DROPOUT, allocates_only, has_format_of_onednn
from nncdbg.engine.ops.aten.signatures import RANDOM, signature
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.ir.kinds import CONTROL_OPS
from nncdbg.ir.records import Array, Node, Program, TensorType, Type, Value
from nncdbg.text.counting import counted
from nncdbg.text.torch_names import NUMBER, RECORDED
from nncdbg.torch.capture import OUTPUT, is_phase, named_leaves
from nncdbg.torch.finiteness import not_finite
from nncdbg.torch.recorded_step import BACKEND, RecordedStep
from nncdbg.torch.recording import FORWARD, Recorder
from nncdbg.torch.source_lines import compiled_calls
from nncdbg.torch.step_recording import step_so_far


def compiled_values(
    module: torch.nn.Module,
    arguments: torch.Tensor | Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    *,
    backend: str = "inductor",
) -> dict[str, Array]:
    """Run a copy of a module under `torch.compile`, forward and backward, and return the results by name.

    The names are those of the outputs of `nncdbg.torch.capture`; outputs of modules inside have the path of
    the module.  Only modules of `torch.nn` without modules inside have one.

    Raises UsageError for an unknown backend and for arguments that the module cannot take, LoadError if torch
    cannot compile or run the module.
    """
    check_backend(backend)
    copied, positional, named = copy.deepcopy((module, positional_arguments(arguments), dict(keywords or {})))
    inside: dict[str, Any] = {}

    def keep(name: str, _: Any, __: Any, output: Any) -> None:
        inside[name] = output

    for name, part in copied.named_modules():
        # Only there is the output of a module the first result of its last statement.
        plain = type(part).__module__.startswith("torch.nn.modules.") and not list(part.children())
        if name and plain:
            part.register_forward_hook(partial(keep, name))
    with _running(copied, positional, named, backend):
        outputs = torch.compile(copied, backend=backend)(*positional, **named)
        tensors = _tensors(outputs)
        _run_backward(tensors)
    found = {f"{OUTPUT}.{index}" if index else OUTPUT: each for index, each in enumerate(tensors)}
    found |= {f"{name}.grad": each.grad for name, each in copied.named_parameters() if each.grad is not None}
    found |= {f"{name}.1": each for name, each in copied.named_buffers()}
    found |= {name: each for name, each in inside.items() if isinstance(each, torch.Tensor)}
    return {name: host_array(each.detach()) for name, each in found.items()}


def compiled_program(
    module: torch.nn.Module, arguments: torch.Tensor | Sequence[Any] = (), *, backend: str = "aot_eager"
) -> Program:
    """Return the program that a copy of a module runs under `torch.compile`, forward and backward.

    The backend must be one of those that run PyTorch's operators (see `runs_operators`).  Inputs and outputs
    have the names of `nncdbg.torch.capture`.

    Raises UsageError for an unknown backend and for arguments that the module cannot take, LoadError if torch
    cannot compile or run the module.
    """
    check_backend(backend)
    copied, given = copy.deepcopy((module, positional_arguments(arguments)))
    recorder = Recorder()

    def recording(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled = backend_named(backend)(graph, inputs)

        def run(*operands: Any) -> Any:
            # Compiled code is not used while a dispatch mode is active: it begins inside of the code.
            with recorder:
                return compiled(*operands)

        return run

    with _running(copied, given, {}, backend):
        for name, leaf in named_leaves(copied, given, {}):
            if isinstance(leaf, torch.Tensor):
                recorder.label(leaf, name)
        outputs = _tensors(torch.compile(copied, backend=recording)(*given))
        with compiling_nothing(), recorder:
            _run_backward(outputs)
    for index, output in enumerate(outputs):
        recorder.label(output.detach(), f"{OUTPUT}.{index}" if index else OUTPUT)
    program = step_so_far(recorder, {"": copied}, [], compiled_calls()).program
    recorder.release()
    return replace(program, saved=replace(program.saved, origin="the compiled module"))


def runs_operators(backend: str) -> bool:
    """Return whether a backend of `torch.compile` runs one operator of PyTorch after the other."""
    return backend.startswith(("eager", "aot_eager"))


def check_backend(name: str) -> None:
    """Raise UsageError if `torch.compile` has no backend with this name."""
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise UsageError(f'torch.compile has no backend "{name}"', hint=f"use one of {', '.join(known)}")


def _running(
    module: torch.nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any], backend: str
) -> AbstractContextManager[None]:
    """Explain an error of a compiled module.  Raises UsageError and LoadError."""
    return tracing(_failed(type(module).__name__, backend), module, positional, named, _NO_COMPILER)


@contextmanager
def _naming_compiler(what: str, backend: str) -> Iterator[None]:
    """Raise LoadError with `what` is compiled for an exception of the compiler or of compiled code."""
    try:
        yield
    except NncdbgError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise LoadError(
            f"{_failed(what, backend)}: {type(error).__name__}: {first}", hint=_NO_COMPILER
        ) from error


def _failed(what: str, backend: str) -> str:
    return f"torch.compile cannot run {what} with {backend}"


_NO_COMPILER = "inductor needs a C++ compiler (CXX); aot_eager needs none"


def _tensors(outputs: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(outputs) if isinstance(each, torch.Tensor)]


def _run_backward(outputs: Sequence[torch.Tensor]) -> None:
    """Run the backward pass of a loss, or of all outputs with gradients of 1."""
    if outputs and not outputs[0].dim():
        outputs = outputs[:1]
    wanted = [each for each in outputs if each.requires_grad]
    torch.autograd.backward(wanted, [torch.ones_like(each) for each in wanted])


def value_names(program: Program, values: Mapping[str, Array]) -> dict[str, str]:
    """Return the value of a captured program for each golden value of the same size; others are left out."""
    made: dict[str, list[Value]] = {}
    graph = program.graphs.get(FORWARD)
    for node in program.executed(graph) if graph is not None else ():
        # A result that the backward pass reads is detached after the statement that computes it.
        if node.op != DETACH and node.location and node.location.name and node.outputs:
            made.setdefault(node.location.name, []).append(node.outputs[0])
    outputs = {value.name for value in program.graph.outputs}
    names = {name: name for name in values if name in outputs}
    for name in made.keys() & values.keys():
        fitting = [value.name for value in made[name] if value.name and _fits(value.type, values[name].shape)]
        if fitting and fitting[-1] not in names:
            names[name] = fitting[-1]
    return names


def _fits(known: Type | None, sizes: Sequence[int]) -> bool:
    if not isinstance(known, TensorType) or known.shape is None or len(known.shape) != len(sizes):
        return False
    return all(
        not isinstance(one, int) or one == other for one, other in zip(known.shape, sizes, strict=True)
    )


# -- the values of a compiled program ------------------------------------------------------

# Each phase, `@forward` and `@backward`, is compiled as one graph, as `torch.compile` compiles what
# AOTAutograd traces.  Other graphs, such as the optimizer, run eagerly on the compiled results.

_Place: TypeAlias = "tuple[Code, int]"
"""A statement: its code and its position there."""

_Execute: TypeAlias = "Callable[[_Place, Sequence[Any]], Sequence[Any]]"


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
    with torch.no_grad(), _naming_compiler("the program", backend):
        run.run()
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

    def inputs(self) -> list[Any]:
        """Return the inputs of the program on the device."""
        debugger = self.debugger
        graph = debugger.loaded.program.graph
        return [debugger.backend.to_device(debugger.inputs[each.name]) for each in graph.inputs]

    def run(self) -> None:
        """Run the program.  Without phases, such as an exported program, it is compiled as a whole."""
        entry = self.debugger.loaded.program.entry
        if any(is_phase(node.called or "") for node in self.debugger.program.graph.nodes):
            self._outside(entry, self.inputs())
        else:
            self._compiled(entry, self.inputs())

    def _outside(self, name: str, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a graph; phases in it are compiled."""
        if is_phase(name):
            return self._compiled(name, operands)
        return self.results(name, operands, self.execute, self._outside)

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

        self.results(name, operands, drawing)
        from torch.fx.experimental.proxy_tensor import make_fx

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

        with _naming_compiler(f"@{name}", self.backend):
            try:
                graph = make_fx(function, tracing_mode="fake")(*tensors)
            finally:
                self._constants = constants
            results = torch.compile(graph, backend=self.backend, dynamic=False)(*tensors)
        found = dict(zip(names, results, strict=True))
        self.values |= found
        return [found[value.name] for value in self.debugger.loaded.program.graphs[name].outputs]

    def _traced(
        self, name: str, operands: Sequence[Any], drawn: Mapping[_Place, Sequence[Any]]
    ) -> dict[str, Any]:
        """Return the results by name that a compiled graph gives: of all graphs, or of all statements."""
        found: dict[str, Any] = {}
        each_statement = runs_operators(self.backend)

        def execute(place: _Place, given: Sequence[Any]) -> Sequence[Any]:
            node, results = place[0].nodes[place[1]], drawn.get(place)
            if results is None:
                results = self.execute(place, given)
            elif node.op == DROPOUT:
                # Only the mask is random.
                mask, kept = results[1], 1 - self._kernel(place)[0].attributes["p"]
                results = [given[0] * mask * (1 / kept if kept else 0.0), *results[1:]]
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
        call: Callable[[str, Sequence[Any]], Sequence[Any]] | None = None,
    ) -> Sequence[Any]:
        """Return the results of a graph.  `execute` runs its statements and those of graphs that it calls.

        With `call`, that runs the graphs that it calls.
        """
        call = call or partial(self.results, execute=execute)
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
            called = node.called
            results = execute((code, pc), given) if called is None else call(called, given)
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


def stays_eager(op: str) -> bool:
    """Return whether a compiled graph takes the results of an operator as operands.

    The compiler cannot run recorded results, and operators with a memory format of oneDNN, such as an LSTM.
    """
    return op == RECORDED or has_format_of_onednn(op)


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
        return {
            "statements": [
                {"op": node.op, "file": place and place.file, "line": place and place.line}
                for node in self.nodes
                for place in (node.location,)
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
        for phase in _phases(run):
            part = _Search(run, phase, ended).smallest()
            if part is not None:
                return part
    return None


@dataclass(slots=True)
class _Step:
    """A statement that ran eagerly, with its tensors."""

    place: _Place
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


def _phases(run: ProgramRun) -> list[list[_Step]]:
    """Return the statements of the forward and backward pass, in the order in which they run eagerly."""
    found: list[list[_Step]] = []

    def phase(name: str, operands: Sequence[Any]) -> Sequence[Any]:
        if is_phase(name):
            found.append([])
        return run.results(name, operands, execute, phase)

    def execute(place: _Place, given: Sequence[Any]) -> Sequence[Any]:
        results = run.execute(place, given)
        if found:
            found[-1].append(_Step(place, given, results))
        return results

    run.results(run.debugger.loaded.program.entry, run.inputs(), execute, phase)
    return found


@dataclass(slots=True)
class _Search:
    run: ProgramRun
    steps: Sequence[_Step]
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
        kept = self._later(self._ancestors(kept, last), last)
        for index in kept[:-1]:  # Those that can be left out alone.
            kept = self._if_bad([each for each in kept if each != index], last) or kept
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

        from torch.fx.experimental.proxy_tensor import make_fx

        given = [*outside.values()]
        graph = make_fx(function, tracing_mode="fake")(*given)
        compiled = torch.compile(graph, backend=self.run.backend, dynamic=False)(*given)
        found = []
        for (each, eager), result in zip(outputs, compiled, strict=True):
            if bool((~torch.isfinite(result) & torch.isfinite(eager)).any()):
                self.counts[each] = not_finite(result)
                found.append(each)
        return list(dict.fromkeys(found))
