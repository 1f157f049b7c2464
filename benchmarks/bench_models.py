"""Whole models on NumPy, free and with everything on, against onnxruntime.

The models are the nine light models of the onnx wheel, and silero_vad if available; inputs are random.
Ours: `restart` and `run`, once with the allocator `plain` and without statistics, once with the
allocator `debug` (fill, guards), statistics of every result, history and `catch nan inf`.  Peer:
one plain session without optimizations.  Each side uses one thread.  BLAS reads this limit before
NumPy is loaded, so a separate process measures.

A light model contains no weights: ConstantOfShape nodes compute up to 575 MB (vgg19) in every run.
Without optimizations onnxruntime executes these nodes in every run too; neither side keeps results
from one run to the next.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apart import apart, main

RUNS = 9
FREE, FULL, FILL, OPENING = 2.0, 3.0, 1.10, 1.0
"""Bars: free and full are geometric means over the models, fill is a ratio on resnet50, opening in s."""


def models() -> dict[str, Path]:
    """Return the light models of the onnx wheel, and silero_vad if available."""
    import onnx.backend.test

    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    found = {path.stem: path for path in sorted(folder.glob("light_*.onnx"))}
    beside = Path(__file__).resolve().parents[2] / "shared"
    silero = Path(os.environ.get("NNCDBG_SHARED", beside)) / "models" / "silero_vad.onnx"
    if silero.exists():
        found["silero_vad"] = silero
    return found


def run_of(path: Path, inputs: dict[str, Any], *, full: bool) -> Callable[[], Any]:
    """Return a function that restarts and runs to the end."""
    from timing import to_the_end

    import nncdbg

    allocator = "debug" if full else "plain"
    debugger = nncdbg.Debugger(nncdbg.load(path), inputs, allocator=allocator, statistics=full)
    if full:
        debugger.catch("nan", "inf")
    return to_the_end(debugger)


def against_onnxruntime(name: str, path: Path, runs: int) -> Iterator[dict[str, Any]]:
    """Yield the ratios of one model, free and full, without bars."""
    from bench_backends import inputs_of, plain_session
    from timing import interleaved

    session = plain_session(path)
    inputs = inputs_of(session)
    for full in (False, True):
        ours = run_of(path, inputs, full=full)
        title = f"{name}: {'everything on' if full else 'free run'} / onnxruntime"
        yield interleaved(title, ours, lambda: session.run(None, inputs), bar=None, runs=runs, warm=2) | {
            "full": full
        }


@contextmanager
def unfilled() -> Iterator[None]:
    """Disable the fill pattern of new segments."""
    from nncdbg.engine.memory import region

    pattern, region.paint = region.paint, lambda segment: None
    try:
        yield
    finally:
        region.paint = pattern


def fill_alone(path: Path, runs: int) -> dict[str, Any]:
    """Compare the debug allocator with and without its fill.

    Statistics and `catch` are off, because unfilled guards would be findings.
    """
    from bench_backends import inputs_of, plain_session
    from timing import interleaved

    import nncdbg

    inputs = inputs_of(plain_session(path))
    debugger = nncdbg.Debugger(nncdbg.load(path), inputs, allocator="debug", statistics=False)
    debugger.uncatch()

    def filled() -> None:
        debugger.restart()
        debugger.run()

    def bare() -> None:
        with unfilled():
            filled()

    return interleaved("resnet50: NaN fill alone, with / without", filled, bare, bar=FILL, runs=runs)


OPEN = """
import sys, nncdbg
from time import perf_counter
before = perf_counter()
stop = nncdbg.Debugger(nncdbg.load(sys.argv[1])).step_over()
print(perf_counter() - before)
"""


def opening(path: Path, runs: int) -> dict[str, Any]:
    """Measure the seconds from `import nncdbg` to the stop after the first statement in new processes."""
    times = [
        float(subprocess.run([sys.executable, "-c", OPEN, path], check=True, stdout=subprocess.PIPE).stdout)
        for _ in range(runs)
    ]
    taken = statistics.median(times)
    return {
        "figure": "opening densenet121 to the first stop (s)",
        "ours": taken,
        "peer": None,
        "ratio": round(taken, 3),
        "bar": OPENING,
    }


def geometric_mean(figures: list[dict[str, Any]], *, full: bool) -> dict[str, Any]:
    ratios = [figure["ratio"] for figure in figures if figure.get("full") is full]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    title = "everything on" if full else "free run"
    return {
        "figure": f"{title} over {len(ratios)} models / onnxruntime, geometric mean",
        "ours": None,
        "peer": None,
        "ratio": round(mean, 3),
        "bar": FULL if full else FREE,
    }


def here(chosen: list[str], runs: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of the `chosen` models (default: all), measured in this process."""
    from nncdbg import stats

    stats.prepare(wait=True)
    found = models()
    figures = []
    for name in chosen or found:
        for figure in against_onnxruntime(name, found[name], runs):
            figures.append(figure)
            yield {key: value for key, value in figure.items() if key != "full"}
    yield geometric_mean(figures, full=False)
    yield geometric_mean(figures, full=True)
    yield fill_alone(found["light_resnet50"], 3 * runs)
    yield opening(found["light_densenet121"], runs)


def measure(chosen: list[str] | None = None, runs: int = RUNS) -> list[dict[str, Any]]:
    """Return the median ratio of interleaved runs per model and mode, geometric means, and the fill alone."""
    return apart(__file__, chosen or [], runs)


if __name__ == "__main__":
    main(here, measure)
