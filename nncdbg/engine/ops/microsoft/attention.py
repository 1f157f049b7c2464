"""onnxruntime's attention ops: one product for query, key and value, quantized, several inputs, one step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at, type_at, wide_formula, wide_name
from nncdbg.engine.ops.microsoft.quantized import given
from nncdbg.engine.ops.types import Attributes, Types, at, need_rank, product, shape_at, total, typed
from nncdbg.errors import GraphError
from nncdbg.ir.records import Dim

LOWEST = "-3.4028234663852886e38"
"""The number added to the scores of keys after a query; finite, so that Softmax gives no NaN."""

MASK_VALUE = -10000.0
"""The number added to the scores of masked keys without `mask_filter_value`."""


def split_heads(target: str, source: str, sizes: Sequence[int], heads: int) -> list[str]:
    """Compute `%target` [batch, heads, sequence, size] from `%source` [batch, sequence, heads * size]."""
    batch, length, hidden = sizes
    if hidden % heads:
        raise GraphError(f"{hidden} hidden elements cannot be split evenly into {heads} heads")
    return [
        f"%{target}_split = Reshape(%{source}, {[batch, length, heads, hidden // heads]})",
        f"%{target} = Transpose(%{target}_split, perm=[0, 2, 1, 3])",
    ]


def merge_heads(target: str, source: str, batch: int, length: int) -> list[str]:
    """Compute `%target` [batch, sequence, heads * size] from `%source` [batch, heads, sequence, size]."""
    return [
        f"%{target}_turned = Transpose(%{source}, perm=[0, 2, 1, 3])",
        f"%{target} = Reshape(%{target}_turned, {[batch, length, -1]})",
    ]


def default_scale(scale: float | None, size: int) -> float:
    """Return the factor of the scores: the attribute, else 1 / sqrt(head size)."""
    return scale or 1 / math.sqrt(size)


def scores_lines(scale: float, added: Sequence[str]) -> list[str]:
    """Compute `%scores` from `%q` and `%k`, scaled, plus the values named in `added`."""
    lines = [
        "%k_turned = Transpose(%k, perm=[0, 1, 3, 2])",
        "%products = MatMul(%q, %k_turned)",
        f"%scaled = Mul(%products, {scale})",
    ]
    names = ["scaled", *(f"scores_{number}" for number in range(1, len(added))), "scores"]
    if not added:
        return [*lines, "%scores = Identity(%scaled)"]
    sums = zip(names[1:], names, added, strict=False)
    return [*lines, *(f"%{target} = Add(%{before}, %{each})" for target, before, each in sums)]


def causal_lines(length: int, past: int) -> list[str]:
    """Compute `%causal` [sequence, total]: `LOWEST` for the keys after a query."""
    total = length + past
    return [
        f"%queries = Range({past}, {total}, 1)",
        "%query_column = Unsqueeze(%queries, [1])",
        f"%keys = Range(0, {total}, 1)",
        "%seen = LessOrEqual(%keys, %query_column)",
        f"%lowest: f32[] = {LOWEST}",
        "%zero: f32[] = 0.0",
        "%causal = Where(%seen, %zero, %lowest)",
    ]


def mask_lines(types: Types, index: int, total: int, value: float | None, batch: int) -> list[str]:
    """Compute `%mask`, which is added to the scores, from the i32 operand `mask_index`.

    The scores are [batch, heads, sequence, total].  [batch] or [2 batch] gives ends, then starts; [batch,
    total], [batch, sequence, total] and [batch, 1, sequence, total] give 0 for masked keys.  Raises
    GraphError for another shape.
    """
    shape = sizes_at(types, index)
    lines = [f"%masked: f32[] = {MASK_VALUE if value is None else value}", "%unmasked: f32[] = 0.0"]
    if len(shape) == 1 and shape[0] in (batch, 2 * batch):
        return [*lines, *_range_lines(shape[0] == 2 * batch, total, batch)]
    axes = {2: "[1, 2]", 3: "[1]", 4: None}.get(len(shape), "")
    if axes == "":
        raise GraphError(f"a mask of shape {list(shape)} is not supported for batch size {batch}")
    source = "mask_index"
    if axes is not None:
        lines.append(f"%mask_spread = Unsqueeze(%mask_index, {axes})")
        source = "mask_spread"
    return [*lines, f"%allowed = Greater(%{source}, 0)", "%mask = Where(%allowed, %unmasked, %masked)"]


def _range_lines(starts: bool, total: int, batch: int) -> list[str]:
    lines = [
        f"%places: i32[{total}] = {list(range(total))}",
        f"%ends = Slice(%mask_index, [0], [{batch}], [0])",
        "%end_column = Unsqueeze(%ends, [1, 2, 3])",
        f"%{'before' if starts else 'allowed'} = Less(%places, %end_column)",
    ]
    if starts:
        lines += [
            f"%starts = Slice(%mask_index, [{batch}], [{2 * batch}], [0])",
            "%start_column = Unsqueeze(%starts, [1, 2, 3])",
            "%after = GreaterOrEqual(%places, %start_column)",
            "%allowed = And(%before, %after)",
        ]
    return [*lines, "%mask = Where(%allowed, %unmasked, %masked)"]


def _masked_lines(
    attributes: Attributes,
    types: Types,
    query: tuple[int, int, int],
    keys: int,
    past: int,
    mask: int,
    bias: int,
) -> list[str]:
    """Compute `%scores` and `%result` from `%q`, `%k` and `%v`, with the operands `mask` and `bias`.

    `query` has batch, sequence and size of the query; `past` of the `keys` are before it.
    """
    (batch, length, size), lines, added = query, list[str](), []
    if at(types, mask) is not None:
        lines += mask_lines(types, mask, keys, attributes["mask_filter_value"], batch)
        added.append("mask")
    if attributes.get("unidirectional"):
        lines += causal_lines(length, past)
        added.append("causal")
    if bias >= 0 and at(types, bias) is not None:
        added.append("attention_bias.wide")
    scale = default_scale(attributes["scale"], size)
    return [
        *lines,
        *scores_lines(scale, added),
        "%probabilities = Softmax(%scores, axis=-1)",
        "%context = MatMul(%probabilities, %v)",
        *merge_heads("result", "context", batch, length),
    ]


def rotated(target: str, source: str, size: int, width: int, *, interleaved: bool) -> list[str]:
    """Compute `%target` from `%source` by rotating the first `width` elements of each head.

    `%source` is [batch, sequence, heads, size]; `%cos` and `%sin` are [batch, sequence, 1, width / 2].  Pairs
    are neighbors if `interleaved`, else one element from each half.
    """
    half, head = width // 2, f"{target}_head"
    lines = [f"%{head} = Slice(%{source}, [0], [{width}], [3])"]
    if interleaved:
        lines += [
            f"%{target}_a = Slice(%{head}, [0], [{width}], [3], [2])",
            f"%{target}_b = Slice(%{head}, [1], [{width}], [3], [2])",
        ]
    else:
        lines += [
            f"%{target}_a = Slice(%{head}, [0], [{half}], [3])",
            f"%{target}_b = Slice(%{head}, [{half}], [{width}], [3])",
        ]
    lines += [
        f"%{target}_ac = Mul(%{target}_a, %cos)",
        f"%{target}_bs = Mul(%{target}_b, %sin)",
        f"%{target}_bc = Mul(%{target}_b, %cos)",
        f"%{target}_as = Mul(%{target}_a, %sin)",
        f"%{target}_first = Sub(%{target}_ac, %{target}_bs)",
        f"%{target}_second = Add(%{target}_bc, %{target}_as)",
    ]
    turned = target if width == size else f"{target}_turned"
    if interleaved:
        lines += [
            f"%{target}_first_column = Unsqueeze(%{target}_first, [4])",
            f"%{target}_second_column = Unsqueeze(%{target}_second, [4])",
            f"%{target}_pairs = Concat(%{target}_first_column, %{target}_second_column, axis=4)",
            f"%{turned} = Reshape(%{target}_pairs, [0, 0, 0, {width}])",
        ]
    else:
        lines.append(f"%{turned} = Concat(%{target}_first, %{target}_second, axis=3)")
    if width != size:
        lines += [
            f"%{target}_rest = Slice(%{source}, [{width}], [{size}], [3])",
            f"%{target} = Concat(%{turned}, %{target}_rest, axis=3)",
        ]
    return lines


def angle_lines(cos: str, sin: str, places: str) -> list[str]:
    """Compute `%cos` and `%sin` [batch, sequence, 1, width / 2] at `%places` [batch, sequence]."""
    return [
        f"%cos_rows = Gather({cos}, %{places})",
        f"%sin_rows = Gather({sin}, %{places})",
        "%cos = Unsqueeze(%cos_rows, [2])",
        "%sin = Unsqueeze(%sin_rows, [2])",
    ]


def refuse(types: Types, index: int, what: str) -> None:
    """Raise GraphError if an operand is given that no formula supports."""
    if at(types, index) is not None:
        raise GraphError(f"{what} is not supported", hint="run the model with --backend onnxruntime")


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
        return ["%k = Identity(%own_k)", "%v = Identity(%own_v)"]
    lines = []
    for number, name in enumerate("kv"):
        lines.append(f"%past_{name} = Gather(%past.wide, {number}, axis=0)")
        lines.append(f"%{name} = Concat(%past_{name}, %own_{name}, axis=2)")
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
    given = (batch, length, size), length + before, before
    return [*lines, *_masked_lines(attributes, types, *given, mask, bias)]


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


_QKV = ("query", "key", "value")
_CACHE = ("past_key", "past_value", "past_length")
_MULTI = (*_QKV, "bias", "mask_index", "attention_bias", *_CACHE, "indirection")


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


def _unpacked_lines(source: str, names: Sequence[str]) -> list[str]:
    """Compute the parts of a packed operand [batch, sequence, heads, parts, size] by heads."""
    lines = []
    for number, name in enumerate(names):
        lines.append(f"%{name}_packed = Gather(%{source}.wide, {number}, axis=3)")
        lines.append(f"%{name} = Transpose(%{name}_packed, perm=[0, 2, 1, 3])")
    return lines


def _own_lines(types: Types, heads: int) -> tuple[list[str], tuple[int, int, int]]:
    """Compute `%q`, `%own_k`, `%own_v` [batch, heads, sequence, size].

    Return the lines and (batch, sequence, size) of the query.
    """
    query = sizes_at(types, 0)
    if len(query) == 5:
        batch, length, _, _, size = query
        return _unpacked_lines("query", ("q", "own_k", "own_v")), (batch, length, size)
    batch, length, hidden = query
    biases = _bias_lines(types)
    lines = [*biases, *split_heads("q", "query_biased" if biases else "query.wide", query, heads)]
    key = sizes_at(types, 1)
    if len(key) == 5:
        return [*lines, *_unpacked_lines("key", ("own_k", "own_v"))], (batch, length, hidden // heads)
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
    lines, query = _own_lines(types, heads)
    for name, index in (("k", 6), ("v", 7)):
        past = "past_key" if name == "k" else "past_value"
        if at(types, index) is None:
            lines.append(f"%{name} = Identity(%own_{name})")
        else:
            lines.append(f"%{name} = Concat(%{past}.wide, %own_{name}, axis=2)")
    past_length = sizes_at(types, 6)[2] if at(types, 6) is not None else 0
    if len(sizes_at(types, 0)) == 5:
        keys = sizes_at(types, 0)[1] + past_length
    else:
        key = sizes_at(types, 1)
        keys = key[2 if len(key) == 4 else 1] + past_length
    lines += [
        *_masked_lines(attributes, types, query, keys, past_length, 4, 5),
        "%y.wide = Identity(%result)",
        "%present_key.wide = Identity(%k)",
        "%present_value.wide = Identity(%v)",
        "%qk.wide = Identity(%scores)",
    ]
    results = ["y", "present_key", "present_value", "qk"]
    return wide_formula("MultiHeadAttention", _MULTI, types, lines, results)


# One step of a decoder ---------------------------------------------------------------------------

_STEP = (*_QKV, "mask_index", "attention_bias", *_CACHE, "beam_width", "indirection", "bias")


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
    lines, query = _own_lines(own, heads)
    lines += _step_cache(attributes, types)
    keys = sizes_at(types, 3)[-1] if at(types, 3) is not None else 0
    lines += [
        *_masked_lines(attributes, types, query, keys, 0, 3, 4),
        "%y.wide = Identity(%result)",
        "%present_key.wide = Identity(%key_places)",
        "%present_value.wide = Identity(%value_places)",
    ]
    results = ["y", "present_key", "present_value"]
    return wide_formula("DecoderMaskedMultiHeadAttention", _STEP, types, lines, results)
