"""What is debugged: a debugger, the texts that show its program, and the thread that moves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dap_server.events import report_end, report_stop
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.runner import Runner
from nncdbg.engine.errors import NncdbgError, RunError
from nncdbg.terminal.crash import report_crash

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.sources import Sources
    from nncdbg.engine.control import Stop
    from nncdbg.engine.session import Debugger

Verb: TypeAlias = "Callable[[], Stop]"


class Debuggee:
    """`launched`: it lives for this session alone, and ends with it.

    `stop_on_exit`: the end of the program is a stop, from which one can go back.
    """

    def __init__(
        self,
        debugger: Debugger,
        runner: Runner,
        sources: Sources,
        *,
        launched: bool = True,
        stop_on_exit: bool = False,
    ) -> None:
        self.debugger = debugger
        self.runner = runner
        self.sources = sources
        self.launched = launched
        self.stop_on_exit = stop_on_exit

    def between_statements(self, action: Callable[[], None]) -> None:
        """Have `action` done on the thread that moves the program, before its next statement."""
        self.debugger.between_statements(action)

    def move(self, session: Session, verb: Verb) -> None:
        """Answer the request at hand, then move the program by `verb`, and tell where it stands."""

        def begin() -> None:
            with session.turn:
                session.moving = True
                session.state = State.RUNNING
            self.runner.post(lambda: self._perform(session, verb))

        session.defer(begin)

    def _perform(self, session: Session, verb: Verb) -> None:
        stop = self.debugger.stop
        try:
            stop = verb()
        except NncdbgError as refusal:
            session.say(str(refusal), "important")
        except MemoryError:
            error = RunError("out of memory", hint="give smaller inputs, or less to `history`")
            session.say(str(error), "important")
        except Exception as bug:  # noqa: BLE001  it must not take the user's session with it
            session.say(report_crash(bug), "important")
        self.arrived(session, stop)

    def arrived(self, session: Session, stop: Stop) -> None:
        """Tell the client that the program stands, or has ended; requests are served again."""
        with session.turn:
            if stop.reason == "end" and not self.stop_on_exit:
                session.state = State.ENDED
                report_end(session, 0)
            else:
                session.state = State.STOPPED
                report_stop(session, stop)
            session.moving = False
            session.turn.notify_all()

    def abandoned(self) -> None:
        """The client is gone."""
        self.debugger.pause()
