"""Layer normalizations fused by onnxruntime: with a residual sum, with embeddings, without a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nncdbg.engine.dtypes import FROM_ONNX
from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops.declaration import composite, op
from nncdbg.engine.ops.formula import cast, sizes_at, type_at, wide_name
from nncdbg.engine.ops.microsoft.composing import formula, wide_formula
from nncdbg.engine.ops.normalization import layer_formula, layer_normalization, layer_types, need_last
from nncdbg.engine.ops.squares import Squares, in_rows
from nncdbg.engine.ops.types import Attributes, Types, at, broadcast_shapes, normal_axis, shape_at, typed
from nncdbg.ir.records import TensorType

# onnxruntime also fuses a LayerNormalization of ONNX's domain into models older than opset 17.
op(
    "LayerNormalization",
    since=1,
    infer=layer_types,
    formula=layer_formula,
    outputs_count=True,
    accepts_out=True,
    squares=Squares((0,), in_rows, bias=2),
)(layer_normalization)


def _rms_types(attributes: Attributes, types: Types) -> Types:
    """Y, then 1 / root mean square, with size 1 for the normalized axes."""
    x, stash = shape_at(types, 0), FROM_ONNX[attributes["stash_type"]]
    if x is None:
        return [at(types, 0), TensorType(stash)]
    axis = normal_axis(attributes["axis"], len(x))
    need_last(types, axis, ("scale",))
    return [at(types, 0), TensorType(stash, (*x[:axis], *[1] * (len(x) - axis)))]


def _rms_lines(x: str, y: str, axes: list[int], epsilon: float) -> list[str]:
    """Compute `%inverse`, and `y` before its scale, from `x`."""
    return [
        f"%squares = Mul({x}, {x})",
        f"%mean_square = ReduceMean(%squares, {axes})",
        f"%safe = Add(%mean_square, {epsilon})",
        "%rms = Sqrt(%safe)",
        "%inverse = Reciprocal(%rms)",
        f"{y} = Mul({x}, %inverse)",
    ]


@composite(
    "SimplifiedLayerNormalization",
    infer=_rms_types,
    squares=Squares((0,), in_rows),
    remark=remarks.variances(remarks.rows, centred=False),
)
def simplified_layer_normalization(attributes: Attributes, types: Types) -> str:
    """x / sqrt(mean(x * x) + epsilon) over the axes from `axis` on, times scale.

    The second output is 1 / sqrt(mean(x * x) + epsilon), in `stash_type`.
    """
    rank, dtype = len(sizes_at(types, 0)), type_at(types, 0).dtype
    axes = list(range(normal_axis(attributes["axis"], rank), rank))
    lines = [
        *_rms_lines("%x.wide", "%normal", axes, attributes["epsilon"]),
        "%y.wide = Mul(%normal, %scale.wide)",
        _statistic("statistic", "inverse", wide_name(dtype), FROM_ONNX[attributes["stash_type"]]),
    ]
    results = ["y", "statistic"]
    return wide_formula(
        "SimplifiedLayerNormalization", ["x", "scale"], types, lines, results, kept=["statistic"]
    )


def _statistic(target: str, source: str, wide: str, stash: str) -> str:
    """Cast a statistic to the type in which the op returns it."""
    return f"%{target} = Identity(%{source})" if wide == stash else cast(target, source, stash)


# With a residual ------------------------------------------------------------------------------


def skip_types(attributes: Attributes, types: Types) -> Types:
    """The normalized sum, two statistics in f32 with size 1 for the last axis, and the sum itself."""
    x = shape_at(types, 0)
    if x is not None:
        if len(x) not in (2, 3):
            raise GraphError(
                f"input has {len(x)} axes, expected [batch, sequence, hidden] or [tokens, hidden]"
            )
        for index in range(1, len(types)):
            given = shape_at(types, index)
            if given is not None:
                broadcast_shapes([x, given])
    column = TensorType("f32", None if x is None else (*x[:-1], 1))
    return [at(types, 0), column, column, at(types, 0)]


def _sum_lines(types: Types, bias: int) -> list[str]:
    """Compute `%sum.wide` of input, skip and bias."""
    if at(types, bias) is None:
        return ["%sum.wide = Add(%x.wide, %skip.wide)"]
    return ["%skipped = Add(%x.wide, %skip.wide)", "%sum.wide = Add(%skipped, %bias.wide)"]


_SKIP_RESULTS = ["y", "mean", "statistic", "sum"]
_STATISTICS = ["mean", "statistic"]


@composite(
    "com.microsoft.SkipLayerNormalization",
    infer=skip_types,
    squares=Squares((0, 1, 4), in_rows, bias=3),
    remark=remarks.variances(remarks.rows, remarks.operands(0, 1, 4)),
)
def skip_layer_normalization(attributes: Attributes, types: Types) -> str:
    """LayerNormalization of input + skip + bias over the last axis, times gamma, plus beta.

    The outputs after it are the mean, 1 / sqrt(variance + epsilon), and the sum.
    """
    operands = ["x", "skip", "gamma", "beta", "bias"]
    parameters = "%gamma.wide, %beta.wide" if at(types, 3) is not None else "%gamma.wide"
    normalized = f"LayerNormalization(%sum.wide, {parameters}, epsilon={attributes['epsilon']})"
    lines = [*_sum_lines(types, 4), f"%y.wide, %mean, %statistic = {normalized}"]
    return wide_formula("SkipLayerNormalization", operands, types, lines, _SKIP_RESULTS, kept=_STATISTICS)


@composite(
    "com.microsoft.SkipSimplifiedLayerNormalization",
    infer=skip_types,
    squares=Squares((0, 1, 3), in_rows),
    remark=remarks.variances(remarks.rows, remarks.operands(0, 1, 3), centred=False),
)
def skip_simplified_layer_normalization(attributes: Attributes, types: Types) -> str:
    """input + skip + bias over its root mean square along the last axis, times gamma.

    The outputs after it are zeros in place of a mean, 1 / sqrt(mean square + epsilon), and the sum.
    """
    wide = wide_name(type_at(types, 0).dtype)
    lines = [
        *_sum_lines(types, 3),
        *_rms_lines("%sum.wide", "%normal", [-1], attributes["epsilon"]),
        "%y.wide = Mul(%normal, %gamma.wide)",
        _statistic("statistic", "inverse", wide, "f32"),
        "%mean = Mul(%statistic, 0)",
    ]
    operands = ["x", "skip", "gamma", "bias"]
    return wide_formula(
        "SkipSimplifiedLayerNormalization", operands, types, lines, _SKIP_RESULTS, kept=_STATISTICS
    )


# With embeddings ------------------------------------------------------------------------------


def embedding_types(attributes: Attributes, types: Types) -> Types:
    """[batch, sequence, hidden], a number per batch in i32, and the sum of the embeddings."""
    ids, words = shape_at(types, 0), shape_at(types, 2)
    if ids is not None and len(ids) != 2:
        raise GraphError(f"input_ids has {len(ids)} axes, expected [batch, sequence]")
    shape = None if ids is None or words is None else (*ids, words[-1])
    element = at(types, 2)
    summed = None if element is None else TensorType(element.dtype, shape)
    return [summed, TensorType("i32", None if ids is None else ids[:1]), summed]


def _embeddings(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the embeddings that EmbedLayerNormalization adds."""
    ids, segments, words, places, kinds = inputs[:5]
    positions = inputs[8] if len(inputs) > 8 else None
    return [
        words[ids],
        places[: ids.shape[1]] if positions is None else places[positions],
        None if segments is None else kinds[segments],
    ]


@composite(
    "com.microsoft.EmbedLayerNormalization",
    infer=embedding_types,
    squares=Squares((2, 3, 4), in_rows, bias=6),
    remark=remarks.variances(remarks.rows, _embeddings),
    contract=contracts.not_negative(0, 1, 8),
)
def embed_layer_normalization(attributes: Attributes, types: Types) -> str:
    """LayerNormalization of the sum of the embeddings of words, positions and segments.

    The second output counts the elements of `mask` that are not 0 for each batch (0 without a mask).
    """
    operands = ["ids", "segments", "words", "places", "kinds", "gamma", "beta", "mask", "positions"]
    length = sizes_at(types, 0)[1]
    lines = ["%word = Gather(%words.wide, %ids)"]
    if at(types, 8) is not None:
        lines.append("%place = Gather(%places.wide, %positions)")
    else:
        lines.append(f"%place = Slice(%places.wide, [0], [{length}], [0])")
    summed = "%sum.wide" if at(types, 1) is None else "%both"
    lines.append(f"{summed} = Add(%word, %place)")
    if at(types, 1) is not None:
        lines += ["%kind = Gather(%kinds.wide, %segments)", "%sum.wide = Add(%both, %kind)"]
    normalized = f"LayerNormalization(%sum.wide, %gamma.wide, %beta.wide, epsilon={attributes['epsilon']})"
    lines += [f"%y.wide = {normalized}", *_mask_lines(types)]
    return wide_formula(
        "EmbedLayerNormalization", operands, types, lines, ["y", "counts", "sum"], like=2, kept=["counts"]
    )


def _mask_lines(types: Types) -> list[str]:
    """Compute `%counts` in i32."""
    if at(types, 7) is None:
        lines = ["%first = ReduceMin(%ids, [1], keepdims=0)", "%none = Sub(%first, %first)"]
        return [*lines, cast("counts", "none", "i32")]
    return [
        "%zero = CastLike(0, %mask)",
        "%unset = Equal(%mask, %zero)",
        "%set = Not(%unset)",
        cast("ones", "set", "i32"),
        "%counts = ReduceSum(%ones, [1], keepdims=0)",
    ]


_QUANTIZED = ["words", "places", "kinds", "gamma", "beta"]


def _quantized_types(attributes: Attributes, types: Types) -> Types:
    """The types of EmbedLayerNormalization, in f32."""
    found = embedding_types(attributes, [at(types, 0), None, at(types, 2)])[0]
    scale, counts = at(types, 8), shape_at(types, 0)
    shape = found.shape if found is not None else None
    return [typed(scale, shape), TensorType("i32", None if counts is None else counts[:1])]


@composite(
    "com.microsoft.QEmbedLayerNormalization", infer=_quantized_types, contract=contracts.not_negative(0, 1)
)
def quantized_embed_layer_normalization(attributes: Attributes, types: Types) -> str:
    """EmbedLayerNormalization with tables, gamma and beta in 8 bits, each with a scale and a zero point."""
    operands = ["ids", "segments", *_QUANTIZED, "mask"]
    operands += [f"{name}_scale" for name in _QUANTIZED] + [f"{name}_zero" for name in _QUANTIZED]
    given = [name for name in _QUANTIZED if at(types, operands.index(name)) is not None]
    tables = ", ".join(f"%{name}_real" if name in given else "_" for name in _QUANTIZED)
    mask = "%mask" if at(types, 7) is not None else "_"
    segments = "%segments" if at(types, 1) is not None else "_"
    epsilon = attributes["epsilon"]
    lines = [f"%{name}_real = DequantizeLinear(%{name}, %{name}_scale, %{name}_zero)" for name in given]
    lines.append(
        "%y, %counts = com.microsoft.EmbedLayerNormalization"
        f"(%ids, {segments}, {tables}, {mask}, epsilon={epsilon})"
    )
    return formula("QEmbedLayerNormalization", operands, types, lines, ["y", "counts"])
