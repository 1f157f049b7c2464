"""What comes in: a request, a client's answer to a request of ours, or something that is neither; and
what goes out, before it has its number."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nncdbg.dap_server.failures import SHOWN, told
from nncdbg.engine.errors import NncdbgError
from nncdbg.engine.escaping import printable_styled


class MessageError(NncdbgError):
    """A body that is no message; `request_seq` and `command` as far as they can be told, else 0 and empty."""

    def __init__(self, message: str, request_seq: int = 0, command: str = "") -> None:
        super().__init__(message)
        self.request_seq = request_seq
        self.command = command


@dataclass(eq=False, slots=True)
class Request:
    """A client's request; `arguments` is JSON, decoded when its handler is known.

    `answered` hears the body or the error of one that did not come from the client.
    """

    seq: int
    command: str
    arguments: bytes | None
    cancelled: bool = field(default=False)
    answered: Callable[[Any, NncdbgError | None], None] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's response to a request of ours."""

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
    """The message in a body.  Raises MessageError, with the field that is wrong."""
    try:
        envelope = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(_words(error), *_identity(body)) from None
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
    """A request's arguments as `record`; None where there are none and none are due.

    Raises MessageError that names the field.
    """
    raw = request.arguments
    if raw is None or raw == b"null":
        # Where all in them may be left out, clients leave out the whole.
        if required and record is not None and _due_in(record):
            raise MessageError(f"{request.command} needs `arguments`", request.seq, request.command)
        raw = b"{}"
    try:
        return msgspec.json.decode(raw, type=record if record is not None else dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = _words(error)
        words = words.replace("$", "arguments", 1) if "`$" in words else f"{words} - at `arguments`"
        raise MessageError(f"{request.command}: {words}", request.seq, request.command) from None


def _due_in(record: Any) -> bool:
    """Whether a record has a field that cannot be left out."""
    return any(field.required for field in msgspec.structs.fields(record))


def quoted(word: str) -> str:
    """A client's word in a message of ours, cut if it is a long one."""
    return repr(word if len(word) <= _LONGEST else word[:_LONGEST] + "…")


_LONGEST = 60


def _words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the message is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "the message is not UTF-8"
    return f"the message is malformed: {error}"


class _Identity(msgspec.Struct):
    seq: Any = 0
    command: Any = ""


_HEAD = re.compile(rb'\s*\{\s*|\s*"(seq|type|command)"\s*:\s*(-?\d{1,18}|"[\w/]{1,100}")\s*[,}]')


def _identity(body: bytes) -> tuple[int, str]:
    """(seq, command) of a message that is otherwise wrong, as far as it has them."""
    try:
        found = msgspec.json.decode(body, type=_Identity)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _identity_of_text(body)
    seq = found.seq if isinstance(found.seq, int) and not isinstance(found.seq, bool) else 0
    return seq, found.command if isinstance(found.command, str) else ""


def _identity_of_text(body: bytes) -> tuple[int, str]:
    """The same of a text that is no JSON, where it begins with them.

    What is named `seq` further on need not be the message's own.
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
    """The answer to a request: with an error it has failed."""
    message: dict[str, Any] = {
        "type": "response",
        "request_seq": request.seq,
        "command": request.command,
        "success": error is None,
    }
    if error is not None:
        message |= told(error, show=request.command in SHOWN)
    elif body is not None:
        message["body"] = body
    return message


def event(name: str, body: Any = None) -> dict[str, Any]:
    message = {"type": "event", "event": name}
    return message if body is None else {**message, "body": body}


def output(text: str, category: str) -> dict[str, Any]:
    """An event with a line for the client's console; of escape sequences only styles stay."""
    return event("output", {"category": category, "output": printable_styled(text.rstrip("\n")) + "\n"})
