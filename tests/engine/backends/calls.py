"""`Call`s for backends: from ONNX's node cases and from single ops."""

from __future__ import annotations

from typing import Any

from nncdbg.engine.backends import Call
from nncdbg.engine.execution.random_streams import seeded_stream
from nncdbg.engine.ops import Op, lookup
from nncdbg.engine.ops.schema import complete
from nncdbg.ir.records import Node, Value
from tests.engine.ops.onnx_cases import NodeCase


def call(
    op: str,
    inputs: tuple[Any, ...],
    attributes: dict[str, Any] | None = None,
    *,
    version: int = 21,
    outputs: tuple[str, ...] = ("y",),
    constants: frozenset[int] = frozenset(),
) -> Call:
    """The statement `outputs = op(inputs, attributes)`; an output "" is not requested."""
    operands = tuple(None if value is None else f"x{index}" for index, value in enumerate(inputs))
    node = Node(op, operands, tuple(map(Value, outputs)), dict(attributes or {}))
    found = lookup(op, version) or Op(op, None)
    arguments = complete(op, version, node.attributes)
    if found.opset_version:
        arguments["opset"] = version
    if found.outputs_count:
        arguments["outputs_count"] = len(outputs)

    def generator(seed: float | None) -> Any:
        return seeded_stream(0, 7 if seed is None else seed, ())

    return Call(node, found, version, arguments, len(outputs) != 1, constants, generator)


def call_of(case: NodeCase) -> Call:
    """The statement of a node case."""
    outputs = tuple(
        "" if index < len(case.outputs) and case.outputs[index] is None else f"y{index}"
        for index in range(case.output_count)
    )
    return call(case.op, case.inputs, case.attributes, version=case.version, outputs=outputs)


def results_of(bound: Call, result: Any) -> list[Any]:
    """The result of a kernel as a list."""
    return list(result) if bound.several else [result]
