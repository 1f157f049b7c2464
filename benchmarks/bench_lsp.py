"""How long an editor waits for the language server: from a key to the diagnostics, and from its start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Any

LINES = 10_000
URI = "file:///bench/model.nnc"
BAR, START_BAR = 0.100, 2.0
"""Seconds from a key to the diagnostics of 10,000 lines; from the process to those of a small text."""


def model(lines: int, *, graphs: int = 1) -> str:
    """`lines` of convolutions, sums and activations in turn, in so many graphs; every value has its type."""
    size = "f32[1,8,56,56]"
    text = []
    for graph in range(graphs):
        name = "main" if not graph else f"layer{graph}"
        count = lines // graphs - 4
        text.append(f"graph @{name}(%v0: {size}, %w: f32[8,8,3,3]) -> (%v{count}: {size}) {{")
        for n in range(1, count + 1):
            before = f"%v{n - 1}"
            op = (
                f"Conv({before}, %w, pads=[1,1,1,1])",
                f"Add({before}, %v{max(0, n - 3)})",
                f"Relu({before})",
            )
            text.append(f'  %v{n}: {size} = {op[n % 3]} loc("net.py":{n})')
        text += [f"  return %v{count}", "}", ""]
    return "\n".join(text)


class Editor:
    """A client with one document."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nncdbg", "lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.version = 1
        self.send(id=1, method="initialize", params={"processId": None, "rootUri": None, "capabilities": {}})
        self.receive()
        self.send(method="initialized", params={})
        item = {"uri": URI, "languageId": "nnc", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": item})
        self.diagnostics()

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None
        length = 0
        while (line := out.readline()).strip():
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        answer: dict[str, Any] = json.loads(out.read(length))
        return answer

    def diagnostics(self) -> list[Any]:
        """Those of the version that was sent last."""
        while True:
            params = self.receive().get("params", {})
            if params.get("version") == self.version:
                return list(params["diagnostics"])

    def key(self, line: int, start: int, end: int, text: str) -> float:
        """Seconds from an edit to its diagnostics."""
        self.version += 1
        place = {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}
        before = perf_counter()
        document = {"uri": URI, "version": self.version}
        params = {"textDocument": document, "contentChanges": [{"range": place, "text": text}]}
        self.send(method="textDocument/didChange", params=params)
        self.diagnostics()
        return perf_counter() - before

    def close(self) -> None:
        self.send(id=2, method="shutdown")
        self.send(method="exit")
        self.process.communicate(timeout=60)


def typing(text: str, runs: int = 8) -> list[float]:
    """Keys all over a text: a letter in a name, which breaks what uses it, and away; a broken line."""
    editor = Editor(text)
    count = text.count("\n")
    seconds = []
    for run in range(runs):
        line = 2 + (run * count // runs) // 5 * 5
        seconds.append(editor.key(line, 4, 4, "q"))
        seconds.append(editor.key(line, 4, 5, ""))
        seconds.append(editor.key(line, 27, 28, "x"))
        seconds.append(editor.key(line, 27, 28, "="))
    editor.close()
    return seconds


def start(runs: int = 5) -> float:
    """Seconds from the start of the process to the first diagnostics."""
    times = []
    for _ in range(runs):
        before = perf_counter()
        editor = Editor("graph @main(%x: f32[2]) -> (%y) {\n%y = Relu(%x)\nreturn %y\n}\n")
        times.append(perf_counter() - before)
        editor.close()
    return statistics.median(times)


def measure() -> list[dict[str, Any]]:
    figures = [
        (f"lsp: key to diagnostics, {LINES} lines in one graph, median (s)", statistics.median, 1, BAR),
        (f"lsp: key to diagnostics, {LINES} lines in 50 graphs, median (s)", statistics.median, 50, BAR),
    ]
    rows = []
    for figure, middle, graphs, bar in figures:
        seconds = middle(typing(model(LINES, graphs=graphs)))
        rows.append({"figure": figure, "ours": seconds, "peer": None, "ratio": round(seconds, 4), "bar": bar})
    seconds = start()
    figure = "lsp: start of the process to the first diagnostics (s)"
    rows.append(
        {"figure": figure, "ours": seconds, "peer": None, "ratio": round(seconds, 3), "bar": START_BAR}
    )
    return rows


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
