"""A step back at statement 10,000, the memory of a long loop with history, and edits of large tensors."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_machine import chain
from timing import seconds

import nncdbg

LOOP = """graph @main(%x: f32[16], %n: i64[]) -> (%y: f32[16]) {{
  while @body (%s: f32[16] = %x) times {count} {{
    %a = Mul(%s, 0.5)
    %b = Add(%a, 1.0)
    next %s = %b
  }} -> (%y = %s)
  return %y
}}
"""


def step_back(count: int = 10_000, runs: int = 31) -> dict[str, Any]:
    """Measure the milliseconds of one step back at the end of a chain, with access to its value."""
    inputs = {"v0": np.array(1.0, np.float32), "c": np.array(0.5, np.float32)}
    debugger = nncdbg.Debugger(chain(count), inputs)
    debugger.run()
    times = []
    for _ in range(runs):
        times.append(seconds(debugger.step_back) * 1e3)
        debugger.value(f"v{debugger.control.machine.tick}")
    median = statistics.median(times)
    return {
        "figure": "step back at statement 10,000 (ms)",
        "ours": median,
        "peer": None,
        "ratio": median,
        "bar": 1.0,
    }


def peak_of_loop(count: int) -> int:
    """Return the peak resident KiB of a new process that runs `count` iterations with everything on."""
    command = [sys.executable, str(Path(__file__).resolve()), "--loop", str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_loop(count: int) -> None:
    from nncdbg import stats

    stats.prepare(wait=True)
    debugger = nncdbg.Debugger(nncdbg.parse(LOOP.format(count=count)), {"x": "ones", "n": 0})
    debugger.catch("nan")
    stop = debugger.run()
    assert stop.reason == "end", stop
    print(peak_memory())


def peak_memory() -> int:
    """Return the peak resident KiB of this process since its start."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, which includes the memory of the parent at the fork.
        return int(
            next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def loop_memory() -> dict[str, Any]:
    peak_of_loop(1_000)  # the first process may have to compile the statistics
    long, short = peak_of_loop(100_000), peak_of_loop(1_000)
    return {
        "figure": "peak memory of a loop, 100,000 / 1,000 iterations (KiB)",
        "ours": long,
        "peer": short,
        "ratio": round(long / short, 3),
        "bar": 1.1,
    }


def set_element(count: int = 300_000_000) -> list[dict[str, Any]]:
    """Measure the seconds and MB of setting one element of a 1.2 GB result, as medians of several edits."""
    text = f"graph @main(%x: f32[{count}]) -> (%h) {{\n  %h = Neg(%x)\n  return %h\n}}\n"
    debugger = nncdbg.Debugger(nncdbg.parse(text), {"x": np.zeros(count, np.float32)})
    debugger.step_over()
    times, memory = [], []
    for number in range(5):
        before = proportional_megabytes()
        times.append(seconds(partial(debugger.set_value, "h", 1.0, (number,))))
        memory.append(proportional_megabytes() - before)
    taken, more = statistics.median(times), statistics.median(memory)
    return [
        {
            "figure": "set one element of a 1.2 GB tensor (s)",
            "ours": taken,
            "peer": None,
            "ratio": taken,
            "bar": 0.2,
        },
        {
            "figure": "memory for it (MB)",
            "ours": more,
            "peer": None,
            "ratio": more,
            "bar": 50,
        },
    ]


def proportional_megabytes() -> float:
    """Return the memory of this process in MB; pages that it has mapped twice count once."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure() -> list[dict[str, Any]]:
    return [step_back(), loop_memory(), *set_element()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loop"]:
        run_loop(int(sys.argv[2]))
    else:
        for figure in measure():
            print(json.dumps(figure))
