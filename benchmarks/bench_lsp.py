"""Response times of the language server: from a key to diagnostics or completions, and at its start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Any

LINES, VERY_MANY = 10_000, 100_000
URI, OTHER = "file:///bench/model.nnc", "file:///bench/other.nnc"
BAR, LIST_BAR, START_BAR, LONG_BAR = 0.100, 0.050, 2.0, 15.0
"""Seconds from a key to the diagnostics of 10,000 lines; from a key to completions; from the start of the
process to the diagnostics of a small text; and from opening 100,000 lines to their diagnostics."""
SCREEN = 60
"""Lines that an editor shows at once."""
WHOLE_BARS = {"tokens of a screen": 0.050, "formatting": 1.5}
"""Seconds of requests about a text of 100,000 lines."""

SMALL = "graph @main(%x: f32[2]) -> (%y) {\n%y = Relu(%x)\nreturn %y\n}\n"


def model(lines: int, *, graphs: int = 1, typed: bool = True) -> str:
    """Return `lines` of alternating convolutions, sums and activations, split into `graphs`.

    Every value has its type; without `typed`, types are inferred from the inputs.
    """
    size = "f32[1,8,56,56]"
    own = f": {size}" if typed else ""
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
            text.append(f'  %v{n}{own} = {op[n % 3]} loc("net.py":{n})')
        text += [f"  return %v{count}", "}", ""]
    return "\n".join(text)


class Editor:
    """A client with its own server."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nncdbg", "lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.version = 1
        self.requests = 0
        self.request("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self.send(method="initialized", params={})

    def open(self, uri: str, text: str) -> None:
        item = {"uri": uri, "languageId": "nnc", "version": 1, "text": text}
        self.send(method="textDocument/didOpen", params={"textDocument": item})

    def request(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request, and return its result; skip other messages."""
        self.requests += 1
        self.send(id=self.requests, method=method, params=params)
        while (answer := self.receive()).get("id") != self.requests:
            pass
        return answer["result"]

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

    def diagnostics(self, uri: str = URI) -> list[Any]:
        """Wait for the diagnostics of the last version sent, and return them."""
        while True:
            params = self.receive().get("params", {})
            if params.get("uri") == uri and params.get("version") == self.version:
                return list(params["diagnostics"])

    def type(self, line: int, start: int, end: int, text: str) -> None:
        """Send an edit without waiting."""
        self.version += 1
        place = {"start": {"line": line, "character": start}, "end": {"line": line, "character": end}}
        document = {"uri": URI, "version": self.version}
        params = {"textDocument": document, "contentChanges": [{"range": place, "text": text}]}
        self.send(method="textDocument/didChange", params=params)

    def key(self, line: int, start: int, end: int, text: str) -> float:
        """Return the seconds from an edit to its diagnostics."""
        before = perf_counter()
        self.type(line, start, end, text)
        self.diagnostics()
        return perf_counter() - before

    def list(self, line: int, start: int, text: str) -> float:
        """Return the seconds from an edit to the completions behind it."""
        before = perf_counter()
        self.type(line, start, start, text)
        position = {"line": line, "character": start + len(text)}
        found = self.request("textDocument/completion", {"textDocument": {"uri": URI}, "position": position})
        assert found["items"]
        return perf_counter() - before

    def close(self) -> None:
        self.request("shutdown", {})
        self.send(method="exit")
        self.process.communicate(timeout=60)


def typing(text: str, runs: int = 8) -> list[float]:
    """Return the seconds of keys all over a text: add and remove a letter of a used name; break a line."""
    editor = Editor()
    editor.open(URI, text)
    editor.diagnostics()
    lines = text.split("\n")
    seconds = []
    for run in range(runs):
        line = 2 + run * (len(lines) - 1) // runs
        while "=" not in lines[line]:
            line += 1
        equals = lines[line].index("=")
        seconds.append(editor.key(line, 4, 4, "q"))
        seconds.append(editor.key(line, 4, 5, ""))
        seconds.append(editor.key(line, equals, equals + 1, "x"))
        seconds.append(editor.key(line, equals, equals + 1, "="))
    editor.close()
    return seconds


def listing(text: str, runs: int = 16) -> list[float]:
    """Return the seconds of completions near the end of a text, where most values are in scope."""
    editor = Editor()
    editor.open(URI, text)
    editor.diagnostics()
    lines = text.split("\n")
    seconds = []
    for run in range(runs):
        line = len(lines) - 8 - run
        place = lines[line].index("(%") + 1 if run % 2 else lines[line].index("=") + 1
        seconds.append(editor.list(line, place, "%" if run % 2 else " "))
    editor.close()
    return seconds


_MIDDLE = VERY_MANY // 2
_SCREEN = {
    "start": {"line": _MIDDLE, "character": 0},
    "end": {"line": _MIDDLE + SCREEN, "character": 0},
}
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens of a screen": ("textDocument/semanticTokens/range", {"range": _SCREEN}),
    "the outline": ("textDocument/documentSymbol", {}),
    "tokens": ("textDocument/semanticTokens/full", {}),
    "folds": ("textDocument/foldingRange", {}),
    "formatting": ("textDocument/formatting", {"options": {"tabSize": 2, "insertSpaces": True}}),
}
"""Requests about a long text."""


def very_long() -> tuple[float, list[float], dict[str, float]]:
    """Return seconds of diagnostics of 100,000 lines, of requests about another text, and of `WHOLE`."""
    editor = Editor()
    editor.open(OTHER, SMALL)
    editor.diagnostics(OTHER)
    before = perf_counter()
    editor.open(URI, model(VERY_MANY))
    meanwhile = []
    for _ in range(10):
        sent = perf_counter()
        place = {"textDocument": {"uri": OTHER}, "position": {"line": 1, "character": 6}}
        assert editor.request("textDocument/hover", place)
        meanwhile.append(perf_counter() - sent)
    editor.diagnostics()
    took = perf_counter() - before
    whole = {}
    for name, (method, more) in WHOLE.items():
        sent = perf_counter()
        editor.request(method, {"textDocument": {"uri": URI}, **more})
        whole[name] = perf_counter() - sent
    editor.close()
    return took, meanwhile[1:], whole


def start(runs: int = 5) -> float:
    """Return the seconds from the start of the process to the first diagnostics."""
    times = []
    for _ in range(runs):
        before = perf_counter()
        editor = Editor()
        editor.open(URI, SMALL)
        editor.diagnostics()
        times.append(perf_counter() - before)
        editor.close()
    return statistics.median(times)


def measure() -> list[dict[str, Any]]:
    long, meanwhile, whole = very_long()
    lists = statistics.median(listing(model(LINES)))
    key = "lsp: key to diagnostics, 10,000 lines"
    figures = [
        (f"{key} in one graph, median (s)", statistics.median(typing(model(LINES))), BAR),
        (f"{key}, types inferred, median (s)", statistics.median(typing(model(LINES, typed=False))), BAR),
        (f"{key} in 50 graphs, median (s)", statistics.median(typing(model(LINES, graphs=50))), BAR),
        ("lsp: key to completion list, 10,000 lines, median (s)", lists, LIST_BAR),
        ("lsp: opening 100,000 lines to diagnostics (s)", long, LONG_BAR),
        ("lsp: hover elsewhere meanwhile, median (s)", statistics.median(meanwhile), BAR),
        *((f"lsp: {name} of 100,000 lines (s)", took, WHOLE_BARS.get(name)) for name, took in whole.items()),
        ("lsp: start of the process to the first diagnostics (s)", start(), START_BAR),
    ]
    return [
        {"figure": figure, "ours": seconds, "peer": None, "ratio": round(seconds, 4), "bar": bar}
        for figure, seconds, bar in figures
    ]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
