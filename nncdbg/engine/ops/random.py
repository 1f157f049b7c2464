"""Random ops.  The machine passes each kernel a generator keyed by (seed, statement, iteration).

So replay is exact and no op shares state with another.  ONNX's attribute `seed` replaces the statement in the
key: statements with the same seed draw the same numbers, wherever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nncdbg.engine.dtypes import COMPLEX, FLOATS, NUMPY, name_of
from nncdbg.engine.errors import RunError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops.constant import sizes_of
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.influence import NOTHING, POINTWISE, Application, Influence, Marked, everything_in
from nncdbg.engine.ops.influence_selection import along
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, shape_at
from nncdbg.ir.records import TensorType


def _drawing_dtype(dtype: Any) -> Any:
    """Return the type to draw in: NumPy's generators draw only f32 and f64; narrow floats round from f32."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _normal(xp: Any, rng: Any, shape: tuple[int, ...], dtype: Any, mean: float, scale: float) -> Any:
    drawing = _drawing_dtype(dtype)
    drawn = np.asarray(rng.standard_normal(shape, dtype=drawing))
    return xp.asarray((drawn * drawing.type(scale) + drawing.type(mean)).astype(dtype, copy=False))


def _uniform(xp: Any, rng: Any, shape: tuple[int, ...], dtype: Any, low: float, high: float) -> Any:
    drawing = _drawing_dtype(dtype)
    drawn = np.asarray(rng.random(shape, dtype=drawing))
    return xp.asarray((drawn * drawing.type(high - low) + drawing.type(low)).astype(dtype, copy=False))


def _types_by_shape(attributes: Attributes, types: Types) -> Types:
    return (TensorType(element_type(attributes["dtype"]), sizes_of(attributes["shape"])),)


def _types_like(attributes: Attributes, types: Types) -> Types:
    given, dtype = at(types, 0), attributes["dtype"]
    if dtype is None:
        return (given,)
    return (TensorType(element_type(dtype), shape_at(types, 0)),)


def _dtype_like(x: Any, dtype: int | None) -> Any:
    return x.dtype if dtype is None else NUMPY[element_type(dtype)]


@op("RandomNormal", since=1, infer=_types_by_shape, random=True, influence=NOTHING, cause="constants.normal")
def random_normal(
    xp: Any, *, shape: Sequence[int], dtype: int, mean: float, scale: float, seed: float | None, rng: Any
) -> Any:
    """Normal numbers of `mean` and standard deviation `scale`.  ONNX RandomNormal since 1."""
    return _normal(xp, rng, sizes_of(shape), NUMPY[element_type(dtype)], mean, scale)


@op(
    "RandomNormalLike",
    since=1,
    infer=_types_like,
    random=True,
    vjp=nothing,
    influence=NOTHING,
    cause="constants.normal",
)
def random_normal_like(
    xp: Any, x: Any, *, dtype: int | None, mean: float, scale: float, seed: float | None, rng: Any
) -> Any:
    """Normal numbers in the shape of `x`.  ONNX RandomNormalLike since 1."""
    return _normal(xp, rng, x.shape, _dtype_like(x, dtype), mean, scale)


@op(
    "RandomUniform", since=1, infer=_types_by_shape, random=True, influence=NOTHING, cause="constants.uniform"
)
def random_uniform(
    xp: Any, *, shape: Sequence[int], dtype: int, low: float, high: float, seed: float | None, rng: Any
) -> Any:
    """Uniformly distributed numbers in [low, high).  ONNX RandomUniform since 1."""
    return _uniform(xp, rng, sizes_of(shape), NUMPY[element_type(dtype)], low, high)


@op(
    "RandomUniformLike",
    since=1,
    infer=_types_like,
    random=True,
    vjp=nothing,
    influence=NOTHING,
    cause="constants.uniform",
)
def random_uniform_like(
    xp: Any, x: Any, *, dtype: int | None, low: float, high: float, seed: float | None, rng: Any
) -> Any:
    """Uniformly distributed numbers in [low, high), in the shape of `x`.  ONNX RandomUniformLike since 1."""
    return _uniform(xp, rng, x.shape, _dtype_like(x, dtype), low, high)


@op(
    "Bernoulli",
    since=15,
    infer=_types_like,
    vjp=nothing,
    random=True,
    influence=POINTWISE,
    contract=contracts.probabilities,
)
def bernoulli(xp: Any, x: Any, *, dtype: int | None, seed: float | None, rng: Any) -> Any:
    """1 with the probability in `x`, else 0; NaN where `x` is NaN, if the type supports it.

    ONNX Bernoulli since 15.
    """
    target = _dtype_like(x, dtype)
    drawn = xp.asarray(xp.asarray(rng.random(x.shape)) < x)
    if name_of(target) in FLOATS | COMPLEX:
        return xp.where(xp.isnan(x), xp.asarray(np.nan, target), drawn.astype(target))
    return drawn.astype(target)


def _multinomial_types(attributes: Attributes, types: Types) -> Types:
    shape = shape_at(types, 0)
    batch = None if shape is None else shape[0]
    return (TensorType(element_type(attributes["dtype"]), (batch, attributes["sample_size"])),)


@op("Multinomial", since=7, infer=_multinomial_types, random=True, influence=along(1).roughly)
def multinomial(xp: Any, x: Any, *, dtype: int, sample_size: int, seed: float | None, rng: Any) -> Any:
    """`sample_size` classes per row of unnormalized log-probabilities x[batch, class].

    ONNX Multinomial since 7.
    """
    logits = x.astype(np.float64)
    weights = xp.exp(logits - logits.max(axis=1, keepdims=True))
    ends = xp.cumsum(weights, axis=1)
    drawn = xp.asarray(rng.random((x.shape[0], sample_size))) * ends[:, -1:]
    # The class with the running-sum interval that contains the number; its end is exclusive.
    chosen = (drawn[:, :, None] >= ends[:, None, :]).sum(axis=2)
    return xp.minimum(chosen, x.shape[1] - 1).astype(NUMPY[element_type(dtype)])


def _dropout_types(attributes: Attributes, types: Types) -> Types:
    return (at(types, 0), TensorType("bool", shape_at(types, 0)))


def _dropout_types_before_10(attributes: Attributes, types: Types) -> Types:
    return (at(types, 0), at(types, 0))


def _dropout_influence(application: Application) -> Sequence[Marked]:
    """Mark values element by element; ratio and mode, the only inputs of the mask, mark everything."""
    if any(marks is not None for marks in application.marked[1:]):
        return everything_in(application.results)
    return [application.marked[0], *[None] * (len(application.results) - 1)]


_DROPOUT = Influence("element by element; for ratio and mode, all results", _dropout_influence, exact=False)


def _dropped(
    xp: Any,
    x: Any,
    ratio: float,
    training: bool,
    rng: Any,
    mask_dtype: Any,
    count: int,
) -> Any:
    """Return `x` with randomly dropped elements, scaled to keep the mean; `x` itself outside training."""
    if not training or ratio == 0:
        return x if count == 1 else (x, xp.ones(x.shape, mask_dtype))
    if not 0 <= ratio < 1:
        raise RunError(
            f"Dropout has the ratio {ratio:g}", hint="use a ratio from 0 up to, but not including, 1"
        )
    mask = xp.asarray(xp.asarray(rng.random(x.shape)) >= ratio)
    # A product, not a selection: a dropped NaN stays NaN, as in ONNX's formula.
    result = xp.asarray(x * x.dtype.type(1 / (1 - ratio)) * mask.astype(x.dtype))
    return result if count == 1 else (result, mask.astype(mask_dtype))


@op(
    "Dropout",
    since=1,
    infer=_dropout_types_before_10,
    random=True,
    outputs_count=True,
    influence=_DROPOUT,
    host_operands=(1, 2),
    training_operand=2,
    cause="constants.dropout",
)
def dropout_unless_test(
    xp: Any, x: Any, *, ratio: float, is_test: int, rng: Any, outputs_count: int, consumed_inputs: Any = None
) -> Any:
    """`x` with a fraction `ratio` dropped, and the mask in the type of `x`.  ONNX Dropout 1 to 6."""
    return _dropped(xp, x, ratio, not is_test, rng, x.dtype, outputs_count)


@op(
    "Dropout",
    since=7,
    infer=_dropout_types_before_10,
    outputs_count=True,
    vjp=gradients.identity,
    influence=_DROPOUT,
)
def dropout_of_inference(xp: Any, x: Any, *, ratio: float, outputs_count: int) -> Any:
    """`x` itself: these versions are for inference.  ONNX Dropout 7 to 9."""
    return _dropped(xp, x, ratio, False, None, x.dtype, outputs_count)


@op("Dropout", since=10, infer=_dropout_types, outputs_count=True, vjp=gradients.identity, influence=_DROPOUT)
def dropout_with_mask(xp: Any, x: Any, *, ratio: float, outputs_count: int) -> Any:
    """`x` itself, and a mask of bool.  ONNX Dropout 10 and 11."""
    return _dropped(xp, x, ratio, False, None, np.bool_, outputs_count)


@op(
    "Dropout",
    since=12,
    infer=_dropout_types,
    random=True,
    outputs_count=True,
    vjp=gradients.dropout,
    influence=_DROPOUT,
)
def dropout(
    xp: Any,
    x: Any,
    ratio: Any = None,
    training_mode: Any = None,
    *,
    seed: int | None,
    rng: Any,
    outputs_count: int,
) -> Any:
    """`x` with a fraction `ratio` (0.5) dropped if `training_mode`, else `x` itself.

    ONNX Dropout since 12.
    """
    part = 0.5 if ratio is None else float(ratio.item())
    training = training_mode is not None and bool(training_mode.item())
    return _dropped(xp, x, part, training, rng, np.bool_, outputs_count)
