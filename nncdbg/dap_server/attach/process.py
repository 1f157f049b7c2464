"""The user's own process, in which a client debugs the debuggers that the user's code moves.

The user's thread does all the work.  While it is inside a verb of a `Debugger`, the client sees that
debugger: its breakpoints are set there, and a stop that concerns the client holds the thread there and
serves the client's requests on it.  The user's own stops return to the user's code as usual; a stop that
concerns both holds first.  Between two verbs plain Python runs, which is invisible to the client: what it
sets then applies to the next debugger that moves.

One debugger at a time: while a client is attached, a second thread that moves a debugger waits until the
first returns from its verb.  A debugger that a kernel of another debugger moves is not inspected.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nncdbg.dap_server.attach.attached import Attached
from nncdbg.dap_server.events import report_continued, report_end, report_process, report_start
from nncdbg.dap_server.registry import State
from nncdbg.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.breakpoints.client_breakpoints import ClientBreakpoint
    from nncdbg.dap_server.protocol import Breakpoint
    from nncdbg.dap_server.session import Session
    from nncdbg.target.program import ProgramTarget
    from nncdbg.target.script import ScriptMove
    from nncdbg.target.stops import Stops
    from nncdbg.target.target import Target


class RunningScript(Protocol):
    """A script that runs under the live debugger: it has breakpoints, although no debugger moves."""

    @property
    def stops(self) -> Stops:
        """The breakpoints and catches of the script."""

    def record(self, session: Session, kept: ClientBreakpoint) -> Breakpoint:
        """Return the record of a breakpoint of the client in the script."""

    def is_watchable(self, name: str) -> bool:
        """Return whether a write to the value with this name can stop the script."""

    def commands(self) -> Mapping[int, Sequence[str]]:
        """Return the commands of the prompt that set the client's breakpoints in the script, by number."""

    def configured(self, session: Session | None) -> None:
        """Use the breakpoints and filters of a client; None for no client."""

    def pause(self, why: str) -> None:
        """Stop the script soon."""

    def progress(self, target: Target) -> str:
        """Return how far the script is at a stop, such as `step 4`.

        For a program that the script itself moves, return "".
        """

    def record_step(self, session: Session) -> str:
        """Continue the script to the end of a whole training step; return a sentence for the user."""


class Attachment:
    """The clients attached to this process.

    `session` is that of the client attached now.  `suspended`: the client has disconnected, and the program
    stays stopped until another client continues it.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.suspended = False
        self.script: RunningScript | None = None
        """The script that runs under the live debugger, if there is one."""
        self._attached = 0
        """Number of clients attached so far."""
        self._turn = threading.Condition()
        """Guards all fields."""
        self._moving: dict[int, ProgramTarget] = {}
        """The program that each thread moves; the outermost one where kernels move others."""
        self._seen: int | None = None
        """The thread that moves the program shown to the client."""
        self._debuggee: Attached | None = None
        """The program that the client sees, or saw last."""
        self._held: ProgramTarget | None = None
        """A program with a stop of the script for the client."""
        self._to_stop: set[int | None] = set()
        """Threads to stop when they next move a program; None is any thread."""

    # -- on the user's threads ---------------------------------------------------------------

    def supervise(self, move: ScriptMove) -> None:
        """Make a move of the user's code, and hold at stops that concern the client."""
        thread = threading.get_ident()
        with self._turn:
            inner = thread in self._moving
            if not inner:
                self._turn.wait_for(lambda: self._seen is None or not self._wanted)
                self._moving[thread] = move.target
                if self._wanted:
                    self._seen = thread
        if inner:
            move.run(lambda: False, lambda: True)
            return
        try:
            self._supervised(move)
        finally:
            self._leave(thread)

    @property
    def _wanted(self) -> bool:
        """Whether moving programs are shown to a client."""
        return self.session is not None or self.suspended

    def _supervised(self, move: ScriptMove) -> None:
        target = move.target
        self._attach_program(target)
        if self._stops_before(move):
            self._serve_stop(target)
        move.run(lambda: self._is_for_client(target), lambda: self._serve_stop(target))

    def _attach_program(self, target: ProgramTarget) -> None:
        """Show this program to the client; on the thread that moves it, between two statements."""
        session = self.session
        if session is None or self._seen != threading.get_ident() or session.debuggee is not None:
            return
        with session.queue.turn:
            session.queue.turn.wait_for(lambda: not session.queue.serving or session.queue.closing)
            session.queue.moving = True
        debuggee = self._debuggee
        known = debuggee is not None and debuggee.target == target and debuggee.session is session
        if debuggee is not None and known and not session.unbound:
            debuggee.enter()
            session.debuggee = debuggee
        else:
            if debuggee is not None:
                debuggee.release()
            self._adopt(target, session)
        session.serve_waiting()

    def _adopt(self, target: ProgramTarget, session: Session) -> None:
        debuggee = self._debuggee = Attached(target, session, self._debuggee)
        session.unbound = False
        debuggee.enter()
        with debuggee.requested():
            session.adopt(debuggee)
        for note in debuggee.sources.notes:
            session.client.say(note)

    def _stops_before(self, move: ScriptMove) -> bool:
        """Stop before a move if that is due: by request, or a breakpoint at the first statement."""
        thread = threading.get_ident()
        if self._seen != thread:
            return False
        if self.suspended or self._to_stop & {thread, None}:
            self._to_stop -= {thread, None}
            move.pause_first()
            return True
        if self._debuggee is None or move.target.now.tick:
            return False
        return move.target.stops.stop_at(self._debuggee.numbers)

    def _is_for_client(self, target: ProgramTarget) -> bool:
        thread = threading.get_ident()
        if self._seen != thread or target.stop.reason == "end":
            return False
        if self._moving[thread] == self._held:
            return True
        return self.suspended or (self._debuggee is not None and self._debuggee.is_for_client(target.stop))

    def _serve_stop(self, target: ProgramTarget) -> bool:
        """Hold until the client continues, or disconnects without suspending the program.

        Returns whether the user's code receives the stop at which the program is then.
        """
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self.session is not None or not self.suspended)
                session, self.suspended = self.session, False
            if session is None:
                return False
            self._attach_program(target)
            debuggee = self._debuggee
            assert debuggee is not None
            debuggee.serve_stop()
            for_user = debuggee.is_for_user(target.stop)
            with self._turn:
                if self.session is session:
                    return for_user
                debuggee.release()
                if not self.suspended:
                    return for_user

    def _leave(self, thread: int) -> None:
        """Return the thread from a verb to plain Python."""
        with self._turn:
            del self._moving[thread]
            self._turn.notify_all()
            if self._seen != thread:
                return
            self._seen = None
            debuggee, session = self._debuggee, self.session
            if debuggee is None:
                return
            if debuggee.session is not session:
                self._debuggee = None
                debuggee.release()
                return
            debuggee.leave()
        with session.queue.turn:
            stopped = session.state is State.STOPPED
            session.debuggee, session.queue.moving, session.state = None, False, State.RUNNING
            if self.script is None:
                # The next graph is another program; the step of a script ends in its next statement.
                session.queue.stepping = False
                session.skip_moves()
            session.queue.turn.notify_all()
        if stopped:
            # Ctrl-C, which the client did not request.
            report_continued(session)

    def hold(self, target: ProgramTarget) -> None:
        """Show the stop of a program to the client, and return when the client continues the script."""
        with self._turn:
            if not self._wanted:
                return
            self._held = target
        try:
            target.stay()
        finally:
            self._held = None

    def holds(self, target: ProgramTarget) -> bool:
        """Return whether this program shows a stop of the script, which `hold` has reported."""
        return target == self._held

    def stop_here(self, words: str) -> None:
        """Stop this thread before its next statement, if a client is attached."""
        if self.script is not None:
            if self.session is not None:
                self.script.pause(words)
            return
        thread = threading.get_ident()
        with self._turn:
            if self.session is None:
                return
            if self._seen == thread and self._debuggee is not None:
                self._debuggee.pause()
            else:
                self._to_stop.add(thread)

    def wait(self, timeout: float | None) -> bool:
        """Wait until a client is attached; return whether one is, or was and has disconnected again."""
        with self._turn:
            before = self._attached
            return self._turn.wait_for(lambda: self.session is not None or self._attached != before, timeout)

    # -- on the client's threads ---------------------------------------------------------------

    def attach(self, session: Session) -> None:
        """Attach the client of a session, once its request is answered, to current and future debuggers."""
        session.state = State.RUNNING
        session.defer(lambda: self._begin(session))

    def _begin(self, session: Session) -> None:
        with self._turn:
            # Sent within the turn: any program that moves after the client receives this is shown to it.
            report_process(session, Path(sys.argv[0]).name or "python", "attach")
            report_start(session)
            self.session = session
            if self.script is not None:
                self.script.configured(session)
            self._attached += 1
            if self._seen is None:
                self._seen = next(iter(self._moving), None)
            moving = self._moving.get(self._seen) if self._seen is not None else None
            self._turn.notify_all()
        if moving is not None:
            moving.between_statements(lambda: self._attach_program(moving))
        if session.queue.closing:
            self.detach(session)

    def pause_next(self) -> None:
        """Stop the next thread that moves a debugger, or the script."""
        if self.script is not None:
            self.script.pause("")
            return
        with self._turn:
            self._to_stop.add(None)

    def detach(self, session: Session) -> None:
        """Remove what the disconnected client has set, and continue the program unless it is `suspended`."""
        with self._turn:
            if self.session is not session:
                return
            self.session = None
            self._to_stop.clear()
            if self.script is not None:
                self.script.configured(None)
            debuggee = self._debuggee
            if self._seen is None:
                self._debuggee = None
                if debuggee is not None:
                    debuggee.release()
            elif debuggee is not None:
                debuggee.target.between_statements(debuggee.release)
                if self.suspended:
                    debuggee.target.pause()
            self._turn.notify_all()

    def go_to_start(self, session: Session) -> None:
        """Answer the current request, and go back to the first statement of the stopped graph."""
        if session.state is not State.STOPPED:
            hint = "pause inside a graph, then restart to go to the start of that graph"
            raise UsageError("cannot restart a program that the debugger did not start", hint=hint)
        session.program.move(session, lambda: session.program.target.go_to(0), "restart")

    def interrupt(self) -> None:
        """Interrupt the program as Ctrl-C does, and release it where it is held."""
        session = self.session
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if session is not None and self._seen != threading.main_thread().ident:
            session.runner.stop()

    def forget(self) -> None:
        """Reset in a forked child: the settings of the parent's client do not apply to this process."""
        self._turn = threading.Condition()  # a thread that does not exist here may hold the parent's
        self.session, self.suspended = None, False
        if self._debuggee is not None:
            self._debuggee.target.between_statements(self._debuggee.release)

    def ended(self, exit_code: int) -> None:
        """Report the end of the program to the client."""
        session = self.session
        if session is not None:
            session.state = State.ENDED
            report_end(session, exit_code)
            session.handle_disconnect()
