"""The terminal prompt: line editing, completion, key bindings, history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from nncdbg.commands.completion import candidates
from nncdbg.commands.shortcuts import BOUND
from nncdbg.presentation.crash_report import report_crash
from nncdbg.process.files import state_folder

if TYPE_CHECKING:
    from nncdbg.commands.session import CommandSession
    from nncdbg.presentation.screen import Screen


def read_prompt(session: CommandSession) -> None:
    """Read and execute lines until the user leaves."""
    from nncdbg.stats import prepare

    completer = _Completer(session)
    prompt: PromptSession[str] = PromptSession(
        completer=completer,
        complete_while_typing=False,
        history=history(session.screen),
        key_bindings=bindings(),
    )
    # The first prompt does not wait for the compiled statistics.
    prompt.app.after_render += lambda app: prepare()
    while not session.over:
        try:
            text = prompt.prompt(session.prompt)
        except KeyboardInterrupt:
            session.give_up_lines()
            continue
        except EOFError:
            session.end_of_lines()
            return
        completer.report_failure()
        for line in text.splitlines() or [""]:
            session.execute(line, typed=True)


class _Completer(Completer):
    """Adapter of `completion`. An internal error is reported after the line, so that the line is not lost."""

    def __init__(self, session: CommandSession) -> None:
        self.session = session
        self.failure = ""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        try:
            word, names = candidates(self.session, document.text_before_cursor)
        except Exception as error:  # noqa: BLE001  prompt_toolkit would print a traceback over the prompt
            self.failure = report_crash(error)
            return
        for name in names:
            yield Completion(name, start_position=-len(word))

    def report_failure(self) -> None:
        if self.failure:
            self.session.screen.complain(self.failure)
            self.failure = ""


def bindings() -> KeyBindings:
    bound = KeyBindings()
    for _, line, combinations in BOUND:
        for keys in combinations:
            bound.add(*keys)(_typing(line))
    return bound


def _typing(line: str):  # type: ignore[no-untyped-def]
    def handle(event: KeyPressEvent) -> None:
        """Run the command as if typed; the text at the prompt is discarded."""
        event.current_buffer.text = line
        event.app.exit(result=line)

    return handle


class _TolerantHistory(FileHistory):
    """A history file with a fallback to memory if it becomes unwritable."""

    def __init__(self, path: str, screen: Screen) -> None:
        super().__init__(path)
        self.screen = screen
        self.writable = True

    def store_string(self, string: str) -> None:
        if not self.writable:
            return
        try:
            super().store_string(string)
        except OSError as error:
            self.writable = False
            self.screen.note(f"the command history is not saved: {error.strerror}")


def history(screen: Screen) -> History:
    """Return the command history, stored in a file if it is writable."""
    path = state_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b"):
            pass
    except OSError as error:
        screen.note(f"the command history is not saved: cannot write {path}: {error.strerror}")
        return InMemoryHistory()
    return _TolerantHistory(str(path), screen)
