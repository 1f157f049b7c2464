"""A client of the real server over stdio: framing, requests, and received notifications."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import Any

SECONDS = 60


class RequestError(Exception):
    """An error response of the server, with its `message`."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.message: str = error["message"]


class Client:
    """A running and initialized `nncdbg lsp`."""

    def __init__(self, root: str | None = None, **capabilities: Any) -> None:
        command = [sys.executable, "-m", "nncdbg", "lsp"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._responses: dict[int, queue.Queue[dict[str, Any]]] = {}
        self.notifications: queue.Queue[dict[str, Any]] = queue.Queue()
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.capabilities = self.request(
            "initialize", {"processId": None, "rootUri": root, "capabilities": capabilities}
        )["capabilities"]
        self.notify("initialized", {})

    def _read(self) -> None:
        out = self.process.stdout
        assert out is not None
        while (head := out.readline()).strip():
            length = int(head.split(b":")[1]) if head.lower().startswith(b"content-length") else 0
            while (line := out.readline()).strip():
                if line.lower().startswith(b"content-length"):
                    length = int(line.split(b":")[1])
            message = json.loads(out.read(length))
            if "method" in message:
                self.notifications.put(message)
            else:
                self._responses[message["id"]].put(message)

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: Any) -> Any:
        return self.finish(self.start(method, params))

    def start(self, method: str, params: Any) -> int:
        """Send a request, and return its number."""
        self._count += 1
        self._responses[self._count] = queue.Queue()
        self._send({"id": self._count, "method": method, "params": params})
        return self._count

    def answered(self, number: int) -> bool:
        """Return whether the response to a request has arrived."""
        return not self._responses[number].empty()

    def finish(self, number: int) -> Any:
        """Wait for the response to a request, and return its result."""
        message = self._responses[number].get(timeout=SECONDS)
        if "error" in message:
            raise RequestError(message["error"])
        return message["result"]

    def open(self, uri: str, text: str, version: int = 1) -> list[dict[str, Any]]:
        """Open a document, and return its diagnostics."""
        item = {"uri": uri, "languageId": "nnc", "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return self.diagnostics(uri, version)

    def change(self, uri: str, version: int, *changes: dict[str, Any]) -> list[dict[str, Any]]:
        """Change a document, and return the diagnostics of that version."""
        document = {"uri": uri, "version": version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})
        return self.diagnostics(uri, version)

    def diagnostics(self, uri: str, version: int | None) -> list[dict[str, Any]]:
        """Wait for the diagnostics of this version, and return them."""
        while True:
            message = self.notifications.get(timeout=SECONDS)
            params = message["params"]
            if message["method"] != "textDocument/publishDiagnostics" or params["uri"] != uri:
                continue
            if version is None or params.get("version") == version:
                return list(params["diagnostics"])

    def request_at(self, feature: str, uri: str, line: int, character: int, **more: Any) -> Any:
        """Send a request with a position, such as ``hover``, and return its result."""
        place = {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}
        return self.request(f"textDocument/{feature}", {**place, **more})

    def close(self) -> int:
        """Shut the server down, and return its exit code."""
        self.request("shutdown", None)
        self.notify("exit", None)
        return self.process.wait(SECONDS)
