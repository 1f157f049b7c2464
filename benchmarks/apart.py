"""Measure figures in a separate process on one thread; BLAS reads the limit before NumPy is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def apart(script: str, chosen: list[str], runs: int) -> list[dict[str, Any]]:
    """Return the figures that `main` of `script` measures in a separate process."""
    process = subprocess.run(
        [sys.executable, script, "--here", str(runs), *chosen],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def main(
    here: Callable[[list[str], int], Iterator[dict[str, Any]]],
    measure: Callable[[list[str]], list[dict[str, Any]]],
) -> None:
    """Print the figures of the models on the command line, or of all models, as one JSON line each."""
    if "--here" in sys.argv:
        _, _, count, *names = sys.argv
        for line in here(names, int(count)):
            print(json.dumps(line), flush=True)
    else:
        for line in measure(sys.argv[1:]):
            print(json.dumps(line))
