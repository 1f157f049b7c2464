"""NonMaxSuppression: removes overlapping boxes of a detector."""

from __future__ import annotations

from typing import Any

import numpy as np

from nncdbg.engine.errors import RunError
from nncdbg.engine.ops import contracts
from nncdbg.engine.ops import valid_integers as valid
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.influence import RESIZED
from nncdbg.engine.ops.types import Attributes, Types
from nncdbg.ir.records import TensorType


def _first(value: Any, default: float) -> float:
    return float(value.reshape(-1)[0]) if value is not None and value.size else default


def _corners(boxes: Any, centered: bool) -> tuple[Any, Any, Any, Any]:
    """Return (x1, y1, x2, y2), sorted; boxes are (x, y, width, height) or two corners (y, x, y, x)."""
    a, b, c, d = boxes.T
    if centered:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return np.minimum(b, d), np.minimum(a, c), np.maximum(b, d), np.maximum(a, c)


def _overlaps(corners: tuple[Any, ...], areas: Any, one: int, others: Any) -> Any:
    """Return the intersection over union of box `one` with each of `others`; 0 for boxes without an area."""
    left, top, right, bottom = corners
    width = np.minimum(right[one], right[others]) - np.maximum(left[one], left[others])
    height = np.minimum(bottom[one], bottom[others]) - np.maximum(top[one], top[others])
    shared = np.maximum(width, 0) * np.maximum(height, 0)
    union = areas[one] + areas[others] - shared
    valid = (shared > 0) & (areas[one] > 0) & (areas[others] > 0) & (union > 0)
    return np.where(valid, shared / np.where(valid, union, 1), 0)


def _kept(boxes: Any, scores: Any, centered: bool, most: int, iou: float, least: float | None) -> list[int]:
    """Return the indices of the kept boxes of one class, best first; the first of equal scores wins."""
    order = np.argsort(-scores, kind="stable")
    if least is not None:
        order = order[scores[order] > least]
    corners = _corners(boxes, centered)
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[_overlaps(corners, areas, best, order) <= iou]
    return kept


def _suppression_types(attributes: Attributes, types: Types) -> Types:
    return (TensorType("i64", (None, 3)),)


@op(
    "NonMaxSuppression",
    since=10,
    infer=_suppression_types,
    integers=valid.sizes(2),
    influence=RESIZED,
    contract=contracts.sides,
)
def non_max_suppression(
    xp: Any,
    boxes: Any,
    scores: Any,
    max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: int,
) -> Any:
    """(batch, class, box) of every box that no better one of its class overlaps; i64[n, 3].

    `boxes` is f32[batches, boxes, 4], `scores` f32[batches, classes, boxes].  At most
    `max_output_boxes_per_class` (0) boxes are returned per class.  ONNX NonMaxSuppression since 10.
    """
    most, iou = int(_first(max_output_boxes_per_class, 0)), _first(iou_threshold, 0.0)
    least = _first(score_threshold, 0.0) if score_threshold is not None and score_threshold.size else None
    if not 0 <= iou <= 1:
        raise RunError(f"iou_threshold is {iou:g}", hint="use a threshold from 0 to 1")
    found = [
        (batch, number, box)
        for batch in range(boxes.shape[0])
        for number in range(scores.shape[1])
        for box in _kept(boxes[batch], scores[batch, number], bool(center_point_box), most, iou, least)
    ]
    return xp.asarray(np.array(found, np.int64).reshape(-1, 3))
