"""Time of statistics over the time of one `np.sum` of the same tensor.

Bars: 1.3 for a tensor larger than any cache, 2.0 for a tensor so small that the call dominates.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nncdbg import stats

_LARGE, _SMALL = 32_000_000, 256


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def _compare(figure: str, array: np.ndarray[Any, Any], bar: float, rounds: int, times: int) -> dict[str, Any]:
    """Return the medians of interleaved rounds in seconds per call, after one warm-up of each side."""
    stats.summarize(array)
    np.sum(array)
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(_seconds(lambda: stats.summarize(array), times))
        peer.append(_seconds(lambda: np.sum(array), times))
    mine, theirs = statistics.median(ours), statistics.median(peer)
    return {"figure": figure, "ours": mine, "peer": theirs, "ratio": mine / theirs, "bar": bar}


def measure() -> list[dict[str, Any]]:
    """Return two figures with bars: `ours` and `peer` in seconds, and their ratio."""
    stats.prepare(wait=True)
    numbers = np.random.default_rng(0).standard_normal(_LARGE, dtype=np.float32)
    return [
        _compare("statistics of 32M f32 / np.sum", numbers, bar=1.3, rounds=15, times=1),
        _compare("statistics of 256 f32 / np.sum", numbers[:_SMALL].copy(), bar=2.0, rounds=25, times=2000),
    ]


if __name__ == "__main__":
    for measured in measure():
        print(json.dumps(measured))
