"""Measure a figure: runs of ours and the peer in turn, and the median of their ratios."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any


def interleaved(
    figure: str,
    ours: Callable[[], Any],
    peer: Callable[[], Any],
    *,
    bar: float | None,
    runs: int = 31,
    warm: int = 3,
) -> dict[str, Any]:
    """Time both `runs` times in turn.  `ratio` is the median of the ratios of neighbouring runs."""
    for _ in range(warm):
        ours()
        peer()
    pairs = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            pairs.append((seconds(ours), seconds(peer)))
    finally:
        gc.enable()
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    return {
        "figure": figure,
        "ours": statistics.median(mine for mine, _ in pairs),
        "peer": statistics.median(theirs for _, theirs in pairs),
        "ratio": round(ratio, 3),
        "bar": bar,
    }


def seconds(function: Callable[[], Any]) -> float:
    """Return the wall time of one call in seconds."""
    before = perf_counter()
    function()
    return perf_counter() - before


def to_the_end(debugger: Any) -> Callable[[], Any]:
    """Return a function that restarts and runs; the figure includes the jump back to the start."""

    def run() -> Any:
        debugger.restart()
        stop = debugger.run()
        assert stop.reason == "end", stop
        return stop

    return run
