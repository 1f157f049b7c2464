"""`nncdbg.grad` and `nncdbg.minimize`: programs that compute gradients, and that train, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

import numpy as np

from nncdbg.engine.building.values import attribute_of
from nncdbg.engine.compilation.effects import effects_of
from nncdbg.engine.differentiation.backward_calls import SAVED
from nncdbg.engine.frontends import ProgramSource, load
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.ops import lookup, names
from nncdbg.engine.ops.optimizers.statement import COUNTER, STEP, Optimizer
from nncdbg.engine.ops.schema import complete, version_of
from nncdbg.errors import UsageError
from nncdbg.ir.names import all_defined, claimed_name
from nncdbg.ir.records import (
    BackwardLine,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Operand,
    Program,
    Reference,
    RunLine,
    StateLine,
    TensorType,
    Type,
    Value,
    has_cotangent,
    zeros_like,
)
from nncdbg.ir.rewrite import renamed
from nncdbg.ir.walk import graphs_called
from nncdbg.text.lexemes import name_text, nearest


def grad(
    program: ProgramSource,
    of: str | Sequence[str],
    by: str | Sequence[str],
    *,
    graph: str | None = None,
    checkpoints: int | None = None,
) -> Program:
    """Return a program that computes values of a graph and the gradient of their sum.

    `of` are float values that the graph `graph` computes, by default the entry graph.  `by` are inputs of
    that graph, states, or constants, which become states.  The program's outputs are `of`, then ``d_NAME``
    for each name in `by`.  `checkpoints` is how many iterations of a loop keep the values that they carry.
    A program that `grad` returned can be differentiated again.

    Raises UsageError for unknown names and integers.  An op without a gradient is an error when the program
    is opened.
    """
    step = GradientStep(load(program), graph, of, "gradient")
    wanted = [_differentiable(step, name) for name in names_of(by, "by")]
    gradients = step.differentiate(wanted, checkpoints)
    return step.finished([*gradients.values()])


def minimize(
    program: ProgramSource,
    losses: str | Sequence[str],
    parameters: str | Sequence[str] = "*",
    inputs: str | Sequence[str] = (),
    *,
    optimizer: str = "nncdbg.SGD",
    freeze: str | Sequence[str] = (),
    graph: str | None = None,
    states: Sequence[str] = (),
    checkpoints: int | None = None,
    batch: int | None = None,
    epochs: int | None = None,
    shuffle: int | None = None,
    steps: int | None = None,
    **attributes: Any,
) -> Program:
    """Return the program of a training step that minimizes the sum of `losses`, values of a graph.

    `parameters` are names or patterns such as ``"encoder.*"`` of states, and of constants with data in a
    store, which become states; by default all of them.  A name, without ``*`` or ``?``, may be that of any
    float constant.  Parameters that match `freeze` have no gradient, no moments and no update.  `inputs` are
    inputs of the graph whose gradients are results of the step; they have no update.

    `optimizer` is the name of an optimizer op and `attributes` are its attributes, such as ``lr=0.1``.  Its
    moments are states named after the parameter, ``%w.velocity``; all parameters share one step counter.
    `states` are optional states of the optimizer, such as ``["maximum"]`` of Adam.  `graph` and `checkpoints`
    are those of `grad`.  With `batch`, `epochs`, `shuffle` or `steps`, the program has a ``run`` line.

    Raises UsageError for unknown names, patterns that match nothing, and a training without parameters and
    inputs; GraphError for attributes that do not fit the optimizer.
    """
    step = GradientStep(load(program), graph, losses, "train")
    kind = _optimizer(optimizer)
    trained, frozen = _parameters(step, names_of(parameters, "parameters"), names_of(freeze, "freeze"))
    wanted = [_input(step, name) for name in names_of(inputs, "inputs")]
    if not trained and not wanted:
        raise UsageError(
            "nothing to differentiate: no parameters and no inputs",
            hint="freeze fewer parameters, or name inputs whose gradients are results",
        )
    comment = f"Frozen: {', '.join(f'%{name_text(name)}' for name in frozen)}." if frozen else ""
    gradients = step.differentiate([*trained, *wanted], checkpoints, comment)
    if trained:
        _update(step, kind, {name: gradients[name] for name in trained}, states, attributes)
    numbers = {"batch": batch, "epochs": epochs, "shuffle": shuffle, "steps": steps}
    return step.finished([gradients[name] for name in wanted], _run(step, numbers))


# -- names -----------------------------------------------------------------------------------------


def _differentiable(step: GradientStep, name: str) -> str:
    """Return the state or input that a gradient is by; a constant becomes a state."""
    if name not in step.states and not any(name == value.name for value in step.graph.inputs):
        found = [(key, each) for key, each in step.constants() if each.value.name == name]
        if not found:
            known = [*step.states, *(value.name for value in step.graph.inputs)]
            known += [each.value.name for _, each in step.constants()]
            hint = _suggestion(name, known, "%")
            raise UsageError(
                f"%{name_text(name)} is neither a state, an input nor a float constant", hint=hint
            )
        return step.state(*found[0])
    return _float(step, name)


def _float(step: GradientStep, name: str) -> str:
    if not has_cotangent(step.type_of(name)):
        raise UsageError(
            f"%{name_text(name)} is {step.type_of(name)}, which has no gradient", hint="use values of floats"
        )
    return name


def _input(step: GradientStep, name: str) -> str:
    known = [value.name for value in step.graph.inputs]
    if name not in known:
        hint = _suggestion(name, known, "%")
        raise UsageError(f"@{name_text(step.graph.name)} has no input %{name_text(name)}", hint=hint)
    return _float(step, name)


def _parameters(
    step: GradientStep, patterns: Sequence[str], freeze: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the trained and the frozen parameters; constants that are trained become states.

    A pattern matches states that the graph reads and does not update itself, as it does statistics.
    """
    effects = effects_of(replace(step.program, graphs=step.graphs))[step.key]
    exact: dict[str, tuple[str, Constant] | None] = {
        name: None for name, state in step.states.items() if has_cotangent(state.value.type)
    }
    read = effects.used - effects.updated
    found = {name: None for name in exact if name in read and step.states[name].of is None}
    stored: dict[str, tuple[str, Constant] | None] = {}
    for key, each in step.constants():
        kind = stored if isinstance(each.data, Reference) else exact
        kind.setdefault(each.value.name, (key, each))
    candidates = {**exact, **stored, **found}
    selected = _matching(patterns, [*found, *stored], candidates, "parameters")
    frozen = _matching(freeze, selected, candidates, "freeze")
    trained = []
    for name in selected:
        place = candidates[name]
        if name not in frozen:
            trained.append(name if place is None else step.state(*place))
    return trained, [name for name in selected if name in frozen]


def _matching(
    patterns: Iterable[str], among: Sequence[str], exact: Mapping[str, object], what: str
) -> list[str]:
    """Return the names that match a pattern, in their order; a parameter's own name may be in `exact`."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [name for name in among if fnmatchcase(name, pattern)]
        if not matches and pattern in exact and what == "parameters":
            matches = [pattern]
        if not matches and not (pattern == "*" and what == "parameters"):
            hint = nearest(pattern, among, "%") or (
                "the parameters are " + listed("%", among) if among else "declare a state"
            )
            raise UsageError(f"{what}: no parameter matches {pattern!r}", hint=hint)
        found |= dict.fromkeys(matches)
    return [*found]


# -- the update ------------------------------------------------------------------------------------


def _optimizer(name: str) -> Optimizer:
    """Return the declaration of an optimizer op, by its name with or without its domain."""
    known = {each: op.optimizer for each in names() if (op := lookup(each, 1)) is not None and op.optimizer}
    found = known.get(name) or known.get(f"nncdbg.{name}")
    if found is None:
        hint = nearest(name, known) or f"use one of: {', '.join(sorted(known))}"
        raise UsageError(f"no optimizer {name}", hint=hint)
    return found


def _update(
    step: GradientStep,
    optimizer: Optimizer,
    gradients: Mapping[str, str],
    further: Sequence[str],
    attributes: Mapping[str, Any],
) -> None:
    """Append a statement of the optimizer for each parameter, and the update of its states."""
    given = {key: attribute_of(value) for key, value in attributes.items() if value is not None}
    names = _states_of(optimizer, further, given, step)
    counter = step.fresh(STEP) if STEP in names else ""
    new: dict[str, str] = {}
    for parameter, gradient in gradients.items():
        moments = {each: counter if each == STEP else step.fresh(f"{parameter}.{each}") for each in names}
        type_ = step.type_of(parameter)
        step.states |= {
            name: _moment(name, type_, parameter) for each, name in moments.items() if each != STEP
        }
        operands: list[Operand] = [parameter, gradient, *(moments.get(each) for each in optimizer.states)]
        while operands[-1] is None:
            operands.pop()
        outputs = [Value(new.setdefault(parameter, step.fresh(f"{parameter}.1")), type_)]
        for each, state in moments.items():
            counted = each == STEP and counter in new
            name = "" if counted else new.setdefault(state, step.fresh(f"{state}.1"))
            outputs.append(Value(name, COUNTER if each == STEP else type_))
        step.nodes.append(Node(optimizer.name, tuple(operands), tuple(outputs), given))
    if counter:
        zero = np.array(0)
        zero.flags.writeable = False
        step.states[counter] = StateLine(Value(counter, COUNTER), Inline(zero))
    _check(step, step.nodes[-1])
    step.nodes.append(Node("update", tuple(new.values()), tuple(map(Value, new))))


def _states_of(
    optimizer: Optimizer, further: Sequence[str], given: Mapping[str, Any], step: GradientStep
) -> list[str]:
    """Return the states that the optimizer needs with these attributes, in the order of its operands."""
    unknown = [each for each in further if each not in optimizer.states]
    if unknown:
        hint = nearest(unknown[0], optimizer.states) or f"its states: {', '.join(optimizer.states)}"
        raise UsageError(f"{optimizer.name} has no state {unknown[0]}", hint=hint)
    version = version_of(optimizer.name, step.program.opsets)
    defaults = {**complete(optimizer.name, version, {}), **given}
    needed = {*optimizer.states[: optimizer.required], *further}
    needed |= {state for state, _ in optimizer.needs(defaults)}
    return [each for each in optimizer.states if each in needed]


def _moment(name: str, type_: Type | None, parameter: str) -> StateLine:
    value = Value(name, type_)
    return StateLine(value, zeros_like(value, parameter), parameter)


def _check(step: GradientStep, node: Node) -> None:
    """Raise GraphError for attributes that do not fit the optimizer."""
    types = {value.name: value.type for value in chain.from_iterable(each.outputs for each in step.nodes)}
    types |= {name: state.value.type for name, state in step.states.items()}
    rules = TypeRules(step.program.opsets, {})
    rules.results(node, rules.operand_types(node, types.get))


def _run(step: GradientStep, numbers: Mapping[str, int | None]) -> RunLine | None:
    """Return the ``run`` line that these numbers describe; None without any."""
    given: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    if not given:
        return None
    for name, number in given.items():
        least = 0 if name == "shuffle" else 1
        if number < least:
            raise UsageError(f"{name} cannot be {number}", hint=f"use {least} or more")
    inputs = tuple(value.name for value in step.graph.inputs)
    if not inputs and "steps" not in given:
        raise UsageError("the number of steps is missing: the graph has no inputs", hint="pass steps=100")
    return RunLine(graph=step.key, values=inputs, **given)


def names_of(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    """Return one or more names without their ``%``.  Raises UsageError for anything else."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise UsageError(f"{what} must be a name or a list of names, not {given!r}", hint=f'{what}=["w"]')
    return tuple(dict.fromkeys(each.removeprefix("%") for each in names))


class GradientStep:
    """A program whose new entry graph computes values `of` of graph `graph`, and their gradients.

    `graph` is a name, by default that of the entry graph.  `state` makes a state of a constant, so that a
    gradient by it exists; `differentiate` adds the ``backward`` line and its call.
    """

    def __init__(self, program: Program, graph: str | None, of: str | Sequence[str], name: str) -> None:
        if program.runs:
            raise UsageError(
                "the program is a training: it has a `run` line", hint="remove its `run` and `evaluate` lines"
            )
        key = graph.removeprefix("@") if graph is not None else program.entry
        if key not in program.graphs:
            hint = _suggestion(key, program.graphs, "@")
            raise UsageError(f"no graph @{name_text(key)}", hint=hint)
        self.program = program
        self.of = names_of(of, "of")
        self.key = key
        self.states: dict[str, StateLine] = {state.value.name: state for state in program.states}
        self.graphs = dict(self.program.graphs)
        self.graphs[key] = _returning(self.graphs[key], self.of)
        self.nodes: list[Node] = []
        self.line: BackwardLine | None = None
        self._graph_names = {*self.graphs, *(line.name for line in program.backwards)}
        self._name = claimed_name(name, self._graph_names)
        self._used = {*self.states, *(value.name for value in all_defined(self.graphs))}
        self._outputs: list[Value] = []

    @property
    def graph(self) -> Graph:
        """The graph that is differentiated."""
        return self.graphs[self.key]

    def fresh(self, name: str) -> str:
        """Return an unused name for a value or a state."""
        return claimed_name(name, self._used)

    def type_of(self, name: str) -> Type | None:
        """Return the type of a state or of an input of the graph."""
        if name in self.states:
            return self.states[name].value.type
        return next((value.type for value in self.graph.inputs if value.name == name), None)

    def constants(self) -> Iterator[tuple[str, Constant]]:
        """Yield the float constants of the differentiated graph and of those that it calls, by graph."""
        for key in graphs_called(self.key, self.graphs):
            for constant in self.graphs[key].constants:
                if has_cotangent(constant.value.type):
                    yield key, constant

    def state(self, key: str, constant: Constant) -> str:
        """Make a state of a constant of graph `key`, and return its name."""
        graph, name = self.graphs[key], constant.value.name
        shared = sum(name in {v.name for v in all_defined(each)} for each in self.graphs.values()) > 1
        state = self.fresh(f"{graph.name}.{name}") if shared else name
        constants = tuple(each for each in graph.constants if each is not constant)
        graph = renamed(graph, {name: state}) if shared else graph
        self.graphs[key] = replace(graph, constants=constants)
        self.states[state] = StateLine(replace(constant.value, name=state), constant.data)
        return state

    def differentiate(
        self, by: Sequence[str], checkpoints: int | None = None, comment: str = ""
    ) -> dict[str, str]:
        """Append the calls of the graph and of its backward graph; return the gradients of `by`, by name."""
        if checkpoints is not None and checkpoints < 1:
            raise UsageError(f"checkpoints is {checkpoints}, expected 1 or more")
        graph = self.graph
        saved = self.fresh("saved")
        inputs = tuple(value.name for value in graph.inputs)
        self._outputs = [
            value if value.name in self.of else replace(value, name="") for value in graph.outputs
        ]
        self.nodes.append(Node(f"@{self.key}", inputs, tuple(self._outputs), {SAVED: saved}))
        backward = claimed_name(f"{self.key}.backward", self._graph_names)
        self.line = BackwardLine(backward, self.key, tuple(by), comment, checkpoints)
        cotangents = [self._cotangent(value) for value in self._outputs if has_cotangent(value.type)]
        gradients = {name: self.fresh(f"d_{name}") for name in by}
        results = tuple(Value(gradients[name], self.type_of(name)) for name in by)
        self.nodes.append(Node(f"@{backward}", (*cotangents, saved), results))
        return gradients

    def _cotangent(self, value: Value) -> Operand:
        """Return ones for a value, the cotangent of its sum; None for a result that is not differentiated."""
        if not value.name:
            return None
        if isinstance(value.type, TensorType) and value.type.shape == ():
            return Literal(1.0)
        ones = Value(self.fresh(f"{value.name}.ones"), value.type)
        self.nodes.append(Node("nncdbg.FullLike", (value.name,), (ones,), {"value": 1.0}))
        return ones.name

    def finished(self, gradients: Sequence[str], run: RunLine | None = None) -> Program:
        """Return the program; its entry graph returns the values `of` and these gradients."""
        assert self.line is not None
        types = {value.name: value.type for node in self.nodes for value in node.outputs}
        of = [value for name in self.of for value in self._outputs if value.name == name]
        outputs = (*of, *(Value(name, types[name]) for name in gradients))
        entry = Graph(self._name, self.graph.inputs, outputs, tuple(self.nodes))
        return replace(
            self.program,
            graphs={self._name: entry, **self.graphs},
            entry=self._name,
            states=tuple(self.states.values()),
            backwards=(*self.program.backwards, self.line),
            runs=() if run is None else (replace(run, graph=self._name),),
            source=None,
            listing=None,
        )


def _returning(graph: Graph, names: Sequence[str]) -> Graph:
    """Return the graph with these values among its results.  Raises UsageError for an unknown value."""
    known = {value.name: value for node in graph.nodes for value in node.outputs if value.name}
    outputs = {value.name: value for value in graph.outputs}
    for name in names:
        if name not in known:
            hint = nearest(name, [*outputs, *known], "%") or "use one of: " + listed("%", outputs)
            raise UsageError(f"@{name_text(graph.name)} does not compute %{name_text(name)}", hint=hint)
        outputs.setdefault(name, known[name])
        if not has_cotangent(outputs[name].type):
            raise UsageError(
                f"%{name_text(name)} is {outputs[name].type}, which has no gradient",
                hint="differentiate a value of floats",
            )
    if not names:
        raise UsageError("no value to differentiate", hint="use one of: " + listed("%", outputs))
    return replace(graph, outputs=tuple(outputs.values()))


def _suggestion(name: str, known: Iterable[str], sigil: str) -> str:
    return nearest(name, known, sigil) or "use one of: " + listed(sigil, known)


def listed(sigil: str, names: Iterable[str]) -> str:
    """Return up to five names, as in text."""
    known = [f"{sigil}{name_text(name)}" for name in names]
    return ", ".join(known[:5]) + (" ..." if len(known) > 5 else "")
