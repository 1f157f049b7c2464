"""A program moved by the user's own code while a client is attached to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server.debuggee import Debuggee
from nncdbg.dap_server.events import report_stop
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.sources.shown import sources_of_running
from nncdbg.target.stops import first_conditions

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.target.program import ProgramTarget
    from nncdbg.target.records import Stop


class Attached(Debuggee):
    """Separates the user's breakpoints and filters on a program from those of the client of `session`."""

    def __init__(self, target: ProgramTarget, session: Session, before: Attached | None) -> None:
        sources = sources_of_running(target, Path.cwd())
        sources.uris = session.client.arguments.path_format == "uri"
        super().__init__(target, session.runner, sources)
        if session.view == "graph":
            self.source = None
        self._stops = target.stops
        self.session = session
        self.numbers: set[int] = set()
        """The client's breakpoints."""
        same = before is not None and before.target == target
        if before is not None and before.session is session:
            self.recorder = before.recorder
        else:
            script = session.attachment.script if session.attachment is not None else None
            self.recorder.begin_script(first_conditions(), dict if script is None else script.commands)
        self.recorder.follow(target, self._stops.numbers())
        self._ever: set[int] = before._ever if before is not None and same else set()
        """All breakpoints that clients have ever set here; no number is reused."""
        self._caught = first_conditions()
        """The conditions that the client catches."""
        self._own = self._stops.conditions
        """The conditions that the user catches."""
        self._pausing = False
        self._branch = 0
        """The branch of the latest stop."""

    # -- ownership ---------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin a verb on the user's thread: catch the user's conditions and the client's."""
        self._own = self._stops.conditions
        self._catch_both()

    def leave(self) -> None:
        """Return to the user's code: restore the conditions that the user has set."""
        self._stops.conditions = self._own

    def _catch_both(self) -> None:
        self._stops.conditions = {**self._own, **self._caught}

    @contextmanager
    def requested(self) -> Iterator[None]:
        before = self._stops.numbers()
        self._stops.conditions = self._caught
        self.recorder.others = before - self.numbers
        try:
            yield
        finally:
            now = self._stops.numbers()
            self.numbers = (self.numbers | (now - before)) & now
            self._ever |= self.numbers
            self._caught = self._stops.conditions
            self._catch_both()

    def release(self) -> None:
        """Remove everything that the client has set on the program."""
        for number in self.numbers & self._stops.numbers():
            self._stops.delete(number)
        self.numbers, self._caught = set(), {}
        self.target.listen(None)
        self.leave()

    def is_for_client(self, stop: Stop) -> bool:
        """Return whether a stop is reported to the client."""
        caught = stop.finding is not None and stop.finding.kind in self._caught
        return self._pausing or caught or stop.error is not None or bool(self.numbers & {*stop.breakpoints})

    def is_for_user(self, stop: Stop) -> bool:
        """Return whether to report a stop to the user: the user's own, or one that cannot be continued."""
        if stop.error is not None:
            return self.target.now.branch == self._branch
        caught = stop.finding is not None and stop.finding.kind in self._own
        return stop.reason == "end" or caught or bool({*stop.breakpoints} - self._ever)

    # -- moving ------------------------------------------------------------------------------

    def pause(self) -> None:
        self._pausing = True
        self.target.pause()

    def serve_stop(self) -> None:
        """Report the stop, and serve the client's requests until it continues or disconnects."""
        self.target.selected = -1
        self.recorder.arrives(None)
        self.arrived(self.session, self.target.stop)
        self.runner.run()

    def go_on(self, session: Session) -> None:
        assert session.attachment is not None
        if session.attachment.holds(self.target):
            # From the past of a step, it goes to the place of the script first.
            super().go_on(session)
            return
        self.recorder.departs("continue")
        self.set_off(session)
        session.defer(self.runner.stop)

    def arrived(self, session: Session, stop: Stop) -> None:
        self._pausing = False
        self.target.pause(on=False)
        if stop.reason == "end":
            # The user's call returns this stop.
            self.runner.stop()
            return
        self._branch = self.target.now.branch
        with session.queue.turn:
            self.say_remarks(session)
            if stop.error is not None:
                session.client.say(str(stop.error), "stderr")
            session.state = State.STOPPED
            report_stop(session, stop)
            session.queue.moving = session.queue.stepping = False
            session.queue.turn.notify_all()

    def handle_exit(self, session: Session, leaving: BaseException) -> None:
        """Pass Ctrl-C and other exceptions by which a kernel may exit on to the user's code."""
        raise leaving

    def terminate(self, session: Session) -> None:
        assert session.attachment is not None
        session.attachment.interrupt()
