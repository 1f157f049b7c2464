"""The effect that a watch of a training reports equals that of a run with the value changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.divergence.casting import cast_program
from nncdbg.ir.records import Program, Value
from nncdbg.nan_watch.records import Report, WatchFinding
from tests.nan_watch.training_corpus import corpus

EXAMPLES = Path(__file__).parents[3] / "examples"


ONLY_RETURNED = """opset 21
state %w: f32[3] = [1, 0, 2]

graph @train() -> (%l, %d_w) {
  %l, saved %s = @loss()
  %d_w = @loss.backward(1.0, %s)
  return %l, %d_w
}

graph @loss() -> (%l) {
  %root = Sqrt(%w)
  %terms = Mul(%root, 2.0)
  %l = ReduceSum(%terms, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

run @train steps 3
"""
"""The derivative of the root is infinite at 0. No state uses the gradient, and no result has a type."""


def without_types(program: Program) -> Program:
    """Return a program whose steps declare no types of their results."""
    graphs = dict(program.graphs)
    for run in program.runs:
        graph = graphs[run.graph]
        names = {value.name for value in graph.outputs}
        nodes = tuple(
            replace(
                node, outputs=tuple(Value(each.name) if each.name in names else each for each in node.outputs)
            )
            for node in graph.nodes
        )
        outputs = tuple(Value(value.name) for value in graph.outputs)
        graphs[run.graph] = replace(graph, outputs=outputs, nodes=nodes)
    return replace(program, graphs=graphs, listing=None)


def trainings() -> Iterator[tuple[str, Program, Mapping[str, Any]]]:
    example = nncdbg.load(EXAMPLES / "train_mlp_nan.nnc")
    yield "train_mlp_nan", example, {}
    yield "train_mlp_nan in f16", cast_program(example, "f16"), {}
    for each in corpus():
        if each.path.parent.name in ("data", "faulty_op"):
            yield str(each), nncdbg.parse(each.text), each.inputs()


def origins(report: Report) -> list[tuple[Any, ...]]:
    found = [each for each in report.findings if each.role in ("birth", "masked")]
    return sorted((each.kind, each.role, each.value, each.cause, each.reaches_output) for each in found)


def differs(program: Program, inputs: Mapping[str, Any], finding: WatchFinding) -> bool:
    """Whether a state or a result of the program differs if the bad elements of the value are finite."""
    ends: list[Mapping[str, Any]] = []
    for edited in (False, True):
        debugger = nncdbg.Debugger(program, inputs)
        debugger.uncatch()
        debugger.catch(finding.kind)
        while (stop := debugger.run()).reason != "end":
            if edited and stop.line == finding.line:
                value = np.array(debugger.value(finding.value))
                value[~np.isfinite(value)] = 0.5
                debugger.set_value(finding.value, value)
        ends.append({**debugger.states, **(debugger.outputs or {})})
    return any(not np.array_equal(each, ends[1][name], equal_nan=True) for name, each in ends[0].items())


@pytest.mark.parametrize(("program", "inputs"), [pytest.param(*each, id=name) for name, *each in trainings()])
def test_results_without_a_type_do_not_change_the_effect(program: Program, inputs: Mapping[str, Any]) -> None:
    reported = nncdbg.watch(program, inputs)
    assert origins(nncdbg.watch(without_types(program), inputs)) == origins(reported)
    found = [each for each in reported.findings if each.role in ("birth", "masked") and each.line]
    steps = max((each.at_step.step + 1 for each in found if each.at_step is not None), default=1)
    short = replace(program, runs=tuple(replace(run, steps=steps) for run in program.runs))
    for finding in found:
        if finding.role == "masked":
            assert not differs(short, inputs, finding), str(finding)
    if len(found) == 1 and found[0].role == "birth":
        assert differs(short, inputs, found[0]), str(found[0])


def test_a_gradient_that_is_only_returned_is_an_output() -> None:
    report = nncdbg.watch(nncdbg.parse(ONLY_RETURNED))
    assert report.status == "tripped"
    assert all(each.reaches_output for each in report.findings if each.role in ("birth", "masked"))
