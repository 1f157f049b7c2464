"""`backward`: gradients as statements of the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nncdbg
from tests.presence import present

RNG = np.random.default_rng(1)
X = RNG.normal(size=(5, 4))
W = RNG.normal(size=(4, 3)) * 0.5
B = RNG.normal(size=3) * 0.5

Compute = Callable[[nncdbg.Eager, Any, Any, Any], nncdbg.EagerVariable]


def perceptron(g: nncdbg.Eager, x: Any, w: Any, b: Any) -> nncdbg.EagerVariable:
    h = g.Tanh(x @ w + b)
    return g.ReduceMean(h * h, keepdims=0)


def normalized(g: nncdbg.Eager, x: Any, w: Any, b: Any) -> nncdbg.EagerVariable:
    y = g.Softmax(g.Gemm(x, w, b, alpha=0.5), axis=1)
    return g.ReduceSum(g.Log(y + 0.1), keepdims=0)


def split_and_shared(g: nncdbg.Eager, x: Any, w: Any, b: Any) -> nncdbg.EagerVariable:
    first, second = g.several("Split", x @ w, [1, 2], names=[None, None], axis=1)
    return g.ReduceSum(g.Sigmoid(first) * second - g.ReduceMax(w, keepdims=0), keepdims=0) / 3.0


def numeric(compute: Compute, data: list[np.ndarray[Any, Any]], which: int) -> np.ndarray[Any, Any]:
    """Return the gradient by central differences."""
    found = np.zeros_like(data[which])
    for place in np.ndindex(found.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [each.copy() for each in data]
            moved[which][place] += step
            g = nncdbg.eager()
            ends.append(compute(g, *(g.input("v", each) for each in moved)).item())
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("compute", [perceptron, normalized, split_and_shared])
def test_gradients_are_those_of_finite_differences(compute: Compute, lazy: bool) -> None:
    """D5: the gradients equal finite differences."""
    g = nncdbg.eager(lazy=lazy)
    x = g.input("x", X)
    w = g.input("w", W, requires_grad=True)
    b = g.input("b", B, requires_grad=True)
    compute(g, x, w, b).backward()
    assert x.grad is None
    for which, variable in ((1, w), (2, b)):
        if variable.grad is None:
            assert compute is split_and_shared
            continue
        np.testing.assert_allclose(variable.grad.value, numeric(compute, [X, W, B], which), atol=1e-7)


def test_the_backward_statements_are_part_of_the_trace() -> None:
    """D5: the statements of the gradient can be stepped."""
    g = nncdbg.eager()
    w = g.input("w", np.array([1.0, -2.0], np.float32), requires_grad=True)
    h = w * 3.0
    loss = g.ReduceSum(g.Relu(h), keepdims=0)
    loss.backward()
    grad = w.grad
    assert grad is not None
    assert grad.name == "d_w"
    debugger = nncdbg.Debugger(g.program)
    debugger.break_at(value="%d_w")
    debugger.run()
    debugger.step_over()
    assert debugger.value("%d_w").tolist() == grad.value.tolist() == [3.0, 0.0]
    forward = next(node for node in g.program.graph.nodes if node.outputs[0].name == "h")
    backward = next(node for node in g.program.graph.nodes if node.outputs[0].name == "d_w")
    assert backward.location == forward.location


def test_gradients_add_up_until_they_are_reset() -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones(2, np.float32), requires_grad=True)
    for _ in range(2):
        g.ReduceSum(w * 3.0, keepdims=0).backward()
    assert w.grad is not None
    assert w.grad.value.tolist() == [6.0, 6.0]
    w.grad = None
    g.ReduceSum(w * 3.0, keepdims=0).backward()
    assert np.asarray(w.grad).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_training_reduces_its_loss(recorded: bool) -> None:
    """D8: with `no_grad`, a training step leaves no statement."""
    g = nncdbg.eager()
    target = X @ W + B
    w = g.input("w", np.zeros_like(W), requires_grad=True)
    b = g.input("b", np.zeros_like(B), requires_grad=True)
    losses, statements = [], []
    for _ in range(30):
        error = g.input("x", X) @ w + b - g.input("t", target)
        loss = g.ReduceMean(error * error, keepdims=0)
        loss.backward()
        losses.append(loss.item())
        with contextlib.nullcontext() if recorded else g.no_grad():
            w -= present(w.grad) * 0.3
            b -= present(b.grad) * 0.3
        w.grad = b.grad = None
        statements.append(g.statements)
    assert losses[-1] < 0.05 * losses[0]
    if recorded:
        # The trace is the whole training, and runs to the same parameters.
        outputs = nncdbg.run(g.program)
        assert outputs[w.name].tobytes() == w.value.tobytes()
    else:
        assert statements[-1] == statements[1]


def test_equal_steps_share_one_gradient_graph() -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones(2, np.float32), requires_grad=True)
    for _ in range(4):
        h = w * 2.0
        g.ReduceSum(g.Exp(h), keepdims=0).backward()
        w.grad = None
    assert len(g._execution.gradients) == 1


def test_no_grad_leaves_no_statement() -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones(2, np.float32), requires_grad=True)
    with g.no_grad():
        y = w * 2.0
    assert not y.requires_grad
    assert g.statements == 0
    z = y + 1.0
    assert [value.name for value in g.program.graph.inputs] == ["w", "y"]
    assert nncdbg.run(g.program)["z"].tobytes() == z.value.tobytes()


def test_requires_grad_can_be_removed() -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones(2, np.float32), requires_grad=True)
    w.requires_grad = False
    assert not (w * 2.0).requires_grad


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda g, w: w * 2.0, "backward needs one float, not f32"),
        (lambda g, w: g.ReduceSum(g.input("x", X), keepdims=0), "no variable with requires_grad"),
        (lambda g, w: g.ReduceSum(g.BitCast(w, to=1), keepdims=0), "without a gradient: BitCast: "),
    ],
)
def test_wrong_gradients_are_refused_at_their_line(compute: Any, message: str) -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones((2, 2), np.float32), requires_grad=True)
    loss = compute(g, w)
    with pytest.raises(nncdbg.NncdbgError, match=message) as caught:
        loss.backward()
    assert caught.value.excerpt is not None
    assert "loss.backward()" in caught.value.excerpt.text


def test_integers_have_no_gradient() -> None:
    g = nncdbg.eager()
    w = g.input("w", np.ones((2, 2), np.float32), requires_grad=True)
    loss = g.ReduceSum(w * g.Cast(g.ArgMax(w, axis=1, keepdims=0), to=1), keepdims=0)
    loss.backward()
    assert np.asarray(w.grad).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_only_floats_require_a_gradient() -> None:
    g = nncdbg.eager()
    with pytest.raises(nncdbg.UsageError, match=r"%n is i64\[2\], and has no gradient"):
        g.input("n", np.array([1, 2]), requires_grad=True)
