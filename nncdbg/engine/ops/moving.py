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

HOST_OPERANDS: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    **{
        f"Reduce{what}": (1,)
        for what in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}
"""Per op the operands that are shapes, axes or counts: a device kernel needs them on the host."""
