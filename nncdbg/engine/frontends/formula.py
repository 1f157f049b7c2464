"""The micro program of an op: its own formula, else ONNX's function body.

The schemas of many ONNX operators define them by a graph of simpler ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete, split, version_of
from nncdbg.errors import GraphError
from nncdbg.ir.records import Node, Program, TensorType, Type


def formula_of(node: Node, types: Sequence[TensorType | None], opsets: Mapping[str, int]) -> Program | None:
    """Return a program of one graph that computes the statement; None for a primitive.

    `types` are those of all operands in order, None for an omitted one; the graph's inputs are the
    given operands.
    """
    version = version_of(node.op, opsets)
    attributes = complete(node.op, version, node.attributes)
    declared = lookup(node.op, version)
    if declared is not None and declared.formula is not None:
        from nncdbg.textual_repr.parser import parse

        text = declared.formula(attributes, types)
        return parse(text) if text else None
    given = {key: value for key, value in attributes.items() if value is not None}
    return function_body(node.op, version, given, list(types))


def function_body(
    op: str, version: int, attributes: Mapping[str, Any], input_types: Sequence[Type | None]
) -> Program | None:
    """Return the function body of `op` in opset `version` of its domain; None if ONNX has none for it.

    `input_types` are those of the op's inputs in order, None for an omitted one.  The program is one
    graph with the given inputs, and with all outputs of the schema.  Attributes are as in program text
    or as kernels take them (arrays for tensors).  Source: FunctionProto of `onnx.defs`.
    """
    import onnx
    from onnx.defs import SchemaError, get_schema

    from nncdbg.engine.frontends.onnx_graph import Conversion
    from nncdbg.engine.frontends.onnx_node import domain_of
    from nncdbg.engine.ops.onnx_schemas import node_proto

    domain, local = split(op)
    try:
        schema = get_schema(local, version, domain)
    except SchemaError:
        return None
    if any(known.required and known.type.name.startswith("GRAPH") for known in schema.attributes.values()):
        return None
    given = [type_ is not None for type_ in input_types]
    node = node_proto(op, version, attributes, given, len(schema.outputs))
    try:
        body = _body(schema, version, node, input_types)
    except (ValueError, RuntimeError) as error:
        raise GraphError(f"ONNX has no formula for {op} with these types and attributes: {error}") from error
    if body is None:
        return None
    function = onnx.FunctionProto.FromString(body)
    conversion = Conversion([], None, flat=True)
    stated = {attribute.name: attribute for attribute in node.attribute}
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    absent = [i for i in range(len(function.input)) if i >= len(node.input) or not node.input[i]]
    entry = conversion.called(function, defaults | stated, absent)
    opsets = {domain_of(entry.domain): int(entry.version) for entry in function.opset_import}
    # The op's documentation is available in its schema, so a listing of the formula omits it.
    graph = replace(conversion.graphs[entry], comment="")
    return Program({entry: graph}, entry, opsets=opsets)


def _body(schema: Any, version: int, node: Any, input_types: Sequence[Type | None]) -> bytes | None:
    """Return the FunctionProto of the newest version that `version` covers.

    A body written in a later opset than the op imports that opset, and has the same meaning.
    """
    from nncdbg.engine.ops.onnx_schemas import type_proto

    plain = schema.function_opset_versions
    if plain:
        return bytes(schema.get_function_with_opset_version(_covering(plain, version)))
    fitted = schema.context_dependent_function_opset_versions
    if not fitted:
        return None
    types = [type_proto(type_).SerializeToString() for type_ in input_types]
    body = schema.get_context_dependent_function_with_opset_version(
        _covering(fitted, version), node.SerializeToString(), types
    )
    return bytes(body) or None


def _covering(known: Sequence[int], version: int) -> int:
    return max((entry for entry in known if entry <= version), default=min(known))
