"""Replay of a session that was recorded at the prompt of a script: the script runs again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.commands.recording.recorder import SessionRecorder
    from nncdbg.commands.recording.replaying import Replay
    from nncdbg.commands.session import CommandSession
    from nncdbg.presentation.screen import Screen


class ScriptReplay:
    """Gives the recorded commands to the prompts that a script opens, and compares what they show.

    After `count` commands, if not None, the user types the others.
    """

    def __init__(self, replay: Replay, screen: Screen, *, count: int | None = None) -> None:
        self.replay = replay
        self._screen = screen
        self._count = count
        self._recorders: list[SessionRecorder] = []
        self._listening = ExitStack()
        self._reported = False

    def __enter__(self) -> ScriptReplay:
        _CURRENT.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.remove(self)
        self.finish()

    def read(self, session: CommandSession) -> bool:
        """Execute commands until the script continues; return whether the user types the others."""
        if self._reported:
            return True
        session.trusts_recordings = True
        if session.recorder not in self._recorders:
            self._recorders.append(session.recorder)
            self._listening.enter_context(self.replay.listening(session))
        try:
            with session.as_recorded(True):
                while not session.over and (line := self.replay.next_line(session)) is not None:
                    session.execute_recorded(line)
        except UsageError as error:
            session.screen.complain(error)
            self.finish()
            return False
        if session.over:
            return False
        typed = self._count is not None and self.replay.difference is None
        self.finish()
        return typed

    def finish(self) -> None:
        """Compare the last events, and report the replay, once."""
        if self._reported:
            return
        self._reported = True
        self.replay.end_of_script()
        self._listening.close()
        self.replay.report(self._screen)


_CURRENT: list[ScriptReplay] = []


def read_commands_of_script(session: CommandSession, read: Callable[[], None]) -> None:
    """Execute the commands of a stop of a script: those of the present replay, or else those of `read`."""
    if not _CURRENT or _CURRENT[-1].read(session):
        read()
