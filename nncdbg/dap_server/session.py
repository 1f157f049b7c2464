"""One client's session: requests in, answers and events out, and access to the program by one thread.

There are three roles.  The *reader* takes frames off the stream, and answers requests that never touch a
moving program (`anytime`) itself.  The *server* serves the other requests in order while the program is
stopped.  Two threads alternate in these roles: the thread that has read a request also serves it, because
handing it over would cost more than most answers, and the other thread reads meanwhile.  The *runner* (the
thread that owns the program) moves it; while it moves, requests wait until the machine is between two
statements, and are served there.  So one thread at a time touches the program, and a change of breakpoints
takes effect before the next op.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from nncdbg.dap_server import protocol
from nncdbg.dap_server.breakpoints.client_breakpoints import ClientBreakpoints
from nncdbg.dap_server.breakpoints.exception_filters import ExceptionFilters
from nncdbg.dap_server.client import Client
from nncdbg.dap_server.handles import BlockAddresses, Handles
from nncdbg.dap_server.messages import (
    Answer,
    MessageError,
    Request,
    decode_arguments,
    parse_message,
    quoted,
    response,
)
from nncdbg.dap_server.progress import Progress
from nncdbg.dap_server.registry import CONFIGURABLE, EACH_PROGRAM, HANDLERS, Handler, State
from nncdbg.dap_server.request_queue import Cancelled, RequestQueue
from nncdbg.dap_server.session_parts import (
    CrashReporter,
    RequestFilter,
    RequestForwarder,
    StopCommands,
    StopDisplay,
)
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.presentation.crash_report import report_crash
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.dap_server.attach.process import Attachment
    from nncdbg.dap_server.debuggee import Debuggee
    from nncdbg.dap_server.launch_arguments import LaunchArguments
    from nncdbg.dap_server.runner import Runner


class Session:
    """One client's session.

    `debuggee` is the debugged program, None before `launch`.  `runner` moves it.  `attachment` is the user's
    process that clients attach to, None where programs are launched.
    """

    def __init__(self, connection: Connection, runner: Runner, attachment: Attachment | None = None) -> None:
        self.client = Client(connection)
        self.runner = runner
        self.attachment = attachment
        self.state = State.NEW
        self.launched: LaunchArguments | None = None
        self.view: Literal["source", "graph"] = "source"
        """What the stops of an attached PyTorch script show."""
        self.debuggee: Debuggee | None = None
        self.unbound = False
        """Whether breakpoints or filters were set while there was no program."""
        self.breakpoints = ClientBreakpoints()
        self.exception_filters = ExceptionFilters()
        self.handles = Handles()
        self.blocks = BlockAddresses()
        self.console: StopCommands | None = None
        """The console commands of this client; None before the first."""
        self.read_memory: dict[str, int] = {}
        """Memory references that the client has read, with the number of bytes available at each."""
        self.queue = RequestQueue()
        self.flush_output: Callable[[], None] = lambda: None
        """Return once all output that the program has printed so far is sent."""
        self.admission: RequestFilter | None = None
        """Checks that the client must pass before it is served; None once passed, and over stdio."""
        self.relay: RequestForwarder | None = None
        """Forwards the client's requests to another process in place of the handlers, once attached there."""
        self.progress = Progress(self.client)
        self.window: StopDisplay | None = None
        """The terminal beside the client, if its configuration requests one."""
        self.watchdog: CrashReporter | None = None
        self.at_end: list[Callable[[Session], None]] = []
        """Further actions at the end of the session."""
        self._own = threading.local()
        """Per thread: the actions to run once the current request is answered."""
        self._threads: list[threading.Thread] = []

    @property
    def program(self) -> Debuggee:
        """The debugged program.  Raises UsageError if an attached process runs no graph at present."""
        if self.debuggee is None:
            raise UsageError("no graph is running", hint="wait until a graph runs, or pause the program")
        return self.debuggee

    def adopt(self, debuggee: Debuggee) -> None:
        """Debug this program from now on, and set the client's earlier breakpoints and filters on it."""
        if self.debuggee is not None and self.debuggee.recorder is not debuggee.recorder:
            self.debuggee.recorder.stop()
        self.debuggee = debuggee
        for each in EACH_PROGRAM:
            each(self)
        debuggee.recorder.client_set()

    # -- reading -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading and serving."""
        for number in (1, 2):
            thread = BackgroundThread(target=self._attend, name=f"nncdbg-dap-{number}")
            self._threads.append(thread)
            thread.start()

    def admitted(self, timeout: float) -> bool:
        """Return whether the client is admitted, or the session over, within `timeout` seconds."""
        with self.queue.turn:
            return self.queue.turn.wait_for(lambda: self.admission is None or self.queue.closing, timeout)

    def join(self) -> None:
        """Wait for the threads of a closing session."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _attend(self) -> None:
        """Take whichever role (reader or server) is free, until the session has ended."""
        while True:
            with self.queue.turn:
                self.queue.turn.wait_for(
                    lambda: self.queue.closing or self.queue.due() or not self.queue.reading
                )
                if self.queue.closing:
                    return
                request = self.queue.next_due()
                if request is None:
                    self.queue.reading = True
            if request is None:
                request = self._read()
            while request is not None:
                request = self._serve(request)

    def _read(self) -> Request | None:
        """Read until there is a request to serve and return it; None at the end of the session."""
        while not self.queue.closing:
            try:
                body = self.client.connection.read()
            except FrameError as error:
                self.client.say(f"the connection is closed: {error.message}", "important")
                body = None
            if body is None:
                break
            self.receive(body)
            with self.queue.turn:
                if self.queue.due():
                    self.queue.reading = False
                    return self.queue.next_due()
        self.handle_disconnect()
        return None

    def receive(self, body: bytes) -> None:
        """Accept the body of one frame."""
        try:
            message = parse_message(body)
            if isinstance(message, Answer):
                self.client.receive(message)
            elif self.admission is None or self.admission.admits(self, message):
                self.submit(message)
        except MessageError as error:
            if error.request_seq:
                self.fail(Request(error.request_seq, error.command, None), error)
            else:
                # There is no request number to answer.
                self.client.say(error.message, "important")

    def submit(self, request: Request) -> None:
        """Serve a request, in the order in which requests arrive."""
        handler = HANDLERS.get(request.command)
        if self.relay is None and self._fits_now(handler):
            self._handle(request)
        else:
            with self.queue.turn:
                if handler is not None and handler.moves:
                    self.queue.cancel_reads()
                room = self.queue.waiting.append(request)
                debuggee = self.debuggee if self.queue.moving else None
            if not room:
                hint = "wait for their responses, or pause the program"
                self.fail(request, NncdbgError("too many requests are waiting", hint=hint))
            elif debuggee is not None:
                debuggee.target.between_statements(self.serve_waiting)

    def _fits_now(self, handler: Handler | None) -> bool:
        """Whether to serve a request now: it is allowed, and no waiting request could make the state fit."""
        if handler is None or not handler.anytime:
            return handler is None
        with self.queue.turn:
            return self.state in handler.when or not (self.queue.waiting or self.queue.serving)

    def cancel(self, number: int) -> None:
        """Cancel a request: a waiting one is answered at once, the current one at its next check."""
        waiting = self.queue.cancel(number)
        if waiting is not None:
            self.fail(waiting, Cancelled("cancelled"))

    # -- serving -----------------------------------------------------------------------------

    def _serve(self, request: Request) -> Request | None:
        """Serve a request, and return the next one that is due."""
        try:
            # In order, so that no request overtakes the `attach` before it.
            relay = self.relay
            if relay is None or not relay.forward(request):
                self._handle(request)
        finally:
            following = self.queue.next_after(request)
        return following

    def serve_waiting(self) -> None:
        """Serve waiting requests between two statements of a moving program; on the runner's thread."""
        while (request := self.queue.take_waiting()) is not None:
            try:
                self._handle(request)
            finally:
                self.queue.put_down(request)

    def skip_moves(self) -> None:
        """Answer the steps that wait for the end of another one: the program does not make them."""
        for request in self.queue.take_moves():
            self._respond(request, body={})

    def _handle(self, request: Request) -> None:
        handler = HANDLERS.get(request.command)
        if handler is None:
            self.fail(request, NncdbgError(f"unknown request {quoted(request.command)}"))
            return
        deferred = self._own.deferred = []
        try:
            self.queue.check_cancelled(request)
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
        record, _, required = protocol.REQUESTS.get(request.command, (None, None, False))
        arguments = decode_arguments(request, handler.arguments or record, required)
        if self.state not in handler.when:
            raise NncdbgError(f"{request.command}: {self.state.value}")
        if handler.values:
            self.check_settled()
        if (
            handler.when is CONFIGURABLE
            and self.attachment is not None
            and self.attachment.script is not None
        ):
            self.defer(partial(self.attachment.script.configured, self))
        if handler.anytime or self.debuggee is None:
            self.unbound |= handler.when is CONFIGURABLE
            return handler.handle(self, arguments)
        with self.debuggee.requested():
            body = handler.handle(self, arguments)
            if handler.when is CONFIGURABLE:
                self.debuggee.recorder.client_set()
            return body

    def _under_way(self, handler: Handler, request: Request) -> AbstractContextManager[None]:
        """Context in which a request is served; the client gets progress events if it takes long."""
        if handler.anytime:
            return nullcontext()

        def cancel() -> None:
            request.cancelled = True

        title = handler.title or request.command
        number = request.seq if request.answered is None else None
        return self.progress.under_way(title, cancel=cancel, request=number)

    def defer(self, action: Callable[[], None]) -> None:
        """Run `action` once the current request is answered."""
        self._own.deferred.append(action)

    def check_settled(self) -> None:
        """Raise UsageError while the program replays to another moment: its values would be inconsistent."""
        if self.state is State.RUNNING and not self.program.target.now.settled:
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
            self.client.connection.send(response(request, body=body, error=error))

    # -- the end -----------------------------------------------------------------------------

    def interrupted(self, exit_code: int) -> None:
        """End the session on a signal: a launched program ends with this code, reported to the client."""
        if self.debuggee is not None:
            self.debuggee.end(self, exit_code)
        self.handle_disconnect()

    def handle_disconnect(self) -> None:
        """Handle the client's disconnect: a launched program ends, an attached process continues."""
        debuggee = self.debuggee
        if self.attachment is not None:
            # First, so that the thread that `close` releases finds the reason.
            self.attachment.detach(self)
        if self.close() and self.attachment is None and debuggee is not None:
            debuggee.abandoned()

    def close(self) -> bool:
        """Stop serving; return False if that was done before."""
        # First, as the holder of `turn` may be waiting for a client that reads nothing.
        self.client.connection.close()
        if not self.queue.close():
            return False
        self.progress.close()
        for each in self.at_end:
            each(self)
        if self.debuggee is not None:
            self.debuggee.recorder.stop()
        self.runner.stop()
        return True
