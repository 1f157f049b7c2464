"""Start times: of the help text, and of the first prompt on a model."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

SHARED = Path(os.environ.get("NNCDBG_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MODEL = SHARED / "models" / "silero_vad.onnx"


def wall(arguments: list[str], runs: int = 7) -> float:
    """Return the median seconds of a whole process."""
    times = []
    for _ in range(runs):
        before = perf_counter()
        subprocess.run(
            [sys.executable, "-m", "nncdbg", *arguments], check=True, input=b"quit\n", capture_output=True
        )
        times.append(perf_counter() - before)
    return statistics.median(times)


def measure() -> list[dict[str, Any]]:
    figures = [("nncdbg --help (s)", ["--help"], 0.3)]
    if MODEL.exists():
        figures.append(("open silero_vad to the first prompt (s)", [str(MODEL)], 1.5))
    rows = []
    for figure, arguments, bar in figures:
        seconds = wall(arguments)
        rows.append({"figure": figure, "ours": seconds, "peer": None, "ratio": round(seconds, 3), "bar": bar})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
