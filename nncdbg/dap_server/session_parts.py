"""Protocols of a session's optional parts: console, terminal, relay, watchdog, admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from nncdbg.dap_server.messages import Request
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Target


class StopCommands(Protocol):
    """The commands of the client's debug console, over one program."""

    @property
    def target(self) -> Target:
        """The program."""

    def react(self, stop: Stop) -> None:
        """Print displays at a stop, and run the commands of its breakpoints."""


class StopDisplay(Protocol):
    """A terminal beside the client's windows."""

    def arrived(self, stop: Stop) -> None:
        """Show a stop."""

    def show(self, text: str) -> None:
        """Show text."""


class RequestForwarder(Protocol):
    """A connection to another process that serves the client's requests in place of the handlers."""

    def forward(self, request: Request) -> bool:
        """Pass a request on; return False if the process is gone."""

    def close(self) -> None:
        """Close the connection to the process."""

    def join(self) -> None:
        """Wait until nothing more is passed on."""


class CrashReporter(Protocol):
    """A process that reports a crash of this one to the client."""

    def end(self) -> None:
        """End the process."""


class RequestFilter(Protocol):
    """The checks before a client is served."""

    def admits(self, session: Any, request: Request) -> bool:
        """Return whether to serve this request; if not, it is answered here."""
