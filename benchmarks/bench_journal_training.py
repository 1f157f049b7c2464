"""A training that is written to a journal against the same training without: tracked values, checkpoints.

An MLP of 784, 1024 and 10 units with a batch of 512 and SGD with momentum; wall time of the whole run, with
the end of the journal.  Runs of both sides in turn; the thread of the journal has a core of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from apart import apart, main

import nncdbg
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.programs import OpenedProgram

STEPS = 200

TEXT = f"""state %w1: f32[784,1024] = RandomNormal(scale=0.05, seed=1.0, shape=[784,1024])
state %w2: f32[1024,10] = RandomNormal(scale=0.05, seed=2.0, shape=[1024,10])
state %m1: f32[784,1024] = zeros for %w1
state %m2: f32[1024,10] = zeros for %w2

graph @train(%x: f32[512,784], %t: i64[512]) -> (%l: f32[]) {{
  %l: f32[], saved %s = @loss(%x, %t)
  %d_w1, %d_w2 = @loss.backward(1.0, %s)
  %w1.1, %m1.1 = nncdbg.SGD(%w1, %d_w1, %m1, lr=0.01, momentum=0.9)
  %w2.1, %m2.1 = nncdbg.SGD(%w2, %d_w2, %m2, lr=0.01, momentum=0.9)
  update %w1 = %w1.1, %w2 = %w2.1, %m1 = %m1.1, %m2 = %m2.1
  return %l
}}

graph @loss(%x: f32[512,784], %t: i64[512]) -> (%l: f32[]) {{
  %h: f32[512,1024] = MatMul(%x, %w1)
  %a: f32[512,1024] = Relu(%h)
  %z: f32[512,10] = MatMul(%a, %w2)
  %l: f32[] = SoftmaxCrossEntropyLoss(%z, %t)
  return %l
}}

backward @loss.backward of @loss by (%w1, %w2)

run @train for %x, %t batch 512 epochs 100 steps {STEPS}
"""

SIDES = (
    ("results of each step", "1000000", 1.01),
    ("results of each step, a checkpoint every 50 steps", "50", 1.03),
)


def _seconds(inputs: dict[str, Any], path: Path | None, every: str) -> float:
    """Return the wall time of a run, which is written to a journal unless `path` is None."""
    configuration = RunConfiguration(
        program="train.nnc",
        inputs=inputs,
        allocator="plain",
        journal=None if path is None else str(path),
        checkpoint_every=every,
    )
    opened = OpenedProgram(nncdbg.parse(TEXT), configuration)
    debugger = opened.debugger(statistics=False)
    before = perf_counter()
    with journaled(opened, debugger) as recorder:
        assert debugger.run(heed=False).reason == "end"
    assert recorder is None or recorder.problem is None
    return perf_counter() - before


def here(names: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of a process on one thread."""
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(2560, 784)).astype(np.float32), "t": rng.integers(0, 10, 2560)}
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        _seconds(inputs, None, "1")
        for number in range(runs):
            for name, every, _ in SIDES:
                ours = _seconds(inputs, Path(folder, f"{number}-{every}.db"), every)
                pairs[name].append((ours, _seconds(inputs, None, "1")))
    for name, _, bar in SIDES:
        yield {
            "figure": f"training with a journal ({name}) / without",
            "ours": statistics.median(ours for ours, _ in pairs[name]) / STEPS,
            "peer": statistics.median(peer for _, peer in pairs[name]) / STEPS,
            "ratio": round(statistics.median(ours / peer for ours, peer in pairs[name]), 4),
            "bar": bar,
        }


def measure(names: list[str] | None = None, runs: int = 9) -> list[dict[str, Any]]:
    return apart(__file__, names or [], runs)


if __name__ == "__main__":
    main(here, measure)
