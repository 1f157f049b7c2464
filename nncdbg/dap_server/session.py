"""One client's session: requests in, answers and events out, and who may touch the program when.

Three roles.  The *reader* (a thread) takes frames off the stream; what never touches a moving
program (`anytime`) it answers itself.  The *server* (a thread) serves the other requests in
order, while the program stands.  The *runner* (the thread that the program belongs to) moves it;
while it moves, requests wait until the machine is between two statements, and are served there.
So the program is touched by one thread at a time, and a change of breakpoints takes effect
before the next op.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nncdbg.dap_server.connection import Connection
from nncdbg.dap_server.failures import told
from nncdbg.dap_server.framing import FrameError
from nncdbg.dap_server.handles import Handles
from nncdbg.dap_server.messages import Answer, MessageError, Request, decode_arguments, parse_message
from nncdbg.dap_server.protocol import REQUESTS
from nncdbg.dap_server.registry import HANDLERS, Handler, State
from nncdbg.engine.errors import NncdbgError
from nncdbg.terminal.crash import report_crash

if TYPE_CHECKING:
    from nncdbg.dap_server.debuggee import Debuggee
    from nncdbg.dap_server.launching import LaunchArguments
    from nncdbg.dap_server.protocol.requests import InitializeRequestArguments
    from nncdbg.dap_server.runner import Runner


class Cancelled(NncdbgError):
    """The request at hand is wanted no more."""


class Session:
    """`debuggee` is what is debugged, None before `launch`.  `closing` is set when all is over.

    `runner` moves what is launched here.
    """

    def __init__(self, connection: Connection, runner: Runner) -> None:
        self.connection = connection
        self.runner = runner
        self.state = State.NEW
        self.client: InitializeRequestArguments | None = None
        self.launched: LaunchArguments | None = None
        self.debuggee: Debuggee | None = None
        self.handles = Handles()
        self.turn = threading.Condition()
        """Guards `waiting`, `moving`, `serving` and `closing`."""
        self.waiting: deque[Request] = deque()
        self.moving = False
        self.serving = False
        self.closing = False
        self.at_hand: Request | None = None
        self._own = threading.local()
        """Of each thread: what it is to do once the request at hand is answered."""
        self._asked: dict[int, Callable[[Answer], None]] = {}
        self._threads: list[threading.Thread] = []

    @property
    def program(self) -> Debuggee:
        """What is debugged, for handlers that are only called when there is something."""
        assert self.debuggee is not None
        return self.debuggee

    # -- reading -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read and to serve."""
        for role in (self._read, self._serve):
            thread = threading.Thread(target=role, name=f"nncdbg-dap{role.__name__}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait for the threads of a session that is closing."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _read(self) -> None:
        while not self.closing:
            try:
                body = self.connection.read()
            except FrameError as error:
                self.say(f"the connection is closed: {error.message}", "important")
                body = None
            if body is None:
                break
            self.receive(body)
        self.vanished()

    def receive(self, body: bytes) -> None:
        """Take the body of one frame."""
        try:
            message = parse_message(body)
        except MessageError as error:
            self.fail(Request(error.request_seq, error.command, None), error)
            return
        if isinstance(message, Answer):
            with self.turn:
                asked = self._asked.pop(message.request_seq, None)
            if asked is not None:
                asked(message)
            return
        self._accept(message)

    def _accept(self, request: Request) -> None:
        handler = HANDLERS.get(request.command)
        if handler is None:
            self.fail(request, NncdbgError(f"there is no request {request.command!r}"))
        elif handler.anytime:
            self._handle(request)
        else:
            with self.turn:
                if handler.moves:
                    self._cancel_reads()
                self.waiting.append(request)
                self.turn.notify_all()
                moving = self.moving
            if moving and self.debuggee is not None:
                self.debuggee.between_statements(self.serve_waiting)

    def _cancel_reads(self) -> None:
        """Who moves on is not waiting for values of the old place."""
        for each in (*self.waiting, *filter(None, [self.at_hand])):
            handler = HANDLERS.get(each.command)
            if handler is not None and handler.reads:
                each.cancelled = True

    # -- serving -----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            with self.turn:
                self.turn.wait_for(lambda: self.closing or (self.waiting and not self.moving))
                if self.closing:
                    return
                request = self.waiting.popleft()
                self.serving = True
            try:
                self._handle(request)
            finally:
                with self.turn:
                    self.serving = False
                    self.turn.notify_all()

    def serve_waiting(self) -> None:
        """Serve what waits, between two statements of a program that moves; on the runner's thread."""
        while True:
            with self.turn:
                if not self.waiting or self.closing:
                    return
                request = self.waiting.popleft()
            self._handle(request)

    def _handle(self, request: Request) -> None:
        handler = HANDLERS[request.command]
        if not handler.anytime:
            self.at_hand = request
        deferred = self._own.deferred = []
        try:
            self.check_cancelled(request)
            self._respond(request, body=self._run(handler, request))
        except NncdbgError as error:
            self.fail(request, error)
        except MemoryError:
            self.fail(request, NncdbgError(f"out of memory in {request.command}", hint="ask for a part"))
        except Exception as error:  # noqa: BLE001  a bug of ours must not take the user's session with it
            self.fail(request, NncdbgError(report_crash(error)))
        finally:
            if not handler.anytime:
                self.at_hand = None
        for each in deferred:
            each()

    def _run(self, handler: Handler, request: Request) -> Any:
        record, _, required = REQUESTS.get(request.command, (None, None, False))
        arguments = decode_arguments(request, handler.arguments or record, required)
        if self.state not in handler.when:
            raise NncdbgError(f"{request.command}: {self.state.value}")
        return handler.handle(self, arguments)

    def defer(self, action: Callable[[], None]) -> None:
        """Do this once the request at hand is answered."""
        self._own.deferred.append(action)

    def check_cancelled(self, request: Request | None = None) -> None:
        """Raise Cancelled if the request at hand is wanted no more.  Long reads ask now and then."""
        request = request or self.at_hand
        if request is not None and request.cancelled:
            raise Cancelled("cancelled")

    # -- answering ---------------------------------------------------------------------------

    def fail(self, request: Request, error: NncdbgError) -> None:
        """Answer a request with an error."""
        self._respond(request, error=error)

    def _respond(self, request: Request, *, body: Any = None, error: NncdbgError | None = None) -> None:
        response: dict[str, Any] = {
            "type": "response",
            "request_seq": request.seq,
            "command": request.command,
            "success": error is None,
        }
        if error is not None:
            response |= told(error)
        elif body is not None:
            response["body"] = body
        self.connection.send(response)

    def send_event(self, event: str, body: Any = None) -> None:
        """Send an event, in the order of the calls."""
        message = {"type": "event", "event": event}
        self.connection.send(message if body is None else {**message, "body": body})

    def say(self, text: str, category: str = "console") -> None:
        """A line in the client's console."""
        self.send_event("output", {"category": category, "output": text.rstrip("\n") + "\n"})

    def ask(self, command: str, arguments: Any, answered: Callable[[Answer], None]) -> None:
        """Send a request of ours; `answered` hears the client's response, on the reader's thread."""
        # The answer cannot come before the lock of `send` is free, but may before `ask` returns.
        with self.turn:
            seq = self.connection.send({"type": "request", "command": command, "arguments": arguments})
            self._asked[seq] = answered

    # -- the end -----------------------------------------------------------------------------

    def vanished(self) -> None:
        """The client is gone, with or without a word: what was launched ends, what was attached goes on."""
        debuggee = self.debuggee
        self.close()
        if debuggee is not None:
            debuggee.abandoned()

    def close(self) -> None:
        """Serve no more."""
        with self.turn:
            self.closing = True
            self.waiting.clear()
            self.turn.notify_all()
        self.connection.close()
        self.runner.stop()
