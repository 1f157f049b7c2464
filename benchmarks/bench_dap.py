"""Response times of the Debug Adapter Protocol server."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import chain, starmap
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import bench_machine
import numpy as np
from dap_wire import FOREVER, Wire, wire
from debugpy_wire import debugpy_wire

TRAINING = Path(__file__).parents[1] / "examples" / "torch_training.py"
BILLION = 10**9
PAGE_BAR = 0.005
"""Seconds for a page of variables of a tensor of any size."""
WARMING = 5
"""Seconds to load the compiled statistics from their cache, which starts after 2,000 ops."""
TURN = 20
"""Consecutive steps of one side before the other side steps."""
STEP_BAR, STEP_BAR_P99, PAUSE_BAR = 0.003, 0.010, 0.020


def sparse_array(file: Path, count: int) -> None:
    """Write a sparse .npy file of `count` float32 zeros, which uses no disk space."""
    with file.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.truncate(stream.tell() + 4 * count)


def variables_page(runs: int = 101) -> list[dict[str, Any]]:
    """Measure pages of 100 elements of a tensor of 1e9, and the scope that lists the tensor."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        sparse_array(folder / "x.npy", BILLION)
        kind = f"f32[{BILLION}]"
        text = f"graph @main(%x: {kind}) -> (%y: {kind}) {{\n  %y: {kind} = Neg(%x)\n  return %y\n}}\n"
        (folder / "large.nnc").write_text(f"#nncdbg 1\nopset 18\n\n{text}")
        with wire(folder) as client:
            client.start(folder / "large.nnc", inputs={"x": "x.npy"})
            frame = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["id"]
            scope = client.request("scopes", {"frameId": frame})["scopes"][0]["variablesReference"]
            (whole,) = client.request("variables", {"variablesReference": scope})["variables"]
            page = {"variablesReference": whole["variablesReference"], "filter": "indexed", "count": 100}
            starts = np.random.default_rng(0).integers(0, BILLION - 100, runs).tolist()
            pages = [_seconds(client, {**page, "start": start}) for start in starts]
            scopes = [_seconds(client, {"variablesReference": scope}) for _ in range(runs)]
    return [
        _row("variables: a page of a tensor of 1e9 elements, p50 (s)", statistics.median(pages)),
        _row("variables: a page of a tensor of 1e9 elements, p99 (s)", sorted(pages)[-2]),
        _row("variables: the scope that lists it, p50 (s)", statistics.median(scopes)),
    ]


def _seconds(client: Any, arguments: dict[str, Any]) -> float:
    before = perf_counter()
    client.request("variables", arguments)
    return perf_counter() - before


def _row(figure: str, seconds: float, bar: float = PAGE_BAR) -> dict[str, Any]:
    return {
        "figure": figure,
        "ours": seconds,
        "peer": None,
        "ratio": round(seconds / bar, 3),
        "bar": 1.0,
    }


def step_round_trip(count: int = 10_000, runs: int = 300) -> list[dict[str, Any]]:
    """Measure `next` to `stopped`, stack, scopes and variables: in a chain of ops, and in Python by debugpy.

    Both sides alternate after some steps, so that neither is measured during the cleanup of the other.
    `ratio` is relative to the bar in seconds; the last row compares the medians with debugpy.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "chain.nnc").write_text(str(bench_machine.chain(count)))
        with wire(folder) as ours, debugpy_wire(folder, 2 * runs) as peer:
            ours.start(folder / "chain.nnc", inputs={"v0": 1.0, "c": 0.5})
            _run_warm(ours, folder / "chain.nnc", count // 2)
            threads = peer.request("threads")["threads"]
            thread = next(each["id"] for each in threads if each["name"] == "MainThread")
            for _ in range(runs // 10):
                _step(ours, 1)
                _step(peer, thread)
            turns = [
                ([_step(ours, 1) for _ in range(TURN)], [_step(peer, thread) for _ in range(TURN)])
                for _ in range(runs // TURN)
            ]
    mine, theirs = (sorted(chain.from_iterable(times)) for times in zip(*turns, strict=True))
    figure = f"next to stopped, stack, scopes and variables in {count} ops"
    last = -(-runs // 100)
    return [
        _row(f"{figure}, p50 (s)", statistics.median(mine), STEP_BAR),
        _row(f"{figure}, p99 (s)", mine[-last], STEP_BAR_P99),
        {
            "figure": f"{figure}, against debugpy without delay",
            "ours": statistics.median(mine),
            "peer": statistics.median(theirs),
            "ratio": round(statistics.median(starmap(_median_ratio, turns)), 3),
            "bar": 1.0,
        },
    ]


def _median_ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(mine) / statistics.median(theirs)


def _run_warm(client: Wire, file: Path, line: int | None) -> None:
    """Run to a line, or for some seconds, and wait until the compiled statistics are loaded."""
    if line is not None:
        wanted = {"source": {"path": str(file)}, "breakpoints": [{"line": line}]}
        client.request("setBreakpoints", wanted)
    client.request("continue", {"threadId": 1})
    if line is None:
        sleep(WARMING)
        client.request("pause", {"threadId": 1})
    client.wait("stopped")
    sleep(WARMING)


def _step(client: Wire, thread: int) -> float:
    """Return the seconds of a step with the requests for the position and the values."""
    before = perf_counter()
    client.request("next", {"threadId": thread})
    client.wait("stopped")
    frame = client.request("stackTrace", {"threadId": thread, "startFrame": 0, "levels": 20})["stackFrames"][
        0
    ]
    for scope in client.request("scopes", {"frameId": frame["id"]})["scopes"]:
        if not scope["expensive"]:
            client.request("variables", {"variablesReference": scope["variablesReference"]})
    return perf_counter() - before


def pause(runs: int = 31) -> list[dict[str, Any]]:
    """Measure `pause` to `stopped` in an endless loop of cheap ops."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "forever.nnc").write_text(FOREVER)
        with wire(folder) as client:
            client.start(folder / "forever.nnc", inputs={"x": "ones"})
            _run_warm(client, folder / "forever.nnc", None)
            for _ in range(3):
                _pause(client)
            times = sorted(_pause(client) for _ in range(runs))
    figure = "pause to stopped in a run of cheap ops"
    return [
        _row(f"{figure}, p50 (s)", statistics.median(times), PAUSE_BAR),
        _row(f"{figure}, p95 (s)", times[-1 - runs // 20], PAUSE_BAR),
    ]


def _pause(client: Wire) -> float:
    """Return the seconds from a `pause` request of a running program to its stop."""
    client.request("continue", {"threadId": 1})
    sleep(0.05)
    before = perf_counter()
    client.send("pause", {"threadId": 1})
    client.wait("stopped")
    return perf_counter() - before


def recorded_step(starts: int = 5, steps: int = 20) -> list[dict[str, Any]]:
    """Measure a recorded PyTorch step in its script: F5 to the arrow, F10 to the values, and hovers.

    After each stop the client sends what VS Code and its extension send: the stack, the names, and the values
    beside the lines.  The disassembly has 400 statements, as that of VS Code.
    """
    began, moved, hovered, listed = [], [], [], []
    with TemporaryDirectory() as name:
        folder = Path(name)
        copyfile(TRAINING, folder / "train.py")
        record = [sys.executable, "-m", "nncdbg", "record", "train.py", "--step", "1", "-o", "step"]
        subprocess.run(record, cwd=folder, check=True, capture_output=True)
        for _ in range(starts):
            before = perf_counter()
            with wire(folder) as client:
                client.start(folder / "step", cwd=str(folder))
                _values_beside(client)
                began.append(perf_counter() - before)
                if len(began) < starts:
                    continue
                for _ in range(steps):
                    before = perf_counter()
                    client.request("stepIn", {"threadId": 1})
                    client.wait("stopped")
                    frame = _values_beside(client)
                    moved.append(perf_counter() - before)
                    hovered += [_hover(client, frame, each) for each in _names(client, frame)]
                    listed.append(_disassembly(client, frame))
    return [
        _row("recorded step: launch to the values beside the line, p50 (s)", statistics.median(began), 3.0),
        _row("recorded step: a step to the values beside the line, p99 (s)", sorted(moved)[-2], 0.12),
        _row("recorded step: hover on a name, p99 (s)", sorted(hovered)[-1 - len(hovered) // 100], 0.15),
        _row("recorded step: 400 statements of the disassembly, p50 (s)", statistics.median(listed), 0.12),
    ]


def _values_beside(client: Wire) -> dict[str, Any]:
    """Request what an editor shows at a stop, and return the innermost frame."""
    client.request("threads")
    frames = client.request("stackTrace", {"threadId": 1, "startFrame": 0, "levels": 20})["stackFrames"]
    frame: dict[str, Any] = frames[0]
    _names(client, frame)
    line = frame["line"]
    lines = {"start": max(1, line - 30), "end": line + 30, "frameId": frame["id"], "source": frame["source"]}
    client.request("nncdbg/lines", lines)
    return frame


def _names(client: Wire, frame: dict[str, Any]) -> list[str]:
    """Return the names of the innermost call, after requesting their values."""
    scope = client.request("scopes", {"frameId": frame["id"]})["scopes"][0]
    found = client.request("variables", {"variablesReference": scope["variablesReference"]})["variables"]
    return [each["evaluateName"] for each in found if "evaluateName" in each]


def _hover(client: Wire, frame: dict[str, Any], name: str) -> float:
    before = perf_counter()
    client.request("evaluate", {"expression": name, "frameId": frame["id"], "context": "hover"})
    return perf_counter() - before


def _disassembly(client: Wire, frame: dict[str, Any]) -> float:
    before = perf_counter()
    around = {"instructionOffset": -200, "instructionCount": 400}
    client.request("disassemble", {"memoryReference": frame["instructionPointerReference"], **around})
    return perf_counter() - before


def measure() -> list[dict[str, Any]]:
    return [*variables_page(), *step_round_trip(), *pause(), *recorded_step()]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
