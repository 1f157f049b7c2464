"""A small training with dropout, nested calls and an evaluation, its data, and its tracks."""

from __future__ import annotations

from typing import Any

import numpy as np

TRAIN = """#nncdbg 1
opset 18

state %w: f32[2,3] = RandomNormal(seed=1.0, shape=[2,3])

graph @train(%x: f32[N,2], %t: i64[N]) -> (%l: f32[]) {
  %l, saved %s = @loss(%x, %t, true) : f32[]
  %d_w = @loss.backward(1.0, %s) : f32[2,3]
  %w.1 = nncdbg.SGD(%w, %d_w, lr=0.5) : f32[2,3]
  update %w = %w.1
  return %l
}

graph @loss(%x: f32[N,2], %t: i64[N], %training: bool[]) -> (%l: f32[]) {
  %z = @network(%x, %training) : f32[N,3]
  %l = SoftmaxCrossEntropyLoss(%z, %t) : f32[]
  return %l
}

graph @network(%x: f32[N,2], %training: bool[]) -> (%y: f32[N,3]) {
  %h = Dropout(%x, 0.25, %training, seed=3) : f32[N,2]
  %y = MatMul(%h, %w) : f32[N,3]
  return %y
}

graph @predict(%x: f32[N,2]) -> (%y: f32[N,3]) {
  %y = @network(%x, false) : f32[N,3]
  return %y
}

backward @loss.backward of @loss by (%w)

run @train for %x, %t batch 8 epochs 4 shuffle 1
"""

TRACKS = """track acc = mean(argmax(%z, 1) == %labels)
track loss = %l
track norm = norm(%w)
"""

EVALUATE = """evaluate @predict for %test_x batch 30
track acc = mean(argmax(%y, 1) == %test_labels)
track right = sum(argmax(%y, 1) == %test_labels)
"""


def samples(count: int, seed: int) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, np.clip(np.arctan2(x[:, 1], x[:, 0]) / np.pi * 1.5 + 1.5, 0, 2).astype(np.int64)


X, T = samples(50, 0)
TEST_X, TEST_T = samples(100, 1)
DATA = {"x": X, "t": T}
LABELED = {**DATA, "labels": T}
ALL = {**LABELED, "test_x": TEST_X, "test_labels": TEST_T}
