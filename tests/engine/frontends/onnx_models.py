"""Small ONNX models for the tests, made with onnx.helper."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, shape=(2, 3), kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs=("x",), outputs=("y",), *, opset=18, functions=(), domains=(), **graph):
    """A ModelProto of these nodes; inputs and outputs without a type become f32[2,3]."""

    def infos(names):
        return [info(name) if isinstance(name, str) else name for name in names]

    name = graph.pop("name", "main")
    made = helper.make_graph(list(nodes), name, infos(inputs), infos(outputs), **graph)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(made, opset_imports=imports, functions=list(functions), ir_version=10)


def save(made, path):
    onnx.save(made, path)
    return path
