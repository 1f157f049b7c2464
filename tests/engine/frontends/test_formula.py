"""Conversion of ONNX's function bodies to programs of one graph, for every op with a body."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from onnx.defs import get_all_schemas_with_history
from onnx.reference import ReferenceEvaluator

from nncdbg.engine.frontends.formula import function_body
from nncdbg.errors import UsageError
from nncdbg.ir.names import free_names
from nncdbg.ir.records import Inline, TensorType
from nncdbg.textual_repr.parser import parse
from tests.engine.frontends.onnx_models import info, model
from tests.presence import present

REQUIRED = {"kv_num_heads": 2, "q_num_heads": 4, "num_groups": 2, "blocksize": 2}
WITH_SUBGRAPH = {"SequenceMap"}


def qualified_name(schema):
    return f"{schema.domain}.{schema.name}" if schema.domain else schema.name


BODIES = [
    schema
    for schema in get_all_schemas_with_history()
    if (schema.has_function or schema.has_context_dependent_function) and schema.name not in WITH_SUBGRAPH
]


def some_type(schema, parameter):
    """A type that the formal parameter allows."""
    allowed = [
        text
        for constraint in schema.type_constraints
        if constraint.type_param_str == parameter.type_str
        for text in constraint.allowed_type_strs
    ] or [parameter.type_str]
    for text, name in (("tensor(float)", "f32"), ("tensor(int64)", "i64"), ("tensor(bool)", "bool")):
        if text in allowed:
            return TensorType(name, (2, 4, 8, 8) if name == "f32" else (2,))
    raise AssertionError(f"{schema.name}: no type for {parameter.name} in {allowed}")


@pytest.mark.parametrize("every", [False, True], ids=["required inputs", "all inputs"])
@pytest.mark.parametrize(
    "schema", BODIES, ids=lambda schema: f"{qualified_name(schema)}-{schema.since_version}"
)
def test_every_function_body_is_a_well_formed_program(schema, every):
    attributes = {name: REQUIRED[name] for name, known in schema.attributes.items() if known.required}
    types = [
        some_type(schema, parameter) if every or parameter.option.name != "Optional" else None
        for parameter in schema.inputs
    ]
    if every and schema.name == "Attention":
        types[4:] = [None] * len(types[4:])  # The past inputs need matching shapes.
    program = present(function_body(qualified_name(schema), schema.since_version, attributes, types))
    assert list(program.graphs) == [program.entry]
    graph = program.graphs[program.entry]
    assert len(graph.inputs) == sum(type_ is not None for type_ in types)
    assert len(graph.outputs) == len(schema.outputs)
    assert list(free_names(graph)) == []
    assert all(isinstance(constant.data, Inline) for constant in graph.constants)
    assert schema.domain in program.opsets
    assert parse(str(program)) == program


@pytest.mark.parametrize("op", ["Conv", "Relu6", "SequenceMap", "com.microsoft.Gelu"])
def test_ops_without_a_function_body(op):
    assert function_body(op, 21, {}, [TensorType("f32", (2, 3))]) is None


def test_attributes_are_resolved_and_defaults_filled_in():
    default = function_body("LeakyRelu", 16, {}, [TensorType("f32", (2,))])
    given = function_body("LeakyRelu", 16, {"alpha": 0.5}, [TensorType("f32", (2,))])
    assert values(default) == {float(np.float32(0.01)), 0.0}
    assert values(given) == {0.5, 0.0}


def values(program):
    return {float(c.data.array.item()) for c in program.graphs[program.entry].constants}


def test_an_unknown_attribute_is_a_usage_error():
    with pytest.raises(UsageError, match='LeakyRelu has no attribute "beta"') as raised:
        function_body("LeakyRelu", 16, {"beta": 0.5}, [TensorType("f32", (2,))])
    assert "alpha" in str(raised.value.hint)


def test_the_formula_computes_the_op():
    """The converted body and the op give the same results in onnx.reference."""
    x = np.array([[1.0, -2.0, 3.0], [0.5, 0.25, -1.0]], np.float32)
    program = present(function_body("Softmax", 13, {"axis": 1}, [TensorType("f32", (2, 3))]))
    graph = program.graphs[program.entry]
    nodes = [
        helper.make_node(
            node.op, list(node.inputs), [value.name for value in node.outputs], **node.attributes
        )
        for node in graph.nodes
    ]
    constants = [
        helper.make_tensor(c.value.name, 7, c.data.array.shape, c.data.array.tolist())
        for c in graph.constants
        if isinstance(c.data, Inline)
    ]
    body = model(
        nodes, [info(graph.inputs[0].name)], [info(graph.outputs[0].name)], opset=13, initializer=constants
    )
    whole = model([helper.make_node("Softmax", ["x"], ["y"], axis=1)], opset=13)
    (ours,) = ReferenceEvaluator(body).run(None, {graph.inputs[0].name: x})
    (theirs,) = ReferenceEvaluator(whole).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
