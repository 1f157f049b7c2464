"""Programs with a planted fault: the labelled corpora, and sound programs with one bad element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import nncdbg
from nncdbg.ir.records import Array, Constant, Inline, Program, StateLine
from nncdbg.nan_watch.measuring.gates import USUAL
from tests.bugs.labels import INNOCENT, NOTHING, ROOT, SECOND, Bug, corpus

EXAMPLES = Path(__file__).parents[2] / "examples"

SOUND = ("attention", "first_steps", "refine_loop", "train_mlp", "train_cnn", "train_transformer")
"""Examples without a fault."""

MOST_PER_PROGRAM = 4
"""Constants of one program that get a bad element."""


@dataclass(frozen=True, eq=False)
class Case:
    """A program with a fault and its inputs; `bug` is its label, if it is of a corpus."""

    name: str
    program: Program
    bug: Bug | None = None
    bad_inputs: Mapping[str, Array] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        return {**(self.bug.inputs() if self.bug is not None else {}), **self.bad_inputs}

    @property
    def gates(self) -> tuple[str, ...]:
        return USUAL if self.bug is None else self.bug.label.gates

    @property
    def strict(self) -> bool:
        """Whether the fault has no effect on an output, so that only a strict watch reports it."""
        return self.bug is not None and self.bug.label.reaches == NOTHING and "overflow" not in self.gates

    def kernels(self) -> AbstractContextManager[None]:
        return nullcontext() if self.bug is None else self.bug.kernels()


def with_bad_element(array: Array, value: float) -> Array:
    """Return a copy of an array with one bad element in its middle."""
    changed = np.array(array)
    changed.reshape(-1)[changed.size // 2] = value
    return changed


def _is_data(content: Any) -> bool:
    return isinstance(content, Inline) and content.array.dtype.kind == "f" and content.array.size > 1


def _bad_constants(program: Program, value: float) -> Iterator[tuple[str, Program]]:
    """Yield the program with a bad element in each constant of a graph."""
    for name, graph in program.graphs.items():
        for number, constant in enumerate(graph.constants):
            if _is_data(constant.data):
                assert isinstance(constant.data, Inline)
                bad = Constant(constant.value, Inline(with_bad_element(constant.data.array, value)))
                constants = (*graph.constants[:number], bad, *graph.constants[number + 1 :])
                graphs = {**program.graphs, name: replace(graph, constants=constants)}
                yield f"{name}.{constant.value.name}", replace(program, graphs=graphs, listing=None)


def _bad_states(program: Program, value: float) -> Iterator[tuple[str, Program]]:
    """Yield the program with a bad element in each state that begins with data."""
    for number, state in enumerate(program.states):
        if _is_data(state.first):
            assert isinstance(state.first, Inline)
            bad = StateLine(state.value, Inline(with_bad_element(state.first.array, value)), state.of)
            states = (*program.states[:number], bad, *program.states[number + 1 :])
            yield state.value.name, replace(program, states=states, listing=None)


def _bad_inputs(program: Program, value: float) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield the inputs of a program with a bad element in each of them."""
    drawn = nncdbg.Debugger(program, allocator="plain", statistics=False).inputs
    for name, array in drawn.items():
        if array.dtype.kind == "f" and array.size:
            yield name, {name: with_bad_element(array, value)}


def injected() -> Iterator[Case]:
    """Yield sound programs with a NaN or an Inf in a constant, a state or an input."""
    sound = {name: nncdbg.load(EXAMPLES / f"{name}.nnc") for name in SOUND}
    controls = [bug for root in (ROOT, SECOND) for bug in corpus(root) if bug.label.expect == NOTHING]
    sound |= {f"{INNOCENT}/{bug.path.stem}": bug.program for bug in controls[::7] if not bug.label.libraries}
    for name, program in sound.items():
        for value in (np.nan, np.inf):
            for make in (_bad_constants, _bad_states):
                for where, changed in islice(make(program, value), MOST_PER_PROGRAM):
                    yield Case(f"{name}, {value} in %{where}", changed)
            for where, given in islice(_bad_inputs(program, value), MOST_PER_PROGRAM):
                yield Case(f"{name}, {value} in input %{where}", program, bad_inputs=given)


def labelled() -> Iterator[Case]:
    """Yield the faults of both corpora."""
    for root in (ROOT, SECOND):
        for bug in corpus(root):
            if not bug.label.innocent:
                yield Case(f"{root.name}/{bug}", bug.program, bug)


def cases() -> list[Case]:
    """Return all planted faults."""
    return [*labelled(), *injected()]
