"""Handlers declare what they serve: the command, when, and the capabilities that it stands for.

    @request("stepBack", when=STOPPED, capability="supportsStepBack")
    def step_back(session: Session, arguments: StepBackArguments) -> None: ...

Dispatch, the guard of states and the answer to `initialize` are read from the one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Handle: TypeAlias = Callable[[Any, Any], Any]
"""``handle(session, arguments) -> body``; the body is a record, a mapping, or None for none."""

Reads: TypeAlias = "bool | Callable[[bytes | None], bool]"


class State(Enum):
    """Where a session stands.  The value is the sentence for a request that does not fit."""

    NEW = "the session has not started: send initialize first"
    INITIALIZED = "no program is being debugged: send launch or attach first"
    CONFIGURING = "the program has not started: send configurationDone first"
    RUNNING = "the program is running: pause it first"
    STOPPED = "the program is stopped: continue it first"
    ENDED = "the program has ended: restart it, or disconnect"


ALWAYS = frozenset(State)
LIVE = frozenset({State.CONFIGURING, State.RUNNING, State.STOPPED, State.ENDED})
"""There is a program."""
CONFIGURABLE = LIVE | {State.INITIALIZED}
"""Breakpoints may be told."""
STILL = frozenset({State.CONFIGURING, State.STOPPED, State.ENDED})
"""There is a program, and it does not move."""
STOPPED = frozenset({State.STOPPED})


@dataclass(frozen=True, slots=True)
class Handler:
    """What serves one command.

    `arguments` is the record of the arguments where it is not the protocol's own.  `anytime`: it
    touches nothing that moves, so it is served at once, whatever goes on.  `moves`: the program
    moves on, and reads of the old place that wait are cancelled.  `reads`: this request only reads, or a
    function of its arguments, as JSON, that says so.  `values`: it reads or sets values of the program;
    while the program runs it is served between two statements, and refers to that moment.
    """

    command: str
    handle: Handle
    when: frozenset[State]
    capabilities: Mapping[str, Any]
    arguments: Any
    anytime: bool
    moves: bool
    reads: Reads
    values: bool

    def is_read(self, arguments: bytes | None) -> bool:
        """Whether a request with these arguments only reads."""
        return self.reads if isinstance(self.reads, bool) else self.reads(arguments)


HANDLERS: dict[str, Handler] = {}
"""By command, in the order of declaration."""


def request(
    command: str,
    *,
    when: frozenset[State],
    capability: str | Mapping[str, Any] | None = None,
    arguments: Any = None,
    anytime: bool = False,
    moves: bool = False,
    reads: Reads = False,
    values: bool = False,
) -> Callable[[Handle], Handle]:
    """Enter the decorated function as the handler of `command`.

    `capability` is one that is true because of it, or a mapping of several to their values.
    """
    capabilities = {capability: True} if isinstance(capability, str) else dict(capability or {})

    def enter(handle: Handle) -> Handle:
        assert command not in HANDLERS, f"{command} is handled twice"
        HANDLERS[command] = Handler(
            command, handle, when, capabilities, arguments, anytime, moves, reads, values
        )
        return handle

    return enter


def capabilities() -> dict[str, Any]:
    """What the handlers stand for, together."""
    return {name: value for each in HANDLERS.values() for name, value in each.capabilities.items()}


EACH_PROGRAM: list[Callable[[Any], None]] = []
"""Called with each program that becomes the session's: by launch, by restart, or where it is attached to."""


def each_program(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Call the decorated function with the session whenever `session.program` is another one than before.

    It sets on the new program what the client asked for earlier: breakpoints, what to catch.
    """
    EACH_PROGRAM.append(hook)
    return hook
