"""Gradients of statements, compared with torch.autograd in f64.

Each row of `torch.txt` has statements, an expression in torch, and the shapes of the operands x, b, c.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.differentiation.gradients import gradients, program_of
from tests.engine.differentiation.operands import random_operands

torch = pytest.importorskip("torch")

TOLERANCE = 1e-10


def rows() -> Iterator[tuple[str, str, str]]:
    lines = Path(__file__).with_name("torch.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            statement, expression, shapes = (part.strip() for part in line.split(" | "))
            yield statement, expression, shapes


ROWS = list(rows())


NAMES = {
    "torch": torch,
    "F": torch.nn.functional,
    "reduce": functools.reduce,
    "accumulate": itertools.accumulate,
    "repeat": itertools.repeat,
}

LOSS = ["%square = Mul(%y, %y)", "%both = Add(%square, %y)", "%loss = ReduceSum(%both, keepdims=0)"]


def test_the_table_has_at_least_100_rows() -> None:
    assert len(set(ROWS)) == len(ROWS) >= 100


@pytest.mark.parametrize(("statement", "expression", "shapes"), ROWS, ids=[row[0] for row in ROWS])
def test_gradient_equals_that_of_torch(statement: str, expression: str, shapes: str) -> None:
    inputs = random_operands(shapes)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in inputs.items()}
    y = eval(expression, {**NAMES, **leaves})
    loss = (y * y + y).sum()
    wanted = torch.autograd.grad(loss, list(leaves.values()))
    got = gradients(program_of([*statement.split("; "), *LOSS], inputs, opset=24), list(inputs), inputs)
    for name, ours, theirs in zip(inputs, got, wanted, strict=True):
        atol = TOLERANCE * max(1.0, float(theirs.abs().max()))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=atol, err_msg=f"by %{name}")
