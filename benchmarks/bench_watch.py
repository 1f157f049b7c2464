"""Time of a watch over plain runs on the same backend, and seconds of a small watch.

The models are the nine light models of the onnx wheel.  Ours: `restart` and `run` as in `nncdbg watch`, with
the default gates.  Peer: the same with the allocator `plain` and without observers.  Each uses one thread.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from apart import apart, main

RUNS = 9
BARS = {"numpy": 1.15, "onnxruntime": 1.35}
START = 0.3
"""Seconds from the end of the imports to the report, for a small model."""

SMALL = Path(__file__).resolve().parents[1] / "examples" / "nan_softmax.nnc"


def run_of(path: Path, inputs: dict[str, Any], backend: str, *, watched: bool) -> Callable[[], Any]:
    """Return a function that restarts and runs to the end."""
    import nncdbg
    from nncdbg.nan_watch.watching import usual_allocation

    memory = usual_allocation(None, backend, False) if watched else "plain"
    debugger = nncdbg.Debugger(nncdbg.load(path), inputs, backend=backend, allocator=memory, statistics=False)
    debugger.uncatch()
    if watched:
        debugger.observers.follow(debugger.control)

    def run() -> None:
        debugger.restart()
        stop = debugger.run()
        assert stop.reason == "end", stop

    return run


def against_plain(backend: str, runs: int) -> Iterator[dict[str, Any]]:
    from bench_backends import inputs_of, plain_session
    from bench_models import models
    from timing import interleaved

    ratios = []
    for name, path in models().items():
        if not name.startswith("light_"):
            continue
        inputs = inputs_of(plain_session(path))
        ours, plain = (run_of(path, inputs, backend, watched=watched) for watched in (True, False))
        figure = interleaved(
            f"{name}: watch / plain run on {backend}", ours, plain, bar=None, runs=runs, warm=2
        )
        ratios.append(figure["ratio"])
        yield figure
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    yield {
        "figure": f"watch / plain run on {backend}, {len(ratios)} light models, geometric mean",
        "ours": None,
        "peer": None,
        "ratio": round(mean, 3),
        "bar": BARS[backend],
    }


STARTING = """
import sys
from time import perf_counter
import nncdbg.nan_watch.commands.watch, nncdbg.engine.debugger, nncdbg.nan_watch.watching
import nncdbg.nan_watch.reports.text, nncdbg.engine.frontends, rich.console
before = perf_counter()
sys.stdout = open("/dev/null", "w")
code = nncdbg.nan_watch.commands.watch.main([sys.argv[1], "--fail-on", sys.argv[2]])
print(perf_counter() - before, file=sys.stderr)
"""


def starting(runs: int) -> dict[str, Any]:
    """Measure the seconds of a watch of a small model in new processes, without imports."""
    command = [
        sys.executable,
        "-c",
        STARTING,
        str(SMALL.with_name("first_steps.nnc")),
        "nan,inf,uninitialized",
    ]
    times = [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()[-1])
        for _ in range(runs)
    ]
    taken = statistics.median(times)
    return {
        "figure": "watch of a small model, beyond its imports (s)",
        "ours": taken,
        "peer": None,
        "ratio": round(taken, 3),
        "bar": START,
    }


def here(chosen: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of the `chosen` backends (default: all), measured in this process."""
    from nncdbg import stats

    stats.prepare(wait=True)
    for backend in chosen or BARS:
        yield from against_plain(backend, runs)
    yield starting(runs)


def measure(chosen: list[str] | None = None, runs: int = RUNS) -> list[dict[str, Any]]:
    """Return the median ratio of interleaved runs per model and backend, geometric means, and the start."""
    return apart(__file__, chosen or [], runs)


if __name__ == "__main__":
    main(here, measure)
