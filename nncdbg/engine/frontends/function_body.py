"""ONNX's own formulas: many operators are defined by a graph of simpler ones in their schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nncdbg.engine import dtypes
from nncdbg.engine.errors import GraphError, UsageError
from nncdbg.engine.frontends.onnx_graph import Conversion
from nncdbg.engine.frontends.onnx_node import domain_of
from nncdbg.engine.graph import Inline, Program, TensorType


def formula(
    op: str, version: int, attributes: Mapping[str, Any], input_types: Sequence[TensorType | None]
) -> Program | None:
    """The function body of `op` in opset `version` of its domain, None where ONNX has none for it.

    `input_types` are those of the op's inputs in order, None for one that is not given.  The
    program is one graph whose inputs are the inputs given, and whose outputs are all that the
    schema has.  Attributes are as in program text or as kernels take them (arrays for tensors).
    Source: FunctionProto of `onnx.defs`.
    """
    import onnx
    from onnx.defs import SchemaError, get_schema

    domain, _, local = op.rpartition(".")
    try:
        schema = get_schema(local, version, domain)
    except SchemaError:
        return None
    if any(known.required and known.type.name.startswith("GRAPH") for known in schema.attributes.values()):
        return None
    node = _node(schema, local, domain, attributes, input_types)
    try:
        body = _body(schema, version, node, input_types)
    except (ValueError, RuntimeError) as error:
        raise GraphError(f"ONNX has no formula of {op} for these types and attributes: {error}") from error
    if body is None:
        return None
    function = onnx.FunctionProto.FromString(body)
    conversion = Conversion([], None, flat=True)
    given = {attribute.name: attribute for attribute in node.attribute}
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    absent = [i for i in range(len(function.input)) if i >= len(node.input) or not node.input[i]]
    entry = conversion.called(function, defaults | given, absent)
    opsets = {domain_of(entry.domain): int(entry.version) for entry in function.opset_import}
    # The documentation of the op stands in its schema; a listing of the formula is not the place for it.
    graph = replace(conversion.graphs[entry], comment="")
    return Program({entry: graph}, entry, opsets=opsets)


def _body(schema: Any, version: int, node: Any, input_types: Sequence[TensorType | None]) -> bytes | None:
    """The FunctionProto of the newest version that `version` covers.

    A body that was written in a later opset than the op imports that opset, and says the same.
    """
    plain = schema.function_opset_versions
    if plain:
        return bytes(schema.get_function_with_opset_version(_covering(plain, version)))
    fitted = schema.context_dependent_function_opset_versions
    if not fitted:
        return None
    types = [_type_proto(type_).SerializeToString() for type_ in input_types]
    body = schema.get_context_dependent_function_with_opset_version(
        _covering(fitted, version), node.SerializeToString(), types
    )
    return bytes(body) or None


def _covering(known: Sequence[int], version: int) -> int:
    return max((entry for entry in known if entry <= version), default=min(known))


def _node(
    schema: Any, local: str, domain: str, attributes: Mapping[str, Any], types: Sequence[TensorType | None]
) -> Any:
    """A NodeProto with the attributes, and names where inputs are given; all outputs asked for."""
    from onnx import helper

    inputs = [f"input_{index}" if type_ is not None else "" for index, type_ in enumerate(types)]
    outputs = [f"output_{index}" for index in range(len(schema.outputs))]
    node = helper.make_node(local, inputs, outputs, domain=domain)
    for name, value in attributes.items():
        if value is not None:
            node.attribute.append(_attribute(schema, name, value))
    return node


def _attribute(schema: Any, name: str, value: Any) -> Any:
    from onnx import helper

    if name not in schema.attributes:
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise UsageError(f'{schema.name} has no attribute "{name}"', hint=f"its attributes are: {known}")
    kind = schema.attributes[name].type.value
    return helper.make_attribute(name, _attribute_data(value), attr_type=kind)


def _attribute_data(value: Any) -> Any:
    import numpy as np
    from onnx import numpy_helper

    if isinstance(value, Inline):
        return numpy_helper.from_array(value.array)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    if isinstance(value, TensorType):
        return _type_proto(value)
    if isinstance(value, tuple):
        return [_attribute_data(item) for item in value]
    return value


def _type_proto(type_: TensorType | None) -> Any:
    """A TypeProto; empty for an input that is not given."""
    import onnx
    from onnx import helper

    if type_ is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(dtypes.ONNX[type_.dtype], type_.shape)
