"""onnxruntime's Attention, with one product for query, key and value, and its quantized form."""

from __future__ import annotations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at, type_at, wide_name
from nncdbg.engine.ops.microsoft.attention_lines import (
    causal_lines,
    default_scale,
    mask_lines,
    scores_lines,
    split_heads,
    weighted_lines,
)
from nncdbg.engine.ops.microsoft.composing import wide_formula
from nncdbg.engine.ops.microsoft.quantizing import given
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank, shape_at, total, typed
from nncdbg.ir.records import Dim

# One product for query, key and value -----------------------------------------------------------


def _widths(attributes: Attributes, columns: int) -> list[int]:
    """Return the hidden sizes of query, key and value."""
    stated = attributes.get("qkv_hidden_sizes")
    if stated:
        return [int(size) for size in stated]
    if columns % 3:
        raise GraphError(f"the weights have {columns} columns, which is not a multiple of 3")
    return [columns // 3] * 3


def _attention_types(attributes: Attributes, types: Types, past: int, like: int) -> Types:
    """[batch, sequence, hidden of value], and the keys and values [2, batch, heads, total, size]."""
    x, weights, before = shape_at(types, 0), shape_at(types, 1), shape_at(types, past)
    need_rank(types, 0, "input", 3, 3)
    element = at(types, like)
    if x is None or weights is None or not isinstance(weights[1], int):
        return [typed(element, None), typed(element, None)]
    widths, heads = _widths(attributes, weights[1]), attributes["num_heads"]
    length: Dim = total([x[1], before[3]]) if before is not None else x[1] if len(types) <= past else None
    present = (2, x[0], heads, length, widths[1] // heads)
    return [typed(element, (*x[:2], widths[2])), typed(element, present)]


def _qkv_lines(attributes: Attributes, types: Types, columns: int) -> list[str]:
    """Compute `%q`, `%k` and `%v` by heads from `%qkv` [batch, sequence, columns]."""
    batch, length, _ = sizes_at(types, 0)
    lines, begin = [], 0
    for name, width in zip("qkv", _widths(attributes, columns), strict=True):
        own = "own_" if name != "q" else ""
        lines.append(f"%{name}_flat = Slice(%qkv, [{begin}], [{begin + width}], [2])")
        lines += split_heads(f"{own}{name}", f"{name}_flat", (batch, length, width), attributes["num_heads"])
        begin += width
    return lines


def _past_lines(types: Types, past: int) -> list[str]:
    """Compute `%k` and `%v` from those of this call and the operand `past`."""
    if at(types, past) is None:
        lines = ["%k = Identity(%own_k)", "%v = Identity(%own_v)"]
    else:
        lines = [
            line
            for number, each in enumerate("kv")
            for line in (
                f"%past_{each} = Gather(%past.wide, {number}, axis=0)",
                f"%{each} = Concat(%past_{each}, %own_{each}, axis=2)",
            )
        ]
    return lines


def _kept_lines(widths: list[int]) -> list[str]:
    """Compute `%kept.wide`, keys and values in one tensor; no lines if their sizes differ."""
    if widths[1] != widths[2]:
        return []
    return [
        "%k_row = Unsqueeze(%k, [0])",
        "%v_row = Unsqueeze(%v, [0])",
        "%kept.wide = Concat(%k_row, %v_row, axis=0)",
    ]


def _attended(
    attributes: Attributes, types: Types, columns: int, mask: int, past: int, bias: int
) -> list[str]:
    """Compute `%result`, `%k` and `%v` from `%qkv`."""
    batch, length, _ = sizes_at(types, 0)
    before = sizes_at(types, past)[3] if at(types, past) is not None else 0
    size = _widths(attributes, columns)[0] // attributes["num_heads"]
    lines = [*_qkv_lines(attributes, types, columns), *_past_lines(types, past)]
    added = []
    if at(types, mask) is not None:
        lines += mask_lines(types, mask, length + before, attributes["mask_filter_value"], batch)
        added.append("mask")
    if attributes["unidirectional"]:
        lines += causal_lines(length, before)
        added.append("causal")
    if bias >= 0 and at(types, bias) is not None:
        added.append("attention_bias.wide")
    return [
        *lines,
        *scores_lines(default_scale(attributes["scale"], size), added),
        *weighted_lines(batch, length),
    ]


def _refuse_rotation(attributes: Attributes) -> None:
    for name in ("do_rotary", "past_present_share_buffer"):
        if attributes.get(name):
            raise GraphError(f"{name}=1 is not supported", hint=f"export the model with {name}=0")


@composite("com.microsoft.Attention", infer=lambda a, types: _attention_types(a, types, 4, 0))
def attention(attributes: Attributes, types: Types) -> str:
    """Multi-head attention of x [batch, sequence, hidden] to itself, after x weights + bias.

    The second output holds keys and values, those of `past` before those of x.
    """
    names = ["x", "weights", "bias", "mask_index", "past", "attention_bias"]
    _refuse_rotation(attributes)
    columns = sizes_at(types, 1)[1]
    lines = ["%qkv = MatMul(%x.wide, %weights.wide)"]
    if at(types, 2) is not None:
        lines = ["%product = MatMul(%x.wide, %weights.wide)", "%qkv = Add(%product, %bias.wide)"]
    lines += _attended(attributes, types, columns, 3, 4, 5)
    kept = _kept_lines(_widths(attributes, columns))
    lines += ["%y.wide = Identity(%result)", *kept]
    return wide_formula("Attention", names, types[: len(names)], lines, ["y", "kept"] if kept else ["y"])


@composite("com.microsoft.QAttention", infer=lambda a, types: _attention_types(a, types, 8, 2))
def quantized_attention(attributes: Attributes, types: Types) -> str:
    """Attention with x and weights in 8 bits: their product is exact in i32, then scaled."""
    names = [
        "x",
        "weights",
        "bias",
        "x_scale",
        "weights_scale",
        "mask_index",
        "x_zero",
        "weights_zero",
        "past",
    ]
    _refuse_rotation(attributes)
    zeros = ", ".join(given(types, index, f"%{names[index]}") or "_" for index in (6, 7))
    lines = [
        f"%sums = MatMulInteger(%x, %weights, {zeros})",
        "%factors = Mul(%x_scale.wide, %weights_scale.wide)",
        cast("real", "sums", wide_name(type_at(types, 2).dtype)),
        "%product = Mul(%real, %factors)",
        "%qkv = Add(%product, %bias.wide)",
        *_attended(attributes, types, sizes_at(types, 1)[1], 5, 8, -1),
        "%y.wide = Identity(%result)",
        *_kept_lines(_widths(attributes, sizes_at(types, 1)[1])),
    ]
    return wide_formula("QAttention", names, types, lines, ["y", "kept"], like=2)
