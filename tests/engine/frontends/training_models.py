"""ONNX models with a training, made with onnx.helper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "ai.onnx.preview.training"
F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def info(name: str, shape: Sequence[int | str] | None = None, kind: int = F32) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def tensors(values: Mapping[str, Any]) -> list[Any]:
    return [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]


def optimizer(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain=DOMAIN, **attributes)


def gradient(y: str, xs: Sequence[str], zs: Sequence[str] = ()) -> Any:
    """The gradient of `y` by `xs` at their own values, as ``d_x`` for each."""
    outputs = [f"d_{x}" for x in xs]
    return optimizer("Gradient", [*xs, *zs], outputs, xs=xs, y=y, **({"zs": zs} if zs else {}))


def graph(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    initializers: Mapping[str, Any] | None = None,
    name: str = "graph",
) -> Any:
    made = [info(each) if isinstance(each, str) else each for each in outputs]
    return helper.make_graph(list(nodes), name, list(inputs), made, tensors(initializers or {}))


def training(
    algorithm: Any, updates: Mapping[str, str], initial: Any = None, bound: Mapping[str, str] | None = None
) -> Any:
    pairs = [*bound.items()] if bound is not None else None
    return helper.make_training_info(algorithm, [*updates.items()], initial, pairs)


def model(own: Any, *trainings: Any, functions: Sequence[Any] = ()) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    opsets += [helper.make_opsetid("custom", 1)] if functions else []
    made = helper.make_model(own, opset_imports=opsets, functions=list(functions), ir_version=10)
    made.training_info.extend(trainings)
    onnx.checker.check_model(made)
    return made


def classifier() -> onnx.ModelProto:
    """Two layers, trained by Adam on the cross-entropy, with an initialization graph."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=size).astype(np.float32) for size in ((4, 8), (8, 3)))
    own = graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"], name="net/hidden/matmul"),
            helper.make_node("Relu", ["a"], ["h"], name="net/hidden/relu"),
            helper.make_node("MatMul", ["h", "w2"], ["y"]),
        ],
        [info("x", ["N", 4])],
        [info("y", ["N", 3])],
        {"w1": first, "w2": second},
        "net",
    )
    moments = {
        name: np.zeros_like(w) for name, w in zip(("v1", "v2", "s1", "s2"), (first, second) * 2, strict=True)
    }
    states = ("w1", "w2", "v1", "v2", "s1", "s2")
    news = [f"{each}_new" for each in states]
    algorithm = graph(
        [
            helper.make_node("SoftmaxCrossEntropyLoss", ["y", "t"], ["l"]),
            gradient("l", ["w1", "w2"], ["x", "t"]),
            optimizer("Adam", ["rate", "k", "w1", "w2", "d_w1", "d_w2", "v1", "v2", "s1", "s2"], news),
            helper.make_node("Add", ["k", "one"], ["k_new"]),
        ],
        [info("t", ["N"], I64)],
        [info("l", []), *news, info("k_new", [], I64)],
        {"rate": np.float32(0.05), "k": np.int64(0), "one": np.int64(1), **moments},
        "algorithm",
    )
    initial = graph(
        [
            helper.make_node("RandomNormal", [], ["raw"], shape=[4, 8], seed=3.0),
            helper.make_node("Mul", ["raw", "half"], ["w1_first"]),
            helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.int64(0))),
        ],
        [],
        [info("w1_first", [4, 8]), info("zero", [], I64)],
        {"half": np.float32(0.5)},
        "initialization",
    )
    updates = {each: f"{each}_new" for each in (*states, "k")}
    return model(own, training(algorithm, updates, initial, {"w1": "w1_first", "k": "zero"}))
