"""Many random sessions with one server process: leaks, hangs and crashes.

    python benchmarks/soak_dap.py [SESSIONS [SEED]]

The server is `nncdbg dap --listen`, in a process that also counts its objects on request.  After some
sessions of warm-up, resources are counted before and after the measured sessions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from soak_session import RandomSession, ReportBuilder, write_programs

SESSIONS = 200
WARM_UP = 200
"""Sessions before the first count, because libraries are loaded late and compiled code is kept."""
BARS = {"threads": 0, "descriptors": 0, "processes": 0, "objects": 0, "MB": 20, "hangs": 0, "crashes": 0}

_KEPT = ("Session", "Connection", "Handles", "Debuggee", "Debugger", "Machine", "Console")
"""Classes without instances after the end of all sessions."""


class Server:
    """A server in a separate process, with counts of its resources."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.objects: dict[str, int] = {}
        """Class name to the number of instances at the latest count."""
        self._watched = psutil.Process(process.pid)

    def held(self) -> dict[str, float]:
        """Return the resources of the server without a client."""
        time.sleep(0.5)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("count\n")
        self.process.stdin.flush()
        self.objects = json.loads(self.process.stdout.readline())
        return {
            "threads": self._watched.num_threads(),
            "descriptors": self._watched.num_fds(),
            "processes": len(self._watched.children(recursive=True)),
            "objects": sum(self.objects.values()),
            "MB": self._watched.memory_info().rss / 1e6,
        }


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    command = [sys.executable, __file__, "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=folder) as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        try:
            yield Server(process, port)
        finally:
            process.terminate()
            process.wait(30)


def soak(sessions: int = SESSIONS, seed: int = 0) -> list[dict[str, Any]]:
    """Return a figure for each resource, and for hangs and crashes."""
    tally = ReportBuilder()
    with TemporaryDirectory() as name:
        folder = Path(name)
        programs = write_programs(folder)
        with serving(folder) as server:
            before = server.held()
            start = time.monotonic()
            for number in range(WARM_UP + sessions):
                if number == WARM_UP:
                    before = server.held()
                RandomSession(Random(f"{seed} {number}"), server.port, programs, tally).play()
                if number % 50 == 49:
                    progress = (
                        f"{number + 1} sessions, {tally.requests} requests, {time.monotonic() - start:.0f} s"
                    )
                    print(f"{progress}; {server.held()} {server.objects}", file=sys.stderr, flush=True)
            after = server.held()
    found = {name: round(after[name] - before[name], 1) for name in before}
    found |= {"hangs": len(tally.hangs), "crashes": len(tally.crashes)}
    for problem in [*tally.hangs, *tally.crashes]:
        print(problem, file=sys.stderr)
    done = f"{sessions} sessions, {tally.requests} requests, {tally.refused} refused"
    return [
        {"figure": f"soak: {name} left, {done}", "value": value, "bar": BARS[name], "ratio": value}
        for name, value in found.items()
    ]


def serve() -> None:
    """Run in the server's process: a thread counts objects for each line on standard input."""
    import gc
    import os
    import threading

    from nncdbg.dap_server.command import main
    from nncdbg.stats import prepare

    # Otherwise the 120 MB of the compiled statistics may be allocated before or after the first count.
    prepare(wait=True)
    lines, counts = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")

    def count() -> None:
        for _ in lines:
            gc.collect()
            kinds = [type(each).__name__ for each in gc.get_objects()]
            print(json.dumps({name: kinds.count(name) for name in _KEPT}), file=counts, flush=True)

    threading.Thread(target=count, daemon=True).start()
    sys.exit(main(["--listen", "127.0.0.1:0"]))


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        figures = soak(*map(int, sys.argv[1:]))
        for figure in figures:
            print(json.dumps(figure))
        sys.exit(any(figure["value"] > figure["bar"] for figure in figures))
