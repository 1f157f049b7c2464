"""R6, in text: `backward` lines of graphs that compute gradients, compared with torch.autograd in f64."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError
from tests.engine.differentiation.gradients import differences
from tests.engine.differentiation.test_control_flow import INPUTS, PROGRAMS

torch = pytest.importorskip("torch")

PENALTY = """opset 18
state %w: f64[3,4] = RandomNormal(dtype=11, seed=1.0, shape=[3,4])
state %b: f64[4] = [0.1, -0.2, 0.3, 0.4]
state %v: f64[4,1] = RandomNormal(dtype=11, seed=2.0, shape=[4,1])

graph @train(%x: f64[N,3]) -> (%l: f64[], %d_w, %d_b, %d_v) {
  %l: f64[], saved %s = @penalty(%x)
  %d_w: f64[3,4], %d_b: f64[4], %d_v: f64[4,1] = @penalty.backward(1.0, %s)
  return %l, %d_w, %d_b, %d_v
}

graph @penalty(%x: f64[N,3]) -> (%l: f64[]) {
  %score: f64[], saved %c = @critic(%x)
  %g: f64[N,3] = @critic.backward(1.0, %c)
  %norm = ReduceL2(%g, [1], keepdims=0)
  %e = Sub(%norm, 1.0)
  %q = Mul(%e, %e)
  %m = ReduceMean(%q, keepdims=0)
  %l: f64[] = Sub(%m, %score)
  return %l
}

graph @critic(%x: f64[N,3]) -> (%score: f64[]) {
  %h = @layer(%x)
  %y = MatMul(%h, %v)
  %score: f64[] = ReduceSum(%y, keepdims=0)
  return %score
}

graph @layer(%x: f64[N,3]) -> (%h: f64[N,4]) {
  %z = MatMul(%x, %w)
  %z2 = Add(%z, %b)
  %h: f64[N,4] = Tanh(%z2)
  return %h
}

backward @critic.backward of @critic by (%x)
backward @penalty.backward of @penalty by (%w, %b, %v)
"""

B: Any = torch.tensor([0.1, -0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)

PLAIN = "  %h: f64[N,4] = Tanh(%z2)\n"

BLOCKS = {
    "straight": (PLAIN, lambda z: torch.tanh(z)),
    "if": (
        "  %sum = ReduceSum(%x, keepdims=0)\n  %go = Less(%sum, 1000.0)\n"
        "  if %go @pick {\n    %y = Mul(%z2, %z2)\n    %k = Mul(%y, %b)\n    yield %k\n"
        "  } else {\n    yield %z2\n  } -> (%h)\n",
        lambda z: z * z * B,
    ),
    "while": (
        "  while @grow (%a: f64[N,4] = %z2) count %i times 3 {\n    %s = Sin(%a)\n    %a.1 = Mul(%s, %b)\n"
        "    next %a = %a.1\n  } -> (%h: f64[N,4] = %a)\n",
        lambda z: torch.sin(torch.sin(torch.sin(z) * B) * B) * B,
    ),
}
"""The last statements of @layer, and the same in torch; B is %b."""

X = np.random.default_rng(0).normal(size=(5, 3))


def run(text: str, **inputs: Any) -> tuple[nncdbg.Debugger, Any]:
    debugger = nncdbg.Debugger(nncdbg.parse(text), inputs)
    assert debugger.run().reason == "end"
    return debugger, debugger.outputs


def in_torch(debugger: nncdbg.Debugger, last: Callable[[Any], Any]) -> tuple[float, list[Any]]:
    """The loss of PENALTY in torch, and its gradients."""
    w, v = (torch.tensor(np.array(debugger.value(name)), requires_grad=True) for name in "wv")
    x = torch.tensor(X, requires_grad=True)
    score = (last(x @ w + B) @ v).sum()
    (gradient,) = torch.autograd.grad(score, x, create_graph=True)
    loss = ((gradient.norm(dim=1) - 1) ** 2).mean() - score
    return loss.item(), [each.numpy() for each in torch.autograd.grad(loss, (w, B, v))]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_gradient_penalty_has_the_gradients_of_torch(block: str) -> None:
    """R5, R6: also with a branch or a loop in the graph that is differentiated twice."""
    statements, last = BLOCKS[block]
    debugger, outputs = run(PENALTY.replace(PLAIN, statements), x=X)
    loss, gradients = in_torch(debugger, last)
    assert outputs["l"] == pytest.approx(loss, rel=1e-12)
    for name, expected in zip(("d_w", "d_b", "d_v"), gradients, strict=True):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("checkpoints", [1, 2, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_second_derivatives_by_lines_equal_differences(name: str, checkpoints: int | None) -> None:
    """R6: also of backward loops that carry sequences and sequences of sequences, D12: and checkpoints."""
    kept = "" if checkpoints is None else f" checkpoints {checkpoints}"
    lines = "".join(f"  {line}\n" for line in PROGRAMS[name])
    text = f"""opset 21

graph @main(%x: f64[3], %w: f64[3]) -> (%l, %d_x, %d_w) {{
  %l: f64[], saved %s = @slope(%x, %w)
  %d_x, %d_w = @slope.backward(1.0, %s)
  return %l, %d_x, %d_w
}}

graph @slope(%x: f64[3], %w: f64[3]) -> (%l: f64[]) {{
  %first, saved %s = @f(%x, %w)
  %d_x, %d_w = @f.backward(1.0, %s)
  %q = Mul(%d_x, %d_w)
  %l: f64[] = ReduceSum(%q, keepdims=0)
  return %l
}}

graph @f(%x: f64[3], %w: f64[3]) -> (%loss: f64[]) {{
{lines}  return %loss
}}

backward @f.backward of @f by (%x, %w){kept}
backward @slope.backward of @slope by (%x, %w){kept}
"""
    program = nncdbg.parse(text)
    got = dict(nncdbg.run(program, INPUTS))

    def loss(inputs: Any) -> float:
        return float(nncdbg.run(program, dict(inputs), outputs=["l"])["l"])

    for x in ("x", "w"):
        np.testing.assert_allclose(got[f"d_{x}"], differences(loss, x, INPUTS), rtol=1e-6, atol=1e-6)


def test_derivatives_of_every_order_of_x_log_x() -> None:
    """R6: `x log x` has the derivatives log x + 1, 1/x and -1/x²."""
    order = """graph @d{n}(%x: f64[3]) -> (%y: f64[3]) {{
  %v, saved %s = @d{m}(%x)
  %one = nncdbg.FullLike(%v, value=1.0)
  %y: f64[3] = @d{m}.backward(%one, %s)
  return %y
}}
backward @d{m}.backward of @d{m} by (%x)
"""
    text = "opset 18\ngraph @main(%x: f64[3]) -> (%a, %b, %c) {\n"
    text += "".join(f"  %{name} = @d{n}(%x)\n" for n, name in enumerate("abc", 1))
    text += "  return %a, %b, %c\n}\ngraph @d0(%x: f64[3]) -> (%y: f64[3]) {\n"
    text += "  %l = Log(%x)\n  %y: f64[3] = Mul(%x, %l)\n  return %y\n}\n"
    text += "".join(order.format(n=n, m=n - 1) for n in (3, 2, 1))
    x = np.array([0.3, 1.7, 4.0])
    _, outputs = run(text, x=x)
    for name, expected in (("a", np.log(x) + 1), ("b", 1 / x), ("c", -1 / x**2)):
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-12, err_msg=name)


STEPS = """opset 18
graph @main(%x: f64[3]) -> (%l: f64[], %d: f64[3]) {
  %l: f64[], saved %s = @outer(%x)
  %d: f64[3] = @outer.backward(1.0, %s)
  return %l, %d
}
graph @outer(%x: f64[3]) -> (%l: f64[]) {
  while @learn (%w0: f64[3] = %x) times 3 {
    _, saved %s = @f(%w0)
    %d: f64[3] = @f.backward(1.0, %s)
    %step = Mul(%d, 0.1)
    %w1: f64[3] = Sub(%w0, %step)
    next %w0 = %w1
  } -> (%w: f64[3] = %w0)
  %l: f64[] = ReduceSum(%w, keepdims=0)
  return %l
}
graph @f(%x: f64[3]) -> (%l: f64[]) {
  %q = Mul(%x, %x)
  %p = Mul(%q, %x)
  %l: f64[] = ReduceSum(%p, keepdims=0)
  return %l
}
backward @f.backward of @f by (%x)
backward @outer.backward of @outer by (%x)
"""


def test_gradient_steps_in_a_loop_have_the_gradient_of_torch() -> None:
    """R6: the gradient through steps of gradient descent, as in meta-learning."""
    x = np.array([0.5, 0.2, 0.1])
    _, outputs = run(STEPS, x=x)
    start = torch.tensor(x, requires_grad=True)
    w = start
    for _ in range(3):
        (gradient,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
        w = w - 0.1 * gradient
    (expected,) = torch.autograd.grad(w.sum(), start)
    assert outputs["l"] == pytest.approx(w.sum().item(), rel=1e-12)
    np.testing.assert_allclose(outputs["d"], expected, rtol=1e-10)


def test_a_branch_differentiates_a_call_before_it() -> None:
    body = """  %v: f64[], saved %s = @f(%x)
  %go = Greater(%v, 0.1)
  if %go {
    %d: f64[3] = @f.backward(1.0, %s)
    yield %d
  } else {
    %d: f64[3] = @f.backward(2.0, %s)
    yield %d
  } -> (%w: f64[3])
"""
    text = STEPS[: STEPS.index("  while")] + body + STEPS[STEPS.index("  %l: f64[] = ReduceSum(%w") :]
    for x, factor in ((np.array([0.5, 0.2, 0.1]), 1), (np.array([0.1, 0.2, 0.1]), 2)):
        _, outputs = run(text, x=x)
        assert outputs["l"] == pytest.approx(factor * np.sum(3 * x * x), rel=1e-14)
        np.testing.assert_allclose(outputs["d"], factor * 6 * x, rtol=1e-14)


def test_a_result_that_the_gradient_also_saves_has_two_cotangents() -> None:
    text = """opset 18
graph @main(%x: f64[3]) -> (%d_x) {
  %l: f64[], saved %s = @outer(%x)
  %d_x: f64[3] = @outer.backward(1.0, %s)
  return %d_x
}
graph @outer(%x: f64[3]) -> (%l: f64[]) {
  %e: f64[3], saved %s = @inner(%x)
  %g: f64[3] = @inner.backward(%e, %s)
  %l: f64[] = ReduceSum(%g, keepdims=0)
  return %l
}
graph @inner(%x: f64[3]) -> (%e: f64[3]) {
  %e: f64[3] = Exp(%x)
  return %e
}
backward @inner.backward of @inner by (%x)
backward @outer.backward of @outer by (%x)
"""
    x = np.array([0.3, -1.2, 0.5])
    _, outputs = run(text, x=x)
    np.testing.assert_allclose(outputs["d_x"], 2 * np.exp(2 * x), rtol=1e-12)


def test_steps_back_and_forth_over_second_derivatives_give_the_same_bits() -> None:
    debugger, outputs = run(PENALTY, x=X)
    expected = {name: np.array(value) for name, value in outputs.items()}
    rng = random.Random(0)
    debugger.break_at(graph="penalty.backward")
    assert debugger.reverse_continue().reason == "breakpoint"
    for _ in range(60):
        (debugger.step_back_into if rng.random() < 0.4 else debugger.step_into)()
    debugger.delete()
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    for name, value in expected.items():
        np.testing.assert_array_equal(debugger.outputs[name], value)


def test_statements_of_second_derivatives_name_the_lines_that_they_differentiate() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(PENALTY), {"x": X})
    listing = debugger.loaded.program.as_listing()
    lines = [line for line in listing.lines if line.startswith("# the graphs")]
    assert lines == [
        "# the graphs of the lines `backward`",
        "# the graphs of the lines `backward` of graphs that compute gradients",
    ]
    graph = debugger.loaded.program.graphs["layer.backward.backward"]
    named = {int(node.comment.removeprefix("of line ")) for node in graph.nodes if node.comment}
    first, last = listing.statements["layer.backward",][0], listing.statements["layer.backward",][-1]
    assert named
    assert all(first <= line < last for line in named)


def test_the_loss_is_that_of_the_outermost_backward_line() -> None:
    debugger = nncdbg.Debugger(nncdbg.parse(PENALTY), {"x": X})
    debugger.break_at(graph="critic.backward")
    assert debugger.run().reason == "breakpoint"
    assert debugger.values_at(1).loss(debugger.program) is None, "%score is no loss"
    debugger.break_at(graph="penalty.backward")
    assert debugger.run().reason == "breakpoint"
    assert debugger.values_at(1).loss(debugger.program) == "l"


def penalty_training(epochs: int) -> nncdbg.Program:
    """The training of the states of PENALTY that `minimize` makes."""
    text = PENALTY[: PENALTY.index("graph @train")] + PENALTY[PENALTY.index("graph @penalty") :]
    text = text.replace("backward @penalty.backward of @penalty by (%w, %b, %v)\n", "")
    text = text.replace("%l: f64[] = Sub(%m, %score)", "%l: f64[] = Add(%m, 0.0)")
    return nncdbg.minimize(nncdbg.parse(text), "l", optimizer="Adam", lr=0.01, batch=5, epochs=epochs)


def test_minimize_trains_a_gradient_penalty() -> None:
    """E6: `minimize` of a graph that computes a gradient."""
    training = penalty_training(epochs=200)
    assert nncdbg.parse(str(training)) == training
    losses = nncdbg.run(training, {"x": X})["l"]
    assert losses[-1] < 0.05 * losses[0]


def test_a_gradient_penalty_is_written_as_an_onnx_training_with_the_same_bits() -> None:
    training = penalty_training(epochs=3)
    again = nncdbg.load(nncdbg.to_onnx(training), training=True)
    wanted = nncdbg.run(training, {"x": X})["l"]
    np.testing.assert_array_equal(nncdbg.run(again, {"x": np.stack([X] * 3)})["l"], wanted)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "of @penalty by (%w, %b, %v)",
            "of @critic.backward by (%w)",
            "@critic.backward is the graph of a `backward` line",
        ),
        ("  %norm =", "  %l0, %d0, %d1, %d2 = @train(%x)\n  %norm =", "@penalty uses its own gradient"),
        ("Tanh(%z2)", "test.Unknown(%z2)", "test.Unknown"),
    ],
)
def test_faults(old: str, new: str, message: str) -> None:
    text = PENALTY.replace(old, new)
    if "by (%w)" in new:
        text = text[: text.index("graph @train")] + text[text.index("graph @penalty") :]
    with pytest.raises(GraphError) as caught:
        nncdbg.Debugger(nncdbg.parse(text), {"x": X})
    assert message in str(caught.value)
    assert caught.value.hint


def test_the_gradient_penalty_of_the_page_about_training(repository: Path) -> None:
    page = (repository / "docs" / "TRAINING.md").read_text(encoding="utf-8")
    text = next(block for block in page.split("```")[1::2] if "@critic.backward" in block)
    text = text.replace("f32", "f64").replace("RandomNormal(", "RandomNormal(dtype=11, ")
    rng = np.random.default_rng(3)
    real, fake = rng.normal(size=(8, 2)), rng.normal(size=(8, 2)) + 2
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"real": real, "fake": fake})
    lines = text.split("\n")
    debugger.run_to(line=next(n for n, line in enumerate(lines, 1) if "saved %c" in line))
    names = ("w", "b", "v", "mixed")
    w, b, v, x = (torch.tensor(np.array(debugger.value(name)), requires_grad=True) for name in names)

    def critic(x: Any) -> Any:
        return (torch.tanh(x @ w + b) @ v).sum()

    (gradient,) = torch.autograd.grad(critic(x), x, create_graph=True)
    loss = critic(torch.tensor(fake)) - critic(torch.tensor(real))
    loss = loss + 10 * ((gradient.norm(dim=1) - 1) ** 2).sum()
    debugger.run_to(line=next(n for n, line in enumerate(lines, 1) if line.startswith("  update")))
    assert debugger.value("l") == pytest.approx(loss.item(), rel=1e-12)
    for name, expected in zip("wbv", torch.autograd.grad(loss, (w, b, v)), strict=True):
        np.testing.assert_allclose(debugger.value(f"d_{name}"), expected, rtol=1e-10, atol=1e-10)
