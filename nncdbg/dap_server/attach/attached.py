"""A debugger that a user's own code moves, while a client looks into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.events import report_stop
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.sources.shown import sources_of_running
from nncdbg.engine.observers.catching import Catches

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.control import Stop


class Attached(Debuggee):
    """Keeps apart what the user has set on his debugger and what the client of `session` has."""

    def __init__(self, debugger: Debugger, session: Session, before: Attached | None) -> None:
        sources = sources_of_running(debugger, Path.cwd())
        sources.uris = session.client.arguments.path_format == "uri"
        super().__init__(debugger, session.runner, sources)
        self.session = session
        self.numbers: set[int] = set()
        """The client's breakpoints."""
        same = before is not None and before.debugger is debugger
        self._ever: set[int] = before._ever if before is not None and same else set()
        """All that clients have ever set here; no number comes twice."""
        self._caught = Catches().conditions
        """What the client catches."""
        self._own = debugger.observers.catches.conditions
        """What the user catches."""
        self._said = debugger.said
        """Where the user hears of his logpoints."""
        self._pausing = False
        self._branch = 0
        """The branch of the latest stop."""

    # -- whose is it -------------------------------------------------------------------------

    def enter(self) -> None:
        """The user's thread begins a verb: what he catches counts, and what the client catches."""
        self._own = self.debugger.observers.catches.conditions
        self._catch_both()

    def leave(self) -> None:
        """The user's thread returns to his code, which finds what it has set itself."""
        self.debugger.observers.catch_only(self._own)

    def _catch_both(self) -> None:
        self.debugger.observers.catch_only({**self._own, **self._caught})

    @contextmanager
    def requested(self) -> Iterator[None]:
        debugger = self.debugger
        before = {each.number for each in debugger.breakpoints}
        debugger.observers.catch_only(self._caught)
        try:
            yield
        finally:
            now = {each.number for each in debugger.breakpoints}
            self.numbers = (self.numbers | (now - before)) & now
            self._ever |= self.numbers
            self._caught = debugger.observers.catches.conditions
            self._catch_both()

    def release(self) -> None:
        """Take all that is the client's off the debugger."""
        for number in self.numbers & {each.number for each in self.debugger.breakpoints}:
            self.debugger.delete(number)
        self.numbers, self._caught = set(), {}
        self.debugger.said = self._said
        self.leave()

    def concerns(self, stop: Stop) -> bool:
        """Whether a stop is for the client to see."""
        caught = stop.finding is not None and stop.finding.kind in self._caught
        return self._pausing or caught or stop.error is not None or bool(self.numbers & {*stop.breakpoints})

    def owes(self, stop: Stop) -> bool:
        """Whether the user is to hear of a stop: it is his own, or there is no way on from it."""
        if stop.error is not None:
            return self.debugger.timeline.branch == self._branch
        caught = stop.finding is not None and stop.finding.kind in self._own
        return stop.reason == "end" or caught or bool({*stop.breakpoints} - self._ever)

    # -- moving ------------------------------------------------------------------------------

    def pause(self) -> None:
        self._pausing = True
        self.debugger.pause()

    def hold(self, stop: Stop) -> None:
        """Show a stop, and do what the client asks for until it lets go, or is gone."""
        self.debugger.stop, self.debugger.selected = stop, -1
        self.arrived(self.session, stop)
        self.runner.run()

    def go_on(self, session: Session) -> None:
        self.set_off(session)
        session.defer(self.runner.stop)

    def arrived(self, session: Session, stop: Stop) -> None:
        self._pausing = False
        self.debugger.control.forget_pause()
        if stop.reason == "end":
            # The user's call comes back with it.
            self.runner.stop()
            return
        self._branch = self.debugger.timeline.branch
        with session.queue.turn:
            self.say_remarks(session)
            if stop.error is not None:
                session.client.say(str(stop.error), "stderr")
            session.state = State.STOPPED
            report_stop(session, stop)
            session.queue.moving = False
            session.queue.turn.notify_all()

    def left_by(self, session: Session, leaving: BaseException) -> None:
        """Ctrl-C, and what else a kernel may raise to leave, goes on to the user's code."""
        raise leaving

    def terminate(self, session: Session) -> None:
        assert session.attachment is not None
        session.attachment.interrupt()
