"""Public ONNX models: those of the packages `onnx` and `onnxruntime`, and of folders named as arguments.

The cases of ONNX's backend test have inputs; other models run with drawn ones.  A model counts if onnxruntime
runs it with the same inputs.  The figures are the share of these that nncdbg runs, the exceptions other than
nncdbg's own errors, the messages that show only a text of NumPy or Python, and the outputs that differ beyond
rounding.  Models that draw random numbers are not compared.  If onnxruntime differs from the outputs in
ONNX's package, these are right.  The exceptions and messages include runs with wrong inputs: another rank,
another element type, no elements.

    python benchmarks/bench_public_models.py [FOLDER ...]
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader
import onnxruntime
from onnx.backend.test.case.node import collect_testcases

import nncdbg
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Map

RAW = re.compile(
    r"object of type|has no attribute '|not supported between|could not be broadcast together|"
    r"out of bounds for|not iterable|unsupported operand type|missing \d+ required|to unpack|^KeyError"
)
RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform"})
RANDOM_LIKE = frozenset({"RandomNormalLike", "RandomUniformLike"})
BAR = 0.99
F = np.zeros(0, np.float32)


def models(folders: list[Path]) -> Iterator[tuple[str, Any, list[Any] | None, list[Any] | None]]:
    """Yield the name of each model, the model, and its inputs and outputs if its package has some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            yield case.name, case.model, *map(list, case.data_sets[0])
    data = Path(onnx.backend.test.loader.DATA_DIR)
    packages = [data, Path(onnxruntime.__file__).parent / "datasets", *folders]
    for folder in packages:
        for path in sorted(folder.rglob("*.onnx")):
            yield str(path.relative_to(folder)), path, _beside(path, "input"), _beside(path, "output")


def _beside(path: Path, stem: str) -> list[Any] | None:
    files = sorted((path.parent / "test_data_set_0").glob(f"{stem}_*.pb"), key=lambda file: file.stem)
    if not files:
        return None
    return [onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes())) for file in files]


def native(value: Any) -> Any:
    """Return a value in the form of a debugger's inputs and outputs."""
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if isinstance(value, Map):
        return dict(value.items)
    if isinstance(value, dict) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [native(item) for item in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def by_runtime(model: Any, inputs: Mapping[str, Any]) -> list[Any] | None:
    """Return onnxruntime's outputs; None if it does not open or run the model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    try:
        return list(map(native, onnxruntime.InferenceSession(source, options).run(None, dict(inputs))))
    except Exception:  # noqa: BLE001 - onnxruntime raises many kinds
        return None


def differs(got: Any, wanted: Any) -> bool:
    """Return whether outputs differ in kind, shape or, beyond rounding, in value."""
    if isinstance(wanted, dict):
        return not isinstance(got, dict) or any(
            key not in got or differs(np.asarray(got[key]), np.asarray(value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return not isinstance(got, list) or len(got) != len(wanted) or any(map(differs, got, wanted))
    if wanted is None or got is None:
        return wanted is not got
    if got.shape != wanted.shape:
        return True
    if got.dtype.kind == "O" or wanted.dtype.kind == "O":
        return bool(got.tolist() != wanted.tolist())
    # The runtime returns types of 8 bits or fewer in different containers.
    a, b = (each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (got, wanted))
    narrow = got.dtype.itemsize < 4 and got.dtype.kind not in "iub"
    rounding = 2e-2 if narrow else 1e-3
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return not np.allclose(a, b, rtol=rounding, atol=rounding * max(scale, 1e-3) / 10, equal_nan=True)


def measured(folders: list[Path]) -> dict[str, Any]:
    """Return the figures, and the names of the models that miss them."""
    kinds = ("failed", "tracebacks", "raw", "different", "onnx_differs")
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    counted = opened = total = 0
    for name, model, given, expected in models(folders):
        total += 1
        outcome: Any = None
        try:
            program = nncdbg.load(model)
            inputs = program.graphs[program.entry].inputs
            data = {value.name: native(each) for value, each in zip(inputs, given or (), strict=False)}
            debugger = nncdbg.Debugger(program, data, allocator="plain", statistics=False)
            fed = {key: value for key, value in debugger.inputs.items() if value is not None}
            stop = debugger.run()
            outcome = (
                list(map(native, (debugger.outputs or {}).values())) if stop.reason == "end" else stop.error
            )
        except NncdbgError as error:
            outcome, fed = error, {}
        except Exception as error:  # noqa: BLE001 - this is what the figure counts
            found["tracebacks"].append(f"{name}: {type(error).__name__}: {error}")
            continue
        failed = isinstance(outcome, NncdbgError)
        if failed and RAW.search(outcome.message):
            found["raw"].append(f"{name}: {outcome.message}")
        if failed and not fed and given:
            fed = {value.name: native(each) for value, each in zip(_inputs(model), given, strict=False)}
        wanted = by_runtime(model, fed)
        if wanted is None:
            continue
        counted += 1
        opened += not failed
        if failed:
            found["failed"].append(f"{name}: {outcome.message}")
        elif not _draws(model) and differs(outcome, wanted):
            kind = "different" if expected is None or differs(outcome, native(expected)) else "onnx_differs"
            found[kind].append(name)
        if not failed:
            for key, message in _with_wrong_inputs(program, fed):
                found[key].append(f"{name}: {message}")
    return {
        "models": total,
        "run_by_onnxruntime": counted,
        "run_share": opened / max(counted, 1),
        **{key: len(names) for key, names in found.items()},
        "names": found,
    }


def _with_wrong_inputs(program: Any, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield exceptions and raw messages of runs in which the first tensor is wrong."""
    name, x = next(((key, each) for key, each in inputs.items() if isinstance(each, np.ndarray)), ("", F))
    other = np.ones(x.shape, np.int64 if x.dtype.kind == "f" else np.float32)
    for wrong in (x[None], other, x[:0] if x.ndim else x[None]) if name else ():
        try:
            debugger = nncdbg.Debugger(program, {**inputs, name: wrong}, allocator="plain", statistics=False)
            error = debugger.run().error
        except NncdbgError as refused:
            error = refused
        except Exception as raised:  # noqa: BLE001 - this is what the figure counts
            yield "tracebacks", f"{type(raised).__name__}: {raised}"
            continue
        if error is not None and RAW.search(str(error).partition("its kernel reports")[0]):
            yield "raw", str(error)


def _inputs(model: Any) -> list[Any]:
    graph = (onnx.load(model) if isinstance(model, Path) else model).graph
    return list(graph.input)


def _draws(model: Any) -> bool:
    graph = (onnx.load(model) if isinstance(model, Path) else model).graph
    return any(node.op_type in RANDOM | RANDOM_LIKE for node in graph.node)


def measure() -> list[dict[str, Any]]:
    """Return the figures of the packaged models: the share that fails, and the number of other faults."""
    result = measured([])
    faults = result["tracebacks"] + result["raw"] + result["different"]
    return [
        {
            "figure": "public models that do not run",
            **result,
            "ratio": 1 - result["run_share"],
            "bar": 1 - BAR,
        },
        {"figure": "tracebacks, raw messages and differences of public models", "ratio": faults, "bar": 0},
    ]


if __name__ == "__main__":
    print(json.dumps(measured([Path(argument) for argument in sys.argv[1:]]), indent=1))
