"""Signatures of ONNX's ops, from `onnx.defs` (imported on first use)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from nncdbg.engine.dtypes import FROM_ONNX
from nncdbg.engine.ops.schema import REQUIRED, Parameter, Schema, documentation, joined, split
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
            inputs=tuple(map(_parameter, found.inputs)),
            outputs=tuple(map(_parameter, found.outputs)),
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


def _parameter(formal: Any) -> Parameter:
    option, kinds = formal.option.name, frozenset(formal.types)
    return Parameter(
        formal.name,
        formal.type_str,
        option == "Optional",
        option == "Variadic",
        all(kind.startswith("tensor(") for kind in kinds),
        dtypes_of(kinds),
        formal.description,
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
