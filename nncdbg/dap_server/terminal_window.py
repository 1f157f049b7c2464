"""A prompt beside the client's windows: a terminal, opened by the client, that runs `nncdbg repl`.

It is a second front-end of the same program: its input is served like the client's own requests, in order
with them, and stops are shown there too.  It uses a private Unix socket, one JSON document per line:

    to the server   {"line": "p %h"}, {"complete": "p %"}, {"pause": true}
    from it         {"title": ...} first; in the order of the requests {"answer": ...}, {"error": ...} and
                    {"completions": [[text, length], ...], "of": ...}; {"shown": ...} at each stop

The session continues if the terminal ends; the end of the session ends the terminal.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from nncdbg.dap_server import protocol
from nncdbg.dap_server.messages import Request, decoding_failure
from nncdbg.dap_server.registry import each_program
from nncdbg.dap_server.transport.addresses import bind
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable_line
from nncdbg.presentation.screen import Screen
from nncdbg.presentation.stops import show_stop
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.messages import Answer
    from nncdbg.dap_server.session import Session
    from nncdbg.target.records import Stop

WIDTH = 100
"""Cells of pictures and grids: the width of the terminal is not reported."""

_TIME_TO_SEND = pack("ll", 1, 0)
"""One second as a socket option: the time a terminal may block a send."""

_KINDS: dict[str, Literal["integrated", "external"]] = {
    "integratedTerminal": "integrated",
    "externalTerminal": "external",
}


class _TerminalRequest(msgspec.Struct):
    line: str | None = None
    complete: str | None = None
    pause: bool = False


class TerminalWindow:
    """The server's end.  Raises UsageError if there can be no socket."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._folder = Path(tempfile.mkdtemp(prefix="nncdbg-"))
        try:
            self._bound = bind(str(self._folder / "terminal"), guarded=False)
        except NncdbgError:
            shutil.rmtree(self._folder)
            raise
        self.path = str(self._bound.address)
        self._sending = threading.Lock()
        self._connected: socket.socket | None = None
        self._closed = False
        self._before: object = None
        self._console_spoke = False
        self._thread = BackgroundThread(target=self._serve, name="nncdbg-dap-terminal")
        self._thread.start()

    # -- what comes from the terminal ------------------------------------------------------------

    def _serve(self) -> None:
        try:
            connected, _ = self._bound.socket.accept()
        except OSError:  # closed before a terminal connected
            return
        finally:
            self._bound.close()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME_TO_SEND)
        self._connected = connected
        program = self._session.debuggee
        self._send({"title": program.sources.name if program is not None else ""})
        # If the program is already stopped, the terminal begins with that stop.
        if program is not None and not self._session.queue.moving:
            self._submit({"expression": "list", "context": "repl"}, self._shown_first)
        with contextlib.suppress(OSError), connected.makefile("rb") as lines:
            for line in lines:
                self._serve_line(line)
        with self._sending:
            connected.close()
            self._connected = None

    def _serve_line(self, line: bytes) -> None:
        try:
            requested = msgspec.json.decode(line, type=_TerminalRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._send({"error": decoding_failure(error)})
            return
        if requested.pause:
            self._pause()
        elif requested.complete is not None:
            self._complete(requested.complete)
        else:
            self._submit({"expression": requested.line or "", "context": "repl"}, self._answer)

    def _pause(self) -> None:
        session = self._session
        with session.queue.turn:
            if session.queue.moving:
                session.program.pause()

    def _complete(self, text: str) -> None:
        column = self._session.client.outgoing_column(len(text.encode("utf-16-le")) // 2 + 1)

        def answered(body: Any, error: NncdbgError | None) -> None:
            targets = body.targets if error is None else []
            found = [(each.text or each.label, each.length or 0) for each in targets]
            self._send({"completions": found, "of": text})

        self._submit({"text": text, "column": column}, answered, "completions")

    def _submit(
        self,
        arguments: dict[str, Any],
        answered: Callable[[Any, NncdbgError | None], None],
        command: str = "evaluate",
    ) -> None:
        """Submit a request like a client's, in order with them; `answered` receives the answer."""
        self._session.submit(Request(0, command, msgspec.json.encode(arguments), answered=answered))

    def _answer(self, body: Any, error: NncdbgError | None) -> None:
        self._send({"answer": body.result} if error is None else {"error": str(error)})

    def _shown_first(self, body: Any, error: NncdbgError | None) -> None:
        """Show the current stop when the terminal connects; nothing before the program has begun."""
        if error is None:
            self._send({"shown": body.result})

    # -- what goes to it ---------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            if self._connected is not None:
                try:
                    self._connected.sendall(msgspec.json.encode(message) + b"\n")
                except OSError:
                    # It has gone, or reads nothing: the session does not wait for it.
                    with contextlib.suppress(OSError):
                        self._connected.shutdown(socket.SHUT_RDWR)

    def show(self, text: str) -> None:
        """Show the console's output of a move that was typed, in either place."""
        self._console_spoke = True
        self._send({"shown": text})

    def arrived(self, stop: Stop) -> None:
        """Show the current stop, unless the console has just shown it."""
        spoke, self._console_spoke = self._console_spoke, False
        if self._connected is None:
            return
        target = self._session.program.target
        before = self._before
        self._before = None if stop.reason == "end" else target.frame(0).visit
        if not spoke:
            written = StringIO()
            screen = Screen(written, written, width=WIDTH)
            screen.name_values(target.program)
            show_stop(screen, target, target.stop, before, stop.reason == "step")
            self._send({"shown": written.getvalue().rstrip("\n")})

    # -- lifetime ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the terminal, and remove its files."""
        if self._closed:
            return
        self._closed = True
        # Wakes the thread, whether it waits in `accept` or in a read.
        with contextlib.suppress(OSError):
            self._bound.socket.shutdown(socket.SHUT_RDWR)
        with self._sending:
            if self._connected is not None:
                with contextlib.suppress(OSError):
                    self._connected.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)


@each_program
def open_window(session: Session) -> None:
    """Make the client open a terminal, once, if its configuration requests one."""
    launched = session.launched
    kind = _KINDS.get(launched.console) if launched is not None else None
    if launched is None or kind is None or session.window is not None:
        return
    if not session.client.arguments.supports_run_in_terminal_request:
        session.client.say(
            f"cannot open a terminal: this client does not support it (`console` is {launched.console})"
        )
        return
    try:
        window = TerminalWindow(session)
    except NncdbgError as error:
        session.client.say(f"cannot open a terminal: {error}", "important")
        return
    session.window = window
    session.at_end.append(lambda session: window.close())
    arguments = protocol.RunInTerminalRequestArguments(
        kind=kind,
        title=printable_line(f"nncdbg {session.program.sources.name}"),
        cwd=launched.configuration().folder or "",
        # Not from the working folder: a file there may have the name of one of our modules.
        args=[sys.executable, "-P", "-m", "nncdbg.terminal.main", "repl", "--connect", window.path],
    )

    def answered(answer: Answer) -> None:
        if not answer.success:
            session.client.say(
                f"cannot open a terminal: {answer.message or 'the client refused the request'}", "important"
            )
            window.close()

    session.defer(lambda: session.client.request("runInTerminal", arguments, answered))
