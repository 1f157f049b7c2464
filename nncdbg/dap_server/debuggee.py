"""What is debugged: a debugger, the texts that show its program, and the thread that moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dap_server.events import report_continued, report_end, report_start, report_stop
from nncdbg.dap_server.kernel_debugger import trace_kernels
from nncdbg.dap_server.presentation.glance import Shown
from nncdbg.dap_server.presentation.results_of_run import (
    RunFinding,
    console_lines,
    finding_of,
    summary_of_run,
)
from nncdbg.dap_server.progress import how_far
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.sources.modules import Modules
from nncdbg.engine.errors import NncdbgError, RunError
from nncdbg.presentation.crash_report import report_crash

if TYPE_CHECKING:
    from pathlib import Path

    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.sources.shown import Sources
    from nncdbg.engine.debugger import Debugger
    from nncdbg.engine.stopping.control import Stop

Verb: TypeAlias = "Callable[[], Stop]"

INTERRUPTED = 130
"""Exit code of a program that was stopped before its end."""


class Debuggee:
    """A program that was launched for one session, and ends with it.

    `stop_on_exit`: the end of the program is a stop, from which one can go back.  `no_debug`: it
    runs through, whatever the client has asked to stop at.  `at_finding`: it stands where a repro bundle
    begins, and stops there first.
    """

    def __init__(
        self,
        debugger: Debugger,
        runner: Runner,
        sources: Sources,
        *,
        stop_on_exit: bool = False,
        no_debug: bool = False,
        at_finding: bool = False,
    ) -> None:
        self.debugger = debugger
        self.runner = runner
        self.sources = sources
        self.stop_on_exit = stop_on_exit
        self.shown = Shown(debugger)
        self.modules = Modules(debugger, sources)
        self.no_debug = no_debug
        self.at_finding = at_finding
        self.files: dict[Path, tuple[int, int]] = {}
        """(time of change, size) of each file that it was loaded from."""
        self._terminating = False
        self._failed_at: tuple[int, int, str] | None = None
        """(statements run, branch, error) of the latest stop, if it was a failure."""
        self._told = 0
        """How many of the engine's remarks the client has been told."""
        self._fallen: set[str] = set()
        self._findings: list[RunFinding] = []
        """The findings that have stopped the present run."""

    # -- moving ------------------------------------------------------------------------------

    def between_statements(self, action: Callable[[], None]) -> None:
        """Have `action` done on the thread that moves the program, before its next statement."""
        self.debugger.control.between_statements(action)

    def pause(self) -> None:
        """Have a program that moves stop before its next statement."""
        self.debugger.pause()

    def _pause_moving(self, session: Session) -> None:
        """Pause, unless the program has come to a stop meanwhile."""
        with session.queue.turn:
            if session.queue.moving:
                self.pause()

    def start(self, session: Session, *, stop_on_entry: bool) -> None:
        """Answer the request at hand, then run the program from its first statement, or stop there."""
        session.defer(lambda: report_start(session))
        self.move(session, (lambda: self.debugger.stop) if stop_on_entry else self._first_run)

    def start_again(self, session: Session, *, stop_on_entry: bool) -> None:
        """Answer the request at hand, then start anew from the first statement of the branch."""

        def verb() -> Stop:
            entry = self.debugger.restart()
            return entry if stop_on_entry else self._first_run()

        self._failed_at = None
        self._findings.clear()
        self.move(session, verb)

    def go_on(self, session: Session) -> None:
        """Answer the request at hand, then run on."""
        self.move(session, lambda: self.debugger.run(heed=not self.no_debug))

    def _first_run(self) -> Stop:
        """A breakpoint at the very first statement counts too, as nobody has seen the program stand there."""
        if self.no_debug:
            return self.debugger.run(heed=False)
        numbers = {each.number for each in self.debugger.breakpoints}
        return self.debugger.stop_here(numbers) or self.debugger.run()

    def move(self, session: Session, verb: Verb, *, unasked: bool = False) -> None:
        """Answer the request at hand, then move the program by `verb`, and tell where it stands.

        `unasked`: by the request itself a client would not know that the program goes on.
        """

        def begin() -> None:
            if unasked:
                report_continued(session)
            self.runner.post(lambda: self._perform(session, verb))

        self.set_off(session)
        session.defer(begin)

    def set_off(self, session: Session) -> None:
        """From now on the program counts as moving.

        That is before the answer, so that a `pause` that follows on it at once is not lost.
        """
        with session.queue.turn:
            session.queue.moving = True
            session.state = State.RUNNING
            if session.queue.waiting:
                self.between_statements(session.serve_waiting)

    def _perform(self, session: Session, verb: Verb) -> None:
        stop = self.debugger.stop
        try:
            look, cancel = how_far(self.debugger), lambda: self._pause_moving(session)
            with session.progress.under_way("Running", look=look, cancel=cancel):
                trace_kernels()
                stop = verb()
                if session.console is not None and session.console.debugger is self.debugger:
                    before = self.debugger.stop
                    session.console.react(stop)
                    if self.debugger.stop is not before:
                        stop = self.debugger.stop
        except NncdbgError as refusal:
            session.client.say(str(refusal), "important")
        except MemoryError:
            error = RunError("out of memory", hint="use smaller inputs, or reduce `history`")
            session.client.say(str(error), "important")
        except Exception as bug:  # noqa: BLE001  it must not take the user's session with it
            session.client.say(report_crash(bug), "important")
        except BaseException as leaving:  # noqa: BLE001  a kernel may raise anything
            self.left_by(session, leaving)
        self.arrived(session, stop)

    def left_by(self, session: Session, leaving: BaseException) -> None:
        """A kernel wants to leave (`SystemExit` and the like); the session does not."""
        session.client.say(f"a kernel raised {type(leaving).__name__}: {leaving}", "important")

    # -- arriving ----------------------------------------------------------------------------

    def arrived(self, session: Session, stop: Stop) -> None:
        """Tell the client that the program stands, or has ended; requests are served again.

        Nothing is told of a program in whose place another one was started meanwhile.
        """
        session.flush_output()
        with session.queue.turn:
            if session.debuggee is not self:
                return
            self.say_remarks(session)
            if session.state is not State.ENDED:
                self._stand(session, stop)
            self.debugger.control.forget_pause()
            session.queue.moving = False
            session.queue.turn.notify_all()

    def _stand(self, session: Session, stop: Stop) -> None:
        before, self._failed_at = self._failed_at, None
        if stop.error is not None:
            self._failed_at = self.debugger.timeline.tick, self.debugger.timeline.branch, str(stop.error)
            if self._failed_at != before:
                session.client.say(str(stop.error), "stderr")
        if stop.finding is not None:
            self._findings.append(finding_of(stop, self.sources, session.client))
        if stop.reason == "end" and not self.stop_on_exit:
            self._report_summary(session)
            self.end(session, 0)
        elif stop.error is not None and (self.no_debug or self._failed_at == before):
            # It was seen failing and nothing was changed: to go on from there is to leave.
            self.end(session, RunError.exit_code)
        elif self._terminating:
            self.end(session, INTERRUPTED)
        else:
            session.state = State.STOPPED
            report_stop(session, stop)

    def _report_summary(self, session: Session) -> None:
        """Send the summary of the run: its lines to the console, and the event."""
        summary = summary_of_run(self.shown, self.sources.name, self._findings)
        for line in console_lines(summary):
            session.client.say(line)
        session.client.send_event("nncdbg/summary", summary)

    def say_remarks(self, session: Session) -> None:
        """What the engine says beside the program: NumPy stood in for the backend, a listener failed."""
        debugger = self.debugger
        for line, op in debugger.fallbacks:
            if op not in self._fallen:
                self._fallen.add(op)
                session.client.say(
                    f"{op} has no kernel on {debugger.backend.name}, and runs on numpy (line {line})"
                )
        for problem in debugger.problems[self._told :]:
            session.client.say(problem, "important")
        self._told = len(debugger.problems)

    # -- ending ------------------------------------------------------------------------------

    def terminate(self, session: Session) -> None:
        """End the program: at once where it stands, before its next statement where it runs."""
        with session.queue.turn:
            if session.queue.moving:
                self._terminating = True
                self.debugger.pause()
            elif session.state is not State.ENDED:
                self.end(session, INTERRUPTED if self._failed_at is None else RunError.exit_code)

    def end(self, session: Session, exit_code: int) -> None:
        """Tell the client, once, that the program has ended."""
        with session.queue.turn:
            if session.state is not State.ENDED:
                started, session.state = session.state is not State.CONFIGURING, State.ENDED
                report_end(session, exit_code, started=started)

    def abandoned(self) -> None:
        """The client is gone, or starts another program in this one's place."""
        self.debugger.pause()

    @contextmanager
    def requested(self) -> Iterator[None]:
        """Around each request that may touch the program: what it does is done for the client."""
        yield
