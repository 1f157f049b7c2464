"""The cases of ONNX's backend test: node cases in memory, and models with data of the `onnx` wheel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader
from onnx import numpy_helper

from tests.engine.ops.onnx_cases import collected

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "light")

WHEEL = Path(onnx.backend.test.loader.DATA_DIR)


@dataclass(frozen=True, slots=True)
class Case:
    """A model with tolerances; `sets` are pairs of inputs and expected outputs in the model's order."""

    name: str
    kind: str
    source: Any
    """An `onnx.ModelProto`, or the path of a model."""
    folder: Path | None
    """The folder with ``test_data_set_*``, or None for a case in memory."""
    in_memory: tuple[Any, ...]
    rtol: float
    atol: float

    def __str__(self) -> str:
        return self.name

    @property
    def sets(self) -> list[tuple[list[Any], list[Any]]]:
        if self.folder is not None:
            return [_read_set(folder, self.model) for folder in sorted(self.folder.glob("test_data_set_*"))]
        if self.kind == "light":
            return [_light_set(self.source, self.model)]
        return [
            ([*map(native_value, given)], [*map(native_value, wanted)]) for given, wanted in self.in_memory
        ]

    @property
    def model(self) -> Any:
        return onnx.load(self.source) if isinstance(self.source, Path) else self.source


def native_value(value: Any) -> Any:
    """Return a value in the form of a debugger's inputs and outputs: an array, a list of arrays, or None."""
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    elif isinstance(value, onnx.SequenceProto):
        value = numpy_helper.to_list(value)
    elif isinstance(value, onnx.OptionalProto):
        value = numpy_helper.to_optional(value)
    if isinstance(value, (list, tuple)):
        return [native_value(item) for item in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _proto(path: Path, type_: Any) -> Any:
    kinds = {
        "sequence_type": onnx.SequenceProto,
        "optional_type": onnx.OptionalProto,
        "tensor_type": onnx.TensorProto,
    }
    return kinds[type_.WhichOneof("value")].FromString(path.read_bytes())


def _read_set(folder: Path, model: Any) -> tuple[list[Any], list[Any]]:
    def read(stem: str, infos: Sequence[Any]) -> list[Any]:
        count = len(list(folder.glob(f"{stem}_*.pb")))
        return [native_value(_proto(folder / f"{stem}_{i}.pb", infos[i].type)) for i in range(count)]

    return read("input", model.graph.input), read("output", model.graph.output)


def _light_set(path: Path, model: Any) -> tuple[list[Any], list[Any]]:
    """Return the inputs of onnx's runner, ascending numbers in [0, 1), and the expected outputs."""
    inputs = []
    stored = {tensor.name for tensor in model.graph.initializer}
    for info in model.graph.input:
        if info.name not in stored:
            shape = tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    outputs = [
        native_value(_proto(path.with_name(f"{path.stem}_output_{index}.pb"), info.type))
        for index, info in enumerate(model.graph.output)
    ]
    return inputs, outputs


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """Return all cases of a kind, sorted by name; they are collected once per process."""
    if kind == "node":
        return tuple(sorted(_node_cases(), key=str))
    if kind == "light":
        models = sorted((WHEEL / "light").glob("*.onnx"))
        return tuple(Case(path.stem, kind, path, None, (), 1e-3, 1e-7) for path in models)
    found = onnx.backend.test.loader.load_model_tests(kind=kind)
    made = [
        Case(case.name, kind, folder / "model.onnx", folder, (), case.rtol, case.atol)
        for case in found
        for folder in [Path(case.model_dir)]
    ]
    return tuple(sorted(made, key=str))


def _node_cases() -> list[Case]:
    return [
        Case(case.name, "node", case.model, None, tuple(case.data_sets), case.rtol, case.atol)
        for case in collected()
    ]
