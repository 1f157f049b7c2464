"""Conversion of types and statements to ONNX messages and back, for use with ONNX's own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nncdbg import dtypes
from nncdbg.errors import GraphError, UsageError
from nncdbg.ir.records import Dim, Inline, MapType, OptionalType, SequenceType, TensorType, Type


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

    from nncdbg.engine.ops.schema import schema as schema_of

    domain, _, local = op.rpartition(".")
    schema = schema_of(op, version)
    node = helper.make_node(local, list(inputs), list(outputs), domain=domain)
    for name, value in attributes.items():
        if value is not None:
            node.attribute.append(_attribute(schema, name, value))
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
    import numpy as np
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
