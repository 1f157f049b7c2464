"""One-pass summaries, histograms, and the comparison of two tensors."""

from __future__ import annotations

from nncdbg.stats.comparison import Comparison, compare
from nncdbg.stats.histograms import Histogram, histogram
from nncdbg.stats.preparation import failure, prepare, ready
from nncdbg.stats.summary import Summary, summarize

__all__ = [
    "Comparison",
    "Histogram",
    "Summary",
    "compare",
    "failure",
    "histogram",
    "prepare",
    "ready",
    "summarize",
]
