"""Signatures of the ops that onnxruntime adds to ONNX, from `schemas.json`, without onnxruntime.

`tools/generate_schemas.py` writes that file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from nncdbg.engine.ops.onnx_schemas import dtypes_of
from nncdbg.engine.ops.schema import REQUIRED, Parameter, Schema, documentation, joined

DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
"""The domains of onnxruntime; it also adds ops to the domain of ONNX."""


class MicrosoftSchemas:
    """The schemas of the ops that onnxruntime adds."""

    source = "onnxruntime"

    def schema(self, name: str, version: int) -> Schema | None:
        entries = [entry for entry in _entries().get(name, ()) if entry["since"] <= version]
        return _schema(name, version, entries[-1]) if entries else None

    def versions(self, name: str) -> tuple[int, ...]:
        return tuple(entry["since"] for entry in _entries().get(name, ()))

    def names(self, domain: str) -> Iterable[str]:
        return [name for name, entries in _entries().items() if entries[0]["domain"] == domain]

    def newest(self, domain: str) -> int | None:
        return None


@cache
def _entries() -> dict[str, list[dict[str, Any]]]:
    """Return the schemas by name as in program text, oldest version first."""
    text = files(__package__).joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(text):
        found.setdefault(joined(entry["domain"], entry["name"]), []).append(entry)
    return found


def _schema(name: str, version: int, entry: dict[str, Any]) -> Schema:
    attributes = entry["attributes"]
    return Schema(
        name=name,
        inputs=tuple(_parameter(entry["types"], *each) for each in entry["inputs"]),
        outputs=tuple(_parameter(entry["types"], *each) for each in entry["outputs"]),
        attributes={key: _default(**attributes[key]) for key in sorted(attributes)},
        kinds={key: attributes[key]["type"] for key in sorted(attributes)},
        doc=documentation(name, version),
        since=entry["since"],
    )


def _parameter(types: dict[str, list[str]], name: str, kind: str, option: str = "single") -> Parameter:
    kinds = frozenset(types.get(kind, (kind,)))
    return Parameter(
        name,
        kind,
        option == "optional",
        option in ("variadic", "heterogeneous"),
        all(each.startswith("tensor(") for each in kinds),
        dtypes_of(kinds),
    )


def _default(type: str, required: bool = False, default: Any = None) -> Any:
    if required:
        return REQUIRED
    if isinstance(default, list):
        return tuple(_default(type.removesuffix("S"), default=each) for each in default)
    # A float attribute of ONNX is an f32.
    return float(np.float32(default)) if type == "FLOAT" and default is not None else default
