"""One session over all ranks of a job: joins a client of `nncdbg dap` to the adapter of each rank.

The client sees the threads of all ranks.  A request that names a thread, a frame or a value goes to its rank.
Breakpoints and filters go to all ranks, and the end of the session does.  Other requests go to the rank that
has stopped last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.dap_server.attach.rank_messages import Message, RankNumbers, breakpoints_of_rank
from nncdbg.dap_server.attach.relay import Relay, send_answer
from nncdbg.dap_server.messages import Request
from nncdbg.errors import NncdbgError
from nncdbg.escaping import printable
from nncdbg.presentation.ranks import TOPICS, topic_lines
from nncdbg.process.rank_notes import RankReport, read_digests, reports_of_job

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.dap_server.transport.connection import Connection

_BREAKPOINTS = frozenset({"setBreakpoints", "setFunctionBreakpoints", "setDataBreakpoints"})
_RECORDED = _BREAKPOINTS | {"setExceptionBreakpoints"}
"""Requests whose response has a record for each breakpoint or filter."""
_EVERYWHERE = _RECORDED | {"configurationDone", "threads", "disconnect", "terminate"}
"""Requests that go to all ranks."""
_ONCE = frozenset({"initialized", "process", "capabilities"})
"""Events that the client receives from the first rank only."""


class RanksRelay:
    """Joins the client of `session` to the ranks of a job."""

    def __init__(self, session: Session, job: Path, reports: Sequence[RankReport]) -> None:
        self.place = f"{len(reports)} ranks"
        self._job = job
        self._session = session
        self._lock = threading.Lock()
        """Guards the fields below."""
        self._numbers = RankNumbers(max(each.process.rank for each in reports) + 1)
        self._ranks = {each.process.rank: _RankRelay(session, each, self) for each in reports}
        self._gathered: dict[int, _Gathered] = {}
        """The requests that went to several ranks, by number."""
        self._ids: dict[tuple[int, int], int] = {}
        """The client's number of a breakpoint, by rank and number there."""
        self._current = min(self._ranks)
        self._ended: set[int] = set()

    # -- on the client's threads ---------------------------------------------------------------

    def connect(self) -> None:
        """Return when all ranks have accepted the client.  Raises UsageError if one does not."""
        for relay in self._ranks.values():
            try:
                relay.connect()
            except NncdbgError:
                self.close()
                raise

    def begin(self) -> None:
        """Forward messages of the ranks, now that the client has the answer to `attach`."""
        for relay in self._ranks.values():
            relay.begin()

    def forward(self, request: Request) -> bool:
        """Forward a request; return False if the ranks are gone."""
        arguments = msgspec.json.decode(request.arguments or b"{}")
        running = {rank: relay for rank, relay in self._ranks.items() if rank not in self._ended}
        if not running:
            return False
        if request.command == "evaluate" and (topic := _topic(arguments)) is not None:
            self._answer_topic(request, topic)
            return True
        if request.command not in _EVERYWHERE:
            rank = self._numbers.rank_of(arguments)
            rank = self._current if rank is None else rank
            relay = running.get(rank) or next(iter(running.values()))
            return relay.forward(_changed(request, self._numbers.incoming(arguments)))
        gathered = _Gathered(request, arguments, set(running))
        with self._lock:
            self._gathered[request.seq] = gathered
        for rank, relay in running.items():
            own = self._numbers.incoming(arguments)
            if request.command in _BREAKPOINTS:
                own, gathered.positions[rank] = breakpoints_of_rank(own, rank)
            if not relay.forward(_changed(request, own)):
                self._lost_answer(rank, request.seq)
        return True

    def _answer_topic(self, request: Request, topic: str) -> None:
        """Answer a command about the job from the notes of its ranks, which also works during a hang."""
        lines = topic_lines(
            topic, reports_of_job(self._job), read_digests(self._job, [*self._ranks]), time.time()
        )
        body = {"result": printable("\n".join(lines)), "variablesReference": 0}
        answer = {"type": "response", "request_seq": request.seq, "command": "evaluate", "success": True}
        self._session.client.connection.send({**answer, "body": body})

    def close(self) -> None:
        """Disconnect from all ranks."""
        for relay in self._ranks.values():
            relay.close()

    def join(self) -> None:
        """Wait until nothing more is forwarded."""
        for relay in self._ranks.values():
            relay.join()

    # -- on the threads of the ranks -----------------------------------------------------------

    def take(self, rank: int, message: Message) -> None:
        """Forward a message of a rank to the client."""
        if message["type"] == "response":
            self._take_response(rank, message)
            return
        name, body = message["event"], self._numbers.outgoing(rank, message.get("body") or {})
        if name == "stopped":
            self._current = rank
            ids = [self._ids.get((rank, each), each) for each in body.get("hitBreakpointIds") or ()]
            body |= {"allThreadsStopped": False, **({"hitBreakpointIds": ids} if ids else {})}
        elif name == "continued":
            body["allThreadsContinued"] = False
        elif name == "breakpoint":
            known = self._ids.get((rank, body["breakpoint"].get("id", 0)))
            if known is None:
                return  # The client has not set it.
            body["breakpoint"] = {**body["breakpoint"], "id": known}
        elif name == "output":
            body["output"] = f"rank {rank}: {body['output']}"
        elif name in ("exited", "terminated") or (name in _ONCE and rank != min(self._ranks)):
            return  # The end is reported when the last rank is gone.
        self._session.client.send_event(name, body)

    def lost(self, rank: int) -> None:
        """Report the end of a rank, and of the session with the last one."""
        with self._lock:
            self._ended.add(rank)
            over = len(self._ended) == len(self._ranks)
            unanswered = [*self._gathered]
        for number in unanswered:
            self._lost_answer(rank, number)
        if over:
            self._session.client.send_event("terminated")

    def _take_response(self, rank: int, message: Message) -> None:
        with self._lock:
            gathered = self._gathered.get(message["request_seq"])
        if gathered is None:
            body = self._numbers.outgoing(rank, message.get("body") or {})
            if "allThreadsContinued" in body:
                body["allThreadsContinued"] = False
            sent = {name: each for name, each in message.items() if name != "seq"}
            self._session.client.connection.send({**sent, "body": body})
            return
        with self._lock:
            gathered.answers[rank] = message
        self._answer_when_complete(gathered)

    def _lost_answer(self, rank: int, number: int) -> None:
        with self._lock:
            gathered = self._gathered.get(number)
            if gathered is not None:
                gathered.expected.discard(rank)
        if gathered is not None:
            self._answer_when_complete(gathered)

    def _answer_when_complete(self, gathered: _Gathered) -> None:
        """Answer a request that went to several ranks once all have answered."""
        with self._lock:
            if not gathered.expected <= {*gathered.answers}:
                return
            if self._gathered.pop(gathered.request.seq, None) is None:
                return
        failed = [each for each in gathered.answers.values() if not each.get("success")]
        first = failed or [*gathered.answers.values()]
        command = gathered.request.command
        answer: Message = dict(first[0]) if first else {"success": True}
        answer.pop("seq", None)
        answer |= {"type": "response", "request_seq": gathered.request.seq, "command": command}
        if not failed and command in _RECORDED:
            answer["body"] = {"breakpoints": self._records(gathered)}
        elif not failed and command == "threads":
            answer["body"] = {"threads": [*self._threads(gathered)]}
        self._session.client.connection.send(answer)
        if command == "disconnect" and not failed:
            self._session.handle_disconnect()

    def _threads(self, gathered: _Gathered) -> Iterator[Message]:
        """Yield the threads of all ranks, named after their ranks."""
        for rank in sorted(gathered.answers):
            body = self._numbers.outgoing(rank, gathered.answers[rank]["body"])
            yield from ({**each, "name": f"rank {rank}: {each['name']}"} for each in body["threads"])

    def _records(self, gathered: _Gathered) -> list[Message]:
        """Return the record of each breakpoint: that of a rank that refuses it, or else of the first one."""
        records: dict[int, Message] = {}
        count = len(gathered.arguments.get("breakpoints") or ())
        for rank in sorted(gathered.answers):
            found = (gathered.answers[rank].get("body") or {}).get("breakpoints") or []
            positions = gathered.positions.get(rank, [*range(len(found))])
            count = max(count, len(found))
            for position, record in zip(positions, found, strict=True):
                made = self._numbers.outgoing(rank, record)
                number = record.get("id", 0)
                kept = records.setdefault(position, {**made, "id": number * self._numbers.ranks + rank})
                self._ids[rank, number] = kept["id"]
                if kept["verified"] and not record["verified"]:
                    records[position] = {**made, "id": kept["id"]}
        absent = {"verified": False, "message": "there is no such rank"}
        return [records.get(position, absent) for position in range(count)]


class _Gathered:
    """A request to several ranks, and their answers."""

    def __init__(self, request: Request, arguments: Message, expected: set[int]) -> None:
        self.request = request
        self.arguments = arguments
        self.expected = expected
        self.answers: dict[int, Message] = {}
        self.positions: dict[int, list[int]] = {}
        """The positions of the breakpoints that a rank has received, among those of the client."""


class _RankRelay(Relay):
    """The relay to one rank, whose messages `owner` takes."""

    def __init__(self, session: Session, report: RankReport, owner: RanksRelay) -> None:
        process = report.process
        token = Path(process.token).read_text(encoding="ascii") if process.token else None
        super().__init__(session, ("127.0.0.1", process.port), token)
        self._rank = process.rank
        self._owner = owner

    def _pass_on(self, far: Connection, message: Message) -> None:
        if message["type"] == "request":
            number, command = message.get("seq", 0), str(message.get("command"))
            self._session.client.request(
                command, message.get("arguments"), lambda answer: send_answer(far, number, command, answer)
            )
            return
        if message["type"] == "response":
            with self._lock:
                self._unanswered.pop(message.get("request_seq", 0), None)
        self._owner.take(self._rank, message)

    def _gone(self, why: str) -> None:
        with self._lock:
            self._closed = True
        self._session.client.say(f"rank {self._rank} has ended{why}")
        self._owner.lost(self._rank)


def _topic(arguments: Message) -> str | None:
    """Return the topic of a command of the debug console, such as `info ranks`, that is about the job."""
    command, _, topic = str(arguments.get("expression", "")).strip().partition(" ")
    is_topic = arguments.get("context") == "repl" and command == "info" and topic in TOPICS
    return topic if is_topic else None


def _changed(request: Request, arguments: Any) -> Request:
    """Return a request with other arguments."""
    return Request(request.seq, request.command, msgspec.json.encode(arguments))
