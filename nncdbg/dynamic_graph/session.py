"""`nncdbg.eager()`: ops are executed as they are called, and their trace is a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from sys import _getframe
from typing import TYPE_CHECKING, Any

import numpy as np

from nncdbg.dynamic_graph.execution import Execution
from nncdbg.dynamic_graph.models import Model
from nncdbg.dynamic_graph.plans import CallAttributes
from nncdbg.dynamic_graph.trace import statements, trace_graph
from nncdbg.dynamic_graph.variable import EagerVariable
from nncdbg.engine.backends import Backend
from nncdbg.engine.compilation.code import UNSET
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.ops.schema import check_opsets
from nncdbg.errors import UsageError
from nncdbg.ir.records import Program, SavedRun
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
            directory, program, program.saved.inputs, backend=program.saved.backend, title="eager trace"
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
