"""The micro program of an op: its own formula, else ONNX's function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nncdbg.engine.graph import Node, Program, TensorType
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.schema import complete, version_of


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

        return parse(declared.formula(attributes, types))
    from nncdbg.engine.frontends.function_body import formula

    given = {key: value for key, value in attributes.items() if value is not None}
    return formula(node.op, version, given, list(types))
