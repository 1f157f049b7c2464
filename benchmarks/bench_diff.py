"""The verdicts of `diff`: false differences of good pairs, and planted differences at their statement.

The good pairs are models of exporters, optimizers and quantizers (`tests/engine/divergence/good.py`).
The other pairs have a planted difference in one model, with a known truth (`planted.py`).  Bars: `diff`
exits with 1 for none of at least 40 good pairs, and misses at most 5 % of at least 40 differences.  Peer:
the number of pairs tried.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import nncdbg  # noqa: E402
from tests.engine.divergence.good import good  # noqa: E402
from tests.engine.divergence.planted import planted  # noqa: E402
from tests.models.forms import inputs_of  # noqa: E402

LEAST, MISSED = 40, 0.05
"""The minimum number of pairs of each kind, and the accepted share of missed differences."""


def measure() -> list[dict[str, Any]]:
    """Return two figures with bars; print errors, and good pairs that are not equal, to stderr."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    statuses, different = _good()
    named, tried = _planted()
    total = sum(statuses.values())
    return [
        _figure("good pairs that diff calls different / all", different, total, 0.0)
        | {"statuses": dict(statuses)},
        _figure("planted differences not named at their statement / all", tried - named, tried, MISSED),
    ]


def _good() -> tuple[Counter[str], int]:
    statuses: Counter[str] = Counter()
    different = 0
    for pair in good():
        report = pair.report()
        statuses[report.status] += 1
        different += report.trips()
        if not report.equal:
            causes = [cause.text for cause in report.causes]
            print(f"{pair.name}: {report.status} {causes[:2]}", file=sys.stderr)
    return statuses, different


def _planted() -> tuple[int, int]:
    named, differences = 0, planted()
    for difference in differences:
        a, b, truth = difference.sides()
        cause = nncdbg.diff(nncdbg.load(a), nncdbg.load(b), inputs_of(a)).cause
        found = "" if cause is None else cause.site.node
        named += found == truth
        if found != truth:
            print(f"{difference.name}: {truth} is named {found or 'not at all'}", file=sys.stderr)
    return named, len(differences)


def _figure(name: str, wrong: int, tried: int, bar: float) -> dict[str, Any]:
    ratio = wrong / tried if tried >= LEAST else 1.0
    return {"figure": name, "ours": wrong, "peer": tried, "ratio": ratio, "bar": bar}


if __name__ == "__main__":
    for measured in measure():
        print(json.dumps(measured))
