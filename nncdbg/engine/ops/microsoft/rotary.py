"""RotaryEmbedding of onnxruntime."""

from __future__ import annotations

from nncdbg.engine.ops import contracts
from nncdbg.engine.ops.declaration import composite
from nncdbg.engine.ops.formula import sizes_at
from nncdbg.engine.ops.microsoft.attention_lines import angle_lines, rotated
from nncdbg.engine.ops.microsoft.composing import wide_formula
from nncdbg.engine.ops.types import Attributes, Types, same_as


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
