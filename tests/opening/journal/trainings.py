"""Trainings for tests of the journal, with their data, and a run of one that is written to a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.debugger import Debugger
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.programs import OpenedProgram, open_program


@dataclass(frozen=True)
class Training:
    """The text of a training, its inputs, the number of its steps, and a step inside it."""

    text: str
    steps: int
    inputs: Mapping[str, Any] = field(default_factory=dict)


def _samples(count: int, seed: int) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, (x[:, 0] > x[:, 1]).astype(np.int64)


_X, _T = _samples(36, 1)
_TEST_X, _TEST_T = _samples(50, 2)

_CLASSIFIER = """#nncdbg 1
opset 18

## A classifier with dropout.
state %w: f32[2,3] = RandomNormal(seed=1.0, shape=[2,3])
state %m: f32[2,3] = zeros for %w
state %scale: f32[2,2] = RandomNormal(seed=9.0, shape=[2,2])

graph @train(%x: f32[N,2], %t: i64[N]) -> (%l: f32[]) {
  %l: f32[], saved %s = @loss(%x, %t, true)
  %d_w: f32[2,3] = @loss.backward(1.0, %s)
  %w.1: f32[2,3], %m.1: f32[2,3] = nncdbg.SGD(%w, %d_w, %m, lr=0.5, momentum=0.9)
  update %w = %w.1, %m = %m.1
  return %l
}

graph @loss(%x: f32[N,2], %t: i64[N], %training: bool[]) -> (%l: f32[]) {
  %z: f32[N,3] = @network(%x, %training)
  %l: f32[] = SoftmaxCrossEntropyLoss(%z, %t)
  return %l
}

graph @network(%x: f32[N,2], %training: bool[]) -> (%z: f32[N,3]) {
  %h: f32[N,2] = Dropout(%x, 0.25, %training)  # a stream of its own for each step
  %g: f32[N,2] = MatMul(%h, %scale)
  %z: f32[N,3] = MatMul(%g, %w)
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

"""

_DATA = {"x": _X, "t": _T}
_ALL_DATA = {**_DATA, "test_x": _TEST_X, "test_t": _TEST_T}

TRAININGS = {
    "dropout, shuffle, epochs, a smaller last batch": Training(
        _CLASSIFIER + "run @train for %x, %t batch 8 epochs 4 shuffle 1\n", 20, _DATA
    ),
    "evaluate": Training(
        _CLASSIFIER
        + "run @train for %x, %t batch 8 epochs 4 shuffle 1\n"
        + "evaluate @accuracy for %test_x, %test_t batch 30\n",
        20,
        _ALL_DATA,
    ),
    "several runs": Training(
        _CLASSIFIER
        + "run @train for %x, %t batch 12 epochs 2\nevaluate @accuracy for %x, %t batch 16\n"
        + "run @train for %x, %t batch 6 epochs 2 shuffle 3 drop_last\n",
        18,
        _DATA,
    ),
    "accumulate": Training(
        """#nncdbg 1
opset 18
state %w: f32[3] = RandomNormal(seed=1.0, shape=[3])
state %sum: f32[3] = zeros for %w
state %count: i64[] = 0

graph @train() -> (%l: f32[]) {
  %x: f32[5,3] = RandomNormal(shape=[5,3])
  %l: f32[], saved %s = @loss(%x)
  %d_w: f32[3] = @loss.backward(0.25, %s)
  %sum.1: f32[3] = Add(%sum, %d_w)
  %count.1: i64[] = Add(%count, 1)
  %rest: i64[] = Mod(%count.1, 4)
  %full: bool[] = Equal(%rest, 0)
  %none: f32[3] = Sub(%sum.1, %sum.1)
  %w.1: f32[3] = nncdbg.SGD(%w, %sum.1, lr=0.1)
  %w.2: f32[3] = Where(%full, %w.1, %w)
  %sum.2: f32[3] = Where(%full, %none, %sum.1)
  update %w = %w.2, %sum = %sum.2, %count = %count.1
  return %l
}

graph @loss(%x: f32[5,3]) -> (%l: f32[]) {
  %p = MatMul(%x, %w)
  %q = Mul(%p, %p)
  %l: f32[] = ReduceMean(%q, keepdims=0)
  return %l
}

backward @loss.backward of @loss by (%w)

run @train steps 15
""",
        15,
    ),
}


def written(training: Training, path: Path, **fields: Any) -> OpenedProgram:
    """Return the training opened from a file beside `path`, to be written to that journal."""
    model = path.with_suffix(".nnc")
    model.write_text(training.text)
    values = {"program": str(model), "inputs": dict(training.inputs), "journal": str(path), **fields}
    return open_program(RunConfiguration(**values, given=frozenset(values)))


def run_journaled(training: Training, path: Path, **fields: Any) -> Debugger:
    """Run a training to its end, and write it to a journal."""
    opened = written(training, path, **fields)
    debugger = opened.debugger(statistics=False)
    with journaled(opened, debugger) as recorder:
        debugger.run()
    assert recorder is not None
    assert recorder.problem is None, recorder.problem
    return debugger


def opened_at(address: str, **fields: Any) -> OpenedProgram:
    """Return the program of a run in a journal, at a step."""
    return open_program(RunConfiguration(program=address, **fields, given=frozenset({"program", *fields})))


def bits(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the bytes of arrays by name."""
    return {name: np.asarray(each).tobytes() for name, each in values.items()}
