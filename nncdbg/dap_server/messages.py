"""Parsed incoming messages (requests, answers to our requests, invalid ones), and outgoing ones before
they are numbered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nncdbg.dap_server.failures import SHOWN, failure_fields
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable_styled


class MessageError(NncdbgError):
    """An invalid message; `request_seq` and `command` as far as they are readable, else 0 and empty."""

    def __init__(self, message: str, request_seq: int = 0, command: str = "") -> None:
        super().__init__(message)
        self.request_seq = request_seq
        self.command = command


@dataclass(eq=False, slots=True)
class Request:
    """A client's request; `arguments` is JSON, decoded once its handler is found.

    `answered` receives the body or the error of a request that did not come from the client.
    """

    seq: int
    command: str
    arguments: bytes | None
    cancelled: bool = field(default=False)
    answered: Callable[[Any, NncdbgError | None], None] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's response to one of our requests."""

    request_seq: int
    success: bool
    message: str | None
    body: Any
    seq: int


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
    """Parse the message in a body.  Raises MessageError that names the wrong field."""
    try:
        envelope = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(decoding_failure(error), *_identity(body)) from None
    if envelope.type == "response":
        return Answer(envelope.request_seq, envelope.success, envelope.message, envelope.body, envelope.seq)
    if envelope.type != "request":
        raise MessageError(
            f"a message of type {quoted(envelope.type)} is neither a request nor a response", envelope.seq
        )
    if envelope.command is None:
        raise MessageError("a request has no `command`", envelope.seq)
    return Request(envelope.seq, envelope.command, bytes(envelope.arguments) or None)


def decode_arguments(request: Request, record: Any, required: bool) -> Any:
    """Decode a request's arguments as `record`; None if there are none and none are required.

    Raises MessageError that names the field.
    """
    raw = request.arguments
    if raw is None or raw == b"null":
        # If all of their fields are optional, clients omit the arguments.
        if (
            required
            and record is not None
            and any(field.required for field in msgspec.structs.fields(record))
        ):
            raise MessageError(f"{request.command} needs `arguments`", request.seq, request.command)
        raw = b"{}"
    try:
        return msgspec.json.decode(raw, type=record if record is not None else dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = decoding_failure(error)
        words = words.replace("$", "arguments", 1) if "`$" in words else f"{words} - at `arguments`"
        raise MessageError(f"{request.command}: {words}", request.seq, request.command) from None


def quoted(word: str) -> str:
    """Quote a client's word for a message, shortened if it is long."""
    return repr(word if len(word) <= _LONGEST else word[:_LONGEST] + "…")


_LONGEST = 60


def decoding_failure(error: Exception) -> str:
    """Return what is wrong with the bytes of a message that `msgspec` refuses."""
    if isinstance(error, RecursionError):
        return "the message is nested too deeply"
    # The second one since msgspec 0.23.  A word of the client may be "UTF-8" too.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Invalid UTF-8"):
        return "the message is not UTF-8"
    return f"the message is malformed: {error}"


class _Identity(msgspec.Struct):
    seq: Any = 0
    command: Any = ""


_HEAD = re.compile(rb'\s*\{\s*|\s*"(seq|type|command)"\s*:\s*(-?\d{1,18}|"[\w/]{1,100}")\s*[,}]')


def _identity(body: bytes) -> tuple[int, str]:
    """(seq, command) of an otherwise invalid message, as far as it has them."""
    try:
        found = msgspec.json.decode(body, type=_Identity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _identity_of_text(body)
    seq = found.seq if isinstance(found.seq, int) and not isinstance(found.seq, bool) else 0
    return seq, found.command if isinstance(found.command, str) else ""


def _identity_of_text(body: bytes) -> tuple[int, str]:
    """The same of text that is not JSON, if it begins with them.

    A later `seq` in the text need not be the message's own.
    """
    found: dict[bytes, bytes] = {}
    place = 0
    while match := _HEAD.match(body, place):
        place = match.end()
        if match[1] is not None:
            found[match[1]] = match[2]
    seq, command = found.get(b"seq", b"0"), found.get(b"command", b"")
    return (0 if seq.startswith(b'"') else int(seq)), command.decode().strip('"')


def response(request: Request, *, body: Any = None, error: NncdbgError | None = None) -> dict[str, Any]:
    """Return the response to a request; with an error, a failed one."""
    message: dict[str, Any] = {
        "type": "response",
        "request_seq": request.seq,
        "command": request.command,
        "success": error is None,
    }
    if error is not None:
        message |= failure_fields(error, show=request.command in SHOWN)
    elif body is not None:
        message["body"] = body
    return message


def event(name: str, body: Any = None) -> dict[str, Any]:
    message = {"type": "event", "event": name}
    return message if body is None else {**message, "body": body}


def output(text: str, category: str) -> dict[str, Any]:
    """Return an output event for the client's console; of escape sequences only styles are kept."""
    return event("output", {"category": category, "output": printable_styled(text.rstrip("\n")) + "\n"})
