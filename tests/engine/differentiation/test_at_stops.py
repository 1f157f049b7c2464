"""Derivatives in expressions: against `backward` lines, finite differences and laws, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import NncdbgError

MLP = """graph @main(%x: f64[2,3], %w: f64[3,2], %b: f64[2]) -> (%loss: f64[]) {
  %h: f64[2,2] = @layer(%x, %w)
  %z: f64[2,2] = Add(%h, %b)
  %i: i64[2] = ArgMax(%z, axis=1, keepdims=0)
  %q: f64[2,2] = Mul(%z, %z)
  %loss: f64[] = ReduceSum(%q, keepdims=0)
  return %loss
}

graph @layer(%in: f64[2,3], %w: f64[3,2]) -> (%out: f64[2,2]) {
  %y: f64[2,2] = MatMul(%in, %w)
  %t: f64[2,2] = Tanh(%y)
  %out: f64[2,2] = Neg(%t)
  return %out
}
"""

LOOP = """graph @main(%x: f64[3], %n: i64[]) -> (%r: f64[3]) {
  %c: f64[3] = Mul(%x, 2.0)
  while @body (%s: f64[3] = %c) count %i: i64[] times %n {
    %t: f64[3] = Mul(%s, %x)
    %u: f64[3] = Add(%t, %c)
    next %s = %u
  } -> (%r = %s)
  return %r
}
"""

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
INPUTS = {"x": X, "w": np.linspace(-0.4, 0.6, 6).reshape(3, 2), "b": np.array([0.1, -0.2])}


def stopped(text: str, inputs: dict[str, Any], line: int | None = None, **options: Any) -> nncdbg.Debugger:
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs=inputs, **options)
    if line is not None:
        debugger.break_at(line=line)
    debugger.run()
    return debugger


def difference(text: str, inputs: dict[str, Any], y: str, x: str) -> Any:
    """Return the gradient of the sum of an output by an input, by two-sided differences."""
    found = np.zeros(inputs[x].shape)
    for index in np.ndindex(*found.shape):
        sides = []
        for step in (1e-6, -1e-6):
            near = inputs[x].copy()
            near[index] += step
            sides.append(stopped(text, {**inputs, x: near}).value(y).sum())
        found[index] = (sides[0] - sides[1]) / 2e-6
    return found


def test_gradient_by_inputs_goes_through_calls() -> None:
    debugger = stopped(MLP, INPUTS)
    for name in INPUTS:
        gradient = debugger.evaluate(f"grad(%loss, %{name})")
        np.testing.assert_allclose(gradient, difference(MLP, INPUTS, "loss", name), rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(debugger.evaluate("grad(%loss, %h)"), 2 * debugger.value("z"))
    np.testing.assert_array_equal(debugger.evaluate("grad(%z, %h)"), np.ones((2, 2)))


def test_second_derivatives_nest() -> None:
    debugger = stopped(MLP, INPUTS)
    np.testing.assert_array_equal(debugger.evaluate("grad(grad(%loss, %z), %z)"), np.full((2, 2), 2.0))
    np.testing.assert_array_equal(debugger.evaluate("grad(grad(%z, %b), %b)"), np.zeros(2))
    np.testing.assert_array_equal(debugger.evaluate("hvp(%loss, %b, [1, 0])"), [4.0, 0.0])
    nested = debugger.evaluate("vjp(grad(%loss, %w), %w, %w)")
    np.testing.assert_array_equal(debugger.evaluate("hvp(%loss, %w, %w)"), nested)
    sides = []
    for step in (1e-5, -1e-5):
        w = INPUTS["w"] * (1 + step)
        sides.append(stopped(MLP, {**INPUTS, "w": w}).evaluate("grad(%loss, %w)"))
    np.testing.assert_allclose(nested, (sides[0] - sides[1]) / 2e-5, rtol=1e-7)


def test_gradient_inside_a_call_reaches_values_of_the_caller() -> None:
    debugger = stopped(MLP, INPUTS, line=13)
    assert debugger.frames[0].code.graph.name == "layer"
    np.testing.assert_array_equal(debugger.evaluate("grad(%t, %x)"), debugger.evaluate("grad(%t, %in)"))
    by_hand = (1 - debugger.value("t") ** 2) @ INPUTS["w"].T
    np.testing.assert_allclose(debugger.evaluate("grad(%t, %x)"), by_hand, rtol=1e-14)


def test_gradient_inside_a_loop() -> None:
    inputs = {"x": np.array([1.0, -2.0, 0.5]), "n": np.array(2)}
    debugger = stopped(LOOP, inputs, line=6)
    np.testing.assert_array_equal(debugger.evaluate("grad(%u, %s)"), inputs["x"])
    np.testing.assert_array_equal(debugger.evaluate("grad(%u, %x)"), 4 * inputs["x"] + 2)
    np.testing.assert_array_equal(debugger.evaluate("grad(%u, %c)"), inputs["x"] + 1)
    debugger.run()
    np.testing.assert_array_equal(debugger.evaluate("grad(%u, %s)"), inputs["x"])
    with pytest.raises(NncdbgError, match="while \\(an earlier iteration computed the value\\)"):
        debugger.evaluate("grad(%u, %x)")


def test_gradient_over_a_loop_that_has_ended() -> None:
    inputs = {"x": np.array([1.0, -2.0, 0.5]), "n": np.array(3)}
    gradient = stopped(LOOP, inputs).evaluate("grad(%r, %x)")
    np.testing.assert_allclose(gradient, difference(LOOP, inputs, "r", "x"), rtol=1e-7)


def test_gradient_is_that_of_edited_values() -> None:
    debugger = stopped(MLP, INPUTS, line=6)
    debugger.set_value("%z", 3.0, index=(0, 0))
    debugger.step_over()
    assert debugger.evaluate("grad(%loss, %z)")[0, 0] == 6.0


def test_a_state_counts_with_all_its_uses_and_equals_the_backward_line() -> None:
    debugger = nncdbg.Debugger("examples/train_mlp.nnc")
    debugger.break_at(line=20, when="$step == 2")
    debugger.run()
    for name in ("w1", "b1", "w2"):
        np.testing.assert_array_equal(debugger.evaluate(f"grad(%l, %{name})"), debugger.value(f"d_{name}"))
    debugger.step_over()
    with pytest.raises(NncdbgError, match="%l does not depend on %w1"):
        debugger.evaluate("grad(%l, %w1)")  # The name means the updated state, which is newer than the loss.


def test_the_run_is_the_same_with_gradients_in_conditions() -> None:
    text = MLP.replace("Neg(%t)", "Dropout(%t, 0.5, true, seed=3)")
    plain = stopped(text, INPUTS)
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs=INPUTS)
    condition = "norm(grad(%q, %b)) > 1e9"
    debugger.break_at(line=6, when=condition)
    debugger.watch_value("%loss", when="norm(grad(%loss, %h)) > 0")
    stop = debugger.run()
    assert stop.reason == "data"
    ticks = debugger.timeline.tick
    debugger.evaluate("grad(%loss, %h)")
    assert debugger.timeline.tick == ticks
    debugger.run()
    assert debugger.outputs is not None
    np.testing.assert_array_equal(debugger.outputs["loss"], plain.value("loss"))


@pytest.mark.parametrize("allocator", ["debug", "plain"])
def test_gradient_with_an_allocator(allocator: str) -> None:
    debugger = stopped(MLP, INPUTS, allocator=allocator)
    np.testing.assert_array_equal(debugger.evaluate("grad(%loss, %h)"), 2 * debugger.value("z"))


ERRORS = {
    "grad(%loss, %i)": "%i is i64[2], and only floats have derivatives",
    "grad(%h, %z)": "%h does not depend on %z by differentiable statements",
    "grad(%loss, %t)": "the statements that use %t are in a block that has ended",
    "grad(%loss + 1, %h)": "`grad` needs the name of a value",
    "grad(%loss, 2)": "`grad` needs the name of a value",
    "jvp(%z, %h, [1, 2, 3])": "the vector of `jvp` has the shape [3], but %h is f64[2,2]",
    "hvp(%loss, %h, 'a')": "the vector of `hvp` must have numbers",
    "vjp(%loss, %h)": "`vjp` needs its argument `cotangent`",
}


@pytest.mark.parametrize("text", ERRORS)
def test_error(text: str) -> None:
    with pytest.raises(NncdbgError) as caught:
        stopped(MLP, INPUTS).evaluate(text)
    assert caught.value.message.startswith(ERRORS[text])
    assert caught.value.excerpt is not None


def test_a_value_that_is_not_computed() -> None:
    with pytest.raises(nncdbg.NotComputed, match="%loss is not computed yet"):
        stopped(MLP, INPUTS, line=4).evaluate("grad(%loss, %h)")


def test_all_ops_without_a_gradient_are_listed() -> None:
    text = """graph @main(%x: f32[2,2]) -> (%y: f32[]) {
  %a: f32[2,2] = com.example.First(%x)
  %b: f32[2,2] = com.example.Second(%x)
  %c: f32[2,2] = Add(%a, %b)
  %y: f32[] = ReduceSum(%c, keepdims=0)
  return %y
}
"""
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs={"x": np.ones((2, 2), np.float32)})
    for name in "ab":
        debugger.run()
        debugger.set_value(f"%{name}", 1.0)
    debugger.run()
    with pytest.raises(NncdbgError, match="2 ops: line 3: com.example.Second; line 2: com.example.First"):
        debugger.evaluate("grad(%y, %x)")
