"""Gradients of statements, compared with torch.autograd in f64.

Each row of `torch.txt` has statements, an expression in torch, and the shapes of the operands x, b, c ...
`torch_blocks.txt` has longer programs.
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


def blocks() -> dict[str, tuple[str, list[str], str]]:
    """The programs of `torch_blocks.txt` by name: shapes, statements, and the statements of torch."""
    text = Path(__file__).with_name("torch_blocks.txt").read_text(encoding="utf-8")
    found = {}
    for part in text.split("\n== ")[1:]:
        head, _, rest = part.partition("\n")
        name, shapes = head.split(" | ")
        statements, _, code = rest.partition("\n--\n")
        found[name] = shapes, statements.splitlines(), code
    return found


BLOCKS = blocks()


def test_the_tables_have_at_least_300_different_cases() -> None:
    assert len(set(ROWS)) == len(ROWS)
    assert len(ROWS) + len(BLOCKS) >= 300


@pytest.mark.parametrize(("statement", "expression", "shapes"), ROWS, ids=[row[0] for row in ROWS])
def test_gradient_equals_that_of_torch(statement: str, expression: str, shapes: str) -> None:
    compare(statement.split("; "), f"y = {expression}", shapes)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradient_of_a_program_equals_that_of_torch(name: str) -> None:
    shapes, statements, code = BLOCKS[name]
    compare(statements, code, shapes)


def compare(statements: list[str], code: str, shapes: str) -> None:
    """Compare the gradients of a loss over y by all operands; `code` assigns to y."""
    inputs = random_operands(shapes)
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in inputs.items()}
    scope = {**NAMES, **leaves}
    exec(code, scope)
    y = scope["y"]
    loss = (y * y + y).sum()
    wanted = torch.autograd.grad(loss, list(leaves.values()))
    got = gradients(program_of([*statements, *LOSS], inputs, opset=26), list(inputs), inputs)
    for name, ours, theirs in zip(inputs, got, wanted, strict=True):
        atol = TOLERANCE * max(1.0, float(theirs.abs().max()))
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=atol, err_msg=f"by %{name}")
