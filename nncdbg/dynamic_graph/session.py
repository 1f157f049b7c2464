"""`nncdbg.eager()`: ops are executed as they are called, and their trace is a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from sys import _getframe
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dynamic_graph.execution import Execution
from nncdbg.dynamic_graph.plans import NO_ATTRIBUTES, CallAttributes
from nncdbg.dynamic_graph.trace import ENTRY, Symbol, statements, trace_graph
from nncdbg.dynamic_graph.variable import EagerVariable
from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.code import UNSET, Code
from nncdbg.engine.compilation.states import Lowering, rebound, without_states
from nncdbg.engine.execution.events import Failed
from nncdbg.engine.execution.linking import Allocation, Linker
from nncdbg.engine.execution.loaded import Loaded
from nncdbg.engine.execution.machine import Machine, Running
from nncdbg.engine.execution.random_streams import generator_of
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import check_opsets, version_of
from nncdbg.engine.values.explanation import explained
from nncdbg.errors import UsageError
from nncdbg.ir.kinds import Kind
from nncdbg.ir.names import claimed_name, fresh_name
from nncdbg.ir.records import Constant, Graph, Node, Path, Program, SavedRun, type_of
from nncdbg.ir.rewrite import rewrite
from nncdbg.ir.walk import walk_nodes
from nncdbg.opening.folder_writing import stored_data, stored_graph
from nncdbg.representation import RichOutput
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.debugger import Debugger


class Eager(RichOutput):
    """A dynamic graph: each call executes an op, and appends a statement to the trace.

        g = nncdbg.eager()
        x = g.input("x", np.ones((2, 3), np.float32))
        h = g.Relu(x @ w + b)          # arrays and numbers are operands too
        print(g.program)               # the trace is a program
        g.debug().step_back()

    Ops are methods, as of a Builder; `op` and `several` accept any op name.  Names and locations of
    statements come from the Python lines that call them.  A value is freed with its last variable, and so are
    statements that no variable depends on.
    """

    def __init__(
        self,
        *,
        lazy: bool = False,
        memo: bool = False,
        backend: str | Backend | None = None,
        opset: int | None = None,
        opsets: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        """With `lazy`, an op is executed when a value that needs it is inspected.

        With `memo`, an op on the same values returns the earlier result.  `backend` runs the ops; default:
        the library of the first array.  `opset` and `opsets` are as for a Builder; `seed` is that of random
        ops.
        """
        imports = {**({} if opset is None else {"": opset}), **(opsets or {})}
        wrong = next((each for each in imports.values() if type(each) is not int), None)
        if wrong is not None:
            raise UsageError(f"an opset must be an integer, not {wrong!r}", hint="for example opset=18")
        check_opsets(imports, imports)
        if type(seed) is not int or seed < 0:
            raise UsageError(f"invalid seed {seed!r}", hint="use an integer of 0 or more")
        self._attributes = CallAttributes()
        self._execution = Execution(imports, backend, lazy, memo, seed)

    # -- values ----------------------------------------------------------------------------------

    def input(self, name: str, data: Any, *, requires_grad: bool = False) -> EagerVariable:
        """Return a variable of an array, a number or a list; it is an input of the trace.

        A NumPy array is copied unless it is read-only; tensors of torch and CuPy's arrays are not.
        """
        try:
            array = data if hasattr(data, "dtype") else np.asarray(data)
        except ValueError as error:
            self._execution.fail(
                f"%{name_text(name)} is not a tensor: {error}", "give lists of equal lengths", _getframe(1)
            )
        variable = self._execution.leaf(array, name, _getframe(1))
        if requires_grad:
            variable.requires_grad = True
        return variable

    # -- statements ------------------------------------------------------------------------------

    def op(self, op: str, *operands: Any, name: str = "", **attributes: Any) -> EagerVariable:
        """Execute an op with one output; `name` is that of the result in the trace."""
        made = self._execution.execute(op, operands, self._attributes.of(attributes), _getframe(1))
        return self._named(made, name)

    def several(
        self, op: str, *operands: Any, names: Sequence[str | None], **attributes: Any
    ) -> tuple[EagerVariable, ...]:
        """Execute an op with one output for each name; with None, the name comes from the Python code."""
        given, frame = self._attributes.of(attributes), _getframe(1)
        if not names:
            self._execution.fail(f"{op} is called for no result", "give one name for each result", frame)
        made = self._execution.execute_several(op, operands, given, len(names), frame)
        return tuple(map(self._named, made, (name or "" for name in names)))

    def __getattr__(self, op: str) -> Callable[..., EagerVariable]:
        if not op[:1].isupper():
            raise AttributeError(f"Eager has no attribute {op!r}; use op({op!r}, ...) for an op")
        execute, attributes_of = self._execution.execute, self._attributes.of

        def call(*operands: Any, name: str = "", **keywords: Any) -> EagerVariable:
            made = execute(op, operands, attributes_of(keywords), _getframe(1))
            return self._named(made, name) if name else made

        call.__name__ = op
        # The next call finds it without this method.
        setattr(self, op, call)
        return call

    def _named(self, variable: EagerVariable, name: str) -> EagerVariable:
        if name:
            variable._symbol.wanted = name
        return variable

    def model(self, source: ProgramSource) -> Model:
        """Return a function that calls a static program: `g.model("net.onnx")(x)` is one statement.

        A step into the statement shows the program's own.  States of the program keep their values from call
        to call.  Raises the errors of `nncdbg.load`, and UsageError for a program that imports other opsets,
        draws random numbers, or has `run` or `backward` lines.
        """
        return Model(load(source), self._execution)

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Execute ops without recording them: their results are inputs of the trace."""
        run = self._execution
        before = run.recording, run.tracking
        run.recording = run.tracking = False
        try:
            yield
        finally:
            run.recording, run.tracking = before

    # -- the trace -------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The trace as a program, which runs on the same backend and with the same inputs."""
        run = self._execution
        symbols = run.named_symbols()
        graph = trace_graph(symbols, run.types)
        held = {symbol.name: symbol.value for symbol in symbols if symbol.value is not UNSET}
        data = {value.name: run.backend.to_host(held[value.name]) for value in graph.inputs}
        saved = SavedRun(origin="the eager trace", inputs=data, backend=run.backend.name)
        stores, readers = run.stores
        called = [model for node in graph.nodes if (model := run.model_of(node.op)) is not None]
        models = [model for model in run.models if model in called]
        graphs = {graph.name: graph}
        for model in models:
            graphs |= model.program.graphs
        states = tuple(state for model in models for state in model.program.states)
        return Program(graphs, graph.name, stores, run.rules.opsets, states, saved=saved, readers=readers)

    def debug(self) -> Debugger:
        """Return a debugger at the end of the trace: step back to inspect how its values were computed."""
        from nncdbg.engine.debugger import Debugger

        debugger = Debugger(self.program)
        debugger.run()
        return debugger

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save the trace with its inputs as a program folder, which `nncdbg DIRECTORY` opens.

        Raises UsageError if the path holds anything else; LoadError if the folder cannot be written.
        """
        from nncdbg.opening.folder_writing import write_folder

        program = self.program
        write_folder(
            directory,
            program,
            program.saved.inputs,
            settings={"backend": program.saved.backend},
            title="eager trace",
        )

    @property
    def statements(self) -> int:
        """The number of statements in the trace now."""
        return len(statements(self._execution.symbols()))

    @property
    def syncs(self) -> int:
        """How often a value was inspected, conditions included; in a lazy session each of these may wait."""
        return self._execution.syncs

    @property
    def hits(self) -> int:
        """How often `memo` found an earlier result."""
        return self._execution.hits

    def __reduce__(self) -> Any:
        hint = "save its trace with g.save(directory)"
        raise UsageError("an eager session cannot be copied or pickled", hint=hint)

    def __repr__(self) -> str:
        return f"<Eager, {counted(self.statements, 'statement')}>"


eager = Eager
"""Opens an eager session: `nncdbg.eager()`."""


class Model:
    """A program that an eager session calls: `y = model(x)` is one statement of the trace.

    The states of the program keep their values from call to call.
    """

    def __init__(self, program: Program, session: Execution) -> None:
        """Add the graphs of a program to a session.  Raises UsageError if the session cannot call it."""
        _check(program, session)
        self._session = session
        first = _executed(_first_values(program), {}, session, ()) if program.states else ()
        self._states = {state.value.name: value for state, value in zip(program.states, first, strict=True)}
        """The present values of the states, by name."""
        self.last: Symbol | None = None
        """The latest call, if calls update states."""
        self.program = _joined(program, session, self._states)
        self._lowered = without_states(self.program, Lowering(self.program).graphs(), self.program.entry)
        graph, called = self.program.graph, self._lowered.graph
        self._used = [value.name for value in called.inputs[len(graph.inputs) :]]
        self._updated = [value.name for value in called.outputs[len(graph.outputs) :]]
        self.has_states, self.updates = bool(self._used), bool(self._updated)
        """Whether calls read states, and whether they change some."""
        self._codes: dict[Any, tuple[Loaded, Code, Running]] = {}
        session.add_model(self)

    def __call__(self, *operands: Any) -> Any:
        """Return the result of a call; a tuple if the program has several outputs."""
        graph, frame = self.program.graph, _getframe(1)
        if len(operands) != len(graph.inputs):
            message = f"@{graph.name} has {len(graph.inputs)} inputs, not {len(operands)}"
            self._session.fail(message, None, frame)
        if self.updates and not self._session.recording:
            hint = "call it outside of no_grad: the trace repeats the updates"
            self._session.fail(f"@{graph.name} updates states, but no_grad records nothing", hint, frame)
        outputs = len(graph.outputs)
        made = self._session.execute_several(f"@{graph.name}", operands, NO_ATTRIBUTES, outputs, frame)
        if self.updates:
            made[0]._symbol.after, self.last = self.last, made[0]._symbol
        return made[0] if outputs == 1 else made

    def kernel_of(self, name: str) -> Callable[..., Any]:
        """Return the function that executes a call of one of the graphs; a gradient calls inner graphs."""
        if name == self.program.entry:
            return self._run
        inner = replace(self._lowered, entry=name)

        def run(*operands: Any) -> Any:
            results = _executed(inner, self._codes, self._session, operands)
            return results[0] if len(results) == 1 else results

        return run

    def _run(self, *operands: Any) -> Any:
        """Execute a call on arrays of the session's backend."""
        given = (*operands, *(self._states[name] for name in self._used))
        results = _executed(self._lowered, self._codes, self._session, given)
        count = len(self.program.graph.outputs)
        self._states.update(zip(self._updated, results[count:], strict=True))
        return results[0] if count == 1 else results[:count]


def _check(program: Program, session: Execution) -> None:
    """Raise UsageError for a program that a session cannot call."""
    if program.runs or program.backwards:
        hint = "use nncdbg.run, or call a program without these lines"
        raise UsageError("a program with `run` or `backward` lines cannot be called", hint=hint)
    nodes = [*walk_nodes(program)]
    for node in nodes:
        declared = lookup(node.op, version_of(node.op, program.opsets))
        if declared is not None and declared.draws(node.inputs):
            raise UsageError(
                f"the program draws random numbers ({node.op}), which the trace could not repeat",
                hint="pass the numbers as an input of the program",
            )
    mine = session.rules.opsets
    for op in dict.fromkeys(node.op for node in nodes if node.kind is not Kind.CALL):
        wanted, present = version_of(op, program.opsets), version_of(op, mine)
        if wanted != present:
            raise UsageError(
                f"the program imports opset {wanted} for {op}, and the session opset {present}",
                hint=f"use nncdbg.eager(opsets={dict(program.opsets)})",
            )
    taken = {state.value.name for model in session.models for state in model.program.states}
    both = sorted(taken & {state.value.name for state in program.states})
    if both:
        hint = "rename the state in the text of one program"
        raise UsageError(f"another program of the session has a state %{name_text(both[0])}", hint=hint)


def _joined(program: Program, session: Execution, states: Mapping[str, Any]) -> Program:
    """Return a program under free names, with its weights in the session; states begin at their values."""
    taken = {ENTRY, *session.graphs}
    names = {name: claimed_name(name, taken) for name in program.graphs}
    graphs = {
        names[name]: stored_graph(_renamed(graph, names[name], names), program, session.weights)
        for name, graph in program.graphs.items()
    }
    # The backend is chosen by the first array, unless states need it before.
    lines = tuple(
        replace(state, first=stored_data(name, session.backend.to_host(states[name]), session.weights))
        for state in program.states
        for name in (state.value.name,)
    )
    stores, readers = session.stores
    return Program(graphs, names[program.entry], stores, program.opsets, lines, readers=readers)


def _renamed(graph: Graph, name: str, names: Mapping[str, str]) -> Graph:
    """Return a graph under a name, with the names of the graphs that it calls replaced."""

    def statement(path: Path, pc: int, node: Node) -> Node:
        return node if (called := node.called) is None else replace(node, op=f"@{names[called]}")

    return replace(rewrite(graph, statement), name=name)


def _first_values(program: Program) -> Program:
    """Return the program that computes the first values of the states."""
    nodes = tuple(state.first for state in program.states if isinstance(state.first, Node))
    constants = tuple(
        Constant(state.value, state.first) for state in program.states if not isinstance(state.first, Node)
    )
    outputs = tuple(state.value for state in program.states)
    name = fresh_name("states", program.graphs)
    graph = Graph(name, (), outputs, nodes, constants)
    return replace(program, graphs={**program.graphs, name: graph}, entry=name, states=(), listing=None)


def _executed(
    program: Program, codes: dict[Any, tuple[Loaded, Code, Running]], session: Execution, given: Sequence[Any]
) -> list[Any]:
    """Run a program on arrays, compiled once per entry and types; return its results."""
    types = (program.entry, *map(type_of, given))
    if types not in codes:
        running = Running()
        linker = Linker(session.backend, Allocation(), generator_of(running, 0))
        loaded = Loaded(program, program.as_listing(), linker, rebound=rebound(program))
        codes[types] = loaded, loaded.entry(given), running
    loaded, code, running = codes[types]
    machine = Machine(code, given, loaded.call, running, session.backend)
    outcome = machine.run()
    frame = machine.frames[-1]
    if isinstance(outcome, Failed):
        raise explained(outcome.error, frame, frame.pc, loaded.listing_of(frame.code))
    return list(frame.code.operands_of(-1, frame.slots))
