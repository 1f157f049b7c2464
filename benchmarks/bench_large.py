"""Large programs: 100,000 nodes to the first stop, and a second `nncdbg.watch` of 5,000 nodes.

Two models are opened: residual blocks, which onnxruntime fuses slowly, and a chain of elementwise ops, which
it cannot fuse.  Peers of the first stop and of its peak memory: processes in which
onnxruntime creates a session of the same model, with its default optimizations and without any.  Peer of the
second watch: a plain run of the same compiled program, without observers.  Both use one thread, and start
without values of an earlier run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from apart import apart, main
from timing import interleaved

OPENED = 100_000
WATCHED = 5_000
BAR_TIME, BAR_MEMORY, BAR_WATCH = 1.5, 1.3, 1.3

SESSION = """import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, sys.argv[2])
onnxruntime.InferenceSession(sys.argv[1], options)
"""

PEERS = {"onnxruntime": "ORT_ENABLE_ALL", "onnxruntime without optimizations": "ORT_DISABLE_ALL"}
"""The peer sessions of opening a model, and their optimization levels."""


def write_chain(path: Path, count: int, channels: int, width: int) -> None:
    """Write an ONNX model of `count` nodes, each of which reads the result of the one before."""
    import numpy as np
    from onnx import helper, numpy_helper

    nodes, value = [], "input"
    for number in range(count):
        op = ("Tanh", "Add", "Sigmoid", "Mul")[number % 4]
        result = "output" if number == count - 1 else f"/layers.{number}/{op}_output_0"
        operands = [value, "scale"] if op in ("Add", "Mul") else [value]
        nodes.append(helper.make_node(op, operands, [result], name=f"/layers.{number}/{op}"))
        value = result
    _save(path, nodes, [numpy_helper.from_array(np.full(width, 0.5, np.float32), "scale")], channels, width)


def write_model(path: Path, count: int, channels: int, width: int) -> None:
    """Write an ONNX model of `count` nodes: residual blocks with names in the form of PyTorch's exporter."""
    import numpy as np
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        scale = 0.1 / np.prod(shape[1:]) ** 0.5
        weights.append(numpy_helper.from_array((random.normal(size=shape) * scale).astype(np.float32), name))
        return name

    def add(op: str, name: str, *inputs: str, **attributes: Any) -> str:
        output = f"{name}_output_0"
        nodes.append(helper.make_node(op, inputs, [output], name=name, **attributes))
        return output

    def block(block: int, given: str) -> str:
        scope = f"/stages.{block // 32}/blocks.{block % 32}"
        owner = scope[1:].replace("/", ".")
        conv = weight(f"{owner}.conv1.weight", channels, channels, 3)
        first = add("Conv", f"{scope}/conv1/Conv", given, conv, kernel_shape=[3], pads=[1, 1])
        first = add("Relu", f"{scope}/act1/Relu", first)
        product = add("MatMul", f"{scope}/fc/MatMul", given, weight(f"{owner}.fc.weight", width, width))
        second = add("Add", f"{scope}/fc/Add", weight(f"{owner}.fc.bias", width), product)
        joined = add("Add", f"{scope}/Add", first, second)
        residual = add("Add", f"{scope}/Add_1", joined, given)
        return add("Relu", f"{scope}/act2/Relu", residual)

    value = "input"
    for number in range((count - 1) // 7):
        value = block(number, value)
    while len(nodes) < count - 1:
        value = add("Relu", f"/head/act{len(nodes)}/Relu", value)
    nodes.append(helper.make_node("Identity", [value], ["output"], name="/head/Identity"))
    _save(path, nodes, weights, channels, width)


def _save(path: Path, nodes: list[Any], weights: list[Any], channels: int, width: int) -> None:
    import onnx
    from onnx import TensorProto, helper

    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, width])
        for name in ("input", "output")
    ]
    graph = helper.make_graph(nodes, "main_graph", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


WriteModel: TypeAlias = Callable[[Path, int, int, int], None]

MODELS: dict[WriteModel, str] = {write_model: "residual blocks", write_chain: "a chain"}
"""Functions that write the opened models, and their titles."""


def process(arguments: list[str]) -> tuple[float, float]:
    """Run a process, and return its seconds and its peak memory in MiB."""
    before = perf_counter()
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise RuntimeError(f"{command} failed with exit code {running.returncode}")
    return perf_counter() - before, usage.ru_maxrss / 1024


def opening(write: WriteModel, title: str, folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    """Measure seconds to the first stop, and MiB, of processes that open the model in turn."""
    model = folder / "large.onnx"
    # In a separate process, because the peak of a child includes the memory of its parent at the fork.
    writing = get_context("spawn").Process(target=write, args=(model, OPENED, 2, 8))
    writing.start()
    writing.join()
    ours: list[tuple[float, float]] = []
    peers: dict[str, list[tuple[float, float]]] = {name: [] for name in PEERS}
    for _ in range(runs):
        ours.append(process(["-m", "nncdbg", str(model)]))
        for name, level in PEERS.items():
            peers[name].append(process(["-c", SESSION, str(model), level]))
    for name, others in peers.items():
        for index, (what, bar) in enumerate(
            ((f"{title}: to the first stop (s)", BAR_TIME), (f"{title}: peak memory (MiB)", BAR_MEMORY))
        ):
            mine, theirs = (statistics.median(one[index] for one in some) for some in (ours, others))
            figure = f"{what} / {name}"
            yield {
                "figure": figure,
                "ours": mine,
                "peer": theirs,
                "ratio": round(mine / theirs, 3),
                "bar": bar,
            }


def watching(folder: Path, runs: int) -> dict[str, Any]:
    """Measure a second watch of a program over a plain run."""
    import numpy as np

    import nncdbg

    path = folder / "watched.onnx"
    write_model(path, WATCHED, channels=16, width=64)
    program = nncdbg.load(path)
    inputs = {"input": np.ones((8, 16, 64), np.float32)}
    plain = nncdbg.Debugger(program, inputs, allocator="plain", statistics=False)
    plain.uncatch()
    compiled = plain.loaded

    def run() -> None:
        again = nncdbg.Debugger(program, inputs, compiled=compiled.release())
        assert again.loaded is compiled
        assert again.run().reason == "end"

    def watch() -> None:
        report = nncdbg.watch(program, inputs)
        assert report.status == "ok", report

    return interleaved(
        f"second watch of {WATCHED:,} nodes / plain run", watch, run, bar=BAR_WATCH, runs=runs, warm=2
    )


def here(chosen: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures `watch` and `open`, measured in this process; only the `chosen` ones, or both."""
    from nncdbg import stats

    with tempfile.TemporaryDirectory() as folder:
        if "open" in (chosen or ["open"]):
            for write, title in MODELS.items():
                yield from opening(write, f"{OPENED:,} nodes, {title}", Path(folder), min(runs, 3))
        if "watch" in (chosen or ["watch"]):
            stats.prepare(wait=True)
            yield watching(Path(folder), runs)


def measure(chosen: list[str] | None = None, runs: int = 9) -> list[dict[str, Any]]:
    """Return the time and memory of opening, and the ratio of a second watch."""
    return apart(__file__, chosen or [], runs)


if __name__ == "__main__":
    main(here, measure)
