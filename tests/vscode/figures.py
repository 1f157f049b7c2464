"""Figures of the extension in VS Code, one JSON line each; exit code 1 if one misses its bar.

`make bench-editor` installs the requirements and runs this.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.vscode.installed import FOLDER, ROOT, VSIX, missing, run_script

NODES = 700
LARGE = 4096, 4096
"""The sizes of a tensor that is pinned during the steps."""
START, STEP, ACTIVATION, BUNDLES = 3.0, 0.150, 0.050, 300.0
"""Bars: seconds from F5 to the stopped line, from F10 to the values, of the activation; KiB of bundles."""
FIRST_CLICKS, FIRST_SECONDS = 4, 90.0
"""Bars from the Install button to the first stop in a user's model."""
LATE = {"uplot.js", "dagre.js", "layout.js", "graph.js", "graph.css"}
"""Bundles that are loaded only with the first plot, or with the graph map or the graph tab."""

OURS = ("text, arrow and values", "pages of the extension")
"""Places that wait for nncdbg.  VS Code updates its own views only after a pause between steps."""


def model(path: Path) -> None:
    """Save a network of `NODES` nodes: products with weights, sums and activations in turn."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for number in range(NODES):
        kind = ("MatMul", "Add", "Relu")[number % 3]
        inputs = [before]
        if kind != "Relu":
            shape = (64, 64) if kind == "MatMul" else (64,)
            value = rng.normal(0, 0.15, shape).astype(np.float32)
            weights.append(numpy_helper.from_array(value, f"w{number}"))
            inputs.append(f"w{number}")
        before = f"v{number}"
        nodes.append(helper.make_node(kind, inputs, [before], name=f"{kind}_{number}"))
    shape = numpy_helper.from_array(np.array(LARGE, np.int64), "shape")
    nodes.insert(0, helper.make_node("ConstantOfShape", ["shape"], ["large"], name="large"))
    weights.append(shape)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 64]) for name in ("x", before))
    graph = helper.make_graph(nodes, "main", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def own_model(path: Path) -> None:
    """Save a small network as PyTorch exports it, with a symbolic batch size."""
    rng = np.random.default_rng(0)
    sizes = {"conv.weight": (8, 3, 3, 3), "conv.bias": (8,), "fc.weight": (10, 8), "fc.bias": (10,)}
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.2, size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["input", "conv.weight", "conv.bias"], ["/conv/Conv_output_0"]),
        helper.make_node("Relu", ["/conv/Conv_output_0"], ["/Relu_output_0"]),
        helper.make_node("GlobalAveragePool", ["/Relu_output_0"], ["/pool/GlobalAveragePool_output_0"]),
        helper.make_node("Flatten", ["/pool/GlobalAveragePool_output_0"], ["/Flatten_output_0"], axis=1),
        helper.make_node("Gemm", ["/Flatten_output_0", "fc.weight", "fc.bias"], ["logits"], transB=1),
    ]
    image = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 32, 32])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "main", [image], [logits], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def on_the_screen(scratch: Path) -> dict[str, Any]:
    """Run `figures.mjs` and return its measurements in ms."""
    workspace = scratch / "workspace"
    shutil.copytree(ROOT / "examples", workspace)
    model(workspace / "nodes.onnx")
    (scratch / "own").mkdir()
    own_model(scratch / "own" / "classifier.onnx")
    result = scratch / "result.json"
    plan = {
        "scratch": str(scratch),
        "workspace": str(workspace),
        "own": str(scratch / "own"),
        "vsix": str(VSIX),
        "python": sys.executable,
        "result": str(result),
    }
    (scratch / "plan.json").write_text(json.dumps(plan))
    returned, output = run_script(FOLDER / "figures.mjs", scratch / "plan.json")
    if returned:
        raise SystemExit(output)
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def bundles() -> dict[str, float]:
    """Return the KiB of each script and style sheet that the extension loads."""
    with zipfile.ZipFile(VSIX) as package:
        return {
            each.filename.removeprefix("extension/out/"): each.file_size / 1024
            for each in package.infolist()
            if each.filename.startswith("extension/out/") and Path(each.filename).suffix in {".js", ".css"}
        }


def row(figure: str, ours: float, bar: float | None) -> dict[str, Any]:
    ratio = None if bar is None else round(ours / bar, 3)
    return {"figure": figure, "ours": round(ours, 4), "bar": bar, "ratio": ratio}


def measure(scratch: Path) -> list[dict[str, Any]]:
    """Return all figures, in seconds and KiB; `ratio` is the figure divided by its bar."""
    found = on_the_screen(scratch)
    steps, with_views = found["steps"], found["with_views"]
    places = sorted({place for each in with_views for place in each})
    sizes = bundles()
    late = {name: size for name, size in sizes.items() if Path(name).name in LATE}
    first = found["first"]
    return [
        row(
            f"own model, nothing installed: {', '.join(first['pressed'])} (clicks and keys)",
            len(first["pressed"]),
            FIRST_CLICKS,
        ),
        row(
            "the same to the first stopped line, download without a cache (s)",
            first["milliseconds"] / 1000,
            FIRST_SECONDS,
        ),
        row("of it until the listing is shown (s)", first["listing"] / 1000, None),
        row(f"F5 to the stopped line, {NODES} nodes (s)", statistics.median(found["start"]) / 1000, START),
        row("F10 with inline values to a settled screen (s)", settled(steps), STEP),
        row(
            "F10 with all views, the graph tab and a pinned tensor of 16 M to a settled screen (s)",
            settled(with_views),
            STEP,
        ),
        *(
            row(f"the same to the last change of {place} (s)", median_of(with_views, place), None)
            for place in places
        ),
        row(
            "activation, median of window reloads (s)",
            statistics.median(found["activations"]) / 1000,
            ACTIVATION,
        ),
        row("activation, the slowest of them (s)", max(found["activations"]) / 1000, None),
        row("load of the machine, runnable processes", os.getloadavg()[0], None),
        row(
            "bundles at the start, and of ordinary views (KiB)",
            sum(sizes[name] for name in sizes.keys() - late.keys()),
            BUNDLES,
        ),
        row("bundles of the first plot, and of the graph map and tab (KiB)", sum(late.values()), None),
        row("all bundles (KiB)", sum(sizes.values()), None),
        *(row(f"bundle {name} (KiB)", size, None) for name, size in sorted(sizes.items())),
    ]


def settled(steps: list[dict[str, float]]) -> float:
    """Return the median seconds from the key to the last change of places that wait for nncdbg."""
    return statistics.median(max(each.get(place, 0) for place in OURS) for each in steps) / 1000


def median_of(steps: list[dict[str, float]], place: str) -> float:
    return statistics.median(each[place] for each in steps if place in each) / 1000


def main() -> int:
    reason = missing()
    if reason is not None:
        print(f"no figures: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch))
    for each in rows:
        print(json.dumps(each))
    return int(any(each["ratio"] is not None and each["ratio"] > 1 for each in rows))


if __name__ == "__main__":
    sys.exit(main())
