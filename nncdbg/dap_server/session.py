"""One client's session: requests in, answers and events out, and who may touch the program when.

Three roles.  The *reader* takes frames off the stream; what never touches a moving program
(`anytime`) it answers itself.  The *server* serves the other requests in order, while the program
stands.  Two threads take turns in these: who has read a request goes on to serve it, as to hand it
over would cost more than most answers do, and the other one reads meanwhile.  The *runner* (the
thread that the program belongs to) moves it; while it moves, requests wait until the machine is
between two statements, and are served there.  So the program is touched by one thread at a time,
and a change of breakpoints takes effect before the next op.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.breakpoints.asked import Breakpoints
from nncdbg.dap_server.breakpoints.exception_filters import ExceptionFilters
from nncdbg.dap_server.messages import (
    Answer,
    MessageError,
    Request,
    decode_arguments,
    event,
    output,
    parse_message,
    quoted,
    response,
)
from nncdbg.dap_server.presentation.handles import Handles
from nncdbg.dap_server.progress import TITLES, Progress
from nncdbg.dap_server.protocol import REQUESTS
from nncdbg.dap_server.registry import CONFIGURABLE, EACH_PROGRAM, HANDLERS, Handler, State
from nncdbg.dap_server.sources.instructions import Blocks
from nncdbg.dap_server.transport.backlog import Backlog
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.process.threads import BackgroundThread
from nncdbg.presentation.crash_report import report_crash

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.attach.relay import Relay
    from nncdbg.dap_server.black_box import Watchdog
    from nncdbg.dap_server.console import Console
    from nncdbg.dap_server.debuggee import Debuggee
    from nncdbg.dap_server.launching import LaunchArguments
    from nncdbg.dap_server.protocol.requests import InitializeRequestArguments
    from nncdbg.dap_server.runner import Runner
    from nncdbg.dap_server.terminal_window import TerminalWindow
    from nncdbg.dap_server.transport.admission import Admission


class Cancelled(NncdbgError):
    """The request at hand is wanted no more."""


class Session:
    """`debuggee` is what is debugged, None before `launch`.  `closing` is set when all is over.

    `runner` moves what is debugged.  `attachment` is the process that clients attach to where it is
    a user's own, None where programs are launched.
    """

    def __init__(self, connection: Connection, runner: Runner, attachment: Attachment | None = None) -> None:
        self.connection = connection
        self.runner = runner
        self.attachment = attachment
        self.state = State.NEW
        self.client: InitializeRequestArguments | None = None
        self.launched: LaunchArguments | None = None
        self.debuggee: Debuggee | None = None
        self.unbound = False
        """Breakpoints or filters were set while there was no program."""
        self.breakpoints = Breakpoints()
        self.exception_filters = ExceptionFilters()
        self.handles = Handles()
        self.blocks = Blocks()
        self.console: Console | None = None
        """The terminal's commands for this client; None before the first."""
        self.read_memory: dict[str, int] = {}
        """The memory references that the client has read, and how many bytes were there."""
        self.turn = threading.Condition()
        """Guards `waiting`, `moving`, `reading`, `serving` and `closing`."""
        self.waiting = Backlog(self.turn)
        self.moving = False
        self.reading = False
        self.serving = False
        self.closing = False
        self.at_hand: Request | None = None
        self.flush_output: Callable[[], None] = lambda: None
        """Come back when all that the program has printed until now has been told."""
        self.admission: Admission | None = None
        """What the client has to do before it is served; None once it has, and over stdio."""
        self.relay: Relay | None = None
        """What the client's requests go to in place of the handlers, where it is attached through us."""
        self.progress = Progress(self)
        self.window: TerminalWindow | None = None
        """The terminal beside the client, where one was asked for."""
        self.watchdog: Watchdog | None = None
        """What speaks to the client when this process cannot."""
        self.at_end: list[Callable[[Session], None]] = []
        """What is to be done when the session ends, beside what it knows itself."""
        self._own = threading.local()
        """Of each thread: what it is to do once the request at hand is answered."""
        self._asked: dict[int, Callable[[Answer], None]] = {}
        self._threads: list[threading.Thread] = []

    @property
    def program(self) -> Debuggee:
        """What is debugged.  Raises UsageError where an attached process runs no graph just now."""
        if self.debuggee is None:
            raise UsageError("no graph is running", hint="wait until a graph runs, or pause the program")
        return self.debuggee

    def adopt(self, debuggee: Debuggee) -> None:
        """Debug this program from now on; what the client asked for before is set on it."""
        self.debuggee = debuggee
        for each in EACH_PROGRAM:
            each(self)

    # -- reading -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read and to serve."""
        for number in (1, 2):
            thread = BackgroundThread(target=self._attend, name=f"nncdbg-dap-{number}")
            self._threads.append(thread)
            thread.start()

    def ended(self, timeout: float | None) -> bool:
        """Whether the session has ended, or is within so many seconds; None waits for it."""
        with self.turn:
            return self.turn.wait_for(lambda: self.closing, timeout)

    def admitted(self, timeout: float) -> bool:
        """Return whether the client is admitted, or the session over, within so many seconds."""
        with self.turn:
            return self.turn.wait_for(lambda: self.admission is None or self.closing, timeout)

    def join(self) -> None:
        """Wait for the threads of a session that is closing."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _attend(self) -> None:
        """Take whichever role (reader or server) is free, until the session has ended."""
        while True:
            with self.turn:
                self.turn.wait_for(lambda: self.closing or self._due() or not self.reading)
                if self.closing:
                    return
                request = self._next_due()
                if request is None:
                    self.reading = True
            if request is None:
                request = self._read()
            while request is not None:
                request = self._serve(request)

    def _due(self) -> bool:
        """Whether a request is to be served now by who finds it."""
        return bool(self.waiting) and not self.moving and not self.serving

    def _next_due(self) -> Request | None:
        """The request that is due, taken off the row; whoever calls holds `turn`, and is the server then."""
        if not self._due():
            return None
        self.serving = True
        return self._taken()

    def _taken(self) -> Request:
        """The next request off the row; from then on, without a gap, `cancel` finds it at hand."""
        self.at_hand = self.waiting.popleft()
        return self.at_hand

    def _put_down(self, request: Request) -> None:
        """It is served; another thread may have taken the next one by now."""
        if self.at_hand is request:
            self.at_hand = None

    def _read(self) -> Request | None:
        """Read until there is something to serve; None at the end of the session."""
        while not self.closing:
            try:
                body = self.connection.read()
            except FrameError as error:
                self.say(f"the connection is closed: {error.message}", "important")
                body = None
            if body is None:
                break
            self.receive(body)
            with self.turn:
                if self._due():
                    self.reading = False
                    return self._next_due()
        self.vanished()
        return None

    def receive(self, body: bytes) -> None:
        """Take the body of one frame."""
        try:
            message = parse_message(body)
            if isinstance(message, Answer):
                self._hear(message)
            elif self.admission is None or self.admission.admits(self, message):
                self._accept(message)
        except MessageError as error:
            if error.request_seq:
                self.fail(Request(error.request_seq, error.command, None), error)
            else:
                # There is no number that an answer could be to.
                self.say(error.message, "important")

    def _hear(self, answer: Answer) -> None:
        with self.turn:
            asked = self._asked.pop(answer.request_seq, None)
        if asked is not None:
            asked(answer)

    def submit(self, request: Request) -> None:
        """Serve a request that did not come from the client, in turn with its own."""
        self._accept(request)

    def _accept(self, request: Request) -> None:
        handler = HANDLERS.get(request.command)
        if self.relay is None and self._fits_now(handler):
            self._handle(request)
        else:
            with self.turn:
                if handler is not None and handler.moves:
                    self._cancel_reads()
                room = self.waiting.append(request)
                debuggee = self.debuggee if self.moving else None
            if not room:
                hint = "wait for their responses, or pause the program"
                self.fail(request, NncdbgError("too many requests are waiting", hint=hint))
            elif debuggee is not None:
                debuggee.between_statements(self.serve_waiting)

    def _fits_now(self, handler: Handler | None) -> bool:
        """Whether it is served at once: it may be, and nothing waits that would make the state fit."""
        if handler is None or not handler.anytime:
            return handler is None
        with self.turn:
            return self.state in handler.when or not (self.waiting or self.serving)

    def _cancel_reads(self) -> None:
        """Who moves on is not waiting for values of the old place."""
        for each in (*self.waiting, *filter(None, [self.at_hand])):
            handler = HANDLERS.get(each.command)
            if handler is not None and handler.is_read(each.arguments):
                each.cancelled = True

    def cancel(self, number: int) -> None:
        """A request is wanted no more: one that waits is answered at once, one at hand when it notices."""
        with self.turn:
            waiting = self.waiting.take(number)
            if waiting is None and self.at_hand is not None and self.at_hand.seq == number:
                self.at_hand.cancelled = True
        if waiting is not None:
            self.fail(waiting, Cancelled("cancelled"))

    # -- serving -----------------------------------------------------------------------------

    def _serve(self, request: Request) -> Request | None:
        """Serve a request; the next one that is due."""
        try:
            # In turn, so that no request overtakes the `attach` before it.
            relay = self.relay
            if relay is None or not relay.forward(request):
                self._handle(request)
        finally:
            with self.turn:
                self.serving = False
                self._put_down(request)
                self.turn.notify_all()
                following = None if self.closing else self._next_due()
        return following

    def serve_waiting(self) -> None:
        """Serve what waits, between two statements of a program that moves; on the runner's thread."""
        while True:
            with self.turn:
                if not self.waiting or self.closing:
                    return
                request = self._taken()
            try:
                self._handle(request)
            finally:
                with self.turn:
                    self._put_down(request)

    def _handle(self, request: Request) -> None:
        handler = HANDLERS.get(request.command)
        if handler is None:
            self.fail(request, NncdbgError(f"unknown request {quoted(request.command)}"))
            return
        deferred = self._own.deferred = []
        try:
            self.check_cancelled(request)
            with self._under_way(handler, request):
                body = self._run(handler, request)
            self._respond(request, body=body)
        except NncdbgError as error:
            self.fail(request, error)
        except MemoryError:
            self.fail(
                request, NncdbgError(f"out of memory in {request.command}", hint="request less data at once")
            )
        except Exception as error:  # noqa: BLE001  a bug of ours must not take the user's session with it
            self.fail(request, NncdbgError(report_crash(error)))
        for each in deferred:
            each()

    def _run(self, handler: Handler, request: Request) -> Any:
        record, _, required = REQUESTS.get(request.command, (None, None, False))
        arguments = decode_arguments(request, handler.arguments or record, required)
        if self.state not in handler.when:
            raise NncdbgError(f"{request.command}: {self.state.value}")
        if handler.values:
            self.check_settled()
        if handler.anytime or self.debuggee is None:
            self.unbound |= handler.when is CONFIGURABLE
            return handler.handle(self, arguments)
        with self.debuggee.requested():
            return handler.handle(self, arguments)

    def _under_way(self, handler: Handler, request: Request) -> AbstractContextManager[None]:
        """The time in which a request is served: the client hears of it if it takes long."""
        if handler.anytime:
            return nullcontext()

        def cancel() -> None:
            request.cancelled = True

        title = TITLES.get(request.command, request.command)
        number = request.seq if request.answered is None else None
        return self.progress.under_way(title, cancel=cancel, request=number)

    def defer(self, action: Callable[[], None]) -> None:
        """Do this once the request at hand is answered."""
        self._own.deferred.append(action)

    def check_cancelled(self, request: Request | None = None) -> None:
        """Raise Cancelled if the request at hand is wanted no more.  Long reads ask now and then."""
        request = request or self.at_hand
        if request is not None and request.cancelled:
            raise Cancelled("cancelled")

    def check_settled(self) -> None:
        """Raise UsageError while the program goes to another moment: its values are not of one moment."""
        if self.state is State.RUNNING and not self.program.debugger.control.settled:
            raise UsageError(
                "cannot read or set values while the program moves to another step",
                hint="wait until the program stops, or pause it",
            )

    # -- answering ---------------------------------------------------------------------------

    def fail(self, request: Request, error: NncdbgError) -> None:
        """Answer a request with an error."""
        self._respond(request, error=error)

    def _respond(self, request: Request, *, body: Any = None, error: NncdbgError | None = None) -> None:
        if request.answered is not None:
            request.answered(body, error)
        else:
            self.connection.send(response(request, body=body, error=error))

    def send_event(self, name: str, body: Any = None) -> None:
        """Send an event, in the order of the calls."""
        self.connection.send(event(name, body))

    def told_by_program(self, text: str, category: str) -> None:
        """What the program has printed; `category` is stdout or stderr."""
        self.send_event("output", {"category": category, "output": text})

    def say(self, text: str, category: str = "console") -> None:
        """A line in the client's console."""
        self.connection.send(output(text, category))

    def ask(self, command: str, arguments: Any, answered: Callable[[Answer], None]) -> None:
        """Send a request of ours; `answered` hears the client's response, on the reader's thread."""
        # The answer cannot come before the lock of `send` is free, but may before `ask` returns.
        with self.turn:
            seq = self.connection.send({"type": "request", "command": command, "arguments": arguments})
            self._asked[seq] = answered

    # -- the end -----------------------------------------------------------------------------

    def interrupted(self, exit_code: int) -> None:
        """The server is told to end: what was launched ends with this code, and the client hears of it."""
        if self.debuggee is not None:
            self.debuggee.end(self, exit_code)
        self.vanished()

    def vanished(self) -> None:
        """The client is gone, with or without a word: what was launched ends, what was attached goes on."""
        debuggee = self.debuggee
        if self.attachment is not None:
            # First, so that the thread that `close` lets go of knows why.
            self.attachment.detach(self)
        if self.close() and self.attachment is None and debuggee is not None:
            debuggee.abandoned()

    def close(self) -> bool:
        """Serve no more; False if that was so already."""
        # First, as who holds `turn` may be waiting for a client that takes nothing.
        self.connection.close()
        with self.turn:
            if self.closing:
                return False
            self.closing = True
            self.waiting.clear()
            if self.at_hand is not None:
                self.at_hand.cancelled = True
            self.turn.notify_all()
        self.progress.close()
        for each in self.at_end:
            each(self)
        self.runner.stop()
        return True
