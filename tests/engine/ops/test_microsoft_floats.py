"""Float ops of onnxruntime against its CPU kernels: activations, products, Conv, normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine.ops.against_runtime import Row, check

pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(13)
MICROSOFT = "com.microsoft."


def f(*shape: int, dtype: Any = np.float32) -> Any:
    return GENERATOR.standard_normal(shape).astype(dtype)


def ids(high: int, *shape: int) -> Any:
    return GENERATOR.integers(0, high, shape).astype(np.int32)


def row(op: str, *inputs: Any, outputs: Any = 1, **attributes: Any) -> Row:
    narrow = any(array is not None and array.dtype == np.float16 for array in inputs)
    tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-3} if narrow else {}
    return Row(MICROSOFT + op, inputs, attributes, outputs, **tolerance)


ACTIVATIONS = [
    row("Gelu", f(3, 4)),
    row("BiasGelu", f(2, 3, 4), f(4)),
    row("FastGelu", f(2, 3, 4), f(4)),
    row("FastGelu", f(2, 3, 4)),
    row("QuickGelu", f(3, 4)),
    row("QuickGelu", f(3, 4), alpha=0.5),
    Row("Affine", [f(3, 4)], {"alpha": 2.0, "beta": 0.5}, version=1),
    Row("ScaledTanh", [f(3, 4)], {"alpha": 2.0, "beta": 0.5}, version=1),
    Row("ParametricSoftplus", [f(3, 4)], {"alpha": 2.0, "beta": 0.5}, version=1),
    Row("Scale", [f(3, 4)], {"scale": 2.5}, version=1),
]

PRODUCTS = [
    *(
        row("FusedMatMul", f(*a), f(*b), transA=ta, transB=tb, alpha=alpha)
        for a, ta in (((3, 4), 0), ((4, 3), 1))
        for b, tb in (((4, 5), 0), ((5, 4), 1))
        for alpha in (1.0, -0.25)
    ),
    row("FusedMatMul", f(2, 3, 4), f(4, 5)),
    row("FusedMatMul", f(4), f(4, 5)),
    row("FusedMatMul", f(3, 4), f(4), transA=0, transB=1),
    row("FusedMatMul", f(2, 6, 3, 4), f(2, 6, 5, 4), transB=1, alpha=0.125),
    row("FusedMatMul", f(3, 2, 4), f(2, 4, 5), transBatchA=1),
    row("FusedMatMul", f(4, 2, 3), f(4, 2, 5), transBatchA=1, transBatchB=1, transA=1),
    row("FusedMatMul", f(2, 3, 4, dtype=np.float64), f(2, 4, 5, dtype=np.float64), alpha=3.0),
    row("TransposeMatMul", f(4, 3), f(4, 5), transA=1, alpha=0.5),
    *(
        row("FusedGemm", f(3, 4), f(4, 5), f(5), activation=name, **parameters)
        for name, parameters in (
            ("Relu", {}),
            ("Tanh", {}),
            ("Sigmoid", {}),
            ("LeakyRelu", {"activation_alpha": 0.2}),
            ("Elu", {"activation_alpha": 0.5}),
            ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        )
    ),
    row("FusedGemm", f(4, 3), f(5, 4), transA=1, transB=1, alpha=0.5, activation="Relu"),
    row("FusedGemm", f(3, 4), f(4, 5), f(3, 1), beta=2.0, activation="Relu"),
]

CONVOLUTIONS = [
    *(
        row("FusedConv", f(1, 3, 6, 6), f(4, 3, 3, 3), f(4), activation=name, **parameters)
        for name, parameters in (
            ("Relu", {}),
            ("Tanh", {}),
            ("Sigmoid", {}),
            ("LeakyRelu", {"activation_params": [0.2]}),
            ("Clip", {"activation_params": [-0.5, 0.5]}),
            ("HardSigmoid", {"activation_params": [0.3, 0.4]}),
        )
    ),
    row("FusedConv", f(1, 4, 6, 6), f(4, 2, 3, 3), activation="Relu", group=2, pads=[1, 1, 1, 1]),
    row("FusedConv", f(1, 4, 6, 6), f(4, 4, 1, 1), f(4), f(1, 4, 6, 6), activation="Relu"),
    row("FusedConv", f(2, 3, 9, 9), f(2, 3, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    row("FusedConv", f(2, 3, 9, 9), f(2, 3, 3, 3), dilations=[2, 2], pads=[1, 0, 2, 1], activation="Relu"),
]

ALL_FOUR = [True] * 4
NORMALIZATIONS = [
    Row("LayerNormalization", [f(2, 3, 8), f(8), f(8)], {"axis": -1}, version=13),
    Row("LayerNormalization", [f(2, 3, 8), f(3, 8)], {"axis": 1}, outputs=3, version=16),
    Row("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"axis": -1}, version=13),
    Row("SimplifiedLayerNormalization", [f(2, 3, 8), f(8)], {"axis": -1}, outputs=2, version=17),
    Row(
        "SimplifiedLayerNormalization",
        [f(2, 8, dtype=np.float16), f(8, dtype=np.float16)],
        {"axis": -1, "epsilon": 1e-3},
        rtol=1e-2,
        atol=1e-3,
    ),
    *(
        row("SkipLayerNormalization", *(f(*s, dtype=dtype) if s else None for s in shapes), outputs=outputs)
        for dtype in (np.float32, np.float16)
        for shapes, outputs in (
            (((2, 3, 8), (2, 3, 8), (8,), (8,), (8,)), 1),
            (((2, 3, 8), (2, 3, 8), (8,), None, (8,)), [True, False, False, True]),
            (((2, 3, 8), (1, 3, 8), (8,), (8,)), 1),
            (((2, 3, 8), (3, 8), (8,)), [True, False, False, True]),
            (((6, 8), (6, 8), (8,), (8,)), 1),
        )
    ),
    *(
        row(
            "SkipSimplifiedLayerNormalization",
            *(f(*s, dtype=dtype) for s in shapes),
            outputs=outputs,
            epsilon=1e-5,
        )
        for dtype in (np.float32, np.float16)
        for shapes, outputs in (
            (((2, 3, 8), (2, 3, 8), (8,), (8,)), 1),
            (((2, 3, 8), (1, 3, 8), (8,)), [True, False, False, True]),
        )
    ),
]


def embeddings(*, segments: bool = True, mask: bool = True, positions: bool = False) -> list[Any]:
    return [
        ids(10, 2, 5),
        ids(2, 2, 5) if segments else None,
        f(10, 8),
        f(6, 8),
        f(2, 8) if segments else None,
        f(8),
        f(8),
        np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32) if mask else None,
        *([ids(6, 2, 5)] if positions else []),
    ]


EMBEDDINGS = [
    row("EmbedLayerNormalization", *embeddings(), outputs=2),
    row("EmbedLayerNormalization", *embeddings(), outputs=3),
    row("EmbedLayerNormalization", *embeddings(segments=False, mask=False), outputs=2),
    row("EmbedLayerNormalization", *embeddings(positions=True), outputs=2, epsilon=1e-3),
]

ROWS = [*ACTIVATIONS, *PRODUCTS, *CONVOLUTIONS, *NORMALIZATIONS, *EMBEDDINGS]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_op_agrees_with_onnxruntime(row: Row) -> None:
    check(row)
