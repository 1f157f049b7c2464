"""Training steps inside the flight recorder, with the starts of three steps, against the same steps without.

One thread of torch; medians of the wall time of a step, as the journal is written by a thread of its own.
Each round times steps without the recorder, then as many inside of it, after the steps that allocate memory.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from nncdbg import stats

BAR = 1.05
ROUNDS = 5
SECONDS = 0.4
"""About the time of the steps of one side of a round."""


def median_seconds(step: Callable[[], Any], count: int) -> float:
    """Return the median of the wall times of `count` steps."""
    times = []
    for _ in range(count):
        before = perf_counter()
        step()
        times.append(perf_counter() - before)
    return statistics.median(times)


def recorded(step: Any) -> dict[str, Any]:
    """Return the time of a step inside the recorder over the step, and the bytes of the kept starts."""
    from nncdbg.torch import flight_recorder

    training = step.build()
    count = max(5, int(SECONDS / median_seconds(training.run, 3)))
    pairs, memory = [], 0
    gc.collect()
    for _ in range(ROUNDS):
        eager = median_seconds(training.run, count)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            path = os.path.join(folder, "run.db")
            with flight_recorder(training.models, training.optimizers, path, keep=3) as recorder:
                for _ in range(4):
                    training.run()
                pairs.append((median_seconds(training.run, count), eager))
            memory = recorder.memory
    return {
        "figure": f"flight recorder, keep=3, {step.name} / eager ({memory / 1e6:.1f} MB kept)",
        "ours": statistics.median(ours for ours, _ in pairs),
        "peer": statistics.median(eager for _, eager in pairs),
        "ratio": round(statistics.median(ours / eager for ours, eager in pairs), 3),
        "bar": BAR,
    }


def figures(names: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the figure of each step of the corpus that takes 5 ms or more."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import torch

    from tests.torch.steps import STEPS

    torch.set_num_threads(1)
    stats.prepare(wait=True)
    for step in STEPS:
        if step.heavy and not step.skip_reason and (not names or step.name in names):
            yield recorded(step)


def measure() -> list[dict[str, Any]]:
    """Return all figures."""
    return [*figures()]


if __name__ == "__main__":
    for row in figures(tuple(sys.argv[1:])):
        print(json.dumps(row), flush=True)
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
