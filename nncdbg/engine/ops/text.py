"""Ops over strings for which `onnx.reference` has other results than onnxruntime and the specification."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nncdbg.engine.errors import GraphError
from nncdbg.engine.ops.declaration import op
from nncdbg.engine.ops.onnx_messages import types_by_onnx

_CASES = {"NONE": lambda text: text, "LOWER": str.lower, "UPPER": str.upper}


@op(
    "StringNormalizer",
    since=10,
    infer=types_by_onnx("StringNormalizer", 10),
)
def string_normalizer(
    xp: ModuleType,
    x: Any,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Any:
    """The strings of x [C] or [1, C] without the stop words, in upper or lower case.

    An element is removed only if it equals a stop word as a whole.  One empty string is left of no others.
    """
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise GraphError(f"StringNormalizer needs a shape [C] or [1, C], got {list(x.shape)}", operand=0)
    change = _CASES[case_change_action]
    same = (lambda text: text) if is_case_sensitive else str.lower
    stops = {same(word) for word in stopwords or ()}
    kept = [change(text) for text in x.reshape(-1) if same(text) not in stops] or [""]
    return np.array(kept, object).reshape((1, -1) if x.ndim == 2 else -1)


@op(
    "StringSplit",
    since=20,
    infer=types_by_onnx("StringSplit", 20),
)
def string_split(xp: ModuleType, x: Any, *, delimiter: str | None = None, maxsplit: int | None = None) -> Any:
    """The parts of each string, filled up by empty strings; and their numbers.  An empty string has none."""
    limit = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, limit) if text else [] for text in x.reshape(-1)]
    counts = np.array([len(each) for each in parts], np.int64).reshape(x.shape)
    result = np.full((len(parts), counts.max(initial=0)), "", object)
    for row, found in zip(result, parts, strict=True):
        row[: len(found)] = found
    return result.reshape(*x.shape, -1) if result.size else result.reshape(*x.shape, result.shape[1]), counts
