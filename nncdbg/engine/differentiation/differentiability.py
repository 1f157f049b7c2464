"""Whether an op has a gradient: by its rule, through its formula, or not, with the reason.

The gradient of a formula is built for samples of operands; the statements in it that fail give the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from nncdbg.dtypes import FLOATS
from nncdbg.engine.differentiation.backward_pass import GradientRequest, gradient_graph
from nncdbg.engine.inference.graphs import TypeRules
from nncdbg.engine.ops import lookup
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.schema import REQUIRED, Formal, Schema, schema, version_of
from nncdbg.errors import NncdbgError
from nncdbg.ir.records import Node, TensorType, Value

_NO_RULE = "it has no gradient rule"
_RANKS = (4, 3, 2, 1)
_SAMPLES: dict[str, Any] = {"INT": 1, "FLOAT": 1.0, "FLOATS": (1.0,), "STRING": ""}

_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "AffineGrid": ((2, 2, 3), (4,)),
    "BatchNormalization": ((2, 3, 2), (3,), (3,), (3,), (3,)),
    "CausalConvWithState": ((2, 3, 4), (3, 1, 2)),
    "GRU": ((2, 2, 3), (1, 12, 3), (1, 12, 4)),
    "InstanceNormalization": ((2, 3, 2), (3,), (3,)),
    "LSTM": ((2, 2, 3), (1, 16, 3), (1, 16, 4)),
    "Crop": ((1, 1, 3, 3),),
    "DeformConv": ((1, 1, 3, 3), (1, 1, 2, 2), (1, 8, 2, 2)),
    "LinearAttention": ((1, 2, 4), (1, 2, 4), (1, 2, 4)),
    "MaxRoiPool": ((1, 1, 3, 3), (1, 5)),
    "RoiAlign": ((1, 1, 3, 3), (1, 4), (1,)),
    "RNN": ((2, 2, 3), (1, 4, 3), (1, 4, 4)),
    "RotaryEmbedding": ((2, 2, 3, 4), (5, 2), (5, 2), (2, 3)),
    "ai.onnx.ml.FeatureVectorizer": ((2, 1),),
    "ai.onnx.ml.Imputer": ((2, 1),),
    "ai.onnx.ml.LinearClassifier": ((2, 1),),
    "ai.onnx.ml.LinearRegressor": ((2, 1),),
    "ai.onnx.ml.Normalizer": ((2, 1),),
    "ai.onnx.ml.SVMClassifier": ((2, 1),),
    "ai.onnx.ml.SVMRegressor": ((2, 1),),
    "ai.onnx.ml.Scaler": ((2, 1),),
}
"""Shapes of the operands of an op that takes tensors of different ranks."""

_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Crop": {"border": (0, 0, 1, 1)},
    "LinearAttention": {"update_rule": "linear"},
    "MaxRoiPool": {"pooled_shape": (1, 1)},
    "ai.onnx.ml.FeatureVectorizer": {"inputdimensions": (1,)},
    "ai.onnx.ml.Imputer": {"imputed_value_floats": (1.0,)},
    "ai.onnx.ml.LinearRegressor": {"coefficients": (1.0,)},
    "ai.onnx.ml.SVMClassifier": {"coefficients": (1.0,), "rho": (0.0,)},
    "ai.onnx.ml.SVMRegressor": {"coefficients": (1.0,), "rho": (0.0,)},
}
"""Attributes without which an op has no meaning."""

Kind = Literal["rule", "zero", "formula", "blocks", "none", "untried"]


@dataclass(frozen=True, slots=True)
class Differentiability:
    """How the gradient of an op is computed; for ``none``, `reason` says why there is none."""

    kind: Kind
    reason: str = ""

    @property
    def description(self) -> str:
        """Return a description that completes ``gradient:``."""
        words = {
            "rule": "its own rule",
            "zero": "zeros: a small change of an operand does not change the result",
            "formula": "through its formula",
            "blocks": "through the statements of its blocks, as a branch or loop",
            "untried": "through its formula, if the ops in it have a gradient",
            "none": "none",
        }[self.kind]
        return f"{words}: {self.reason}" if self.reason else words


def takes_and_gives_floats(name: str) -> bool:
    """Return whether a tensor of floats is possible for an operand and for a result of the op."""
    known = schema(name, version_of(name, {}))
    return known is not None and any(map(_floats, known.inputs)) and any(map(_floats, known.outputs))


@cache
def differentiability(name: str) -> Differentiability:
    """Return how the gradient of the newest version of an op is computed."""
    declared = lookup(name, version_of(name, {}))
    if declared is not None and declared.vjp is nothing:
        return Differentiability("zero")
    if declared is not None and declared.vjp is not None:
        return Differentiability("rule")
    known = schema(name, version_of(name, {}))
    if declared is not None and declared.no_gradient:
        return Differentiability("none", declared.no_gradient)
    if known is not None and "GRAPH" in known.kinds.values():
        return Differentiability("blocks")
    if known is None or declared is None:
        return Differentiability("none", "nncdbg has no kernel for it")
    if declared.formula is None and not known.function:
        return Differentiability("none")
    obstacles = list(_obstacles(known))
    if "" in obstacles:
        return Differentiability("formula")
    # A sample of other shapes may not fit the op, and then its reason is about the sample.
    sure = [each for each in obstacles if name in _SHAPES or each.endswith(_NO_RULE)]
    return Differentiability("none", sure[0]) if sure else Differentiability("untried")


def _obstacles(known: Schema) -> Iterator[str]:
    """Yield, for each sample that fits the op, the first reason against its gradient, "" if it has one."""
    for node, types in _samples(known):
        try:
            results = TypeRules({}, {}).results(node, tuple(types.values()))
            for value, type_ in zip(node.outputs, results, strict=False):
                if isinstance(type_, TensorType) and type_.dtype in FLOATS:
                    yield _obstacle(node, value.name, types)
        except (NncdbgError, LookupError, ValueError, ArithmeticError):
            # The sample's rank or attributes do not fit; another error is a bug of a rule or formula.
            continue


def _obstacle(node: Node, y: str, types: dict[str, TensorType]) -> str:
    floats = tuple(name for name, type_ in types.items() if type_.dtype in FLOATS)
    request = GradientRequest(y, floats, floats)
    for each in gradient_graph("sample", [node], request, types, {}, {}).nodes:
        if each.op == "nncdbg.NoGradientRule":
            inner, reason = str(each.attributes["name"]), str(each.attributes["reason"])
            words = reason or _NO_RULE
            return words if inner == node.op else f"its formula needs {inner}: {words}"
    return ""


def _samples(known: Schema) -> Iterator[tuple[Node, dict[str, TensorType]]]:
    """Yield statements with all or only the required operands, and their types."""
    if known.name in _SHAPES:
        shapes = _SHAPES[known.name]
        formals = known.inputs[: len(shapes)]
        types = {
            each.name: TensorType(_sample_dtype(each), shape)
            for each, shape in zip(formals, shapes, strict=True)
        }
        yield _sample(known, types, 1)
        return
    for rank in _RANKS:
        for inputs in ([each for each in known.inputs if not each.optional], known.inputs):
            types = {each.name: TensorType(_sample_dtype(each), (2,) * rank) for each in inputs}
            yield _sample(known, types, rank)


def _sample(known: Schema, types: dict[str, TensorType], rank: int) -> tuple[Node, dict[str, TensorType]]:
    outputs = [each for each in known.outputs if not each.optional] or known.outputs[:1]
    results = tuple(Value(f"{each.name}_result") for each in outputs)
    return Node(known.name, tuple(types), results, _attributes(known, rank)), types


def _floats(formal: Formal) -> bool:
    return formal.tensor if formal.dtypes is None else bool(formal.dtypes & FLOATS)


def _sample_dtype(formal: Formal) -> str:
    if formal.dtypes is None or "f32" in formal.dtypes:
        return "f32"
    return "i64" if "i64" in formal.dtypes else min(formal.dtypes)


def _attributes(known: Schema, rank: int) -> dict[str, Any]:
    """Return samples of the required attributes; lists of integers have one element per spatial axis."""
    samples = {**_SAMPLES, "INTS": (1,) * max(1, rank - 2)}
    required = [key for key, default in known.attributes.items() if default is REQUIRED]
    # The debugger's own ops declare no kind; their attributes are lists of integers.
    found = {key: samples.get(known.kinds.get(key, "INTS"), 1) for key in required}
    return {**found, **_ATTRIBUTES.get(known.name, {})}
