"""GroupQueryAttention: several query heads per head of keys and values, with a cache of both."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import cast, sizes_at, wide_formula
from nncdbg.engine.ops.microsoft.attention import angle_lines, default_scale, merge_heads, refuse, rotated
from nncdbg.engine.ops.types import Attributes, Types, at, same_as, shape_at, typed
from nncdbg.errors import GraphError


@composite("com.microsoft.RotaryEmbedding", infer=same_as(0), contract=contracts.not_negative(1))
def rotary_embedding(attributes: Attributes, types: Types) -> str:
    """x rotated by its position, in pairs: [batch, sequence, hidden] or [batch, heads, sequence, size].

    `position_ids` is one offset, or a position for each [batch, sequence].
    """
    shape, cache = sizes_at(types, 0), sizes_at(types, 2)
    lines = []
    if len(shape) == 4:
        batch, heads, length, size = shape
        lines.append("%heads = Transpose(%x.wide, perm=[0, 2, 1, 3])")
    else:
        batch, length, hidden = shape
        size = hidden // attributes["num_heads"] if attributes["num_heads"] else 2 * cache[1]
        heads = hidden // size
        lines.append(f"%heads = Reshape(%x.wide, {[batch, length, heads, size]})")
    places = "position_ids"
    if len(sizes_at(types, 1)) == 1:
        places = "places"
        lines += [
            f"%steps = Range(0, {length}, 1)",
            "%row = Add(%steps, %position_ids)",
            f"%places = Expand(%row, [{batch}, {length}])",
        ]
    width = attributes["rotary_embedding_dim"] or size
    lines += angle_lines("%cos_cache.wide", "%sin_cache.wide", places)
    lines += rotated("turned", "heads", size, width, interleaved=bool(attributes["interleaved"]))
    if len(shape) == 4:
        lines.append("%y.wide = Transpose(%turned, perm=[0, 2, 1, 3])")
    else:
        lines.append(f"%y.wide = Reshape(%turned, {list(shape)})")
    names = ["x", "position_ids", "cos_cache", "sin_cache"]
    return wide_formula("RotaryEmbedding", names, types, lines)


_OPERANDS = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "lengths",
    "total",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm",
    "k_norm",
]


@dataclass(frozen=True, slots=True)
class _Sizes:
    batch: int
    length: int
    heads: int
    groups: int
    """The number of heads of keys and values."""
    size: int
    """The number of elements per head."""
    past: int
    """The number of positions in the given cache."""

    @property
    def each(self) -> int:
        """The number of query heads per head of keys and values."""
        return self.heads // self.groups


def _sizes(attributes: Attributes, types: Types) -> _Sizes:
    batch, length, hidden = sizes_at(types, 0)
    heads, groups = attributes["num_heads"], attributes["kv_num_heads"]
    if heads % groups:
        raise GraphError(f"{heads} query heads cannot be split evenly into {groups} groups")
    size = hidden // (heads if at(types, 1) is not None else heads + 2 * groups)
    past = sizes_at(types, 3)[2] if at(types, 3) is not None else 0
    return _Sizes(batch, length, heads, groups, size, past)


def _types(attributes: Attributes, types: Types) -> Types:
    """[batch, sequence, hidden], then keys and values [batch, heads of keys, total, size], then scores."""
    query, element, groups = shape_at(types, 0), at(types, 0), attributes["kv_num_heads"]
    cache = typed(element, (None, groups, None, None))
    if query is None or len(query) != 3:
        return [typed(element, (None, None, None)), cache, cache, None]
    hidden = query[2]
    if at(types, 1) is None and isinstance(hidden, int):
        heads = attributes["num_heads"]
        hidden = hidden // (heads + 2 * groups) * heads
    if len(types) > 1 and types[1] is None:
        hidden = None  # An operand of unknown type is indistinguishable from an omitted one.
    return [typed(element, (*query[:2], hidden)), cache, cache, None]


def _head_lines(attributes: Attributes, types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%q_own`, `%k_own` and `%v_own` [batch, sequence, heads, size]."""
    counts = {"query": sizes.heads, "key": sizes.groups, "value": sizes.groups}
    lines = []
    if at(types, 1) is None:
        parts = ", ".join(f"%{name}_flat" for name in counts)
        widths = [count * sizes.size for count in counts.values()]
        lines.append(f"{parts} = Split(%query.wide, {widths}, axis=2)")
    for name, count in counts.items():
        source = f"{name}.wide" if at(types, 1) is not None else f"{name}_flat"
        shape = [sizes.batch, sizes.length, count, sizes.size]
        normed = name != "value" and at(types, 14 if name == "query" else 15) is not None
        lines.append(f"%{name[0]}_{'heads' if normed else 'own'} = Reshape(%{source}, {shape})")
        if normed:
            lines += _normed(name[0], attributes["qk_norm_epsilon"])
    return lines


def _normed(name: str, epsilon: float) -> list[str]:
    """Divide each head by its root mean square and multiply it by a weight."""
    return [
        f"%{name}_squares = Mul(%{name}_heads, %{name}_heads)",
        f"%{name}_mean = ReduceMean(%{name}_squares, [3])",
        f"%{name}_safe = Add(%{name}_mean, {epsilon})",
        f"%{name}_rms = Sqrt(%{name}_safe)",
        f"%{name}_normal = Div(%{name}_heads, %{name}_rms)",
        f"%{name}_own = Mul(%{name}_normal, %{name}_norm.wide)",
    ]


def _place_lines(types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%before` [batch, 1], used cache positions, and `%places` [batch, sequence] of queries."""
    return [
        cast("last", "lengths", "i64"),
        f"%last_column = Reshape(%last, {[sizes.batch, 1]})",
        f"%following = Sub(%last_column, {sizes.length - 1})",
        cast("total_wide", "total", "i64"),
        "%count = Squeeze(%total_wide)",
        f"%is_prompt = Equal(%count, {sizes.length})",
        "%start: i64[] = 0",
        "%before = Where(%is_prompt, %start, %following)",
        f"%steps = Range(0, {sizes.length}, 1)",
        "%places = Add(%before, %steps)",
    ]


def _rotation_lines(attributes: Attributes, types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%q_turned` and `%k_turned`."""
    if not attributes["do_rotary"]:
        return ["%q_turned = Identity(%q_own)", "%k_turned = Identity(%k_own)"]
    width, interleaved = 2 * sizes_at(types, 7)[1], bool(attributes["rotary_interleaved"])
    lines = angle_lines(
        "%cos_cache.wide", "%sin_cache.wide", "position_ids" if at(types, 9) is not None else "places"
    )
    for name in "qk":
        lines += rotated(f"{name}_turned", f"{name}_own", sizes.size, width, interleaved=interleaved)
    return lines


def _cache_lines(types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%k`, `%v` [batch, groups, places, size]: the cache with new ones inserted, then zeros."""
    lines = [
        f"%limit = Max(%count, {sizes.past})",
        "%limit_list = Unsqueeze(%limit, [0])",
        "%keys = Range(0, %limit, 1)",
        "%offsets = Sub(%keys, %before)",
        f"%new = Add(%offsets, {sizes.past})",
        "%is_old = Less(%offsets, 0)",
        "%source = Where(%is_old, %keys, %new)",
        f"%inside = Min(%source, {sizes.past + sizes.length - 1})",
        "%index_spread = Unsqueeze(%inside, [1, 3])",
        f"%wanted = Concat([{sizes.batch}, {sizes.groups}], %limit_list, [{sizes.size}], axis=0)",
        "%index = Expand(%index_spread, %wanted)",
        f"%is_filled = Less(%offsets, {sizes.length})",
        "%filled = Unsqueeze(%is_filled, [1, 3])",
        "%nothing: f32[] = 0.0",
    ]
    for name, own, past in (("k", "k_turned", "past_key"), ("v", "v_own", "past_value")):
        lines.append(f"%{name}_new = Transpose(%{own}, perm=[0, 2, 1, 3])")
        joined = f"{name}_new"
        if at(types, 3) is not None:
            joined = f"{name}_all"
            lines.append(f"%{joined} = Concat(%{past}.wide, %{name}_new, axis=2)")
        lines.append(f"%{name}_placed = GatherElements(%{joined}, %index, axis=2)")
        lines.append(f"%{name} = Where(%filled, %{name}_placed, %nothing)")
    return lines


def _score_lines(attributes: Attributes, types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%scores` [batch, heads, sequence, places], before the mask."""
    grouped = [sizes.batch, sizes.groups, sizes.each, sizes.length, sizes.size]
    lines = [
        "%q_rows = Transpose(%q_turned, perm=[0, 2, 1, 3])",
        f"%q_groups = Reshape(%q_rows, {grouped})",
        "%k_columns = Transpose(%k, perm=[0, 1, 3, 2])",
        "%k_groups = Unsqueeze(%k_columns, [2])",
        "%products = MatMul(%q_groups, %k_groups)",
        f"%by_head = Reshape(%products, {[sizes.batch, sizes.heads, sizes.length, -1]})",
        f"%scaled = Mul(%by_head, {default_scale(attributes['scale'], sizes.size)})",
    ]
    source = "scaled"
    if attributes["softcap"]:
        source = "capped"
        lines += [
            f"%steep = Div(%scaled, {attributes['softcap']})",
            "%bent = Tanh(%steep)",
            f"%capped = Mul(%bent, {attributes['softcap']})",
        ]
    if at(types, 10) is not None:
        return [
            *lines,
            "%bias_part = Slice(%attention_bias.wide, [0], %limit_list, [3])",
            f"%scores = Add(%{source}, %bias_part)",
        ]
    return [*lines, f"%scores = Identity(%{source})"]


def _mask_lines(attributes: Attributes) -> list[str]:
    """Compute `%masked`: -inf for keys after the query, beyond the sequence's end, or before the window."""
    lines = [
        "%key_row = Unsqueeze(%keys, [0, 1])",
        "%place_column = Unsqueeze(%places, [2])",
        "%end_column = Unsqueeze(%last_column, [2])",
        f"%in_time = LessOrEqual(%key_row, {'%place_column' if attributes['causal'] else '%end_column'})",
    ]
    seen = "in_time"
    if attributes["local_window_size"] > 0:
        seen = "in_window"
        lines += [
            f"%left = Sub(%place_column, {attributes['local_window_size']})",
            "%is_near = Greater(%key_row, %left)",
            "%in_window = And(%in_time, %is_near)",
        ]
    return [
        *lines,
        f"%seen = Unsqueeze(%{seen}, [1])",
        "%never: f32[] = -inf",
        "%never_like = CastLike(%never, %scores)",
        "%masked = Where(%seen, %scores, %never_like)",
    ]


def _probability_lines(attributes: Attributes, types: Types, sizes: _Sizes) -> list[str]:
    """Compute `%probabilities`, optionally with one extra score per head that has no value."""
    smooth, sink = attributes["smooth_softmax"] == 1, at(types, 11) is not None
    if not smooth and not sink:
        return ["%probabilities = Softmax(%masked, axis=-1)"]
    column = [sizes.batch, sizes.heads, sizes.length, 1]
    lines = ["%sink_scores: f32[] = 0.0", "%sink_like = CastLike(%sink_scores, %masked)"]
    if sink:
        lines = [f"%sink_like = Reshape(%head_sink.wide, {[1, sizes.heads, 1, 1]})"]
    return [
        *lines,
        f"%sink_column = Expand(%sink_like, {column})",
        "%with_sink = Concat(%masked, %sink_column, axis=3)",
        "%with_probability = Softmax(%with_sink, axis=-1)",
        "%probabilities = Slice(%with_probability, [0], [-1], [3])",
    ]


@composite("com.microsoft.GroupQueryAttention", infer=_types)
def group_query_attention(attributes: Attributes, types: Types) -> str:
    """Causal attention of query [batch, sequence, hidden] to its own and cached keys and values.

    `seqlens_k` is the number of keys of each batch less one; each kv head serves num_heads / kv_num_heads
    query heads.  query includes key and value if they are not given.  The outputs after the result are the
    caches with the new keys and values, [batch, kv_num_heads, places, size].
    """
    refuse(types, 12, "a quantized cache of keys (k_scale)")
    refuse(types, 13, "a quantized cache of values (v_scale)")
    for name in ("kv_cache_bit_width", "sliding_window_cache", "qk_output"):
        if attributes[name]:
            fact = f"{name}={attributes[name]} is not supported"
            raise GraphError(fact, hint="run the model with --backend onnxruntime")
    sizes = _sizes(attributes, types)
    grouped = [sizes.batch, sizes.groups, sizes.each, sizes.length, -1]
    lines = [
        *_head_lines(attributes, types, sizes),
        *_place_lines(types, sizes),
        *_rotation_lines(attributes, types, sizes),
        *_cache_lines(types, sizes),
        *_score_lines(attributes, types, sizes),
        *_mask_lines(attributes),
        *_probability_lines(attributes, types, sizes),
        f"%p_groups = Reshape(%probabilities, {grouped})",
        "%v_groups = Unsqueeze(%v, [2])",
        "%context_groups = MatMul(%p_groups, %v_groups)",
        f"%context = Reshape(%context_groups, {[sizes.batch, sizes.heads, sizes.length, sizes.size]})",
        *merge_heads("result", "context", sizes.batch, sizes.length),
        "%y.wide = Identity(%result)",
        "%present_key.wide = Identity(%k)",
        "%present_value.wide = Identity(%v)",
    ]
    results = ["y", "present_key", "present_value"]
    return wide_formula("GroupQueryAttention", _OPERANDS, types, lines, results)
