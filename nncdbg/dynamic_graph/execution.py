"""The execution of a dynamic graph: ops run as they are called, or once a value is inspected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary, ref

import numpy as np

from nncdbg import extensions
from nncdbg.dynamic_graph.gradients import Gradient
from nncdbg.dynamic_graph.plans import Attributes, OpPlan, TypeNumbers, literal, literal_key
from nncdbg.dynamic_graph.trace import Symbol, name_in_frame, wanted_name
from nncdbg.dynamic_graph.variable import EagerVariable
from nncdbg.engine import backends
from nncdbg.engine.backends import Backend
from nncdbg.engine.backends.composed import call_for
from nncdbg.engine.building.python_lines import locate, user_frame
from nncdbg.engine.building.values import SCALARS, wrong_literal
from nncdbg.engine.compilation.code import UNSET
from nncdbg.engine.execution.random_streams import seeded_stream
from nncdbg.engine.frontends.stores import ArrayStore
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.inference.statements import literal_dtype
from nncdbg.engine.values.explanation import fault_of
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.ir.kinds import called_graph
from nncdbg.ir.names import claimed_name
from nncdbg.ir.records import Array, Graph, Literal, Location, Node, TensorType, Value
from nncdbg.text.file_names import STORE

if TYPE_CHECKING:
    from nncdbg.dynamic_graph.session import Model


def owned(array: Any) -> Any:
    """Return the array of a leaf: writes of the user to a NumPy array must not change the trace.

    A read-only NumPy array, a tensor of torch and an array of CuPy are used without a copy.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        array = np.asarray(array)
        if array.flags.writeable or not array.flags.c_contiguous:
            array = np.array(array, order="C")
            array.flags.writeable = False
        return array
    # The graph has its own gradients.
    return array.detach() if hasattr(array, "detach") else array


def pending_statements(wanted: Iterable[Symbol]) -> list[Symbol]:
    """Return the statements to execute for these symbols, in order."""
    found: dict[int, Symbol] = {}
    stack = [*wanted]
    while stack:
        symbol = stack.pop()
        if symbol.value is not UNSET or symbol.statement.number in found:
            continue
        statement = found[symbol.statement.number] = symbol.statement
        stack += [each for each in (*statement.operands, statement.after) if isinstance(each, Symbol)]
    return [found[number] for number in sorted(found)]


def value_in(symbol: Symbol, done: Mapping[int, Any]) -> Any:
    """Return the value of a symbol from its statement's results, if it has none yet."""
    if symbol.value is not UNSET:
        return symbol.value
    results, plan = done[symbol.statement.number], symbol.statement.plan
    return results if plan is None or len(plan.node.outputs) == 1 else results[symbol.index]


class Execution:
    """Runs ops, and records their symbols.

    It refers weakly to the symbols, so that they are freed with their variables.
    """

    def __init__(
        self, opsets: Mapping[str, int], backend: str | Backend | None, lazy: bool, memo: bool, seed: int
    ) -> None:
        self.types = TypeNumbers()
        self.graphs: dict[str, Graph] = {}
        """The graphs that statements may call."""
        self.models: list[Model] = []
        """The programs that statements call."""
        self.weights: dict[str, Any] = {}
        """The weights of these programs, by key in the store of the trace."""
        self._live: set[ref[Symbol]] = set()
        self.lives, self.dies = self._live.add, self._live.discard
        """Add and remove the reference to a symbol."""
        self.syncs = 0
        """How often a value was inspected; in a lazy session an inspection may wait."""
        self.hits = 0
        """How often `memo` found an earlier result."""
        self.rules = TypeRules(opsets, self.graphs)
        self.plans: dict[tuple[Any, ...], OpPlan] = {}
        self.gradients: dict[tuple[Any, ...], Gradient] = {}
        """Gradients by the form of the statements before a value."""
        self.parameters: WeakValueDictionary[int, EagerVariable] = WeakValueDictionary()
        """The variables whose gradient is wanted, by identity: `==` compares their values."""
        self.recording = True
        """False inside of `no_grad`: results are leaves."""
        self.tracking = True
        """False inside of `no_grad`, and while a gradient is computed: results are not differentiated."""
        self._backend = None if backend is None else backends.backend(backend)
        self._lazy = lazy
        self._memo: WeakValueDictionary[Any, Symbol] | None = WeakValueDictionary() if memo else None
        self._seed, self._draws = seed, count()
        self._numbers = count()
        self._computing = False

    # -- symbols ---------------------------------------------------------------------------------

    def symbols(self) -> list[Symbol]:
        """Return the symbols of the trace, in order."""
        found = [symbol for each in tuple(self._live) if (symbol := each()) is not None]
        return sorted(found, key=lambda symbol: symbol.number)

    def named_symbols(self) -> list[Symbol]:
        """Return the symbols of the trace, in order; each has a name that no other one and no state has."""
        found = self.symbols()
        states = (state.value.name for model in self.models for state in model.program.states)
        used = {*states, *(symbol.name for symbol in found)}
        for symbol in found:
            symbol.name = symbol.name or claimed_name(wanted_name(symbol), used)
        return found

    def name_of(self, symbol: Symbol) -> str:
        """Return the name of a symbol in the text of the trace."""
        return symbol.name or next(each.name for each in self.named_symbols() if each is symbol)

    # -- called programs -------------------------------------------------------------------------

    def add_model(self, model: Model) -> None:
        """Add the graphs of a program, which can be called from now on."""
        self.graphs.update(model.program.graphs)
        self.models.append(model)

    def model_of(self, op: str) -> Model | None:
        """Return the program with the graph that a statement calls."""
        if (name := called_graph(op)) is None:
            return None
        return next((model for model in self.models if name in model.program.graphs), None)

    @property
    def stores(self) -> tuple[tuple[str, ...], tuple[ArrayStore, ...]]:
        """The stores of the trace, with their readers."""
        return ((STORE,), (ArrayStore(self.weights),)) if self.weights else ((), ())

    # -- statements ------------------------------------------------------------------------------

    def execute(
        self, op: str, operands: Sequence[Any], attributes: Attributes, frame: FrameType
    ) -> EagerVariable:
        """Execute an op with one output, called in `frame`, and return its result."""
        plan, symbols, result, tracked = self._run(op, operands, attributes, 1, frame)
        if plan is None:
            return self.variable_of(result)
        number = plan.results[0] if plan.exact or result is UNSET else self.types.of(result)
        return self.record(plan, symbols, result, number, tracked, frame.f_code, frame.f_lasti)

    def execute_several(
        self, op: str, operands: Sequence[Any], attributes: Attributes, outputs: int, frame: FrameType
    ) -> tuple[EagerVariable, ...]:
        """Execute an op with several outputs, and return its results."""
        if outputs == 1:
            return (self.execute(op, operands, attributes, frame),)
        plan, symbols, results, tracked = self._run(op, operands, attributes, outputs, frame)
        assert plan is not None
        found: list[EagerVariable] = []
        for index, number in enumerate(plan.results):
            result = UNSET if results is UNSET else results[index]
            if result is not UNSET and not plan.exact:
                number = self.types.of(result)
            place = (frame.f_code, frame.f_lasti)
            made = self.record(plan, () if index else symbols, result, number, tracked, *place)
            if index and made._symbol.plan is not None:
                made._symbol.first, made._symbol.index = found[0]._symbol, index
            found.append(made)
        return tuple(found)

    def record(
        self,
        plan: OpPlan,
        operands: tuple[Any, ...],
        result: Any,
        number: int,
        tracked: bool,
        code: CodeType | None,
        position: int,
    ) -> EagerVariable:
        """Append the symbol of a result to the trace, and return a variable of it."""
        kept = result if tracked or plan.once or self._memo is not None else UNSET
        symbol = Symbol(next(self._numbers), plan, operands, code, position, number, tracked, kept)
        self.lives(ref(symbol, self.dies))
        variable = EagerVariable(self, symbol, result)
        if result is UNSET:
            symbol.handle, symbol.cut = ref(variable), not self.recording
        elif not self.recording:
            symbol.become_leaf(result)
        if self._memo is not None and not plan.once:
            self._memo[_memo_key(plan, operands)] = symbol
        return variable

    def _run(
        self, op: str, operands: Sequence[Any], attributes: Attributes, outputs: int, frame: FrameType
    ) -> tuple[OpPlan | None, tuple[Any, ...], Any, bool]:
        """Execute an op: return its plan, the operands as in Symbol, the result, and whether it is tracked.

        The plan is None if the result is the symbol of an earlier statement.
        """
        key: list[Any] = [op, outputs, attributes.key]
        symbols: list[Any] = []
        values: list[Any] = []
        tracked = self._gather(operands, key, symbols, values, frame) and self.tracking
        plan = self.plans.get(tuple(key)) or self._plan(key, op, symbols, attributes, outputs, frame)
        if self._memo is not None and outputs == 1:
            known = self._memo.get(_memo_key(plan, symbols))
            if known is not None:
                self.hits += 1
                return None, (), known, tracked
        if self._lazy:
            return plan, tuple(symbols), UNSET, tracked
        try:
            result = plan.executed(values)
        except Exception as error:
            found = fault_of(error, plan.node, values, self.rules.opsets)
            raise self._explained(found, op, symbols, _line(frame)) from error
        if tracked:
            # The gradient may read them.
            for index, symbol in enumerate(symbols):
                if symbol.__class__ is Symbol and symbol.value is UNSET:
                    symbol.value = values[index]
        return plan, tuple(symbols), result, tracked

    def _gather(
        self, operands: Sequence[Any], key: list[Any], symbols: list[Any], values: list[Any], frame: FrameType
    ) -> bool:
        """Append the forms of the operands, their symbols and their arrays; literals are their own symbols.

        Return whether one of them is tracked.
        """
        tracked = False
        for each in operands:
            kind = each.__class__
            if kind in SCALARS:
                key.append(kind)
                symbols.append(each)
                values.append(each)
                continue
            if kind is not EagerVariable:
                each = self._operand(each, frame)
            if each.__class__ is EagerVariable:
                if each._session is not self:
                    hint = "use the variables of one session"
                    self.fail("an operand belongs to another session", hint, frame)
                symbol = each._symbol
                key.append(symbol.type)
                symbols.append(symbol)
                values.append(each._array)
                tracked = tracked or symbol.tracked
            else:
                key.append(literal_key(each))
                symbols.append(each)
                values.append(each)
        return tracked

    def _plan(
        self,
        key: list[Any],
        op: str,
        operands: Sequence[Any],
        attributes: Attributes,
        outputs: int,
        frame: FrameType,
    ) -> OpPlan:
        """Make a plan, and keep it unless its attributes have no key."""
        if not isinstance(op, str) or not op:
            self.fail(f"{op!r} is no name of an op", "for example Relu", frame)
        types = [self.types[each.type] if isinstance(each, Symbol) else None for each in operands]
        try:
            inputs = tuple(
                f"operand {index}" if known is not None else literal(operand)
                for index, (operand, known) in enumerate(zip(operands, types, strict=True))
            )
            node = Node(op, inputs, (Value(""),) * outputs, attributes.values)
            results = self.rules.results(node, self.rules.literal_types(node, tuple(types)))
            literals: tuple[tuple[int, str, dict[Any, Array]], ...] = tuple(
                (index, literal_dtype(operand, node, index, types, self.rules.opsets), {})
                for index, operand in enumerate(inputs)
                if isinstance(operand, Literal)
            )
            constants = frozenset(index for index, *_ in literals)
            call = call_for(node, self.rules.opsets, outputs != 1, constants, self._generator)
            exact = all(isinstance(known, TensorType) and known.concrete for known in results)
            numbers = tuple(map(self.types.number, results))
            draws = call.op.draws(inputs)
            made = OpPlan(node, self.backend.bind(call).run, numbers, exact, literals, draws, draws)
        except NncdbgError as error:
            raise self._explained(error, op, operands, _line(frame)) from None
        model = self.model_of(op)
        if model is not None:
            made.run, made.once = model.kernel_of(op[1:]), model.updates
        if attributes.key is not None:
            self.plans[tuple(key)] = made
        return made

    def _generator(self, seed: float | None) -> np.random.Generator:
        """Return the stream of the next draw; with an attribute `seed`, that of the seed."""
        if seed is not None:
            return seeded_stream(self._seed, seed, ())
        return np.random.default_rng((self._seed, next(self._draws)))

    # -- operands --------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """The backend that runs the ops."""
        if self._backend is None:
            self._backend = backends.backend("numpy")
        return self._backend

    def leaf(self, array: Any, name: str, frame: FrameType) -> EagerVariable:
        """Return a variable of data from outside."""
        library = type(array).__module__.partition(".")[0]
        library = library if library in extensions.BUILT_IN[extensions.BACKENDS] else "numpy"
        if self._backend is None:
            self._backend = backends.backend(library)
        if library not in ("numpy", self.backend.name):
            self.fail(f"the session runs on {self.backend.name}, but this array is of {library}", None, frame)
        if array.dtype == object and not all(isinstance(each, str) for each in np.ravel(array)):
            self.fail(
                "the array is not a tensor: its elements are Python objects",
                "convert it to a type of numbers",
                frame,
            )
        try:
            content = owned(array)
            content = content if library != "numpy" else self.backend.to_device(content)
            number = self.types.of(content)
        except KeyError as error:
            self.fail(f"the array is not a tensor: {error.args[0]}", "convert it to a type of numbers", frame)
        symbol = Symbol(next(self._numbers), None, (), None, 0, number, False, content, name)
        self.lives(ref(symbol, self.dies))
        return EagerVariable(self, symbol, content)

    def _operand(self, given: Any, frame: FrameType) -> Any:
        """Return an operand that is no variable: a list, or a leaf for an array."""
        if hasattr(given, "dtype") and hasattr(given, "shape"):
            return self.leaf(given, name_in_frame(frame, given), frame)
        if wrong := wrong_literal(given):
            hint = "pass a variable of this session, an array, a number or a list of numbers"
            self.fail(f"{wrong} cannot be an operand", hint, frame)
        return given

    # -- values ----------------------------------------------------------------------------------

    def array_of(self, variable: EagerVariable) -> Any:
        """Return the array of a variable; compute it if necessary."""
        self.syncs += 1
        if variable._array is UNSET:
            self.compute([variable._symbol])
            return variable._symbol.value
        return variable._array

    def provide(self, symbols: Iterable[Symbol]) -> None:
        """Compute symbols for a gradient, unless the session is lazy."""
        if not self._lazy:
            self.compute([*symbols])

    def variable_of(self, symbol: Symbol) -> EagerVariable:
        """Return a new variable of a symbol."""
        return EagerVariable(self, symbol, symbol.value)

    def compute(self, wanted: Sequence[Symbol]) -> None:
        """Execute the statements that these symbols need.

        Raises UsageError if it is called by a kernel, which would wait for itself.
        """
        pending = pending_statements(wanted)
        if not pending:
            return
        if self._computing:
            raise UsageError(
                "a kernel inspects a lazy value while the session computes one",
                hint="inspect the value before the call, and pass it as an operand",
            )
        self._computing = True
        try:
            done: dict[int, Any] = {}
            for statement in pending:
                done[statement.number] = self._computed(statement, done)
        finally:
            self._computing = False
        # Values that are needed again are kept; the others are computed again if they are inspected.
        cut = []
        for symbol in self.symbols():
            if symbol.statement.number not in done or symbol.value is not UNSET:
                continue
            plan = symbol.statement.plan
            variable = symbol.handle() if symbol.handle is not None else None
            needed = self._memo is not None or symbol.tracked or (plan is not None and plan.once)
            if needed or symbol in wanted or (variable is not None and variable._symbol is symbol):
                symbol.value = value_in(symbol, done)
                symbol.type = self.types.of(symbol.value)
                cut += [symbol] if symbol.cut else []
        for symbol in cut:
            symbol.become_leaf(symbol.value)

    def _computed(self, statement: Symbol, done: Mapping[int, Any]) -> Any:
        plan = statement.plan
        assert plan is not None
        operands = statement.operands
        values = [value_in(each, done) if isinstance(each, Symbol) else each for each in operands]
        try:
            return plan.executed(values)
        except Exception as error:
            place = statement.location or _line(user_frame())
            found = fault_of(error, plan.node, values, self.rules.opsets)
            raise self._explained(found, plan.node.op, operands, place) from error

    # -- errors ----------------------------------------------------------------------------------

    def fail(self, message: str, hint: str | None, frame: FrameType) -> NoReturn:
        """Raise a UsageError at the line that runs in `frame`."""
        error = UsageError(message, hint=hint)
        locate(error, _line(user_frame(frame)))
        raise error

    def _explained(self, found: NncdbgError, op: str, operands: Iterable[Any], line: Location) -> NncdbgError:
        """Return an error with the user's line, and the types of the operands."""
        if found.excerpt is not None:
            # A statement of a called program failed.
            found.source = str(line)
            return found
        if op not in found.message:
            found.message = f"{op}: {found.message}"
        found.operands = tuple(
            f"%{self.name_of(each)}: {self.types[each.type] or '?'}"
            for each in operands
            if isinstance(each, Symbol)
        )
        locate(found, line)
        return found


def _line(frame: FrameType) -> Location:
    return Location(frame.f_code.co_filename, frame.f_lineno)


def _memo_key(plan: OpPlan, operands: Iterable[Any]) -> tuple[Any, ...]:
    """Return the key of a result: its plan, its literals, and the versions of its operands."""
    return (plan, *(each.number if isinstance(each, Symbol) else repr(each) for each in operands))
