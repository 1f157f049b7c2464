"""Formula lines shared by onnxruntime's attention ops: heads, masks, scores, rotations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.formula import sizes_at
from nncdbg.engine.ops.types import Types, at

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


def weighted_lines(batch: int, length: int) -> list[str]:
    """Compute `%result` [batch, sequence, heads * size] from `%scores` and `%v`."""
    return [
        "%probabilities = Softmax(%scores, axis=-1)",
        "%context = MatMul(%probabilities, %v)",
        *merge_heads("result", "context", batch, length),
    ]


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
