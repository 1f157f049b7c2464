"""The peer: debugpy over stdio, with TCP_NODELAY, stepping through Python lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dap_wire import Wire

# Adapter and debuggee use sockets; without TCP_NODELAY each response is delayed by about 40 ms.
NO_DELAY = """import socket

plain = socket.socket.__init__


def init(self, *arguments, **named):
    plain(self, *arguments, **named)
    if self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM:
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


socket.socket.__init__ = init
"""


@contextmanager
def debugpy_wire(folder: Path, lines: int) -> Iterator[Wire]:
    """Yield a client of debugpy, stopped at the first of `lines` lines that each add two NumPy scalars."""
    (folder / "sitecustomize.py").write_text(NO_DELAY)
    program = folder / "lines.py"
    head = "import numpy as np\n\n\ndef main(value, step):\n"
    call = "\n\nmain(np.array(1.0, np.float32), np.array(0.5, np.float32))\n"
    program.write_text(head + "    value = np.add(value, step)\n" * lines + call)
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    command = [sys.executable, "-m", "debugpy.adapter"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        client = Wire(process.stdout, process.stdin)
        client.request("initialize", {"adapterID": "debugpy", "pathFormat": "path", "linesStartAt1": True})
        client.send("launch", {"program": str(program), "console": "internalConsole", "cwd": str(folder)})
        client.wait("initialized")
        client.request("setBreakpoints", {"source": {"path": str(program)}, "breakpoints": [{"line": 5}]})
        client.request("configurationDone")
        client.wait("stopped")
        yield client
        client.request("disconnect", {"terminateDebuggee": True})
        process.stdin.close()
        process.wait(30)
