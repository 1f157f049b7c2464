"""onnxruntime's MultiHeadAttention, and its form for one step of a decoder."""

from __future__ import annotations

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at
from nncdbg.engine.ops.microsoft.attention_lines import (
    causal_lines,
    default_scale,
    mask_lines,
    refuse,
    scores_lines,
    split_heads,
    weighted_lines,
)
from nncdbg.engine.ops.microsoft.composing import wide_formula
from nncdbg.engine.ops.types import Attributes, Types, at, product, shape_at, typed
from nncdbg.ir.records import Dim

_MULTI = [
    "query",
    "key",
    "value",
    "bias",
    "mask_index",
    "attention_bias",
    "past_key",
    "past_value",
    "past_length",
    "indirection",
]


def _multi_head_types(attributes: Attributes, types: Types) -> Types:
    """[batch, sequence, hidden of value], then keys and values [batch, heads, total, size], then scores."""
    query, value = shape_at(types, 0), shape_at(types, 2)
    element, heads = at(types, 0), attributes["num_heads"]
    unknown = [typed(element, (None, heads, None, None))] * 3
    if query is None:
        return [typed(element, (None, None, None)), *unknown]
    width: Dim
    if len(query) == 5:
        width = product((query[2], query[4]))
    elif value is None or len(value) == 5:
        width = query[2]
    elif len(value) == 4:
        width = product((value[1], value[3]))
    else:
        width = value[2]
    return [typed(element, (*query[:2], width)), *unknown]


def _own_lines(types: Types, heads: int) -> tuple[list[str], tuple[int, int, int]]:
    """Compute `%q`, `%own_k`, `%own_v` [batch, heads, sequence, size].

    Return the lines and (batch, sequence, size) of the query.
    """
    query = sizes_at(types, 0)
    if len(query) == 5:
        batch, length, _, _, size = query
        lines = [
            line
            for number, name in enumerate(("q", "own_k", "own_v"))
            for line in (
                f"%{name}_packed = Gather(%query.wide, {number}, axis=3)",
                f"%{name} = Transpose(%{name}_packed, perm=[0, 2, 1, 3])",
            )
        ]
        return lines, (batch, length, size)
    batch, length, hidden = query
    biases = _bias_lines(types)
    lines = [*biases, *split_heads("q", "query_biased" if biases else "query.wide", query, heads)]
    key = sizes_at(types, 1)
    if len(key) == 5:
        for number, name in enumerate(("own_k", "own_v")):
            lines.append(f"%{name}_packed = Gather(%key.wide, {number}, axis=3)")
            lines.append(f"%{name} = Transpose(%{name}_packed, perm=[0, 2, 1, 3])")
        return lines, (batch, length, hidden // heads)
    for index, name in ((1, "key"), (2, "value")):
        shape, own = sizes_at(types, index), f"own_{name[0]}"
        biased = f"{name}_biased" if biases and len(shape) == 3 else f"{name}.wide"
        lines += (
            [f"%{own} = Identity(%{biased})"] if len(shape) == 4 else split_heads(own, biased, shape, heads)
        )
    return lines, (batch, length, hidden // heads)


def _bias_lines(types: Types) -> list[str]:
    """Compute `%query_biased` and so on, from the one bias over the columns of query, key and value."""
    if at(types, 3) is None:
        return []
    lines, begin = [], 0
    for index, name in enumerate(("query", "key", "value")):
        shape = sizes_at(types, index)
        if len(shape) != 3:
            break
        lines.append(f"%{name}_bias = Slice(%bias.wide, [{begin}], [{begin + shape[2]}], [0])")
        lines.append(f"%{name}_biased = Add(%{name}.wide, %{name}_bias)")
        begin += shape[2]
    return lines


@composite("com.microsoft.MultiHeadAttention", infer=_multi_head_types)
def multi_head_attention(attributes: Attributes, types: Types) -> str:
    """Multi-head attention of query to key and value, each [batch, sequence, hidden].

    query may contain all three as [batch, sequence, heads, 3, size], key both as [batch, sequence, heads, 2,
    size]; key and value may be [batch, heads, sequence, size].  The outputs after the result are keys and
    values with the past ones before them, then the scores before Softmax.
    """
    refuse(types, 8, "past_sequence_length")
    refuse(types, 9, "cache_indirection")
    heads = attributes["num_heads"]
    lines, (batch, length, size) = _own_lines(types, heads)
    for name, index in (("k", 6), ("v", 7)):
        past = "past_key" if name == "k" else "past_value"
        if at(types, index) is None:
            lines.append(f"%{name} = Identity(%own_{name})")
        else:
            lines.append(f"%{name} = Concat(%{past}.wide, %own_{name}, axis=2)")
    past_length = sizes_at(types, 6)[2] if at(types, 6) is not None else 0
    keys = _key_count(types) + past_length
    added = []
    if at(types, 4) is not None:
        lines += mask_lines(types, 4, keys, attributes["mask_filter_value"], batch)
        added.append("mask")
    if attributes["unidirectional"]:
        lines += causal_lines(length, past_length)
        added.append("causal")
    if at(types, 5) is not None:
        added.append("attention_bias.wide")
    lines += [
        *scores_lines(default_scale(attributes["scale"], size), added),
        *weighted_lines(batch, length),
        "%y.wide = Identity(%result)",
        "%present_key.wide = Identity(%k)",
        "%present_value.wide = Identity(%v)",
        "%qk.wide = Identity(%scores)",
    ]
    results = ["y", "present_key", "present_value", "qk"]
    return wide_formula("MultiHeadAttention", _MULTI, types, lines, results)


def _key_count(types: Types) -> int:
    if len(sizes_at(types, 0)) == 5:
        return sizes_at(types, 0)[1]
    key = sizes_at(types, 1)
    return key[2] if len(key) == 4 else key[1]


# One step of a decoder ---------------------------------------------------------------------------

_STEP = [
    "query",
    "key",
    "value",
    "mask_index",
    "attention_bias",
    "past_key",
    "past_value",
    "past_length",
    "beam_width",
    "indirection",
    "bias",
]


def _step_types(attributes: Attributes, types: Types) -> Types:
    """[batch, 1, hidden], then keys and values [batch, heads, places, size]."""
    query, heads = shape_at(types, 0), attributes["num_heads"]
    cache = typed(at(types, 0), (None, heads, None, None))
    return [typed(at(types, 0), (None, None, None) if query is None else query), cache, cache]


def _step_cache(attributes: Attributes, types: Types) -> list[str]:
    """Compute `%k`, `%v` and the caches `%key_places`, `%value_places` from `%own_k` and `%own_v`."""
    pairs = (("k", "key"), ("v", "value"))
    if at(types, 5) is None:
        return [
            line
            for name, cache in pairs
            for line in (f"%{name} = Identity(%own_{name})", f"%{cache}_places = Identity(%own_{name})")
        ]
    if not attributes["past_present_share_buffer"]:
        hint = "set past_present_share_buffer=1, as onnxruntime also requires"
        raise GraphError("past_key and present_key must share a buffer", hint=hint)
    lines = [
        cast("taken_wide", "past_length", "i64"),
        "%taken = Reshape(%taken_wide, [1])",
        "%count = Add(%taken, 1)",
        f"%places = Range(0, {sizes_at(types, 5)[2]}, 1)",
        "%is_new = Equal(%places, %taken)",
        "%new_column = Unsqueeze(%is_new, [1])",
    ]
    for name, cache in pairs:
        lines.append(f"%{cache}_places = Where(%new_column, %own_{name}, %past_{cache}.wide)")
        lines.append(f"%{name} = Slice(%{cache}_places, [0], %count, [2])")
    return lines


@composite("com.microsoft.DecoderMaskedMultiHeadAttention", infer=_step_types)
def decoder_masked_multi_head_attention(attributes: Attributes, types: Types) -> str:
    """MultiHeadAttention of one query per sequence, [batch, 1, hidden], to cached keys and values.

    The new key is stored at `past_sequence_length` of the cache.  key and value may be [batch, heads,
    sequence, size], without a cache.
    """
    refuse(types, 9, "cache_indirection")
    heads = attributes["num_heads"]
    own = [at(types, 0), at(types, 1), at(types, 2), at(types, 10)]
    lines, (batch, length, size) = _own_lines(own, heads)
    lines += _step_cache(attributes, types)
    added = []
    if at(types, 3) is not None:
        shape = sizes_at(types, 3)
        lines += mask_lines(types, 3, shape[-1], attributes["mask_filter_value"], batch)
        added.append("mask")
    if at(types, 4) is not None:
        added.append("attention_bias.wide")
    lines += [
        *scores_lines(default_scale(attributes["scale"], size), added),
        *weighted_lines(batch, length),
        "%y.wide = Identity(%result)",
        "%present_key.wide = Identity(%key_places)",
        "%present_value.wide = Identity(%value_places)",
    ]
    results = ["y", "present_key", "present_value"]
    return wide_formula("DecoderMaskedMultiHeadAttention", _STEP, types, lines, results)
