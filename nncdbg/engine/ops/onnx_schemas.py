"""Signatures of ONNX's ops, from `onnx.defs` (imported on first use), and of those that onnxruntime adds.

The latter come from `microsoft/schemas.json`, which `tools/generate_schemas.py` writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from nncdbg.dtypes import FROM_ONNX
from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema, Schemas, documentation, joined, split
from nncdbg.ir.records import DEFAULT_DOMAIN


class OnnxSchemas:
    """The schemas of the installed `onnx`."""

    @property
    def source(self) -> str:
        import onnx

        return f"onnx {onnx.__version__}"

    def schema(self, name: str, version: int) -> Schema | None:
        import onnx.defs

        domain, local = split(name)
        try:
            found = onnx.defs.get_schema(local, version, domain)
        except onnx.defs.SchemaError:
            return None
        attributes = found.attributes
        return Schema(
            name=name,
            inputs=_formals(found.inputs),
            outputs=_formals(found.outputs),
            attributes={key: _default(attribute) for key, attribute in attributes.items()},
            kinds={key: attribute.type.name for key, attribute in attributes.items()},
            attribute_docs={key: attribute.description for key, attribute in attributes.items()},
            doc=(found.doc or "").strip() or documentation(name, version),
            since=found.since_version,
            deprecated=found.deprecated,
            function=found.has_function or found.has_context_dependent_function,
        )

    def versions(self, name: str) -> tuple[int, ...]:
        return _versions().get(split(name), ())

    def names(self, domain: str) -> Iterable[str]:
        return [joined(domain, local) for found, local in _newest() if found == domain]

    def newest(self, domain: str) -> int | None:
        import onnx.defs

        if domain == DEFAULT_DOMAIN:
            return int(onnx.defs.onnx_opset_version())
        return max((since for (found, _), since in _newest().items() if found == domain), default=None)


@cache
def _versions() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return versions by domain and name; a pass over all schemas costs as much as one for a single op."""
    import onnx.defs

    found: dict[tuple[str, str], list[int]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        found.setdefault((each.domain, each.name), []).append(each.since_version)
    return {key: tuple(sorted(versions)) for key, versions in found.items()}


@cache
def _newest() -> Mapping[tuple[str, str], int]:
    import onnx.defs

    return {(found.domain, found.name): found.since_version for found in onnx.defs.get_all_schemas()}


def _parameter(name: str, kind: str, option: str, kinds: frozenset[str], doc: str = "") -> Formal:
    """Return a formal operand or result; `kinds` are the allowed types, `option` is in lower case."""
    variadic = option in ("variadic", "heterogeneous")
    tensors = all(each.startswith("tensor(") for each in kinds)
    return Formal(name, kind, option == "optional", variadic, tensors, dtypes_of(kinds), doc)


def _formals(formals: Iterable[Any]) -> tuple[Formal, ...]:
    return tuple(
        _parameter(
            each.name, each.type_str, each.option.name.lower(), frozenset(each.types), each.description
        )
        for each in formals
    )


@cache
def dtypes_of(kinds: frozenset[str]) -> frozenset[str]:
    """Return the element types of the tensors among ONNX's type strings."""
    shorts = _short_dtypes()
    return frozenset(shorts[kind] for kind in kinds if kind in shorts)


@cache
def _short_dtypes() -> dict[str, str]:
    from onnx import TensorProto

    return {
        f"tensor({TensorProto.DataType.Name(number).lower()})": short for number, short in FROM_ONNX.items()
    }


def _default(attribute: Any) -> Any:
    import onnx.helper

    if attribute.required:
        return REQUIRED
    if not attribute.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value


DOMAINS = ("com.microsoft", "com.microsoft.nchwc")
"""The domains of onnxruntime; it also adds ops to the domain of ONNX."""


class MicrosoftSchemas(Schemas):
    """The schemas of the ops that onnxruntime adds."""

    source = "onnxruntime"

    def schema(self, name: str, version: int) -> Schema | None:
        entries = [entry for entry in _entries().get(name, ()) if entry["since"] <= version]
        return _schema(name, version, entries[-1]) if entries else None

    def versions(self, name: str) -> tuple[int, ...]:
        return tuple(entry["since"] for entry in _entries().get(name, ()))

    def names(self, domain: str) -> Iterable[str]:
        return [name for name, entries in _entries().items() if entries[0]["domain"] == domain]


@cache
def _entries() -> dict[str, list[dict[str, Any]]]:
    """Return the schemas by name as in program text, oldest version first."""
    text = files("nncdbg.engine.ops.microsoft").joinpath("schemas.json").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(text):
        found.setdefault(joined(entry["domain"], entry["name"]), []).append(entry)
    return found


def _schema(name: str, version: int, entry: dict[str, Any]) -> Schema:
    attributes = entry["attributes"]
    return Schema(
        name=name,
        inputs=tuple(_microsoft_parameter(entry["types"], *each) for each in entry["inputs"]),
        outputs=tuple(_microsoft_parameter(entry["types"], *each) for each in entry["outputs"]),
        attributes={key: _microsoft_default(**attributes[key]) for key in sorted(attributes)},
        kinds={key: attributes[key]["type"] for key in sorted(attributes)},
        doc=documentation(name, version),
        since=entry["since"],
    )


def _microsoft_parameter(types: dict[str, list[str]], name: str, kind: str, option: str = "single") -> Formal:
    return _parameter(name, kind, option, frozenset(types.get(kind, (kind,))))


def _microsoft_default(type: str, required: bool = False, default: Any = None) -> Any:
    if required:
        return REQUIRED
    if isinstance(default, list):
        return tuple(_microsoft_default(type.removesuffix("S"), default=each) for each in default)
    # A float attribute of ONNX is an f32.
    return float(np.float32(default)) if type == "FLOAT" and default is not None else default
