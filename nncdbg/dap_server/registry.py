"""Registry of handlers: each declares its command, the states that allow it, and its capabilities.

    @request("stepBack", when=STOPPED, capability="supportsStepBack")
    def step_back(session: Session, arguments: StepBackArguments) -> None: ...

Dispatch, the check of states and the answer to `initialize` all use this one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

Handle: TypeAlias = Callable[[Any, Any], Any]
"""``handle(session, arguments) -> body``; the body is a record, a mapping, or None for none."""

H = TypeVar("H", bound=Handle)

Reads: TypeAlias = "bool | Callable[[bytes | None], bool]"


class State(Enum):
    """State of a session.  The value is the error for a request that does not fit."""

    NEW = "the session has not started: send initialize first"
    INITIALIZED = "no program is being debugged: send launch or attach first"
    CONFIGURING = "the program has not started: send configurationDone first"
    RUNNING = "the program is running: pause it first"
    STOPPED = "the program is stopped: continue it first"
    ENDED = "the program has ended: restart it, or disconnect"


ALWAYS = frozenset(State)
LIVE = frozenset({State.CONFIGURING, State.RUNNING, State.STOPPED, State.ENDED})
"""States with a program."""
CONFIGURABLE = LIVE | {State.INITIALIZED}
"""States in which breakpoints can be set."""
STILL = frozenset({State.CONFIGURING, State.STOPPED, State.ENDED})
"""States with a program that does not move."""
STOPPED = frozenset({State.STOPPED})


@dataclass(frozen=True, slots=True)
class Handler:
    """Handler of one command.

    `arguments`: record of the arguments if it is not the protocol's own.  `anytime`: touches nothing that
    moves, so it is served at once in every state.  `moves`: moves the program, and cancels waiting reads of
    the old place.  `reads`: this request only reads, or a function of its arguments, as JSON, that returns
    whether it does.  `values`: reads or sets values of the program; while the program runs it is served
    between two statements, and refers to that moment.  `title` is that of its progress; "" for the command.
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
    title: str

    def is_read(self, arguments: bytes | None) -> bool:
        """Return whether a request with these arguments only reads."""
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
    title: str = "",
) -> Callable[[H], H]:
    """Register the decorated function as the handler of `command`.

    `capability` is the name of a capability that it makes true, or a mapping of several to their values.
    """
    capabilities = {capability: True} if isinstance(capability, str) else dict(capability or {})

    def enter(handle: H) -> H:
        assert command not in HANDLERS, f"{command} is handled twice"
        HANDLERS[command] = Handler(
            command, handle, when, capabilities, arguments, anytime, moves, reads, values, title
        )
        return handle

    return enter


def capabilities() -> dict[str, Any]:
    """The capabilities of all handlers together."""
    return {name: value for each in HANDLERS.values() for name, value in each.capabilities.items()}


EACH_PROGRAM: list[Callable[[Any], None]] = []
"""Called with the session for each new program: at launch, at restart, or when it is attached to."""


def each_program(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """Call the decorated function with the session whenever `session.program` is a new program.

    It sets the client's earlier requests on the new program: breakpoints, what to catch.
    """
    EACH_PROGRAM.append(hook)
    return hook
