"""ONNX's messages for types and statements; signatures of ONNX's ops, and of those that onnxruntime adds.

The latter come from `microsoft/schemas.json`, which `tools/generate_schemas.py` writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from nncdbg import dtypes
from nncdbg.dtypes import FROM_ONNX
from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema, Schemas, documentation, joined, schema, split
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.records import (
    DEFAULT_DOMAIN,
    Dim,
    Inline,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
)


def type_of_proto(proto: Any) -> Type | None:
    """Convert a TypeProto to a type; None if it is empty or a sparse tensor."""
    kind = None if proto is None else proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        name = dtypes.FROM_ONNX.get(tensor.elem_type)
        if name is None:
            return None
        if not tensor.HasField("shape"):
            return TensorType(name)
        return TensorType(name, tuple(_dim(dim) for dim in tensor.shape.dim))
    if kind == "sequence_type":
        element = type_of_proto(proto.sequence_type.elem_type)
        return SequenceType(element) if element is not None else None
    if kind == "optional_type":
        element = type_of_proto(proto.optional_type.elem_type)
        return OptionalType(element) if element is not None else None
    if kind == "map_type":
        key, value = dtypes.FROM_ONNX.get(proto.map_type.key_type), type_of_proto(proto.map_type.value_type)
        return MapType(key, value.dtype) if key and isinstance(value, TensorType) else None
    return None


def _dim(dim: Any) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        # Some exporters write -1 for an unknown size.
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) if kind == "dim_param" and dim.dim_param else None


def type_proto(type_: Type | None) -> Any:
    """Convert a type to a TypeProto; empty for an input that is not given."""
    import onnx
    from onnx import helper

    if type_ is None:
        return onnx.TypeProto()
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_proto(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_proto(type_.element))
    if isinstance(type_, MapType):
        value = helper.make_tensor_type_proto(dtypes.ONNX[type_.value], ())
        return helper.make_map_type_proto(dtypes.ONNX[type_.key], value)
    return helper.make_tensor_type_proto(dtypes.ONNX[type_.dtype], type_.shape)


def node_proto(
    op: str, version: int, attributes: Mapping[str, Any], given: Sequence[bool], outputs: int
) -> Any:
    """Return a NodeProto of `op`: ``input_0`` and so on for given inputs, ``output_0`` and so on.

    Attributes are as in program text or as kernels take them (arrays for tensors); attributes that are None
    are left out.  Raises UsageError for an attribute that the op does not have.
    """
    inputs = [f"input_{index}" if there else "" for index, there in enumerate(given)]
    return named_node_proto(op, version, attributes, inputs, [f"output_{index}" for index in range(outputs)])


def named_node_proto(
    op: str, version: int, attributes: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    """Return a NodeProto of `op` with these operands and results; otherwise as `node_proto`."""
    from onnx import helper

    domain, _, local = op.rpartition(".")
    found = schema(op, version)
    node = helper.make_node(local, list(inputs), list(outputs), domain=domain)
    for name, value in attributes.items():
        if value is not None:
            node.attribute.append(_attribute(found, name, value))
    return node


def _attribute(schema: Any, name: str, value: Any) -> Any:
    from onnx import AttributeProto, helper

    if name not in schema.attributes:
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise UsageError(f'{schema.name} has no attribute "{name}"', hint=f"use these attributes: {known}")
    kind = AttributeProto.AttributeType.Value(schema.kinds[name])
    return helper.make_attribute(name, attribute_data(value), attr_type=kind)


def attribute_data(value: Any) -> Any:
    """Convert an attribute's value for `onnx.helper.make_attribute`."""
    from onnx import numpy_helper

    if isinstance(value, Inline):
        return numpy_helper.from_array(value.array)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if isinstance(value, (TensorType, SequenceType, OptionalType, MapType)):
        return type_proto(value)
    if isinstance(value, tuple):
        return [attribute_data(item) for item in value]
    return value


def types_by_onnx(name: str, version: int) -> Callable[[Mapping[str, Any], Sequence[Any]], Sequence[Any]]:
    """Return a type rule that runs ONNX's inference; it infers nothing if an input's type is unknown."""
    return partial(_types_by_onnx, name, version)


def _types_by_onnx(
    name: str, version: int, attributes: Mapping[str, Any], types: Sequence[Any]
) -> Sequence[Any]:
    import onnx.defs
    from onnx import helper, shape_inference
    from onnx.checker import ValidationError

    domain, _, local = name.rpartition(".")
    schema = onnx.defs.get_schema(local, version, domain)
    given = {f"input_{index}": type_proto(known) for index, known in enumerate(types) if known is not None}
    own = {key: value for key, value in attributes.items() if key != "outputs_count"}
    outputs = attributes.get("outputs_count", max(schema.min_output, 1))
    given_operands = [known is not None for known in types]
    node = node_proto(name, version, own, given_operands, outputs)
    opsets = [helper.make_opsetid(domain, version)]
    try:
        found = shape_inference.infer_node_outputs(schema, node, given, opset_imports=opsets)
    except (shape_inference.InferenceError, ValidationError, RuntimeError) as error:
        fact = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise GraphError(f"the operands of {name} are invalid: {fact}") from error
    return [type_of_proto(found[output]) if output in found else None for output in node.output]


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
        return _microsoft_schema(name, version, entries[-1]) if entries else None

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


def _microsoft_schema(name: str, version: int, entry: dict[str, Any]) -> Schema:
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
