"""One differentiable problem for each float op: a node case of ONNX, or a statement of `op_samples.txt`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import nncdbg
from nncdbg.dtypes import name_of
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Program
from nncdbg.text.lexemes import name_text
from nncdbg.textual_repr.parser import parse
from tests.engine.differentiation.node_gradients import (
    COMPUTED,
    Problem,
    op_of,
    problem_of,
    with_loss,
)
from tests.engine.differentiation.operands import random_operands
from tests.engine.differentiation.test_node_gradients import with_gradients

TRIED = 12
"""The number of node cases in which a problem in f64 is searched."""


@cache
def problems() -> dict[str, Problem]:
    """Return the problem of each op."""
    found = {}
    for op, group in groupby(with_gradients(), key=op_of):
        problem = best([each for case in [*group][:TRIED] if (each := problem_of(case)) is not None])
        if problem is not None:
            found[op] = problem
    return {**found, **dict(own_problems())}


def best(candidates: list[Problem]) -> Problem | None:
    """Return the first problem that is computed in f64, else the first one."""
    return next((each for each in candidates if in_f64(each)), candidates[0] if candidates else None)


def in_f64(problem: Problem) -> bool:
    return not problem.rounds and all(problem.inputs[x].dtype == np.float64 for x in problem.xs)


def own_problems() -> Iterator[tuple[str, Problem]]:
    for line in Path(__file__).with_name("op_samples.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            op, statements, shapes = (part.strip() for part in line.split(" | "))
            inputs = random_operands(shapes)
            program = program_of(statements.split("; "), inputs)
            outputs = nncdbg.run(program, inputs=inputs)
            rounds = outputs["y"].dtype != np.float64
            yield op, Problem(op, with_loss(program, {"y": outputs["y"]}), inputs, (*inputs,), rounds=rounds)


def program_of(lines: list[str], inputs: dict[str, Any]) -> Program:
    """A program of these lines that returns ``%y``."""
    signature = ", ".join(f"%{name}: f64{[*array.shape]}" for name, array in inputs.items())
    body = "".join(f"  {line}\n" for line in lines)
    return parse(f"graph @main({signature}) -> (%y) {{\n{body}  return %y\n}}\n")


def disagreements(
    program: Program, inputs: dict[str, Any], xs: tuple[str, ...], results: list[str], *, exact: bool
) -> list[str]:
    """Return the pairs of results and operands by which <Jv, w> and <v, JTw> differ, for random v and w."""
    debugger = nncdbg.Debugger(program, inputs=inputs, statistics=False)
    assert debugger.run().reason == "end"
    generator = np.random.default_rng(3)
    wrong = []
    for y in results:
        for x in xs:
            values = [debugger.value(f"%{name_text(name)}") for name in (x, y)]
            v, w = (generator.standard_normal(each.shape).astype(each.dtype) for each in values)
            debugger.values.convenience.update(v=v, w=w)
            try:
                along = debugger.evaluate(f"jvp(%{name_text(y)}, %{name_text(x)}, $v)")
                back = debugger.evaluate(f"vjp(%{name_text(y)}, %{name_text(x)}, $w)")
            except NncdbgError as error:
                if "does not depend" not in error.message:
                    wrong.append(f"%{y} by %{x}: {error.message}")
                continue
            left, right = (each.astype(np.float64) for each in (along * w, v * back))
            scale = max(np.abs(left).sum(), np.abs(right).sum(), 1e-300)
            if not abs(left.sum() - right.sum()) <= (1e-12 if exact else 1e-6) * scale:
                wrong.append(f"%{y} by %{x}: {left.sum()} is not {right.sum()}")
    return wrong


def float_results(program: Program, inputs: dict[str, Any]) -> list[str]:
    """Return the names of the float results of the op's statement, the last before the loss."""
    debugger = nncdbg.Debugger(program, inputs=inputs, statistics=False)
    debugger.run()
    weighted = [node.inputs[0] for node in program.graphs[program.entry].nodes if weighs(node)]
    return [
        str(name)
        for name in weighted
        if name_of(debugger.value(f"%{name_text(str(name))}").dtype) in COMPUTED
    ]


def weighs(node: Any) -> bool:
    """Whether a statement of the loss multiplies a result by its weights."""
    return node.op == "Mul" and len(node.inputs) == 2 and node.inputs[1] == f"{node.inputs[0]}_weights"
