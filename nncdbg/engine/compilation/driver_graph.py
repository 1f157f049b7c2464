"""The graph of the driver: first values of the states, then a loop for each run, with its evaluations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from nncdbg.dtypes import FLOATS, NUMPY
from nncdbg.engine.compilation.code import EPOCH
from nncdbg.engine.compilation.effects import updated_by
from nncdbg.engine.compilation.tracked_values import TRACKED, TRACKED_DATA, tracked_lines
from nncdbg.engine.ops.state import steps_of_epoch
from nncdbg.errors import GraphError
from nncdbg.ir.constants import initial_data
from nncdbg.ir.records import (
    Array,
    Attribute,
    Constant,
    Graph,
    Inline,
    Literal,
    Node,
    Program,
    RunLine,
    TensorType,
    Value,
    tensor_only,
)
from nncdbg.text.counting import counted
from nncdbg.text.lexemes import name_text
from nncdbg.text.listing import driver_name, scalars_of

if TYPE_CHECKING:
    from nncdbg.engine.compilation.states import Lowering

BATCH = "nncdbg.Batch"

SAMPLES = "samples"
"""The symbol of the number of samples in the data of a run."""

_END = 2**62
"""The end of a slice up to the last element."""


class DriverGraph:
    """Makes the driver of a program; `samples` are the sizes of the first axis of the driver's inputs.

    `given` are the names of states that are inputs of the driver, in place of their data.
    """

    def __init__(
        self, program: Program, lowering: Lowering, samples: Mapping[str, int], given: Collection[str]
    ) -> None:
        self._program = program
        self._lowering = lowering
        self._samples = samples
        self._taken = set(lowering.types)
        self._inputs: dict[str, Value] = {}
        self._nodes = [state.first for state in program.states if isinstance(state.first, Node)]
        self._constants = [
            Constant(state.value, state.first)
            for state in program.states
            if not isinstance(state.first, Node) and state.value.name not in given
        ]
        self._given = [state.value for state in program.states if state.value.name in given]
        self._tracked = {id(each.line): each for each in tracked_lines(program)}
        """The lines with tracks, by the identity of their records."""

    def graph(self) -> Graph:
        """Return the driver.  Raises GraphError for data that do not fit the runs."""
        program = self._program
        if program.runs:
            outputs = [value for run in program.runs for value in self._run(run)]
        else:
            self._inputs = {value.name: value for value in program.graph.inputs}
            operands = tuple(self._inputs)
            outputs = [self._fresh(value, program.entry) for value in program.graph.outputs]
            self._nodes.append(self._lowering.statement(Node(f"@{program.entry}", operands, tuple(outputs))))
            # A single run has the new values of states as results, too.
            outputs += self._lowering.ordered(self._lowering.effects[program.entry].updated)
        return Graph(
            driver_name(program),
            (*self._inputs.values(), *self._given),
            tuple(outputs),
            tuple(self._nodes),
            tuple(self._constants),
        )

    def _fresh(self, value: Value, graph: str) -> Value:
        """Return the value under a name that is free in the driver."""
        name, number = value.name, 0
        while name in self._taken:
            name = f"{graph}.{value.name}{f'.{number}' if number else ''}"
            number += 1
        self._taken.add(name)
        return Value(name, value.type)

    # -- data -------------------------------------------------------------------------------------

    def _data(self, run: RunLine, samples: str) -> tuple[Value, ...]:
        """Return the data of a run, which become inputs or constants of the driver.

        `samples` is the symbol of their number of samples.
        """
        found = []
        for name, value in zip(run.values, self._program.graphs[run.graph].inputs, strict=True):
            known = tensor_only(value.type)
            type_ = known
            if known is not None and known.shape is not None:
                # The type of the data of which a batch has the type `known`.
                type_ = TensorType(known.dtype, (samples, *known.shape[1 if run.batch else 0 :]))
            found.append(self._fresh(Value(name), run.graph) if run.sources else Value(name, type_))
        if run.sources:
            self._constants += map(Constant, found, run.sources)
        else:
            self._inputs |= {value.name: value for value in found if value.name not in self._inputs}
        return tuple(found)

    def _tracked_data(self, run: RunLine) -> tuple[Value, ...]:
        """Return the data that only the tracks of a run read, which become inputs of the driver."""
        tracked = self._tracked.get(id(run))
        found = tuple(Value(name) for name in tracked.data) if tracked is not None else ()
        self._inputs |= {value.name: value for value in found if value.name not in self._inputs}
        return found

    def _tracks(self, run: RunLine, batches: Sequence[str]) -> dict[str, Attribute]:
        """Return the attributes of the loop of a run that say what its tracks read."""
        tracked = self._tracked.get(id(run))
        if tracked is None:
            return {}
        return {TRACKED: tracked.place, TRACKED_DATA: tuple(zip(tracked.data, batches, strict=True))}

    def _sizes(self, run: RunLine, data: Sequence[Value]) -> Iterator[tuple[str, int]]:
        """Yield the names of the run's data with their numbers of samples, as far as they are known."""
        for value, source in zip_longest(data, run.sources):
            if source is None:
                if value.name in self._samples:
                    yield value.name, self._samples[value.name]
                continue
            shape = initial_data(Constant(value, source), self._program).shape
            if not shape:
                raise GraphError(
                    f'the data of a run needs an axis of samples, but data("{source.key}") is a scalar',
                    hint="store the samples along the first axis",
                )
            yield value.name, shape[0]
        for value in self._tracked_data(run):
            if value.name in self._samples:
                yield value.name, self._samples[value.name]

    def _check_declared(self, run: RunLine, samples: Mapping[str, int], *, complete: bool) -> None:
        """Raise GraphError if the declared types of the graph of a run do not fit its batches.

        `samples` are the known numbers of samples; `complete` means that the run uses all of them.
        """
        rest = next(iter(samples.values()), 0) % run.batch if run.batch and complete else 0
        inputs = self._program.graphs[run.graph].inputs
        for name, value, source in zip_longest(run.values, inputs, run.sources):
            known = tensor_only(value.type)
            if known is None or known.shape is None:
                continue
            declared = f"@{run.graph} declares %{name_text(value.name)}: {known}"
            if source is not None:
                shape = initial_data(Constant(value, source), self._program).shape[1:]
                own = known.shape[1 if run.batch else 0 :]
                if len(shape) != len(own) or any(
                    isinstance(size, int) and size != given for size, given in zip(own, shape, strict=True)
                ):
                    raise GraphError(
                        f'{declared}, but the samples of data("{source.key}") have the shape {[*shape]}',
                        hint="correct the type of the input, or the data",
                    )
            if not run.batch:
                continue
            if not known.shape:
                raise GraphError(
                    f"{declared}, but the run passes batches of {run.batch} samples",
                    hint=f"declare an axis of samples, or omit `batch {run.batch}`",
                )
            size = known.shape[0]
            if isinstance(size, int) and size != run.batch:
                raise GraphError(
                    f"{declared}, but the run passes batches of {run.batch} samples",
                    hint=f"write `batch {size}`, or declare the axis with a name such as N",
                )
            if isinstance(size, int) and rest and not run.drop_last:
                raise GraphError(
                    f"{declared}, but the last batch of %{name_text(name)} has {counted(rest, 'sample')}",
                    hint="add `drop_last` to the run, or declare the axis with a name such as N",
                )

    # -- runs -------------------------------------------------------------------------------------

    def _run(self, run: RunLine) -> list[Value]:
        """Add the loop of a run, which collects the declared scalar results; return the outputs."""
        lowering = self._lowering
        data = self._data(run, SAMPLES)
        sizes = [*self._sizes(run, data)]
        per_epoch = _steps_per_epoch(run, sizes)
        self._check_declared(run, dict(sizes), complete=_length(run, per_epoch) >= per_epoch)
        # Without data, the run is one epoch; while the sizes are not known, its length is of no use.
        epoch = per_epoch or run.steps or 1
        states = lowering.ordered(lowering.effects[run.graph].updated)
        counter = Value("step", TensorType("i64", ()))
        statements, scalars, tracks = self._call(run, data, counter)
        outputs = [self._fresh(Value(value.name), run.graph) for value in scalars]
        declared = [
            self._fresh(Value(value.name), line.graph)
            for line in run.evaluations
            for value in scalars_of(self._program.graphs[line.graph].outputs)
        ]
        evaluated, blocks = self._evaluations(run, epoch, counter)
        series = [self._fresh(Value(f"{value.name}.steps"), run.graph) for value in declared]
        body = Graph("run", (counter, *states), (*states, *scalars, *evaluated), (*statements, *blocks))
        self._nodes.append(
            Node(
                "while",
                (Literal(_length(run, per_epoch)), *(value.name for value in states)),
                (*states, *outputs, *series),
                {EPOCH: per_epoch, **tracks},
                (body,),
                comment=run.comment,
            )
        )
        for each, value in zip(series, declared, strict=True):
            # The last step of each epoch.
            bounds = (Literal((epoch - 1,)), Literal((_END,)), Literal((0,)), Literal((epoch,)))
            self._nodes.append(Node("Slice", (each.name, *bounds), (value,)))
        return outputs + declared

    def _call(
        self, run: RunLine, data: Sequence[Value], counter: Value
    ) -> tuple[list[Node], tuple[Value, ...], dict[str, Attribute]]:
        """Return the statements of one step, its scalar results, and what the loop says of its tracks."""
        types, graph = self._lowering.types, self._program.graphs[run.graph]
        results = tuple(
            Value(f"{run.graph}.{value.name}", value.type) if value.name in types else value
            for value in graph.outputs
        )
        # An evaluation on the same input reads all its samples, rather than the batch of the step.
        shared = {name for each in run.evaluations if not each.sources for name in each.values}
        batches = [
            self._fresh(Value(f"{name}.batch"), run.graph).name if name in shared else name
            for name in run.values
        ]
        call = self._lowering.statement(Node(f"@{run.graph}", tuple(batches), results))
        outside = self._tracked_data(run)
        more = [self._fresh(Value(f"{value.name}.batch"), run.graph).name for value in outside]
        batch = _batch(run, (*data, *outside), counter.name, [*batches, *more])
        statements = [batch, call] if run.values else [call]
        return statements, scalars_of(results), self._tracks(run, more)

    # -- evaluations ------------------------------------------------------------------------------

    def _evaluations(self, run: RunLine, epoch: int, counter: Value) -> tuple[tuple[Value, ...], list[Node]]:
        """Return the results of the evaluations of a step, and the statements that compute them.

        They are computed in the last step of an epoch; in other steps they are 0, and not used.
        """
        if not run.evaluations:
            return (), []
        found = [self._evaluation(each) for each in run.evaluations]
        results = [value for _, values, _ in found for value in values]
        evaluated = tuple(self._fresh(value, "epoch") for value in results)
        zeros = [Constant(value, Inline(np.zeros((), NUMPY[_dtype(value)]))) for value in evaluated]
        blocks = (
            Graph(
                "",
                outputs=tuple(Value(value.name) for value in results),
                nodes=tuple(node for nodes, _, _ in found for node in nodes),
                constants=tuple(constant for _, _, constants in found for constant in constants),
            ),
            Graph("", outputs=tuple(Value(value.name) for value in evaluated), constants=tuple(zeros)),
        )
        following, rest, ends = (
            self._fresh(Value(f"epoch.{word}"), run.graph) for word in ("next", "rest", "ends")
        )
        return evaluated, [
            Node("Add", (counter.name, Literal(1)), (following,)),
            Node("Mod", (following.name, Literal(epoch)), (rest,)),
            Node("Equal", (rest.name, Literal(0)), (ends,)),
            Node("if", (ends.name,), evaluated, {}, blocks),
        ]

    def _evaluation(self, line: RunLine) -> tuple[list[Node], list[Value], list[Constant]]:
        """Return the loop of an evaluation with the mean of each result, the means, and their weights."""
        updated = self._lowering.ordered(updated_by(self._program, line.graph))
        if updated:
            raise GraphError(
                f"evaluate @{line.graph} updates %{name_text(updated[0].name)}",
                hint="evaluate a graph without `update`, or use `run`",
            )
        data = self._data(line, f"{SAMPLES}_{line.graph}")
        samples = next((size for _, size in self._sizes(line, data)), 0 if data else 1)
        sizes = [*self._sizes(line, data)]
        _steps_per_epoch(line, sizes)
        self._check_declared(line, dict(sizes), complete=True)
        size = line.batch or 1
        counts = [size] * (samples // size) + [samples % size] * (samples % size > 0)
        counter = Value("batch", TensorType("i64", ()))
        statements, scalars, tracks = self._call(line, data, counter)
        results = self._program.graphs[line.graph].outputs
        call = statements[-1]
        # The states that the graph could update in a branch that does not run.
        unused = (Value(""),) * (len(call.outputs) - len(results))
        statements[-1] = replace(call, outputs=(*call.outputs[: len(results)], *unused))
        body = Graph("evaluate", (counter,), scalars, tuple(statements))
        series = [self._fresh(Value(f"{value.name}.batches"), line.graph) for value in scalars]
        nodes = [Node("while", (Literal(len(counts)),), tuple(series), tracks, (body,), comment=line.comment)]
        means: list[Value] = []
        weights: list[Constant] = []
        for value, each in zip(scalars, series, strict=True):
            names = (
                self._fresh(Value(f"{value.name}.{word}"), line.graph) for word in ("weights", "weighted")
            )
            weight, weighted = names
            weights.append(Constant(weight, Inline(_weights(counts, _dtype(value), line.graph))))
            means.append(self._fresh(value, "mean"))
            nodes.append(Node("Mul", (each.name, weight.name), (weighted,)))
            nodes.append(Node("ReduceSum", (weighted.name,), (means[-1],), {"keepdims": 0}))
        return nodes, means, weights


def _length(run: RunLine, per_epoch: int) -> int:
    """Return the number of steps of a run; 0 while the sizes of its data are not known."""
    if not run.values:
        return run.steps or 0
    return min(per_epoch * run.epochs, run.steps or per_epoch * run.epochs)


def _batch(run: RunLine, data: Sequence[Value], counter: str, results: Sequence[str]) -> Node:
    attributes: dict[str, Attribute] = {
        "size": run.batch or 0,
        "shuffle": -1 if run.shuffle is None else run.shuffle,
        "drop_last": int(run.drop_last),
    }
    operands = (counter, *(value.name for value in data))
    return Node(BATCH, operands, tuple(map(Value, results)), attributes)


def _dtype(value: Value) -> str:
    known = tensor_only(value.type)
    assert known is not None  # `scalars_of` has found a scalar.
    return known.dtype


def _weights(counts: Sequence[int], dtype: str, graph: str) -> Array:
    """Return the weights of the batches: the shares of their samples; 1 for integers, which are added."""
    if dtype in FLOATS:
        return (np.array(counts, np.float64) / max(1, sum(counts))).astype(NUMPY[dtype])
    if dtype in ("bool", "str"):
        raise GraphError(
            f"evaluate @{graph} returns a scalar of type {dtype}, which has no mean",
            hint="return a float, or an integer to count",
        )
    return np.ones(len(counts), NUMPY[dtype])


def _steps_per_epoch(run: RunLine, sizes: Sequence[tuple[str, int]]) -> int:
    """Return the number of steps per epoch; 0 while the sizes are not known.

    Raises GraphError if the data have different numbers of samples, or too few for one step.
    """
    if not sizes:
        return 0
    first, count = sizes[0]
    for name, other in sizes:
        if other != count:
            raise GraphError(
                f"%{name_text(first)} has {count} samples, but %{name_text(name)} has {other}",
                hint="give the same number of samples along the first axis",
            )
    return steps_of_epoch(count, run.batch or 1, run.drop_last)
