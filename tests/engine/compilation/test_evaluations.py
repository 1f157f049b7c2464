"""`evaluate` lines: results of each epoch, the same training with and without them, and going back."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import nncdbg
from nncdbg.errors import GraphError

TRAIN = """#nncdbg 1
opset 18

state %w: f32[2,3] = RandomNormal(seed=1.0, shape=[2,3])

graph @train(%x: f32[N,2], %t: i64[N]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x, %t, true)
  %d_w: f32[2,3] = @loss.backward(1.0, %s)
  %w.1: f32[2,3] = nncdbg.SGD(%w, %d_w, lr=0.5)
  update %w = %w.1
  return %l
}

graph @loss(%x: f32[N,2], %t: i64[N], %training: bool[]) -> (%l: f32[]) {
  %z: f32[N,3] = @network(%x, %training)
  %l: f32[] = SoftmaxCrossEntropyLoss(%z, %t)
  return %l
}

graph @network(%x: f32[N,2], %training: bool[]) -> (%z: f32[N,3]) {
  %h: f32[N,2] = Dropout(%x, 0.25, %training, seed=3)
  %z: f32[N,3] = MatMul(%h, %w)
  return %z
}

graph @accuracy(%x: f32[N,2], %t: i64[N]) -> (%accuracy: f32[], %right: i64[]) {
  %z: f32[N,3] = @network(%x, false)
  %y: i64[N] = ArgMax(%z, axis=1, keepdims=0)
  %same: bool[N] = Equal(%y, %t)
  %hits: f32[N] = Cast(%same, to=1)
  %accuracy: f32[] = ReduceMean(%hits, keepdims=0)
  %count: i64[N] = Cast(%same, to=7)
  %right: i64[] = ReduceSum(%count, keepdims=0)
  return %accuracy, %right
}

backward @loss.backward of @loss by (%w)

run @train for %x, %t batch 8 epochs 4 shuffle 1
"""

EVALUATE = "evaluate @accuracy for %test_x, %test_t batch 30\n"
ON_TRAINING_DATA = "evaluate @accuracy for %x, %t batch 16\n"


def samples(count: int, seed: int) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, np.clip(np.arctan2(x[:, 1], x[:, 0]) / np.pi * 1.5 + 1.5, 0, 2).astype(np.int64)


X, T = samples(50, 0)
TEST_X, TEST_T = samples(100, 1)
DATA = {"x": X, "t": T}
ALL = {**DATA, "test_x": TEST_X, "test_t": TEST_T}


def line_of(text: str, words: str) -> int:
    return text[: text.index(words)].count("\n") + 1


def test_the_accuracy_of_each_epoch_is_that_of_a_loop_in_numpy() -> None:  # N11
    text = TRAIN + EVALUATE
    debugger = nncdbg.Debugger(nncdbg.parse(text), ALL)
    debugger.break_at(line=line_of(text, "evaluate"))
    right = []
    while debugger.run().reason != "end":
        right.append(int(((TEST_X @ debugger.value("%w")).argmax(1) == TEST_T).sum()))
    assert debugger.outputs is not None
    assert debugger.outputs["right"].tolist() == right
    assert len(right) == 4, "a breakpoint at the line stops once per epoch"
    assert debugger.outputs["accuracy"] == pytest.approx(np.array(right) / 100, abs=1e-6)


def test_an_evaluation_does_not_change_the_training() -> None:
    plain, evaluated = nncdbg.run(nncdbg.parse(TRAIN), DATA), nncdbg.run(nncdbg.parse(TRAIN + EVALUATE), ALL)
    assert plain["l"].tobytes() == evaluated["l"].tobytes()


def test_an_evaluation_on_the_training_data_uses_all_samples() -> None:
    found = nncdbg.run(nncdbg.parse(TRAIN + EVALUATE + ON_TRAINING_DATA), ALL)
    alone = nncdbg.run(nncdbg.parse(TRAIN + ON_TRAINING_DATA), DATA)
    assert found["accuracy.right"].tolist() == alone["right"].tolist()
    assert alone["accuracy"] == pytest.approx(alone["right"] / 50, abs=1e-6)


def test_a_step_back_over_an_evaluation_restores_the_frames_and_gives_the_same_results() -> None:
    text = TRAIN + EVALUATE
    expected = nncdbg.run(nncdbg.parse(text), ALL)
    debugger = nncdbg.Debugger(nncdbg.parse(text), ALL)
    debugger.break_at(line=line_of(text, "%y: i64"), when="$epoch == 2")
    assert debugger.run().reason == "breakpoint"
    weights = debugger.value("%w").copy()
    names = [frame.code.graph.name for frame in debugger.frames]
    assert names == ["accuracy", "evaluate", "", "run", "program"]
    while "evaluate" in [frame.code.graph.name for frame in debugger.frames]:
        debugger.step_back()
    assert (debugger.evaluate("$epoch"), debugger.stop.line) == (2, line_of(text, "evaluate"))
    assert (debugger.value("%w") == weights).all()
    debugger.go_to(3)
    while debugger.run().reason != "end":
        pass
    assert debugger.outputs is not None
    for name, values in expected.items():
        assert debugger.outputs[name].tobytes() == values.tobytes()


def test_a_run_without_data_is_one_epoch() -> None:
    text = TRAIN.replace("run @train for %x, %t batch 8 epochs 4 shuffle 1\n", "")
    text += (
        """graph @draw() -> (%l: f32[]) {
  %x: f32[8,2] = RandomNormal(shape=[8,2])
  %l: f32[] = @train(%x, [0,1,2,0,1,2,0,1])
  return %l
}

run @draw steps 5
"""
        + EVALUATE
    )
    found = nncdbg.run(nncdbg.parse(text), {"test_x": TEST_X, "test_t": TEST_T})
    assert (found["l"].shape, found["right"].shape) == ((5,), (1,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRAIN + "evaluate @train for %test_x, %test_t batch 8\n", "evaluate @train updates %w"),
        (
            TRAIN.replace("%right: i64[]) {", "%right: bool[]) {").replace(
                "%right: i64[] = ReduceSum(%count, keepdims=0)", "%right: bool[] = Cast(%accuracy, to=9)"
            )
            + EVALUATE,
            "a scalar of type bool, which has no mean",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(text: str, message: str) -> None:
    with pytest.raises(GraphError) as error:
        nncdbg.Debugger(nncdbg.parse(text), ALL)
    assert message in str(error.value)
    assert error.value.hint


ACCUMULATED = """#nncdbg 1
opset 18

state %w: f64[3] = [0.5, -1.0, 2.0]
state %sum: f64[3] = zeros for %w
state %count: i64[] = 0

graph @train(%x: f64[N,3]) -> (%l: f64[]) {
  %l: f64[], saved %s = @loss(%x)
  %d_w: f64[3] = @loss.backward(0.25, %s)
  %sum.1: f64[3] = Add(%sum, %d_w)
  %count.1: i64[] = Add(%count, 1)
  %rest: i64[] = Mod(%count.1, 4)
  %full: bool[] = Equal(%rest, 0)
  %none: f64[3] = Sub(%sum.1, %sum.1)
  %w.1: f64[3] = nncdbg.SGD(%w, %sum.1, lr=0.1)
  %w.2: f64[3] = Where(%full, %w.1, %w)
  %sum.2: f64[3] = Where(%full, %none, %sum.1)
  update %w = %w.2, %sum = %sum.2, %count = %count.1
  return %l
}

graph @loss(%x: f64[N,3]) -> (%l: f64[]) {
  %y: f64[N,3] = Mul(%x, %w)
  %q: f64[N,3] = Mul(%y, %y)
  %l: f64[] = ReduceMean(%q, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

run @train for %x batch 8 epochs 3
"""

WHOLE = """graph @train(%x: f64[N,3]) -> (%l: f64[]) {
  %l: f64[], saved %s = @loss(%x)
  %d_w: f64[3] = @loss.backward(1.0, %s)
  %w.1: f64[3] = nncdbg.SGD(%w, %d_w, lr=0.1)
  update %w = %w.1
  return %l
}
"""


def test_four_micro_batches_are_one_big_batch() -> None:  # P2
    begin, end = ACCUMULATED.index("graph @train"), ACCUMULATED.index("graph @loss")
    whole = ACCUMULATED[:begin] + WHOLE + "\n" + ACCUMULATED[end:].replace("batch 8", "batch 32")
    x = np.random.default_rng(0).normal(size=(64, 3))
    weights = []
    for text in (ACCUMULATED, whole):
        debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": x})
        assert debugger.run().reason == "end"
        weights.append(debugger.value("%w"))
    assert weights[0] == pytest.approx(weights[1], rel=1e-13)


def test_an_evaluation_runs_no_statement_of_a_gradient() -> None:
    """N11: it runs the evaluated graph once per batch and epoch, and the gradient as often as without it."""

    def statements(text: str, data: dict[str, np.ndarray]) -> dict[str, int]:
        seen: Counter[str] = Counter()
        debugger = nncdbg.Debugger(nncdbg.parse(text), data)
        while debugger.step_into().reason != "end":
            seen[debugger.stop.frame.code.graph.name if debugger.stop.frame else ""] += 1
        return dict(seen)

    plain, evaluated = statements(TRAIN, DATA), statements(TRAIN + EVALUATE, ALL)
    backward = {name for name in plain if "backward" in name}
    assert backward == {name for name in evaluated if "backward" in name}
    assert {evaluated[name] - plain[name] for name in (*backward, "loss", "train")} == {0}
    lines, batches, epochs = 8, 4, 4
    assert evaluated["accuracy"] == lines * batches * epochs
