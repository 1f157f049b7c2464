"""ONNX's own formulas: many operators are defined by a graph of simpler ones in their schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nncdbg.engine.errors import GraphError
from nncdbg.engine.frontends.onnx_graph import Conversion
from nncdbg.engine.frontends.onnx_node import domain_of
from nncdbg.engine.graph import Program, Type
from nncdbg.engine.ops.onnx_messages import node_proto, type_proto


def formula(
    op: str, version: int, attributes: Mapping[str, Any], input_types: Sequence[Type | None]
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
    # The documentation of the op stands in its schema; a listing of the formula is not the place for it.
    graph = replace(conversion.graphs[entry], comment="")
    return Program({entry: graph}, entry, opsets=opsets)


def _body(schema: Any, version: int, node: Any, input_types: Sequence[Type | None]) -> bytes | None:
    """The FunctionProto of the newest version that `version` covers.

    A body that was written in a later opset than the op imports that opset, and says the same.
    """
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
