"""Ops whose results hold nothing that their operands do not hold: they move elements."""

from __future__ import annotations

MOVING = frozenset(
    {
        "Compress", "Concat", "ConcatFromSequence", "DepthToSpace", "Expand", "Flatten", "Gather",
        "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "SequenceAt", "Slice",
        "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""None of them computes: a NaN in a result was in an operand, or in an attribute of an old `Pad`."""

SCATTERING = frozenset({"Scatter", "ScatterElements", "ScatterND", "TensorScatter"})
"""Ops that copy their first operand and write over some of it."""

SIZES = frozenset({"Shape", "Size"})
"""Ops that do not look at the elements of their operand."""
