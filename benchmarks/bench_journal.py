"""The run journal: sizes and times of checkpoints and statistics, against plain files."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from timing import interleaved, seconds

from nncdbg import journal
from nncdbg.journal import Journal, NewRun
from nncdbg.journal.codecs import encode
from nncdbg.stats import Summary

_MEGABYTE = 1 << 20
_CHECKPOINT = 100 * _MEGABYTE
_TENSORS = 20
_VALUES = 1000
_STEPS = 10_000
_NEW = NewRun(kind="graph", name="benchmark")


def _tensors() -> dict[str, np.ndarray[Any, Any]]:
    """Return a checkpoint of 100 MB in tensors of 5 MB."""
    rng = np.random.default_rng(0)
    size = _CHECKPOINT // _TENSORS // 4
    return {f"state/w{n}": rng.random(size, np.float32) for n in range(_TENSORS)}


def _write(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    with journal.open(path, write=True) as file, file.start(_NEW) as run:
        run.checkpoint(0, position={}, tensors=tensors)


def _reading(folder: Path) -> dict[str, Any]:
    """Read a checkpoint, verified, against the same bytes from a file in the page cache."""
    tensors = _tensors()
    _write(folder / "read.db", tensors)
    for name, tensor in tensors.items():
        tensor.tofile(folder / f"{name[6:]}.bin")

    def ours() -> object:
        with journal.open(folder / "read.db") as file:
            found = file.read(file.checkpoints(1)[0]).tensors
            return [found[name] for name in tensors]

    def peer() -> object:
        return [np.fromfile(folder / f"{name[6:]}.bin", np.float32) for name in tensors]

    figure = "open a journal and read a checkpoint of 100 MB / the bytes from the page cache"
    return interleaved(figure, ours, peer, bar=2.0, runs=11)


def _writing(folder: Path) -> dict[str, Any]:
    """Write a checkpoint durably, against writing the same bytes to one file with fsync."""
    tensors = _tensors()
    state = {"run": 0}

    def ours() -> None:
        state["run"] += 1
        tensors["state/w0"][0] = state["run"]
        for tensor in tensors.values():
            tensor[1] = state["run"]
        path = folder / "write.db"
        path.unlink(missing_ok=True)
        _write(path, tensors)

    def peer() -> None:
        with (folder / "write.bin").open("wb") as file:
            for tensor in tensors.values():
                file.write(tensor.data)
            file.flush()
            os.fsync(file.fileno())

    figure = "write a checkpoint of 100 MB and close the journal / write a file with fsync"
    return interleaved(figure, ours, peer, bar=None, runs=7, warm=1)


def _handing_over(folder: Path) -> dict[str, Any]:
    """The time that the training waits for `RunWriter.checkpoint`, and the time until it is committed."""
    tensors = _tensors()
    with journal.open(folder / "hand.db", write=True) as file:
        run = file.start(_NEW)
        waits, commits = [], []
        for step in range(5):
            copies = {name: tensor + np.float32(step) for name, tensor in tensors.items()}
            started = time.perf_counter()
            run.checkpoint(step, position={}, tensors=copies)
            waits.append(time.perf_counter() - started)
            run.flush()
            commits.append(time.perf_counter() - started)
        run.end()
    return {
        "figure": "the training waits for a checkpoint of 100 MB / until it is committed",
        "ours": sorted(waits)[2],
        "peer": sorted(commits)[2],
        "ratio": round(sorted(waits)[2] / sorted(commits)[2], 5),
        "bar": 0.01,
    }


def _statistics(folder: Path) -> list[dict[str, Any]]:
    """Statistics of 1,000 values over 10,000 steps: the size of the file, and reading one history."""
    path = folder / "statistics.db"
    with journal.open(path, write=True) as file, file.start(_NEW) as run:
        _write_statistics(run)
    with journal.open(path) as file:
        read = _read_history(file)
        read()
        elapsed = sorted(seconds(read) for _ in range(11))[5]
    megabytes = path.stat().st_size / 1e6
    return [
        _against("statistics of 1,000 values x 10,000 steps: MB on the disk / 200", megabytes, 200),
        _against("read the history of one of 1,000 values / 50 ms", elapsed, 0.05),
    ]


def _write_statistics(run: journal.RunWriter) -> None:
    """Write numbers that compress no better than those of a training: random digits of f32 and f64."""
    rng = np.random.default_rng(0)
    names = [f"%v{n}" for n in range(_VALUES)]
    for step in range(_STEPS):
        ends = rng.normal(0, 1, (_VALUES, 2)).astype(np.float32).tolist()
        means = rng.normal(0, 1, (_VALUES, 2)).tolist()
        zeros = rng.integers(0, 500, _VALUES).tolist()
        for name, (low, high), (mean, std), zero in zip(names, ends, means, zeros, strict=True):
            run.statistics(step, name, Summary(low, high, mean, std, 0, 0, 0, zero, 0, 4096))


def _read_history(file: Journal) -> Callable[[], object]:
    return lambda: file.statistics(1, "%v500")


def _against(figure: str, ours: float, limit: float) -> dict[str, Any]:
    return {"figure": figure, "ours": ours, "peer": limit, "ratio": round(ours / limit, 3), "bar": 1.0}


def _calls(folder: Path) -> dict[str, Any]:
    """The time of the calls of one step with 5 tracked values, against a step of 20 ms."""
    steps = 5000
    with journal.open(folder / "calls.db", write=True) as file:
        run = file.start(_NEW)
        started = time.perf_counter()
        for step in range(steps):
            run.step(step, epoch=0, seconds=0.02)
            for name in ("loss", "acc", "norm", "lr", "scale"):
                run.value(name, step, 0.5 / (step + 1))
        elapsed = (time.perf_counter() - started) / steps
        run.end()
    return {
        "figure": "the calls of a step with 5 tracked values / a step of 20 ms",
        "ours": elapsed,
        "peer": 0.02,
        "ratio": round(elapsed / 0.02, 5),
        "bar": 0.01,
    }


def _codecs() -> list[dict[str, Any]]:
    """Each codec for values on normal numbers: time against `exact`, with the size and the error (N14)."""
    tensor = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)
    rows = []
    for codec in ("f16", "blocks"):
        encoded = encode(tensor, codec)
        words = f"{len(encoded.data) / 1e6:.2f} MB, error rms {encoded.error.rms:.2g}"
        figure = f"encode f32[1024,1024] as {codec} ({words}) / exact"
        rows.append(
            interleaved(figure, partial(encode, tensor, codec), partial(encode, tensor), bar=None, runs=15)
        )
    return rows


def measure() -> list[dict[str, Any]]:
    """Return all figures; the files are on the disk of the system's temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            _reading(folder),
            _writing(folder),
            _handing_over(folder),
            _calls(folder),
            *_codecs(),
            *_statistics(folder),
        ]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
