"""`nncdbg repl --connect SOCKET`: a prompt for a program in a debug session of an editor.

It sends lines to the session and prints the responses (see `dap_server.terminal_window`).
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nncdbg.errors import LoadError, UsageError
from nncdbg.escaping import printable, printable_styled
from nncdbg.opening.command_line import one_shot, option
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from prompt_toolkit import Application

_PATIENCE = 2.0
"""Seconds that the Tab key waits for a response."""


@one_shot(
    "nncdbg repl",
    "The terminal of a debug session. Editors start it; `nncdbg MODEL` starts a separate session.",
    option("--connect", metavar="SOCKET", required=True, help="path of the session's socket"),
)
def main(options: Namespace) -> int:
    """Read lines until the user or the session leaves; return the exit code."""
    path = options.connect
    if not sys.stdin.isatty():
        raise UsageError("nncdbg repl needs a terminal", hint="pipe commands to `nncdbg MODEL` instead")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LoadError(
            f"no session is listening on {path}: {reason}", hint="start the session again"
        ) from None
    with connection:
        _Prompt(connection).read()
    return 0


class _Prompt:
    """The prompt, and the thread that prints messages of the session."""

    def __init__(self, connection: socket.socket) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import CompleteEvent, Completer, Completion
        from prompt_toolkit.document import Document

        from nncdbg.presentation.screen import Screen
        from nncdbg.terminal.prompt import bindings, history

        prompt = self

        class Remote(Completer):
            def get_completions(
                self, document: Document, complete_event: CompleteEvent
            ) -> Iterable[Completion]:
                for text, length in prompt.completions(document.text_before_cursor):
                    yield Completion(text, start_position=-length)

        self._connection = connection
        self._over = threading.Event()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._prompt: PromptSession[str] = PromptSession(
            completer=Remote(),
            complete_while_typing=False,
            history=history(Screen()),
            key_bindings=bindings(),
        )

    def read(self) -> None:
        """Send lines until the input ends."""
        from prompt_toolkit.patch_stdout import patch_stdout

        from nncdbg.commands.session import PROMPT

        BackgroundThread(target=self._hear, name="nncdbg-repl").start()
        while not self._over.is_set():
            try:
                # Print messages above a line that is being edited.
                with patch_stdout():
                    line = self._prompt.prompt(PROMPT)
            except KeyboardInterrupt:
                self._send({"pause": True})
                continue
            except EOFError:
                break
            if line.strip() in ("quit", "q"):
                break
            self._send({"line": line})
            self._print_answer()
        if self._over.is_set():
            print("the session has ended")

    def _print_answer(self) -> None:
        """Wait for the response and print it; Ctrl-C pauses the running program."""
        while not self._over.is_set():
            try:
                answer = self._answers.get()
            except KeyboardInterrupt:
                self._send({"pause": True})
                continue
            if answer is None:
                return
            if "completions" not in answer:
                _print(answer)
                return

    def completions(self, text: str) -> list[tuple[str, int]]:
        """Return (text, length of the replaced text before the cursor) pairs; none after a timeout."""
        self._send({"complete": text})
        answer: dict[str, Any] | None = {}
        # The response to an earlier request may have arrived after its timeout.
        while answer is not None and answer.get("of") != text:
            try:
                answer = self._answers.get(timeout=_PATIENCE)
            except queue.Empty:
                answer = None
        return answer["completions"] if answer is not None else []

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._leave()

    # -- on its own thread -------------------------------------------------------------------

    def _hear(self) -> None:
        with self._connection.makefile("rb") as lines:
            try:
                for line in lines:
                    self._take(json.loads(line))
            except OSError:
                pass  # like a closed connection
        self._leave()

    def _take(self, message: dict[str, Any]) -> None:
        if "title" in message:
            hint = "`help` lists the commands, `quit` leaves this terminal only"
            print(f"{printable(message['title'])}: connected to the editor's session; {hint}", flush=True)
        elif "shown" in message:
            _print(message)
        else:
            self._answers.put(message)

    def _leave(self) -> None:
        self._over.set()
        self._answers.put(None)
        application = self._prompt.app
        if application.is_running and application.loop is not None:
            application.loop.call_soon_threadsafe(lambda: _end(application))


def _print(message: dict[str, Any]) -> None:
    text = (
        f"error: {message['error']}" if "error" in message else message.get("answer") or message.get("shown")
    )
    if text:
        print(printable_styled(text), flush=True)


def _end(application: Application[str]) -> None:
    if application.is_running:
        application.exit(exception=EOFError)
