"""Trainings built in Python: states, updates, gradients and runs, as the same text would have them."""

from __future__ import annotations

import numpy as np
import pytest

import nncdbg

TEXT = """#nncdbg 1
opset 18

## the weight
state %w: f32[2,3] = RandomNormal(seed=1.0, shape=[2,3])
state %m: f32[2,3] = zeros for %w
state %n: i64[] = 0

graph @train(%x: f32[4,2]) -> (%l: f32[]) {
  %l, saved %s = @loss(%x) : f32[]
  %d_w, %d_x = @loss.backward(1.0, %s) : f32[2,3], f32[4,2]
  %w.1, %m.1 = nncdbg.SGD(%w, %d_w, %m, lr=0.1, momentum=0.9) : f32[2,3], f32[2,3]
  %add = Add(%n, 1) : i64[]
  update %w = %w.1, %m = %m.1, %n = %add
  return %l
}

graph @loss(%x: f32[4,2]) -> (%l: f32[]) {
  %matmul = MatMul(%x, %w) : f32[4,3]
  %y = Tanh(%matmul) : f32[4,3]
  %mul = Mul(%y, %y) : f32[4,3]
  %l = ReduceMean(%mul, keepdims=0) : f32[]
  return %l
}

backward @loss.backward of @loss by (%w, %x)

run @train for %x batch 4 epochs 2 shuffle 1 drop_last
"""


def built() -> nncdbg.Program:
    b = nncdbg.Builder(opset=18, locations=False)
    b.comment("the weight")
    w = b.state("w", "f32[2,3]", "RandomNormal", shape=[2, 3], seed=1.0)
    m = b.state("m", of=w)
    n = b.state("n", "i64[]", 0)
    with b.graph("loss"):
        y = b.Tanh(b.input("x", "f32[4,2]") @ w, name="y")
        b.returns(b.ReduceMean(y * y, keepdims=0, name="l"))
    b.backward("loss.backward", "loss", [w, "x"])
    with b.graph("train"):
        loss, saved = b.call("loss", b.input("x", "f32[4,2]"), names=["l"], saved="s")
        d_w, _ = b.call("loss.backward", 1.0, saved, names=["d_w", "d_x"])
        new, moment = b.several("nncdbg.SGD", w, d_w, m, names=["w.1", "m.1"], lr=0.1, momentum=0.9)
        b.update({w: new, m: moment, n: b.Add(n, 1)})
        b.returns(loss)
    b.run("train", "x", batch=4, epochs=2, shuffle=1, drop_last=True)
    return b.program()


def test_a_built_training_is_the_program_of_its_text() -> None:
    assert built().text() == TEXT
    assert nncdbg.parse(TEXT).text() == TEXT
    data = {"x": np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)}
    mine, other = nncdbg.run(built(), data), nncdbg.run(nncdbg.parse(TEXT), data)
    assert mine["l"].shape == (4,)
    assert np.array_equal(mine["l"], other["l"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda b: b.state("w", "f32[2]", "RandomNormal", shape=[3]),
            r"%w is declared f32\[2\], but its first",
        ),
        (lambda b: b.state("w", "f32[2]"), "%w has no first value"),
        (
            lambda b: b.state("w", "f32[2]", [1, 2, 3]),
            r"%w is declared f32\[2\], but its first value is f32\[3\]",
        ),
        (lambda b: b.backward("g", "net", []), "no graph @net"),
        (lambda b: b.run("net", steps=3), "no graph @net"),
        (lambda b: b.state("w", None, "MyOp"), "the type of %w is not known"),
    ],
)
def test_a_wrong_line_names_its_python_line(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(nncdbg.GraphError, match=words) as caught:
        make(nncdbg.Builder())
    assert "test_built_trainings.py" in str(caught.value)


def test_a_backward_line_with_checkpoints() -> None:
    b = nncdbg.Builder()
    with b.graph("net"):
        b.returns(b.Relu(b.input("x", "f32[3]"), name="y"))
    with pytest.raises(nncdbg.GraphError, match="checkpoints is 0"):
        b.backward("net.backward", "net", ["x"], checkpoints=0)
    b.backward("net.backward", "net", ["x"], checkpoints=5)
    assert "backward @net.backward of @net by (%x) checkpoints 5\n" in str(b.program())


def test_an_update_needs_a_state_and_a_value_of_its_type() -> None:
    b = nncdbg.Builder()
    w = b.state("w", "f32[2]", [1, 2])
    with b.graph("net"):
        x = b.input("x", "f32[3]")
        with pytest.raises(nncdbg.GraphError, match="%x is not a state"):
            b.update({x: x})
        with pytest.raises(nncdbg.GraphError, match=r"%w is f32\[2\], but its new value is f32\[3\]"):
            b.update({w: x})
        b.returns()
