"""Random bytes, frames and arguments: each request gets one response, and nothing hangs or fails.

`-m fuzz` sends 100,000 messages; without it a few thousand are sent.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg.dap_server import handlers  # noqa: F401  enters the handlers into the table
from nncdbg.dap_server.messages import MessageError, Request, decode_arguments, parse_message, response
from nncdbg.dap_server.protocol import REQUESTS
from nncdbg.dap_server.registry import HANDLERS
from nncdbg.dap_server.runner import Runner
from nncdbg.dap_server.session import Session
from nncdbg.dap_server.transport.connection import Connection
from nncdbg.dap_server.transport.framing import FrameError, frame, read_frame
from tests.dap_server import schema
from tests.dap_server.client import read_body
from tests.dap_server.conftest import EXAMPLES
from tests.dap_server.test_transport import ENDLESS
from tests.laws import examples

Message = dict[str, Any]

WAIT = 60.0
"""Seconds to wait for each response."""

PER_SESSION = 40
MESSAGES = 100_000

# -- frames --------------------------------------------------------------------------------------

GOOD = [
    frame(json.dumps(message).encode())
    for message in (
        {"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "é"}},
        {"seq": 2, "type": "request", "command": "threads"},
        {
            "seq": 3,
            "type": "response",
            "request_seq": 1,
            "success": True,
            "command": "runInTerminal",
            "body": {},
        },
        {
            "seq": 4,
            "type": "request",
            "command": "variables",
            "arguments": {"variablesReference": 1, "start": 0},
        },
    )
]

FRAGMENTS = [
    b"\r\n",
    b"\n\n",
    b"Content-Length: ",
    b":",
    b"{",
    b"}",
    b'"',
    b"\0",
    b"\xff",
    b"9" * 20,
    b"[" * 2000,
    b"-1",
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw valid frames with random cuts, insertions and replacements."""
    data = b"".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 4))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 8)))
        data = data[:begin] + draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=6)) + data[end:]
    return data


def read_messages(data: bytes) -> None:
    """Read and parse messages, up to the end of the data or the first frame error."""
    stream = io.BytesIO(data)
    with contextlib.suppress(FrameError):
        while (body := read_frame(stream)) is not None:
            try:
                message = parse_message(body)
                if isinstance(message, Request) and message.command in REQUESTS:
                    record, _, required = REQUESTS[message.command]
                    decode_arguments(message, record, required)
            except MessageError as error:
                json.dumps(response(Request(error.request_seq, error.command, None), error=error))


@examples(300, database=None)
@given(st.binary(max_size=200) | damaged())
def test_random_bytes_raise_only_documented_errors(data: bytes) -> None:
    read_messages(data)


@pytest.mark.fuzz
def test_many_random_bytes_raise_only_documented_errors() -> None:
    for seed in range(MESSAGES):
        random = Random(seed)
        data = b"".join(random.choices(GOOD, k=random.randint(1, 4)))
        for _ in range(random.randint(0, 5)):
            begin = random.randint(0, len(data))
            filling = random.choice([*FRAGMENTS, random.randbytes(random.randint(0, 6))])
            data = data[:begin] + filling + data[begin + random.randint(0, 8) :]
        read_messages(data)


# -- arguments -----------------------------------------------------------------------------------

NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    -1,
    100,
    1000,
    1001,
    1002,
    1003,
    1005,
    1010,
    1020,
    2**31 - 1,
    2**31,
    -(2**31),
    2**53,
    2**63,
    10**30,
]

WORDS = [
    "",
    "x",
    "main",
    "@layer",
    "%h",
    "%x",
    "%scores",
    "%scores[0, 1]",
    "mean(%h)",
    "%s > 1",
    "nan",
    "1",
    "0x10",
    "1e999",
    "[1, 2]",
    ">= 3",
    "{%h}",
    "stats %h",
    "(" * 300,
    "AAAA",
    "é𝄞\u202e",
    "\0",
    "long" * 500,
]

OF_FIELD: dict[str, list[Any]] = {
    "threadId": [1, 1, 1, 0, 2, -1, 10**30],
    "program": [],
    "path": [],
    "inputs": [
        {},
        {"x": "zeros"},
        {"x": "missing.npy"},
        {"x": 5},
        {"x": None},
        {"y": "zeros"},
        {"x": "\0"},
        {"": ""},
    ],
    "backend": ["numpy", "numpy", "abacus", ""],
    "allocator": [None, "debug", "plain", "poison", "arena", "none"],
    "history": [None, 0, -1, "1MB", "much", 10**30],
    "check": [None, "micro", "all"],
    "opLibrary": [[], ["missing.py"], ["\0"], [""], ["x" * 3000]],
    "cwd": [None, ".", "missing", "\0", "x" * 3000],
    "console": [None, "internalConsole"],
    "connect": [None, {}],
    "ranks": [False, True, 0, 10**30, "29500", "\0"],
}
"""Values by field name: mostly valid, and without effect outside of the test's folder."""

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 1.5, 10**30, "", "\0", [], {}, [[]], {"a": 1}, "x" * 3000, [None] * 50]
)


def of_type(kind: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Return JSON values of a type; `name` is the name of the field."""
    if name in OF_FIELD:
        return st.sampled_from(OF_FIELD[name])
    match kind:
        case msgspec.inspect.IntType():
            return st.sampled_from(NUMBERS)
        case msgspec.inspect.FloatType():
            return st.sampled_from([0, 1.5, -1e300])
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.StrType():
            return st.sampled_from(WORDS)
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(sorted(values, key=str))
        case msgspec.inspect.Metadata(type=inner):
            return of_type(inner, name)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([of_type(each, name) for each in types])
        case msgspec.inspect.ListType(item_type=item):
            return st.lists(st.deferred(lambda: of_type(item)), max_size=3)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*[of_type(each) for each in items])
        case msgspec.inspect.DictType(value_type=value):
            return st.dictionaries(
                st.sampled_from(WORDS[:8]), st.deferred(lambda: of_type(value)), max_size=2
            )
        case msgspec.inspect.StructType():
            return of_record(kind)
        case msgspec.inspect.AnyType() | msgspec.inspect.RawType():
            return JUNK
    raise AssertionError(f"there are no values for {kind}")


def of_record(kind: msgspec.inspect.StructType) -> st.SearchStrategy[Message]:
    fields = {each.encode_name: of_type(each.type, each.encode_name) for each in kind.fields}
    needed = {each.encode_name for each in kind.fields if each.required}
    return st.fixed_dictionaries(
        {name: fields[name] for name in needed},
        optional={name: field for name, field in fields.items() if name not in needed},
    )


def record_of(command: str) -> Any:
    handler = HANDLERS.get(command)
    record = REQUESTS[command].arguments if command in REQUESTS else None
    return handler.arguments or record if handler is not None else record


@st.composite
def requests(draw: st.DrawFn, by_command: dict[str, st.SearchStrategy[Any]]) -> tuple[str, Any]:
    """Draw a command with valid or nearly valid arguments."""
    command = draw(st.sampled_from(sorted(by_command)))
    arguments = draw(by_command[command])
    if draw(st.integers(0, 7)) == 0:
        if isinstance(arguments, dict) and arguments and draw(st.booleans()):
            arguments = {**arguments, draw(st.sampled_from(sorted(arguments))): draw(JUNK)}
        else:
            arguments = draw(JUNK)
    return command, arguments


def strategies(programs: list[str]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    OF_FIELD["program"] = [*programs, *programs, "", "missing.nnc", "missing.onnx", ".", "\0", "x" * 3000]
    OF_FIELD["path"] = [
        *programs,
        None,
        "",
        "missing.nnc",
        "x" * 3000,
        "\0",
        "file:///x%00",
        "file://[x",
        "file:",
    ]
    by_command = {}
    for command in sorted({*REQUESTS, *HANDLERS} - {"disconnect"}):
        record = record_of(command)
        by_command[command] = st.just({}) if record is None else of_type(msgspec.inspect.type_info(record))
    return st.lists(requests(by_command), min_size=1, max_size=PER_SESSION)


BEGIN: dict[str, list[tuple[str, Any]]] = {
    "new": [],
    "initialized": [("initialize", {"adapterID": "fuzz"})],
}
for _state, _entry in (("stopped", True), ("running", False)):
    BEGIN[_state] = [
        *BEGIN["initialized"],
        ("launch", {"program": "PROGRAM", "stopOnEntry": _entry}),
        ("configurationDone", {}),
    ]
BEGIN["configuring"] = BEGIN["stopped"][:2]


class Wire:
    """An in-process session at the other end of a pair of sockets."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(WAIT)
        self._theirs, self._stream = theirs, theirs.makefile("rb")

        def close(reading: bool) -> None:
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR if reading else socket.SHUT_WR)

        runner = Runner()
        self.session = Session(Connection(self._stream, theirs.sendall, close), runner)
        self.mover = threading.Thread(target=runner.run, daemon=True)
        self.mover.start()
        self.session.start()
        self._reader = self.ours.makefile("rb")
        self.answers: list[Message] = []

    def exchange(self, requested: list[tuple[str, Any]]) -> list[Message]:
        """Send all requests and return their responses, in that order."""
        first = len(self.answers) + 1
        messages = [
            {"seq": first + index, "type": "request", "command": command, "arguments": arguments}
            for index, (command, arguments) in enumerate(requested)
        ]
        data = b"".join(frame(json.dumps(message).encode()) for message in messages)
        writer = threading.Thread(target=self.ours.sendall, args=(data,))
        writer.start()
        found: dict[int, Message] = {}
        while len(found) < len(messages):
            message = self._next(messages, found)
            if message["type"] == "response" and message["request_seq"]:
                seq = message["request_seq"]
                assert seq not in found, message
                assert first <= seq < first + len(messages), message
                assert message["command"] == messages[seq - first]["command"]
                assert "internal error" not in message.get("message", ""), (messages[seq - first], message)
                found[seq] = message
            assert "internal error" not in message.get("body", {}).get("output", ""), message
        writer.join()
        answers = [found[first + index] for index in range(len(messages))]
        self.answers += answers
        return answers

    def _next(self, messages: list[Message], found: dict[int, Message]) -> Message:
        try:
            body = read_body(self._reader)
        except TimeoutError:
            body = None
        missing = [message for message in messages if message["seq"] not in found]
        assert body is not None, f"no answer to {missing}, of {messages}"
        message: Message = json.loads(body)
        if schema.available():
            schema.validate(message)
        return message

    def end(self) -> None:
        """Close the connection, and check that the session ends."""
        self.ours.shutdown(socket.SHUT_RDWR)
        self.session.join()
        self.mover.join(WAIT)
        assert not self.mover.is_alive(), "the program runs without its client"
        for each in (self._reader, self._stream, self.ours, self._theirs):
            each.close()


COUNTS: Counter[str] = Counter()


def converse(programs: list[str], state: str, requested: list[tuple[str, Any]]) -> None:
    wire = Wire()
    try:
        begin = [
            (
                command,
                {**arguments, "program": programs[state == "running"]} if command == "launch" else arguments,
            )
            for command, arguments in BEGIN[state]
        ]
        assert all(answer["success"] for answer in wire.exchange(begin))
        COUNTS.update("taken" if answer["success"] else "refused" for answer in wire.exchange(requested))
        (alive,) = wire.exchange([("threads", None)])
        assert alive["success"] or "send " in alive["message"], alive
    finally:
        wire.end()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A program that ends, and an endless one."""
    monkeypatch.chdir(tmp_path)
    endless = tmp_path / "endless.nnc"
    endless.write_text(ENDLESS, encoding="utf-8")
    COUNTS.clear()
    yield [str(EXAMPLES / "first_steps.nnc"), str(endless)]
    assert COUNTS["taken"] > COUNTS.total() / 20, f"too few requests succeed: {COUNTS}"


def test_random_requests_get_one_response_each(programs: list[str]) -> None:
    @examples(80, database=None)
    @given(st.sampled_from(sorted(BEGIN)), strategies(programs))
    def run(state: str, requested: list[tuple[str, Any]]) -> None:
        converse(programs, state, requested)

    run()


@pytest.mark.fuzz
def test_many_random_requests_get_one_response_each(programs: list[str]) -> None:
    @examples(500, database=None)
    @given(st.sampled_from(sorted(BEGIN)), strategies(programs))
    def run(state: str, requested: list[tuple[str, Any]]) -> None:
        converse(programs, state, requested)

    while COUNTS.total() < MESSAGES:
        run()
    print(dict(COUNTS))
