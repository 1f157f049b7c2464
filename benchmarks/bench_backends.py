"""Models run kernel by kernel through onnxruntime, everything on, against a plain onnxruntime run.

Ours: `backend="onnxruntime"`, debug allocator, statistics of every result, history, `catch nan inf`.
Peer: one plain session of the whole model.  Both use one thread without optimizations.  The bar applies
to models with their weights in the file.  The unchanged light models of the wheel, which compute up to
575 MB of weights in every run, are measured without a bar.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from apart import apart, main
from bench_models import models
from onnx import numpy_helper
from timing import interleaved, to_the_end

import nncdbg
from nncdbg import stats

BAR = 1.8


@contextmanager
def with_weights(path: Path) -> Iterator[Path]:
    """Save the model with its weights in the file; a light model computes them in every run."""
    model = onnx.load(path)
    graph = model.graph
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in given]
    for node in made:
        value = numpy_helper.to_array(node.attribute[0].t)
        weights = np.full(tuple(given[node.input[0]]), value[0], value.dtype)
        graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for values in (graph.initializer, graph.input):
        for unread in [value for value in values if made and value.name not in read]:
            values.remove(unread)
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / path.name
        onnx.save(model, changed)
        yield changed


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Return data for every input; unknown sizes are those of a 32 ms frame of sound."""
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
    """Return a function that restarts and runs to the end with everything on."""
    debugger = nncdbg.Debugger(nncdbg.load(path), inputs, backend=backend)
    debugger.catch("nan", "inf")
    return to_the_end(debugger)


def compared(name: str, path: Path, runs: int) -> dict[str, Any]:
    """Return the ratio of one model, without a bar."""
    session = plain_session(path)
    inputs = inputs_of(session)
    ours = full_run(path, inputs, "onnxruntime")
    title = f"{name}: each kernel of onnxruntime stepped, everything on / plain onnxruntime"
    return interleaved(title, ours, lambda: session.run(None, inputs), bar=None, runs=runs)


def here(chosen: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the median ratio of interleaved runs per `chosen` model (default: all), and geometric means."""
    stats.prepare(wait=True)
    found = models()
    shipped, wheel = [], []
    for name in chosen or found:
        with with_weights(found[name]) as path:
            shipped.append(compared(name, path, runs))
            yield shipped[-1]
        if name.startswith("light_"):
            wheel.append(compared(f"{name} as in the wheel", found[name], runs))
            yield wheel[-1]
        else:
            wheel.append(shipped[-1])
    yield geometric_mean(shipped, BAR, "weights in the file")
    yield geometric_mean(wheel, None, "weights made at every run, as in the wheel")


def measure(chosen: list[str] | None = None, runs: int = 9) -> list[dict[str, Any]]:
    """Return the figures, measured in a separate process on one thread."""
    return apart(__file__, chosen or [], runs)


def geometric_mean(figures: list[dict[str, Any]], bar: float | None, what: str) -> dict[str, Any]:
    mean = math.exp(sum(math.log(figure["ratio"]) for figure in figures) / len(figures))
    title = (
        f"kernels of onnxruntime stepped, everything on, over {len(figures)} models, {what}, geometric mean"
    )
    return {"figure": title, "ours": None, "peer": None, "ratio": round(mean, 3), "bar": bar}


if __name__ == "__main__":
    main(here, measure)
