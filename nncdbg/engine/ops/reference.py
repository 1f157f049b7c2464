"""Rare ONNX ops: ops without a kernel of nncdbg run through `onnx.reference`.

`lookup` falls back to this module, so that such an op is an `Op` like any other, with the field `reference`
set.  Types come from ONNX's inference.  One evaluator is built and cached per statement and combination of
element types.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.dtypes import NUMPY, name_of
from nncdbg.engine.ops import contracts, feature_models
from nncdbg.engine.ops import gradient_shape as indices
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import Op, describe, facts_of
from nncdbg.engine.ops.gradient import affine_grid, nothing
from nncdbg.engine.ops.influence import Content, Infinities, probed
from nncdbg.engine.ops.onnx_schemas import node_proto, type_proto, types_by_onnx
from nncdbg.engine.ops.schema import complete, schema, split
from nncdbg.engine.ops.signal import transformed
from nncdbg.errors import GraphError, RunError, UnsupportedOp
from nncdbg.ir.records import SequenceType, TensorType, Type

_LOADERS = {
    "": "onnx.reference.ops",
    "ai.onnx.ml": "onnx.reference.ops.aionnxml",
    "ai.onnx.preview": "onnx.reference.ops.aionnx_preview",
    "ai.onnx.preview.training": "onnx.reference.ops.aionnx_preview_training",
}
"""Domain to the module of `onnx.reference` with its ops."""

_BLOCKS = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Ops that contain graphs are control flow of the program, never a kernel."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that an op accepts in an operand, if its kernel does not refuse others in plain words."""

    operand: int
    least: int
    most: Callable[[Sequence[Any]], float] = lambda inputs: math.inf
    """`most(inputs)`: the largest number."""

    def check(self, name: str, version: int, inputs: Sequence[Any]) -> None:
        """Raise RunError for the first number out of these limits."""
        given = inputs[self.operand] if self.operand < len(inputs) else None
        if given is None or not given.size:
            return
        most, found = self.most(inputs), schema(name, version)
        outside = given[~((given >= self.least) & (given <= most))]
        if outside.size:
            what = f"operand {self.operand}" if found is None else found.inputs[self.operand].name
            bounds = f"{self.least} or more" if most == math.inf else f"in {self.least} to {most:g}"
            raise RunError(
                f"{name} cannot compute: {what} has {outside[0]}, but must be {bounds}",
                hint=f"use numbers that are {bounds}",
            )


@dataclass(frozen=True, slots=True)
class ReferenceOp(Op):
    """An op with the kernel of `onnx.reference`, for one version of its domain."""

    version: int = 1
    corrected: Callable[..., Any] | None = None
    """`corrected(statement, *inputs)`: the results, where those of `onnx.reference` are wrong."""
    limits_of_operands: tuple[Limits, ...] = ()

    def bind(self, xp: ModuleType, attributes: Mapping[str, Any], *, out: bool = False) -> Callable[..., Any]:
        assert not out
        if xp is not np:
            return partial(_no_kernel_on, self.name, xp.__name__)
        given = {key: value for key, value in attributes.items() if key != "outputs_count"}
        statement = _Statement(self.name, self.version, given, attributes["outputs_count"])
        run = statement.run if self.corrected is None else partial(self.corrected, statement)
        if not self.limits_of_operands:
            return run

        def run_checked(*inputs: Any) -> Any:
            for each in self.limits_of_operands:
                each.check(self.name, self.version, inputs)
            return run(*inputs)

        return run_checked


def _with_raw_product(statement: _Statement, *inputs: Any) -> Any:
    """For mode 0, `onnx.reference` returns the product of Q and K after `softcap`, not before."""
    results, given = statement.run(*inputs), statement.attributes
    if statement.outputs < 4 or given["qk_matmul_output_mode"] or not given["softcap"]:
        return results
    uncapped = _Statement(statement.name, statement.version, {**given, "softcap": 0.0}, statement.outputs)
    return (*results[:3], uncapped.run(*inputs)[3])


def _weighted(statement: _Statement, *inputs: Any) -> Any:
    """Without weights, each n-gram has the weight 1; `onnx.reference` fails."""
    given = statement.attributes
    weights = given["weights"] or (1.0,) * len(given["ngram_indexes"])
    return _Statement(statement.name, statement.version, {**given, "weights": weights}, 1).run(*inputs)


describe(
    "Attention",
    corrected=_with_raw_product,
    limits_of_operands=(Limits(6, 0, lambda inputs: inputs[1].shape[-2]),),
    influence=probed(0, 1, 2, 3, 4, 5).taking(Infinities.ABSORBED, masks=(3,)),
    unit_axis=-1,
    cause="layers.attention",
    legal="layers.masked_scores",
)
describe(
    "CenterCropPad",
    content=Content.BOUNDED,
    contract=contracts.distinct_axes(None),
    integers=valid.sizes(1),
    limits_of_operands=(Limits(1, 0),),
)
describe(
    "RotaryEmbedding",
    integers=valid.indices(3, axis=0, into=1),
    limits_of_operands=(Limits(3, 0, lambda inputs: inputs[1].shape[0] - 1),),
)
describe("TfIdfVectorizer", corrected=_weighted)
describe("AffineGrid", vjp=affine_grid, limits_of_operands=(Limits(1, 1),))
describe("DFT", vjp=transformed, limits_of_operands=(Limits(1, 1),))
describe("Col2Im", vjp=indices.from_columns)
describe("MaxUnpool", vjp=indices.unpooled, contract=contracts.unpooled, limits_of_operands=(Limits(1, 0),))
describe(
    "MelWeightMatrix",
    vjp=nothing,
    contract=contracts.edges,
    limits_of_operands=(
        *(Limits(each, 1) for each in (0, 1, 2)),
        *(Limits(each, 0, lambda inputs: float(inputs[2]) / 2) for each in (3, 4)),
    ),
)
describe(
    "TensorScatter",
    vjp=indices.tensor_scattered,
    content=Content.UPDATED,
    limits_of_operands=(Limits(2, 0, lambda inputs: inputs[0].shape[-2] - 1),),
)
for _model, _formula in (
    ("FeatureVectorizer", feature_models.feature_vectorizer_formula),
    ("Imputer", feature_models.imputer_formula),
    ("Scaler", feature_models.scaler_formula),
):
    describe(f"ai.onnx.ml.{_model}", formula=_formula)
describe("ai.onnx.ml.Binarizer", vjp=nothing)
describe(
    "ai.onnx.ml.ArrayFeatureExtractor",
    vjp=indices.moved("ai.onnx.ml.ArrayFeatureExtractor"),
    integers=valid.indices(1, axis=-1),
    limits_of_operands=(Limits(1, 0, lambda inputs: inputs[0].shape[-1] - 1),),
)
for _window in ("HannWindow", "HammingWindow", "BlackmanWindow"):
    describe(
        _window,
        cause="pointwise.shape_of_window",
        integers=valid.sizes(0),
        limits_of_operands=(Limits(0, 0),),
    )
describe("ai.onnx.preview.training.Adagrad", cause="layers.adagrad")
describe("ai.onnx.preview.training.Adam", cause="layers.adam")


@cache
def reference_op(name: str, version: int) -> Op | None:
    """Return the op of ONNX's reference implementation, None if it has none for this version."""
    if not _implemented(name, version):
        return None
    facts: Any = facts_of(name)
    return ReferenceOp(
        name,
        kernel=partial(_compute, name, version),
        since=version,
        infer=types_by_onnx(name, version),
        outputs_count=True,
        reference=True,
        doc=f"Runs through onnx.reference, opset {version}.",
        version=version,
        **facts,
    )


def _implemented(name: str, version: int) -> bool:
    domain, local = split(name)
    if domain not in _LOADERS or local in _BLOCKS:
        return False
    import onnx.defs
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import RuntimeContextError

    try:
        onnx.defs.get_schema(local, version, domain)
    except onnx.defs.SchemaError:
        return False
    load_op = importlib.import_module(_LOADERS[domain]).load_op
    extra = {"evaluator_cls": ReferenceEvaluator} if not domain else {}
    try:
        load_op(domain, local, version, **extra)
    except RuntimeContextError:
        return True  # The function body depends on the types, which are known only at run time.
    except (NotImplementedError, RuntimeError, ValueError):
        return False  # `load_op` raises this for an op, or a version of it, that it does not have.
    return True


def _no_kernel_on(name: str, backend: str, *inputs: Any) -> Any:
    raise UnsupportedOp(f"{name} has no kernel on {backend}: onnx.reference runs on NumPy only")


def _compute(name: str, version: int, xp: Any, *inputs: Any, outputs_count: int = 1, **given: Any) -> Any:
    attributes = complete(name, version, {key: value for key, value in given.items() if value is not None})
    found = reference_op(name, version)
    assert found is not None
    return found.bind(xp, {**attributes, "outputs_count": outputs_count})(*inputs)


class _Statement:
    """One op with its attributes, and its evaluators by the element types of the inputs."""

    def __init__(self, name: str, version: int, attributes: Mapping[str, Any], outputs: int) -> None:
        self.name = name
        self.version = version
        self.attributes = attributes
        self.outputs = outputs
        self._evaluators: dict[tuple[Type | None, ...], tuple[Any, Sequence[Type | None]]] = {}

    def run(self, *inputs: Any) -> Any:
        """Return the outputs as arrays, with lists for sequences; several outputs as a tuple."""
        types = tuple(map(_element, inputs))
        if types not in self._evaluators:
            self._evaluators[types] = self._evaluator(types), self._result_types(types)
        evaluator, wanted = self._evaluators[types]
        feeds = {f"input_{index}": value for index, value in enumerate(inputs) if value is not None}
        plain = map(_converted, evaluator.run(None, feeds))
        results = tuple(self._typed(result, known) for result, known in zip(plain, wanted, strict=True))
        return results[0] if len(results) == 1 else results

    def _result_types(self, types: Sequence[Type | None]) -> Sequence[Type | None]:
        """Return the types that ONNX infers for results of operands of these element types.

        A diagnosis repeats an op in f64 even if ONNX does not allow that type; then nothing is inferred.
        """
        attributes = {**self.attributes, "outputs_count": self.outputs}
        try:
            return types_by_onnx(self.name, self.version)(attributes, types)
        except GraphError:
            return [None] * self.outputs

    def _typed(self, result: Any, wanted: Type | None) -> Any:
        """Return the result in the element type that ONNX infers: `onnx.reference` computes some ops in f64.

        Raises RunError for a result that this type cannot represent.
        """
        if not isinstance(wanted, TensorType) or not isinstance(result, np.ndarray):
            return result
        dtype = NUMPY[wanted.dtype]
        if result.dtype == dtype:
            return result
        with np.errstate(all="ignore"):
            cast = result.astype(dtype)
            exact = dtype.kind == "f" or np.array_equal(cast.astype(result.dtype), result)
        if result.dtype.kind not in "fiub" or not exact:
            raise RunError(
                f"onnx.reference returned {self.name} as {result.dtype}, but ONNX infers {wanted.dtype}"
            )
        return cast

    def _evaluator(self, types: Sequence[Type | None]) -> Any:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        domain, _ = split(self.name)
        given = [known is not None for known in types]
        node = node_proto(self.name, self.version, self.attributes, given, self.outputs)
        inputs = [
            helper.make_value_info(f"input_{index}", type_proto(known))
            for index, known in enumerate(types)
            if known is not None
        ]
        outputs = [
            helper.make_value_info(name, helper.make_tensor_type_proto(1, None)) for name in node.output
        ]
        graph = helper.make_graph([node], "reference", inputs, outputs)
        return ReferenceEvaluator(graph, opsets={"": max(self.version, 1), domain: self.version})


def _element(value: Any) -> Type | None:
    """Return the type that selects an evaluator: the element type, without sizes."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        first = _element(value[0]) if value else None
        return SequenceType(first or TensorType("f32"))
    return TensorType(name_of(value.dtype))


def _converted(result: Any) -> Any:
    """Convert a result to the value types of nncdbg: text as objects, sequences as lists."""
    if result is None:
        return None
    if isinstance(result, (list, tuple)):
        return [_converted(item) for item in result]
    if hasattr(result, "todense") or isinstance(result, dict):
        raise RunError(f"onnx.reference returned a {type(result).__name__}, not a tensor or sequence")
    array = np.asarray(result)
    return array.astype(object) if array.dtype.kind in "US" else array
