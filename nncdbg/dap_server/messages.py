"""What comes in: a request, a client's answer to a request of ours, or something that is neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from nncdbg.engine.errors import NncdbgError


class MessageError(NncdbgError):
    """A body that is no message; `request_seq` and `command` as far as they can be told."""

    def __init__(self, message: str, request_seq: int = 0, command: str = "") -> None:
        super().__init__(message)
        self.request_seq = request_seq
        self.command = command


@dataclass(eq=False, slots=True)
class Request:
    """A client's request; `arguments` is JSON, decoded when its handler is known."""

    seq: int
    command: str
    arguments: bytes | None
    cancelled: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's response to a request of ours."""

    request_seq: int
    success: bool
    message: str | None
    body: Any


class _Envelope(msgspec.Struct):
    type: str
    seq: int
    command: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    request_seq: int = 0
    success: bool = False
    message: str | None = None
    body: Any = None


_decode = msgspec.json.Decoder(_Envelope).decode


def parse_message(body: bytes) -> Request | Answer:
    """The message in a body.  Raises MessageError, with the field that is wrong."""
    try:
        envelope = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(_words(error), *_identity(body)) from None
    if envelope.type == "response":
        return Answer(envelope.request_seq, envelope.success, envelope.message, envelope.body)
    if envelope.type != "request":
        raise MessageError(
            f"a message of type {envelope.type!r} is neither request nor response", envelope.seq
        )
    if envelope.command is None:
        raise MessageError("a request has no `command`", envelope.seq)
    return Request(envelope.seq, envelope.command, bytes(envelope.arguments) or None)


def decode_arguments(request: Request, record: Any, required: bool) -> Any:
    """A request's arguments as `record`; None where there are none and none are due.

    Raises MessageError that names the field.
    """
    raw = request.arguments
    if raw is None or raw == b"null":
        if not required or record is None:
            raw = b"{}"
        else:
            raise MessageError(f"{request.command} needs `arguments`", request.seq, request.command)
    try:
        return msgspec.json.decode(raw, type=record if record is not None else dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = _words(error).replace("$", "arguments", 1)
        raise MessageError(f"{request.command}: {words}", request.seq, request.command) from None


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the message is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "the message is not UTF-8"
    return f"the message is malformed: {error}"


class _Identity(msgspec.Struct):
    seq: Any = 0
    command: Any = ""


def _identity(body: bytes) -> tuple[int, str]:
    """(seq, command) of a message that is otherwise wrong, as far as it has them."""
    try:
        found = msgspec.json.decode(body, type=_Identity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0, ""
    seq = found.seq if isinstance(found.seq, int) and not isinstance(found.seq, bool) else 0
    return seq, found.command if isinstance(found.command, str) else ""
