"""Ops that make a tensor from attributes or a few numbers: constants, uninitialized memory, random numbers.

The machine recognizes `nncdbg.Empty`, an allocation, by its name and treats its output as uninitialized
unless `init` initializes it.  It passes each kernel of a random op a generator keyed by (seed, statement,
iteration): so replay is exact and no op shares state with another.  ONNX's attribute `seed` replaces the
statement in the key: statements with the same seed draw the same numbers, wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, isfinite
from typing import Any

import numpy as np

from nncdbg.dtypes import COMPLEX, FLOATS, NUMPY, name_of
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import gradient_shape as gradients
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op, other_version
from nncdbg.engine.ops.gradient import nothing
from nncdbg.engine.ops.gradient_shape import ascending
from nncdbg.engine.ops.influence import (
    NOTHING,
    POINTWISE,
    RESIZED,
    Application,
    Content,
    Influence,
    Marked,
    along,
    everything_in,
)
from nncdbg.engine.ops.precision import is_narrow
from nncdbg.engine.ops.shape import ranked
from nncdbg.engine.ops.types import Attributes, Types, at, element_type, shape_at, typed
from nncdbg.errors import GraphError, RunError, UnsupportedOp
from nncdbg.ir.records import TensorType
from nncdbg.stats.inspection import fill

_FORMS = {
    "value_float": "f32", "value_floats": "f32", "value_int": "i64", "value_ints": "i64",
    "value_string": "str", "value_strings": "str",
}  # fmt: skip


def _constant_array(attributes: Attributes) -> Any:
    """Return the one tensor in the attributes of `Constant`, as a NumPy array."""
    value = attributes.get("value")
    if value is not None:
        return value
    if attributes.get("sparse_value") is not None:
        raise UnsupportedOp("Constant with a sparse_value is not supported", hint="use a dense `value`")
    for key, name in _FORMS.items():
        given = attributes.get(key)
        if given is not None:
            return np.array(given, NUMPY[name])
    raise GraphError("Constant has no value", hint="set `value`, `value_float` or another value attribute")


def _constant_types(attributes: Attributes, types: Types) -> Types:
    array = _constant_array(attributes)
    return (TensorType(name_of(array.dtype), array.shape),)


@op(
    "Constant",
    since=1,
    infer=_constant_types,
    influence=NOTHING,
    content=Content.CONSTANT,
    exact_infinity=True,
    cause="pointwise.constant",
    legal="pointwise.infinite",
)
def constant(xp: Any, **attributes: Any) -> Any:
    """The tensor in `value` or one of its short forms.  ONNX Constant since 1."""
    return xp.asarray(_constant_array(attributes))


def _constant_of_shape_types(attributes: Attributes, types: Types) -> Types:
    value = attributes["value"]
    return (TensorType("f32" if value is None else name_of(value.dtype), ranked(0)(attributes, types)),)


@op(
    "ConstantOfShape",
    since=9,
    infer=_constant_of_shape_types,
    accepts_out=True,
    measure=lambda shape: sizes_of(shape.tolist()),
    integers=valid.sizes(0),
    influence=RESIZED,
    content=Content.CONSTANT,
    host_operands=(0,),
    exact_infinity=True,
    cause="pointwise.constant",
    legal="pointwise.infinite",
)
def constant_of_shape(xp: Any, shape: Any, *, value: Any, out: Any = None) -> Any:
    """A tensor of shape `shape`, filled with `value`.  ONNX ConstantOfShape since 9."""
    filler = np.zeros(1, np.float32) if value is None else value
    result = xp.empty(sizes_of(shape.tolist()), filler.dtype) if out is None else out
    result[...] = filler.reshape(-1)[0]
    return result


def _types_like(attributes: Attributes, types: Types) -> Types:
    given, dtype = at(types, 0), attributes["dtype"]
    if dtype is None:
        return (given,)
    return (TensorType(element_type(dtype), shape_at(types, 0)),)


def _dtype_like(x: Any, dtype: int | None) -> Any:
    return x.dtype if dtype is None else NUMPY[element_type(dtype)]


@op("EyeLike", since=9, infer=_types_like, vjp=nothing, influence=NOTHING, content=Content.GENERATED)
def eye_like(xp: Any, x: Any, *, dtype: int | None, k: int) -> Any:
    """Ones on diagonal `k` of a matrix of the shape of `x`, zeros elsewhere.  ONNX EyeLike since 9."""
    return xp.eye(*x.shape, k=k, dtype=_dtype_like(x, dtype))


@op(
    "Range",
    since=11,
    infer=lambda attributes, types: (typed(at(types, 0), (None,)),),
    integers=valid.between(
        {0: valid.Integers(0, 1), 1: valid.Integers(1, valid.FEW), 2: valid.Integers(1, 2)}
    ),
    vjp=ascending,
    influence=RESIZED,
    content=Content.GENERATED,
    host_operands=(0, 1, 2),
)
def range_of(xp: Any, start: Any, limit: Any, delta: Any, *, stash_type: int = 1) -> Any:
    """start + i * delta while that is below `limit` (above, for a negative delta).

    f16 and bf16 are computed in `stash_type`, f32 by default.  ONNX Range since 11.
    """
    working = NUMPY[element_type(stash_type)] if is_narrow(start.dtype) else start.dtype
    first, last, step = (part.reshape(()).astype(working).item() for part in (start, limit, delta))
    if step == 0:
        raise RunError("Range has a delta of 0", hint="use a delta other than 0")
    if not isfinite(first + last + step):
        raise RunError(
            f"Range from {first} to {last} in steps of {step} has no finite size", hint="use finite numbers"
        )
    if working.kind in "iu":
        return xp.arange(first, last, step, dtype=working)
    count = max(0, ceil((last - first) / step))
    indices = xp.arange(count, dtype=working)
    return (indices * working.type(step) + working.type(first)).astype(start.dtype, copy=False)


def sizes_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a `shape` attribute as sizes; raises GraphError for a negative size."""
    if any(size < 0 for size in shape):
        raise GraphError(f"shape {list(shape)} has a negative size")
    return tuple(int(size) for size in shape)


_INITS = ("nan", "none", "zeros", "ones")


def _empty_types(attributes: Attributes, types: Types) -> Types:
    dtype, init = attributes["dtype"], attributes["init"]
    if dtype not in NUMPY:
        raise GraphError(
            f"{dtype!r} is not an element type", hint="use a type such as f32, i64 or bool", attribute="dtype"
        )
    if init not in _INITS:
        raise GraphError(
            f"init cannot be {init!r}", hint=f"use one of: {', '.join(_INITS)}", attribute="init"
        )
    return (TensorType(dtype, sizes_of(attributes["shape"])),)


def unwritten(xp: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return uninitialized memory as seen by a program: NaN for floats, 0x7F bytes for other types."""
    element = NUMPY[dtype]
    if dtype in FLOATS or dtype in ("c64", "c128"):
        return xp.full(shape, np.nan, dtype=element)
    if dtype == "str":
        return np.full(shape, "", element)
    if dtype == "bool":
        return xp.ones(shape, element)
    return xp.full((*shape, element.itemsize), 0x7F, dtype=np.uint8).view(element).reshape(shape)


@op(
    "nncdbg.Empty",
    infer=_empty_types,
    influence=NOTHING,
    content=Content.GENERATED,
    cause="pointwise.uninitialized",
)
def empty(xp: Any, *, shape: Sequence[int], dtype: str = "f32", init: str = "nan") -> Any:
    """An uninitialized tensor of shape `shape` and element type `dtype`.

    `init` is `nan` or `none` (uninitialized: reading it is an error), `zeros` or `ones` (initialized).
    """
    _empty_types({"shape": shape, "dtype": dtype, "init": init}, ())
    if init in ("zeros", "ones"):
        return xp.full(sizes_of(shape), NUMPY[dtype].type(init == "ones"), dtype=NUMPY[dtype])
    return unwritten(xp, sizes_of(shape), dtype)


def _remains_types(attributes: Attributes, types: Types) -> Types:
    dtype, sizes = attributes["dtype"], sizes_of(attributes["shape"])
    if dtype not in NUMPY or dtype == "str":
        raise GraphError(
            f"{dtype!r} is not an element type with a fixed size",
            hint="use a type such as f32",
            attribute="dtype",
        )
    rows = [tuple(attributes[name] or ()) for name in ("starts", "offsets", "sizes")]
    if any(len(row) != len(types) or min(row, default=0) < 0 for row in rows):
        raise GraphError(
            f"starts, offsets and sizes need one number, 0 or more, for each of the {len(types)} operands",
            hint="write the first byte in the result, the first byte in the operand, and the number of bytes",
            attribute="starts",
        )
    return (TensorType(dtype, sizes),)


@op(
    "nncdbg.Remains",
    infer=_remains_types,
    cause="pointwise.remains",
    no_gradient="it shows what memory holds in a run with a race",
)
def remains(
    xp: Any,
    *values: Any,
    shape: Sequence[int],
    dtype: str = "f32",
    starts: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> Any:
    """A tensor of shape `shape` and element type `dtype` as memory holds it: bytes of other values.

    Operand i gives `sizes[i]` of its bytes, from byte `offsets[i]`, to the bytes from `starts[i]` of the
    result. The other bytes are uninitialized: NaN for floats, large numbers for integers.
    """
    element = NUMPY[dtype]
    held = np.empty(sizes_of(shape), element)
    raw = held.reshape(-1).view(np.uint8)
    fill(held)
    for value, start, offset, size in zip(values, starts or (), offsets or (), sizes or (), strict=True):
        given = value.get() if hasattr(value, "get") else np.asarray(value)
        given = np.ascontiguousarray(given).reshape(-1).view(np.uint8)[offset : offset + size]
        part = raw[start : start + given.size]
        part[...] = given[: part.size]
    if dtype == "bool":
        held = raw.reshape(held.shape) != 0
    return xp.asarray(held)


def _drawing_dtype(dtype: Any) -> Any:
    """Return the type to draw in: NumPy's generators draw only f32 and f64; narrow floats round from f32."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _normal(xp: Any, rng: Any, shape: tuple[int, ...], dtype: Any, *, mean: float, scale: float) -> Any:
    drawing = _drawing_dtype(dtype)
    drawn = np.asarray(rng.standard_normal(shape, dtype=drawing))
    return xp.asarray((drawn * drawing.type(scale) + drawing.type(mean)).astype(dtype, copy=False))


def _uniform(xp: Any, rng: Any, shape: tuple[int, ...], dtype: Any, *, low: float, high: float) -> Any:
    drawing = _drawing_dtype(dtype)
    drawn = np.asarray(rng.random(shape, dtype=drawing))
    return xp.asarray((drawn * drawing.type(high - low) + drawing.type(low)).astype(dtype, copy=False))


def _types_by_shape(attributes: Attributes, types: Types) -> Types:
    return (TensorType(element_type(attributes["dtype"]), sizes_of(attributes["shape"])),)


def _declare_random(
    name: str, draw: Callable[..., Any], cause: str, by_shape_doc: str, like_doc: str
) -> None:
    """Declare an op that draws numbers of a shape, and one that draws them in the shape of its operand."""

    def by_shape(
        xp: Any, *, shape: Sequence[int], dtype: int, seed: float | None, rng: Any, **numbers: float
    ) -> Any:
        return draw(xp, rng, sizes_of(shape), NUMPY[element_type(dtype)], **numbers)

    def like(xp: Any, x: Any, *, dtype: int | None, seed: float | None, rng: Any, **numbers: float) -> Any:
        return draw(xp, rng, x.shape, _dtype_like(x, dtype), **numbers)

    by_shape.__doc__ = f"{by_shape_doc}.  ONNX {name} since 1."
    like.__doc__ = f"{like_doc} in the shape of `x`.  ONNX {name}Like since 1."
    enter = partial(op, since=1, random=True, influence=NOTHING, cause=cause)
    enter(name, infer=_types_by_shape)(by_shape)
    enter(f"{name}Like", infer=_types_like, vjp=nothing)(like)


_doc = "Normal numbers of `mean` and standard deviation `scale`"
_declare_random("RandomNormal", _normal, "pointwise.normal", _doc, "Normal numbers")
_doc = "Uniformly distributed numbers in [low, high)"
_declare_random("RandomUniform", _uniform, "pointwise.uniform", _doc, f"{_doc},")


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


def _dropped(xp: Any, x: Any, ratio: float, training: bool, rng: Any, mask_dtype: Any, count: int) -> Any:
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
    cause="pointwise.dropout",
)
def dropout_unless_test(
    xp: Any, x: Any, *, ratio: float, is_test: int, rng: Any, outputs_count: int, consumed_inputs: Any = None
) -> Any:
    """`x` with a fraction `ratio` dropped, and the mask in the type of `x`.  ONNX Dropout 1 to 6."""
    return _dropped(xp, x, ratio, not is_test, rng, x.dtype, outputs_count)


@other_version("Dropout", 7, random=False, vjp=gradients.identity)
def dropout_of_inference(xp: Any, x: Any, *, ratio: float, outputs_count: int) -> Any:
    """`x` itself: these versions are for inference.  ONNX Dropout 7 to 9."""
    return _dropped(xp, x, ratio, False, None, x.dtype, outputs_count)


@other_version("Dropout", 10, infer=_dropout_types, random=False, vjp=gradients.identity)
def dropout_with_mask(xp: Any, x: Any, *, ratio: float, outputs_count: int) -> Any:
    """`x` itself, and a mask of bool.  ONNX Dropout 10 and 11."""
    return _dropped(xp, x, ratio, False, None, np.bool_, outputs_count)


@other_version("Dropout", 12, infer=_dropout_types, vjp=gradients.dropout)
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
