"""Backward lines: graphs that mirror the calls, gradients that equal numeric ones, all gaps in one error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError

PROGRAM = """opset 18
state %w: f64[3,4] = RandomNormal(dtype=11, seed=1.0, shape=[3,4])
state %v: f64[4,4] = RandomNormal(dtype=11, seed=2.0, shape=[4,4])
state %b: f64[4] = [0.1, -0.2, 0.3, 0.4]

graph @train(%x: f64[N,3], %k: i64[]) -> (%l: f64[], %d_w, %d_v, %d_b, %d_x) {
  %l: f64[], saved %s = @loss(%x, %k)
  %d_w: f64[3,4], %d_v: f64[4,4], %d_b: f64[4], %d_x: f64[N,3] = @loss.backward(2.0, %s)
  return %l, %d_w, %d_v, %d_b, %d_x
}

graph @loss(%x: f64[N,3], %k: i64[]) -> (%l: f64[]) {
  %h = @layer(%x, %w)
  %h2 = @layer(%h, %v)
  %h3 = @layer(%h2, %v)
  %sum = Add(%h3, %h)
  %q = Mul(%sum, %sum)
  %l: f64[] = ReduceMean(%q, keepdims=0)
  return %l
}

graph @layer(%x: f64[N,A], %u: f64[A,B]) -> (%y: f64[N,B]) {
  %z = @affine(%x, %u)
  %y: f64[N,B] = Tanh(%z)
  return %y
}

graph @affine(%x: f64[N,A], %u: f64[A,B]) -> (%z: f64[N,B]) {
  %p = MatMul(%x, %u)
  %z: f64[N,B] = Add(%p, %b)
  return %z
}

backward @loss.backward of @loss by (%w, %v, %b, %x)
"""

X = np.random.default_rng(0).normal(size=(5, 3))


def opened(text: str = PROGRAM) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(text), {"x": X, "k": 1})


def loss(w: np.ndarray, v: np.ndarray, b: np.ndarray, x: np.ndarray) -> float:
    first = np.tanh(x @ w + b)
    last = np.tanh(np.tanh(first @ v + b) @ v + b)
    return float(np.mean((last + first) ** 2))


def test_the_gradients_equal_numeric_ones_times_the_cotangent() -> None:
    debugger = opened()
    assert debugger.run().reason == "end"
    outputs = debugger.outputs
    assert outputs is not None
    points = [np.array(debugger.value(name)) for name in ("w", "v", "b")] + [X]
    assert outputs["l"] == pytest.approx(loss(*points), rel=1e-14)
    rng = np.random.default_rng(1)
    for index, name in enumerate(("d_w", "d_v", "d_b", "d_x")):
        direction = rng.normal(size=points[index].shape)
        sides = []
        for sign in (1, -1):
            moved = [*points]
            moved[index] = points[index] + sign * 1e-5 * direction
            sides.append(loss(*moved))
        numeric = (sides[0] - sides[1]) / 2e-5
        assert 2 * numeric == pytest.approx(np.sum(outputs[name] * direction), rel=1e-7), name


def test_the_forward_graph_keeps_its_name_and_lines() -> None:
    debugger = opened()
    debugger.break_at(graph="affine")
    titles = []
    while debugger.run().reason == "breakpoint":
        titles.append([frame.code.graph.name for frame in debugger.frames])
    assert titles == [["affine", "layer", "loss", "train", "program"]] * 3
    with_break = opened()
    line = next(n for n, text in enumerate(PROGRAM.split("\n"), 1) if "%p = MatMul" in text)
    with_break.break_at(line=line)
    assert with_break.run().line == line


def test_the_frames_of_the_backward_graph_mirror_the_calls() -> None:
    debugger = opened()
    debugger.break_at(graph="affine.backward")
    found = []
    while debugger.run().reason == "breakpoint":
        found.append([frame.code.graph.name for frame in debugger.frames][1:3])
    assert found == [["layer.backward", "loss.backward"]] * 3


def test_backward_statements_name_their_forward_lines() -> None:
    debugger = opened()
    lines = PROGRAM.split("\n")
    debugger.break_at(graph="loss.backward")
    debugger.run()
    graph = debugger.frames[0].code.graph
    named = {int(node.comment.removeprefix("of line ")) for node in graph.nodes if node.comment}
    assert {lines[line - 1].split("=")[1].strip().split("(")[0] for line in named} == {
        "@layer",
        "Add",
        "Mul",
        "ReduceMean",
    }


def test_only_wanted_gradients_are_computed() -> None:
    text = PROGRAM.replace("by (%w, %v, %b, %x)", "by (%b)")
    text = text.replace("%d_w, %d_v, %d_b, %d_x) {", "%d_b) {")
    text = text.replace("%d_w: f64[3,4], %d_v: f64[4,4], %d_b: f64[4], %d_x: f64[N,3] =", "%d_b: f64[4] =")
    text = text.replace("return %l, %d_w, %d_v, %d_b, %d_x", "return %l, %d_b")
    small, whole = opened(text), opened()
    small.run(), whole.run()
    assert small.outputs is not None
    assert whole.outputs is not None
    np.testing.assert_array_equal(small.outputs["d_b"], whole.outputs["d_b"])
    products = [
        sum(
            node.op in ("MatMul", "Gemm")
            for name, graph in graphs.items()
            if ".backward" in name
            for node in graph.nodes
        )
        for graphs in (small.loaded.program.graphs, whole.loaded.program.graphs)
    ]
    assert products == [1, 2], "no gradient by the weights"


def test_an_integer_has_no_cotangent_and_a_gradient_of_nothing_is_zero() -> None:
    text = PROGRAM.replace("by (%w, %v, %b, %x)", "by (%w, %v, %b, %x)").replace(
        "Add(%h3, %h)", "Add(%x0, %x0)"
    )
    text = text.replace("  %sum =", "  %x0 = Mul(%h, 0.0)\n  %sum =")
    debugger = opened(text)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    np.testing.assert_array_equal(debugger.outputs["d_v"], np.zeros((4, 4)))


def test_every_op_without_a_gradient_is_listed_before_anything_runs() -> None:
    """R13: one error, before the run, lists each op without a gradient with its line."""
    text = PROGRAM.replace("%q = Mul(%sum, %sum)", "%r = test.Unknown(%sum)\n  %q = Mul(%r, %r)")
    text = text.replace("%y: f64[N,B] = Tanh(%z)", "%o = test.Other(%z)\n  %y: f64[N,B] = Tanh(%o)")
    with pytest.raises(GraphError) as caught:
        opened(text)
    message = str(caught.value)
    for op in ("test.Unknown", "test.Other"):
        line = next(number for number, each in enumerate(text.splitlines(), 1) if op in each)
        assert f"line {line}: {op}" in message
    assert caught.value.excerpt is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("by (%w, %v, %b, %x)", "by (%w, %v, %b, %nothing)", "%nothing is neither a state nor an input"),
        (
            "%l: f64[], saved %s = @loss(%x, %k)",
            "%l: f64[] = @loss(%x, %k)\n  %s = Relu(%x)",
            "needs the values saved",
        ),
        ("= @layer(%h2, %v)", "= @loss(%h2, %k)", "it calls itself"),
    ],
)
def test_faults(old: str, new: str, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        opened(PROGRAM.replace(old, new))
    assert message in str(caught.value)
    assert caught.value.hint


def test_two_backward_lines_of_one_graph() -> None:
    text = PROGRAM.replace("(%l: f64[], %d_w", "(%l: f64[], %other, %d_w").replace(
        "  return %l, %d_w",
        "  %l2, saved %s2 = @loss(%x, %k)\n  %other = @loss.backward_b(1.0, %s2)\n  return %l, %other, %d_w",
    )
    text += "backward @loss.backward_b of @loss by (%b)\n"
    debugger = opened(text)
    assert debugger.run().reason == "end"
    assert debugger.outputs is not None
    np.testing.assert_allclose(2 * debugger.outputs["other"], debugger.outputs["d_b"], rtol=1e-12)


def test_a_state_that_the_graph_changes_cannot_be_saved() -> None:
    text = PROGRAM.replace("%sum = Add(%h3, %h)", "%sum = Mul(%h3, %b)\n  update %b = %b.1")
    text = text.replace("  %h2 = @layer", "  %b.1 = Mul(%b, 0.5)\n  %h2 = @layer")
    with pytest.raises(GraphError, match="needs %b, which the graph updates"):
        opened(text)


def test_a_train_loop_with_a_backward_line_learns() -> None:
    debugger = nncdbg.Debugger("examples/train_mlp.nnc")
    assert debugger.run(heed=False).reason == "end"
    assert debugger.outputs is not None
    losses = debugger.outputs["l"]
    assert np.mean(losses[-20:]) < 0.25 * np.mean(losses[:20])


def test_gradients_equal_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch.autograd")
    debugger = opened()
    debugger.run()
    assert debugger.outputs is not None
    w, v, b = (torch.tensor(np.array(debugger.value(name)), requires_grad=True) for name in ("w", "v", "b"))
    x = torch.tensor(X, requires_grad=True)
    h = torch.tanh(x @ w + b)
    h3 = torch.tanh(torch.tanh(h @ v + b) @ v + b)
    (((h3 + h) ** 2).mean() * 2).backward()
    for name, tensor in (("d_w", w), ("d_v", v), ("d_b", b), ("d_x", x)):
        np.testing.assert_allclose(debugger.outputs[name], tensor.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_program_of_the_page_about_training_runs(repository: Path) -> None:
    page = (repository / "docs" / "TRAINING.md").read_text(encoding="utf-8")
    text = next(block for block in page.split("```")[1::2] if block.lstrip().startswith("state"))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 3)).astype(np.float32)
    t = (x @ np.array([[1, 2], [3, 4], [5, 6]])).astype(np.float32)
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": x, "t": t})
    assert debugger.run().reason == "end"
    assert debugger.value("count") == 40
    assert debugger.outputs is not None
    losses = debugger.outputs["l"]
    assert losses[-1] < 0.1 * losses[0]
