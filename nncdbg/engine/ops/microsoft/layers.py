"""Layers that onnxruntime fuses: products with activations, Gelu, LSTM with 8-bit weights, normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from nncdbg.dtypes import FROM_ONNX
from nncdbg.engine.ops import contracts, remarks
from nncdbg.engine.ops.declaration import Formula, composite, op, other_version
from nncdbg.engine.ops.formula import (
    activation_of,
    cast,
    formula,
    sizes_at,
    stated,
    type_at,
    wide_formula,
    wide_name,
)
from nncdbg.engine.ops.influence import EVERYTHING
from nncdbg.engine.ops.matrix import gemm_types, matmul_shape, matmul_types
from nncdbg.engine.ops.normalization import layer_normalization, need_last
from nncdbg.engine.ops.recurrent import (
    Cell,
    activation_lines,
    biases,
    directions_of,
    gates_of,
    lstm_cell,
    over_directions,
    recurrent_types,
)
from nncdbg.engine.ops.remarks import Squares, in_rows
from nncdbg.engine.ops.types import (
    Attributes,
    Shape,
    Types,
    at,
    broadcast,
    broadcast_shapes,
    normal_axis,
    same_as,
    shape_at,
    shaped,
    typed,
)
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim, TensorType


def _order(rank: int, *, batch: bool, last: bool) -> list[int]:
    """Return the axis order: `batch` moves the first axis after the batch, `last` swaps the last two."""
    order = list(range(rank))
    if rank > 1 and batch:
        order = [*order[1:-1], 0, order[-1]]
    return [*order[:-2], order[-1], order[-2]] if rank > 1 and last else order


def _orders(attributes: Attributes, ranks: tuple[int, int]) -> list[list[int]]:
    return [
        _order(rank, batch=bool(attributes.get(f"transBatch{name}")), last=bool(attributes[f"trans{name}"]))
        for name, rank in zip("AB", ranks, strict=True)
    ]


def fused_types(attributes: Attributes, types: Types) -> Types:
    """The types of MatMul on the transposed operands."""
    a, b = shape_at(types, 0), shape_at(types, 1)
    if a is None or b is None:
        return [typed(at(types, 0), None)]
    orders = _orders(attributes, (len(a), len(b)))
    shapes: list[Shape] = [
        tuple(shape[axis] for axis in order) for shape, order in zip((a, b), orders, strict=True)
    ]
    return [typed(at(types, 0), matmul_shape(*shapes))]


def product_lines(attributes: Attributes, types: Types) -> list[str]:
    """Compute `%y.wide`: the operands transposed, multiplied, scaled."""
    orders = _orders(attributes, (len(type_at(types, 0).shape or ()), len(type_at(types, 1).shape or ())))
    lines, names = [], []
    for name, order in zip("ab", orders, strict=True):
        moved = order != sorted(order)
        names.append(f"%{name}_moved" if moved else f"%{name}.wide")
        if moved:
            lines.append(f"%{name}_moved = Transpose(%{name}.wide, perm={order})")
    alpha = attributes["alpha"]
    product = "%y.wide" if alpha == 1 else "%product"
    lines.append(f"{product} = MatMul({', '.join(names)})")
    return lines if alpha == 1 else [*lines, f"%y.wide = Mul(%product, {alpha})"]


@composite("com.microsoft.FusedMatMul", infer=fused_types)
def fused_matmul(attributes: Attributes, types: Types) -> str:
    """alpha A B, with the last two axes of A and B swapped if `transA` and `transB` are set.

    `transBatchA` and `transBatchB` first move the first axis after the other batch axes.
    """
    return wide_formula("FusedMatMul", ["a", "b"], types, product_lines(attributes, types))


@composite("com.microsoft.TransposeMatMul", infer=fused_types)
def transpose_matmul(attributes: Attributes, types: Types) -> str:
    """alpha A B, with the last two axes of A and B swapped if `transA` and `transB` are set."""
    return wide_formula("TransposeMatMul", ["a", "b"], types, product_lines(attributes, types))


@composite("com.microsoft.FusedGemm", infer=gemm_types)
def fused_gemm(attributes: Attributes, types: Types) -> str:
    """Gemm, then an activation."""
    names = ["a", "b", "c"]
    given = [f"%{name}" for index, name in enumerate(names) if at(types, index) is not None]
    own = stated(attributes, ("alpha", "beta", "transA", "transB"))
    name, parameters = activation_of(attributes)
    lines = [
        f"%product = Gemm({', '.join(given)}{own})",
        *activation_lines(name, "%product", "%y", parameters),
    ]
    return formula("FusedGemm", names, types, lines)


@composite("com.microsoft.GemmFastGelu", infer=matmul_types)
def gemm_fast_gelu(attributes: Attributes, types: Types) -> str:
    """FastGelu(X W + bias)."""
    lines = ["%product = MatMul(%x, %weight)"]
    summed = at(types, 2) is not None
    lines += ["%sum = Add(%product, %bias)"] if summed else []
    lines.append(f'%y = Gelu(%{"sum" if summed else "product"}, approximate="tanh")')
    return formula("GemmFastGelu", ["x", "weight", "bias"], types, lines)


@composite("com.microsoft.Gelu", infer=same_as(0))
def gelu(attributes: Attributes, types: Types) -> str:
    """x times the normal distribution function of x."""
    return formula("Gelu", ["x"], types, ["%y = Gelu(%x)"])


@composite("com.microsoft.BiasGelu", infer=same_as(0))
def bias_gelu(attributes: Attributes, types: Types) -> str:
    """Gelu(x + bias), with a bias over the last axis."""
    lines = ["%sum.wide = Add(%x.wide, %bias.wide)", "%y.wide = Gelu(%sum.wide)"]
    return wide_formula("BiasGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.FastGelu", infer=same_as(0))
def fast_gelu(attributes: Attributes, types: Types) -> str:
    """The tanh approximation of Gelu(x + bias), with an optional bias over the last axis."""
    lines = ['%y.wide = Gelu(%x.wide, approximate="tanh")']
    if len(types) > 1 and types[1] is not None:
        lines = ["%sum = Add(%x.wide, %bias.wide)", '%y.wide = Gelu(%sum, approximate="tanh")']
    return wide_formula("FastGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.QuickGelu", infer=same_as(0))
def quick_gelu(attributes: Attributes, types: Types) -> str:
    """x Sigmoid(alpha x)."""
    lines = [
        f"%scaled = Mul(%x.wide, {attributes['alpha']})",
        "%gate = Sigmoid(%scaled)",
        "%y.wide = Mul(%x.wide, %gate)",
    ]
    return wide_formula("QuickGelu", ["x"], types, lines)


def _half(attributes: Attributes, types: Types) -> tuple[Dim, ...] | None:
    shape = shape_at(types, 0)
    if shape is None:
        return None
    last = shape[-1]
    if isinstance(last, int) and last % 2:
        raise GraphError(f"the last axis has {last} elements, which cannot be split into two halves")
    return (*shape[:-1], last // 2 if isinstance(last, int) else None)


@composite("com.microsoft.BiasSplitGelu", infer=shaped(_half))
def bias_split_gelu(attributes: Attributes, types: Types) -> str:
    """The first half of x + bias along the last axis, times Gelu of the second half."""
    lines = [
        "%sum = Add(%x.wide, %bias.wide)",
        "%value, %gate = Split(%sum, axis=-1, num_outputs=2)",
        "%open = Gelu(%gate)",
        "%y.wide = Mul(%value, %open)",
    ]
    return wide_formula("BiasSplitGelu", ["x", "bias"], types, lines)


@composite("com.microsoft.BiasAdd", infer=broadcast())
def bias_add(attributes: Attributes, types: Types) -> str:
    """x + bias + skip, with a bias over the last axis."""
    lines = ["%sum = Add(%x.wide, %bias.wide)", "%y.wide = Add(%sum, %skip.wide)"]
    return wide_formula("BiasAdd", ["x", "bias", "skip"], types, lines)


# Ops of ONNX before version 1 that onnxruntime still has -----------------------------------------


def _parametric(name: str, doc: str) -> Formula:
    def build(attributes: Attributes, types: Types) -> str:
        parameters = (attributes["alpha"], attributes["beta"])
        return wide_formula(name, ["x"], types, activation_lines(name, "%x.wide", "%y.wide", parameters))

    build.__doc__ = doc
    return build


for _name, _doc in (
    ("Affine", "alpha x + beta."),
    ("ScaledTanh", "alpha tanh(beta x)."),
    ("ParametricSoftplus", "alpha Softplus(beta x)."),
):
    composite(_name, infer=same_as(0))(_parametric(_name, _doc))


@composite("Scale", infer=same_as(0))
def scale(attributes: Attributes, types: Types) -> str:
    """x times the attribute `scale`."""
    return wide_formula("Scale", ["x"], types, [f"%y.wide = Mul(%x.wide, {attributes['scale']})"])


def _types(attributes: Attributes, types: Types) -> Types:
    """The types of LSTM, with transposed weights."""
    shapes = [shape_at(types, index) for index in (1, 2)]
    turned = [(shape[0], shape[2], shape[1]) if shape and len(shape) == 3 else None for shape in shapes]
    weights = [typed(at(types, 0), shape) for shape in turned]
    return recurrent_types(4, 3)(attributes, [at(types, 0), *weights, *types[3:8]])


def requantized(xp: ModuleType, x: Any) -> Any:
    """Quantize and dequantize `x` by DynamicQuantizeLinear: 256 levels over a range that includes 0."""
    low, high = xp.minimum(x.min(), 0), xp.maximum(x.max(), 0)
    scale = ((high - low) / xp.float32(255)).astype(xp.float32)
    scale = xp.where(scale == 0, xp.float32(1), scale)
    zero = xp.clip(xp.rint(-low / scale), 0, 255)
    codes = xp.clip(xp.rint(x / scale) + zero, 0, 255)
    return ((codes - zero) * scale).astype(xp.float32)


def _dequantized(xp: ModuleType, weight: Any, scale: Any, zero: Any) -> Any:
    """Return a weight [directions, features, rows] in f32; scales are per direction, or also per row."""
    wide = weight.astype(xp.float32) - zero.astype(xp.float32).reshape(len(zero), 1, -1)
    return (wide * scale.reshape(len(scale), 1, -1)).astype(xp.float32)


@op("com.microsoft.DynamicQuantizeLSTM", infer=_types, outputs_count=True)
def dynamic_quantize_lstm(
    xp: ModuleType,
    x: Any,
    weight: Any,
    again: Any,
    bias: Any,
    lengths: Any,
    initial_h: Any,
    initial_c: Any,
    peepholes: Any,
    weight_scale: Any,
    weight_zero: Any,
    again_scale: Any,
    again_zero: Any,
    *,
    direction: str,
    input_forget: int,
    outputs_count: int,
    **attributes: Any,
) -> Any:
    """LSTM with weights [directions, features, 4 hidden] of 8 bits.

    x is quantized as a whole and h at each step, to 256 levels over their own range.
    """
    names, hidden = ["Sigmoid", "Tanh", "Tanh"], again.shape[1]
    gates = gates_of(attributes, names, len(directions_of(direction)))
    of_input = _dequantized(xp, weight, weight_scale, weight_zero).swapaxes(1, 2)
    of_state = _dequantized(xp, again, again_scale, again_zero)

    def cell_of(d: int) -> tuple[Any, Cell]:
        first, second = biases(xp, bias, d, x, 4 * hidden)
        looks = None if peepholes is None else peepholes[d].reshape(3, hidden)
        inner = lstm_cell(xp, gates[d], of_state[d], looks, coupled=bool(input_forget))

        def cell(product: Any, h: Any, c: Any) -> tuple[Any, ...]:
            return inner(product, requantized(xp, h), c)

        return first + second, cell

    initial = [initial_h, initial_c]
    return over_directions(
        xp,
        requantized(xp, x),
        of_input,
        lengths,
        initial,
        cell_of,
        direction=direction,
        layout=0,
        hidden=hidden,
    )[:outputs_count]


# onnxruntime also fuses a LayerNormalization of ONNX's domain into models older than opset 17.
other_version("LayerNormalization", 1, influence=EVERYTHING)(layer_normalization)


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
