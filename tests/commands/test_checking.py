"""`check grad`: gradients against differences, kinks, and a wrong gradient rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.engine.divergence.gradient_check import checked_gradient
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.types import Attributes, Types

PROGRAM = """graph @main(%x: f32[2,3], %w: f32[3,N]) -> (%loss: f32[]) {
  %y: f32[2,N] = MatMul(%x, %w)
  %h: f32[2,N] = Relu(%y)
  %s: f32[2,N] = Softmax(%h)
  %loss: f32[] = ReduceSum(%h, keepdims=0)
  %n: i64[2] = ArgMax(%h, axis=1, keepdims=0)
  %f: f32[2,N] = nncdbg.tests.HalfGradient(%h)
  return %loss
}
"""


def _same_types(attributes: Attributes, types: Types) -> Types:
    return types


@op("nncdbg.tests.HalfGradient", infer=_same_types, vjp=lambda emit, at: [at.cotangents[0]])
def half_gradient(xp: Any, x: Any) -> Any:
    """Twice the operand, with a gradient rule that forgets the factor."""
    return x * 2


def ended(size: int = 2) -> nncdbg.Debugger:
    x = np.array([[1.0, 0.5, -2.0], [0.25, -1.0, 3.0]], np.float32)
    w = np.linspace(-1, 1, 3 * size, dtype=np.float32).reshape(3, size)
    x[1] = 0.0
    debugger = nncdbg.Debugger(nncdbg.parse(PROGRAM), {"x": x, "w": w})
    debugger.run()
    return debugger


def test_smooth_gradient_agrees_in_every_element() -> None:
    found = checked_gradient(ended(), "s", "h")
    assert found.ok
    assert [slope.index for slope in found.slopes] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found.worst is not None
    assert found.relative(found.worst) < 1e-7


def test_kink_is_no_error() -> None:
    found = checked_gradient(ended(), "h", "y")
    assert found.ok
    assert [slope.index for slope in found.kinks] == [(1, 0), (1, 1)]
    assert all(abs(slope.below) < 1e-9 and slope.above > 0.4 for slope in found.kinks)


def test_wrong_rule_is_found_although_it_is_linear() -> None:
    found = checked_gradient(ended(), "f", "h")
    assert not found.ok
    assert found.worst is not None
    assert found.relative(found.worst) == pytest.approx(0.5)


def test_large_tensor_is_checked_at_random_elements_and_along_directions() -> None:
    found = checked_gradient(ended(500), "s", "h", seed=1)
    assert found.ok
    assert len(found.slopes) == 256 + 4
    assert [slope.index for slope in found.slopes[-4:]] == [None] * 4
    assert found == checked_gradient(ended(500), "s", "h", seed=1)


TEXTS = {
    "check grad %loss by %h": ["gradient of %loss by %h, f32[2,2]: ok, 4 elements checked in f64"],
    "check grad %h": ["ok, 2 elements checked in f64", "2 elements are at a kink, such as [1, 0]: slopes"],
    "check grad %f": ["gradient of %f by %h, f32[2,2]: wrong, 4 elements"],
    "check grad %n": ["gradient of %n by %h: %n is i64[2], and only floats have derivatives"],
    "check grad %n by %h": ["error: %n is i64[2], and only floats have derivatives"],
    "check grad %x": ["error: no statement of this frame computes %x"],
    "check": ["error: `check` needs arguments: check grad"],
    "check micro": ["error: `check` needs what to check"],
    "check grad %h of %y": ['error: `check grad` cannot read "of %y"'],
}


@pytest.mark.parametrize("command", TEXTS)
def test_command(command: str) -> None:
    debugger = ended()
    try:
        text = nncdbg.execute(debugger, command)
    except nncdbg.NncdbgError as error:
        text = f"error: {error}"
    assert [part for part in TEXTS[command] if part not in str(text)] == [], text


def test_the_run_is_unchanged() -> None:
    debugger = ended()
    before = {name: debugger.value(name).copy() for name in ("h", "s", "loss")}
    tick = debugger.timeline.tick
    checked_gradient(debugger, "loss", "w")
    assert debugger.timeline.tick == tick
    for name, array in before.items():
        np.testing.assert_array_equal(debugger.value(name), array)
