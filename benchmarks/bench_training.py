"""A training in graph text against eager PyTorch; its memory; a step back over an update.

The model is an MLP of 784, 128 and 10 units with a batch of 32 and SGD with momentum.  One thread; runs of
both sides in turn, processor time.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from apart import apart, main
from bench_time import peak_memory
from timing import seconds

import nncdbg

STEPS = 300
SAMPLES = 6400

TEXT = """state %w1: f32[784,128] = RandomNormal(scale=0.05, seed=1.0, shape=[784,128])
state %b1: f32[128] = ConstantOfShape([128])
state %w2: f32[128,10] = RandomNormal(scale=0.05, seed=2.0, shape=[128,10])
state %b2: f32[10] = ConstantOfShape([10])
state %m1: f32[784,128] = zeros for %w1
state %n1: f32[128] = zeros for %b1
state %m2: f32[128,10] = zeros for %w2
state %n2: f32[10] = zeros for %b2

graph @train(%x: f32[32,784], %t: i64[32]) -> (%l: f32[]) {{
  %l: f32[], saved %s = @loss(%x, %t)
  %d_w1, %d_b1, %d_w2, %d_b2 = @loss.backward(1.0, %s)
  %w1.1, %m1.1 = nncdbg.SGD(%w1, %d_w1, %m1, lr=0.1, momentum=0.9)
  %b1.1, %n1.1 = nncdbg.SGD(%b1, %d_b1, %n1, lr=0.1, momentum=0.9)
  %w2.1, %m2.1 = nncdbg.SGD(%w2, %d_w2, %m2, lr=0.1, momentum=0.9)
  %b2.1, %n2.1 = nncdbg.SGD(%b2, %d_b2, %n2, lr=0.1, momentum=0.9)
  update %w1 = %w1.1, %b1 = %b1.1, %w2 = %w2.1, %b2 = %b2.1
  update %m1 = %m1.1, %n1 = %n1.1, %m2 = %m2.1, %n2 = %n2.1
  return %l
}}

graph @loss(%x: f32[32,784], %t: i64[32]) -> (%l: f32[]) {{
  %h: f32[32,128] = MatMul(%x, %w1)
  %hb: f32[32,128] = Add(%h, %b1)
  %a: f32[32,128] = Relu(%hb)
  %y: f32[32,10] = MatMul(%a, %w2)
  %z: f32[32,10] = Add(%y, %b2)
  %l: f32[] = SoftmaxCrossEntropyLoss(%z, %t)
  return %l
}}

backward @loss.backward of @loss by (%w1, %b1, %w2, %b2)

run @train for %x, %t batch 32 epochs 100 steps {steps}
"""

LARGE = """state %w: f32[10000000] = ConstantOfShape([10000000])
graph @train() -> () {
  %w.1 = Add(%w, 1.0)
  update %w = %w.1
  return
}
run @train steps 3
"""


def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(SAMPLES, 784)).astype(np.float32)
    return {"x": samples, "t": rng.integers(0, 10, SAMPLES)}


def trained(steps: int, **options: Any) -> nncdbg.Debugger:
    return nncdbg.Debugger(nncdbg.parse(TEXT.format(steps=steps)), data(), **options)


def eager(inputs: dict[str, Any]) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples, targets = (torch.from_numpy(inputs[name]) for name in ("x", "t"))
    for step in range(STEPS):
        start = step * 32 % SAMPLES
        optimizer.zero_grad()
        output = model(samples[start : start + 32])
        torch.nn.functional.cross_entropy(output, targets[start : start + 32]).backward()
        optimizer.step()


def here(names: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of a process on one thread."""
    from nncdbg import stats

    stats.prepare(wait=True)
    if importlib.util.find_spec("torch") is None:
        yield {"figure": "training", "ours": None, "peer": None, "ratio": 0.0, "bar": None}
        return
    inputs = data()
    for name, bar, options in (
        ("free run", 1.5, {"allocator": "plain", "statistics": False}),
        ("debug allocator, statistics, history", 4.0, {}),
    ):
        debugger = trained(STEPS, **options)
        pairs = []
        for number in range(runs + 1):
            before = process_time()
            eager(inputs)
            middle = process_time()
            debugger.restart()
            assert debugger.run(heed=False).reason == "end"
            if number:
                pairs.append((process_time() - middle, middle - before))
        yield {
            "figure": f"training of an MLP, {name} / eager PyTorch",
            "ours": statistics.median(ours for ours, _ in pairs) / STEPS,
            "peer": statistics.median(peer for _, peer in pairs) / STEPS,
            "ratio": round(statistics.median(ours / peer for ours, peer in pairs), 3),
            "bar": bar,
        }
    yield step_back()
    yield memory()


def step_back() -> dict[str, Any]:
    """Measure the milliseconds of a step back over an update of 10 million parameters."""
    debugger = nncdbg.Debugger(nncdbg.parse(LARGE))
    debugger.break_at(op="update", when="$step == 2")
    times = []
    debugger.run()
    for _ in range(11):
        debugger.step_over()
        times.append(seconds(debugger.step_back) * 1e3)
    median = statistics.median(times)
    return {
        "figure": "step back over an update of 10 M parameters (ms)",
        "ours": median,
        "peer": None,
        "ratio": median,
        "bar": 5.0,
    }


def memory() -> dict[str, Any]:
    """Compare the peak memory of new processes with 1,000 steps and with 50 steps."""
    peaks = []
    for steps in (1000, 50):
        command = [sys.executable, str(Path(__file__).resolve()), "--steps", str(steps)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {
        "figure": "peak memory of 1,000 steps / 50 steps (KiB)",
        "ours": peaks[0],
        "peer": peaks[1],
        "ratio": round(peaks[0] / peaks[1], 3),
        "bar": 1.1,
    }


def measure(names: list[str] | None = None, runs: int = 9) -> list[dict[str, Any]]:
    return apart(__file__, names or [], runs)


if __name__ == "__main__":
    if "--steps" in sys.argv:
        from nncdbg import stats

        # Short runs would end before the statistics are compiled, which takes memory of its own.
        stats.prepare(wait=True)
        debugger = trained(int(sys.argv[-1]))
        assert debugger.run(heed=False).reason == "end"
        print(json.dumps(peak_memory()))
    else:
        main(here, measure)
