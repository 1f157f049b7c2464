"""Models stepped kernel by kernel through onnxruntime, everything on, against onnxruntime's own run.

Ours: `backend="onnxruntime"`, debug allocator, statistics of every result, history.  Peer: one
plain session of the whole model.  Both with one thread and optimisations off.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnxruntime
from timing import interleaved

import nncdbg
from nncdbg import stats

LIGHT = ("resnet50", "squeezenet", "shufflenet")
BAR = 1.8


def models() -> dict[str, Path]:
    """The light models of the onnx wheel, and silero_vad where it is at hand."""
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    found = {name: folder / f"light_{name}.onnx" for name in LIGHT}
    beside = Path(__file__).resolve().parents[2] / "shared"
    silero = Path(os.environ.get("NNCDBG_SHARED", beside)) / "models" / "silero_vad_16k_op15.onnx"
    if silero.exists():
        found["silero_vad"] = silero
    return found


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Data for every input; sizes that the model leaves open are those of a 32 ms frame of sound."""
    generator = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for value in session.get_inputs():
        if value.type == "tensor(int64)":
            inputs[value.name] = np.array(16000, np.int64)
            continue
        open_sizes = (1, 576) if value.name == "input" else (1,) * len(value.shape)
        shape = [
            size if isinstance(size, int) else other
            for size, other in zip(value.shape, open_sizes + (1,) * len(value.shape), strict=False)
        ]
        inputs[value.name] = generator.standard_normal(shape).astype(np.float32)
    return inputs


def full_run(path: Path, inputs: dict[str, Any], backend: str) -> Callable[[], Any]:
    """Restart and run to the end with everything on."""
    debugger = nncdbg.Debugger(nncdbg.load(path), inputs, backend=backend)
    debugger.catch("nan", "inf")

    def run() -> Any:
        debugger.restart()
        stop = debugger.run()
        assert stop.reason == "end", stop
        return stop

    return run


def measure(runs: int = 9) -> list[dict[str, Any]]:
    """Per model the median ratio of interleaved runs, and their geometric mean against the bar."""
    stats.prepare(wait=True)
    figures = []
    for name, path in models().items():
        session = plain_session(path)
        inputs = inputs_of(session)
        ours = full_run(path, inputs, "onnxruntime")
        title = f"{name}: each kernel of onnxruntime stepped, everything on / plain onnxruntime"
        figures.append(
            interleaved(title, ours, lambda s=session, x=inputs: s.run(None, x), bar=None, runs=runs)
        )
    means = [geometric_mean(figures, BAR)]
    if len(figures) > len(LIGHT):
        means.insert(0, geometric_mean(figures[: len(LIGHT)], None))
    return [*figures, *means]


def geometric_mean(figures: list[dict[str, Any]], bar: float | None) -> dict[str, Any]:
    mean = math.exp(sum(math.log(figure["ratio"]) for figure in figures) / len(figures))
    title = f"kernels of onnxruntime stepped, everything on, over {len(figures)} models, geometric mean"
    return {"figure": title, "ours": None, "peer": None, "ratio": round(mean, 3), "bar": bar}


if __name__ == "__main__":
    for figure in measure():
        print(json.dumps(figure))
