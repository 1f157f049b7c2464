"""Laws of derivatives on every differentiable op, and on every program with branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nncdbg.engine.differentiation.differentiability import differentiability, takes_and_gives_floats
from nncdbg.engine.ops.schema import schema_names
from nncdbg.ir.records import Constant, Graph, Inline, Node, Program, Value, type_of
from tests.engine.differentiation.every_op import disagreements, float_results, in_f64, problems
from tests.engine.differentiation.gradients import differences, run, with_gradient
from tests.engine.differentiation.gradients import program_of as loss_program
from tests.engine.differentiation.node_gradients import compare, gradient_of
from tests.engine.differentiation.test_control_flow import INPUTS, PROGRAMS
from tests.engine.differentiation.test_node_gradients import KNOWN

CHUNKS = 8

OPS = "op "
"""The start of an exception in `known.txt` that is for an op rather than for cases."""

KNOWN_OPS = {pattern.removeprefix(OPS) for pattern in KNOWN if pattern.startswith(OPS)}


def chunk_of(number: int) -> list[str]:
    return sorted(problems())[number::CHUNKS]


def test_every_differentiable_op_is_compared() -> None:
    """R1: all float ops with a gradient have a numeric check; exceptions have a reason in `known.txt`."""
    names = [name for name in schema_names(["", "ai.onnx.ml"]) if takes_and_gives_floats(name)]
    differentiable = {name for name in names if differentiability(name).kind not in ("none", "zero")}
    assert differentiable - problems().keys() == KNOWN_OPS
    assert len(differentiable - KNOWN_OPS) >= 150


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_forward_and_reverse_mode_agree_on_every_op(chunk: int) -> None:
    """R8: <Jv, w> = <v, Jᵀw> for each float result by each float operand."""
    wrong = {}
    for op in chunk_of(chunk):
        each = problems()[op]
        results = float_results(each.program, each.inputs)
        found = disagreements(each.program, each.inputs, each.xs, results, exact=in_f64(each))
        if found or not results:
            wrong[op] = found
    assert wrong == {}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_second_derivatives_of_every_op(chunk: int) -> None:
    """R6: the gradient of the weighted gradient by each operand equals two-sided differences of it."""
    wrong = {}
    for op in chunk_of(chunk):
        for x in problems()[op].xs:
            found = compare(gradient_of(problems()[op], x)).wrong
            if found:
                wrong[f"{op} by %{x}"] = found
    assert wrong == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_forward_and_reverse_mode_agree_on_branches_and_loops(name: str) -> None:
    """R8: <Jv, w> = <v, Jᵀw> for programs with blocks."""
    program = loss_program(PROGRAMS[name], INPUTS)
    assert disagreements(program, INPUTS, ("x", "w"), ["loss"], exact=True) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_derivatives_of_branches_and_loops(name: str) -> None:
    """R6: gradients of the backward graphs of branches and loops, by all pairs of operands."""
    program = loss_program(PROGRAMS[name], INPUTS)
    for x in ("x", "w"):
        weights = np.array([0.75, -1.25, 0.5])
        outer = weighted_gradient(program, x, weights)
        got = run(with_gradient(outer, ["x", "w"], y="outer"), INPUTS)

        def inner(inputs: Any, outer: Program = outer) -> float:
            return float(run(outer, inputs)["outer"])

        for by in ("x", "w"):
            wanted = differences(inner, by, INPUTS)
            np.testing.assert_allclose(got[f"g_outer_{by}"], wanted, rtol=2e-5, atol=2e-6)


def weighted_gradient(program: Program, x: str, weights: Any) -> Program:
    """Return the program with the output `outer`: the gradient of the loss by ``%x``, weighted, summed."""
    once = with_gradient(program, [x])
    main = once.graphs[once.entry]
    nodes = (
        *main.nodes,
        Node("Mul", (f"g_loss_{x}", "weights"), (Value("weighted"),)),
        Node("ReduceSum", ("weighted",), (Value("outer"),), {"keepdims": 0}),
    )
    constant = Constant(Value("weights", type_of(weights)), Inline(weights))
    made = Graph(main.name, main.inputs, (Value("outer"),), nodes, (*main.constants, constant))
    return Program({**once.graphs, main.name: made}, once.entry, opsets=once.opsets)
