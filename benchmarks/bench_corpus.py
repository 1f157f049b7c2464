"""A watch of 1,000 inputs of silero_vad: its memory, and its time on Dask.

The memory is compared with that of 10 inputs.  Both figures are the sum of the peak resident sizes of the
main process and of one worker.  With more workers, 10 cases could finish before all workers have started.
The watch has the default gates.  The figure also lists cases per second.

The time is that of 2 workers of a local Dask cluster over that of 2 processes of nncdbg.  Each watch includes
the load of the program in its workers; `cluster_seconds` is the start of the cluster, which is not included.
One watch of each kind runs before the first pair.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
from bench_models import models
from timing import interleaved

from nncdbg.nan_watch.corpus import WatchTask, run_corpus
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.engines import PROCESSES, CaseExecution, open_engine
from nncdbg.opening.corpus.source import CorpusProgram

BAR = 1.2
CASES, FEW = 1000, 10
WORKERS, PAIRS = 2, 3

_SCRIPT = """
import sys
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from nncdbg.nan_watch.corpus import run_corpus
from nncdbg.nan_watch.corpus import WatchTask
from nncdbg.nan_watch.measuring.gates import Gates
from nncdbg.nan_watch.watching import WatchCriteria
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.corpus.engines import CaseExecution
from nncdbg.opening.corpus.source import CorpusProgram
source = CorpusProgram(RunConfiguration(program=sys.argv[1]))
task = WatchTask(source, WatchCriteria(Gates.of("nan,inf,uninitialized")))
report = run_corpus(task, sys.argv[2], CaseExecution(1))
assert report.ok, report.cases[0]
assert len(report.cases) == int(sys.argv[3])
print(getrusage(RUSAGE_SELF).ru_maxrss + getrusage(RUSAGE_CHILDREN).ru_maxrss)
"""


def write_cases(folder: Path, count: int) -> None:
    """Write frames of sound of 32 ms with the state of the net, one .npz each."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for index in range(count):
        sound = generator.standard_normal((1, 576)).astype(np.float32) / 10
        state = np.zeros((2, 1, 128), np.float32)
        np.savez(folder / f"{index:04}.npz", input=sound, state=state, sr=np.array(16000, np.int64))


def peak(model: Path, folder: Path, count: int) -> tuple[int, float]:
    """Return (peak bytes of the watch and its worker, seconds)."""
    began = time.perf_counter()
    command = [sys.executable, "-c", _SCRIPT, str(model), str(folder), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return 1024 * int(done.stdout), time.perf_counter() - began


def on_dask(model: Path, folder: Path) -> dict[str, Any]:
    """Return the figure of the times on Dask and on own processes, in turn."""
    source = CorpusProgram(RunConfiguration(program=str(model)))
    task = WatchTask(source, WatchCriteria(Gates.of("nan,inf,uninitialized")))

    def watched(executor: str | Executor) -> None:
        report = run_corpus(task, folder, CaseExecution(WORKERS, executor))
        assert report.ok, report
        assert len(report.cases) == CASES, report

    began = time.perf_counter()
    with open_engine("dask", WORKERS) as engine:
        cluster = time.perf_counter() - began
        figure = interleaved(
            f"{CASES} inputs on {WORKERS} Dask workers over own processes, silero_vad",
            lambda: watched(engine.executor),
            lambda: watched(PROCESSES),
            bar=BAR,
            runs=PAIRS,
            warm=1,
        )
    return {**figure, "unit": "seconds", "cluster_seconds": round(cluster, 2)}


def measure() -> list[dict[str, Any]]:
    """Return the figures; no figure without silero_vad."""
    model = models().get("silero_vad")
    if model is None:
        return []
    with tempfile.TemporaryDirectory() as base:
        folders = {count: Path(base) / str(count) for count in (FEW, CASES)}
        for count, folder in folders.items():
            write_cases(folder, count)
        few, _ = peak(model, folders[FEW], FEW)
        many, seconds = peak(model, folders[CASES], CASES)
        dask = on_dask(model, folders[CASES])
    figure = {
        "figure": f"memory of a watch of {CASES} inputs over {FEW}, silero_vad",
        "ours": many,
        "peer": few,
        "unit": "bytes",
        "ratio": many / few,
        "bar": BAR,
        "cases_per_second": CASES / seconds,
    }
    return [figure, dask]


if __name__ == "__main__":
    for line in measure():
        print(json.dumps(line))
