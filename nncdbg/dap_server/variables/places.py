"""Places behind the numbers of `Handles`, and how to find them again at a later stop.

Memory references are addresses in an address space of the session.  Every value has a region of 1 TiB, with
its elements in C order.  So the same value at the same place of the stack has the same address at every stop,
and an address plus an offset is an address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nncdbg.dap_server.registry import State
from nncdbg.dap_server.variables.value_text import is_tensor
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.expression import evaluate, spelled
from nncdbg.presentation.elements import is_text
from nncdbg.text.lexemes import integer_of

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.ir.records import Path
    from nncdbg.target.records import Frame
    from nncdbg.target.target import Scope, Target


@dataclass(frozen=True, slots=True)
class FramePlace:
    """The frame at `depth` (0: the entry graph), as long as it belongs to the block at `path`.

    `formula` is the op of the block's micro program, None for a block of the program.
    """

    depth: int
    path: Path
    formula: str | None


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line of the user's model that a frame's statement comes from: `number` 0 is the innermost one."""

    frame: FramePlace
    number: int


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A call of a function of the user's source, by its number from the innermost, as `frame` is."""

    frame: FramePlace
    number: int


@dataclass(frozen=True, slots=True)
class ScopePlace:
    """A group of values of a frame, by its displayed name; of the names of a call, with its number."""

    frame: FramePlace
    scope: str
    call: int = 0


@dataclass(frozen=True, slots=True)
class ContentPlace:
    """A value of a frame, or the part of it at `index`; with `sequence` the first index is a list item.

    `text` is a value's name without sigil; an expression; or the number of a slot, for an operand in place.
    """

    frame: FramePlace
    text: str
    index: tuple[int, ...] = ()
    kind: Literal["value", "previous", "expression", "slot"] = "value"
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class StatisticsPlace:
    """The ten statistics of a tensor."""

    of: ContentPlace


@dataclass(frozen=True, slots=True)
class DeferredPlace:
    """A value that is computed only on request; it has one child, which replaces it."""

    of: ContentPlace | StatisticsPlace


@dataclass(frozen=True, slots=True)
class HoverPlace:
    """The children of `of` (None: none) after the gradient of the loss, which is at `gradient`.

    `text` describes the gradient; `opens` is the number of its named and indexed children.
    """

    of: ContentPlace | None
    gradient: ContentPlace
    loss: str
    text: str
    opens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MorePlace:
    """The children of a place from number `start` on; `filter` is their kind."""

    of: ContentPlace | HoverPlace | ScopePlace
    filter: Literal["indexed", "named"] | None
    start: int


Container: TypeAlias = "ScopePlace | ContentPlace | StatisticsPlace | DeferredPlace | HoverPlace | MorePlace"
"""Place of a `variablesReference`."""


NAMES = "Names"
"""The scope with the names of a call of the user's source."""

NOTHING: Any = object()
"""What `content_at` returns for a place without a value."""


def place_of(frame: Frame) -> FramePlace:
    """The place of a frame of the current stack."""
    return FramePlace(frame.depth, frame.place.path, frame.place.micro)


def frame_at(target: Target, depth: int) -> Frame | None:
    """The frame at a depth of the current stack; None if it is not that deep."""
    number = target.frame(0).depth - depth
    return target.frame(number) if number >= 0 else None


def frame_of(session: Session, place: FramePlace) -> Frame | None:
    """The frame at a place; None if it is gone."""
    frame = frame_at(session.program.target, place.depth)
    return frame if frame is not None and place_of(frame) == place else None


def numbered_frame(session: Session, number: int | None) -> Frame:
    """The frame with a number of `Handles`, by default the innermost.  Raises UsageError if it is gone."""
    if number is None:
        return session.program.target.frame(0)
    place = place_of_frame(session, number)
    frame = frame_of(session, place) if place is not None else None
    if frame is None:
        raise UsageError("the frame no longer exists", hint="request the stack again")
    return frame


def place_of_frame(session: Session, number: int) -> FramePlace | None:
    """The frame with a number, for a line of the user's model the frame of its statement; None if unknown.

    A call of the user's source is selected, so that expressions have its names.
    """
    place = session.handles.place(number)
    if isinstance(place, (FramePlace, CallPlace)) and session.program.source is not None:
        session.program.source.selected = place.number if isinstance(place, CallPlace) else 0
    if isinstance(place, (SourcePlace, CallPlace)):
        return place.frame
    return place if isinstance(place, FramePlace) else None


def frame_depth(session: Session, number: int) -> int | None:
    """The depth of the frame with a number; None if it is gone."""
    place = place_of_frame(session, number)
    frame = frame_of(session, place) if place is not None else None
    return frame.depth if frame is not None else None


def statement_of(session: Session, frame: Frame) -> tuple[int, bool]:
    """(number, whether it has run) of the current statement of a frame.

    That is the next one; in the frame of a stop at a statement that has just run, that statement.
    """
    if session.state is State.RUNNING:
        return frame.place.pc, False
    return frame.current.pc, frame.ran


def has_value(target: Target, frame: Frame, name: str) -> bool:
    """Return whether a frame itself has a value with a name at this moment."""
    if name not in frame.names:
        return False
    state = target.state(name, frame.number)
    # A state has its value in the innermost frame with it, another value in this frame or around it.
    return (
        state.status not in ("waiting", "awaited") and state.depth is not None and state.depth >= frame.depth
    )


def content_at(session: Session, place: ContentPlace) -> Any:
    """The current value at a place, on its device (see `Scope.content`); NOTHING if there is none.

    Dropped values are recomputed.  Raises NotComputed for a value that is no longer valid.
    """
    content = _whole(session, place)
    if content is NOTHING or not place.index:
        return content
    index = place.index
    try:
        if place.sequence:
            content, index = content[index[0]], index[1:]
        # A tensor without axes must stay one, and not become a number.
        return content[(*index, ...)] if index else content
    except (IndexError, TypeError):
        return NOTHING


def _whole(session: Session, place: ContentPlace) -> Any:
    frame, target = frame_of(session, place.frame), session.program.target
    if frame is None:
        return NOTHING
    if place.kind == "slot":
        return next(target.contents([int(place.text)], frame.number))
    scope = target.scope(frame.number)
    if place.kind == "expression":
        return _evaluated(scope, place.text)
    if not has_value(target, frame, place.text):
        return NOTHING
    return scope.content(place.text) if place.kind == "value" else scope.previous_content(place.text)


def _evaluated(scope: Scope, text: str) -> Any:
    """The value of an expression; NOTHING if it has none at this moment."""
    try:
        return evaluate(scope.read(text), scope)
    except NncdbgError:
        return NOTHING


def evaluate_name(place: ContentPlace) -> str | None:
    """The expression for the value at a place; None if there is none."""
    if place.kind == "slot" or place.sequence:
        return None
    if place.kind == "expression":
        text = f"({place.text})" if place.index else place.text
    else:
        text = f"prev({spelled(place.text)})" if place.kind == "previous" else spelled(place.text)
    return f"{text}[{', '.join(map(str, place.index))}]" if place.index else text


def call_of(session: Session, number: int) -> int | None:
    """The call of the user's source with the names in the container with a number; None for others."""
    container = session.handles.place(number)
    while isinstance(container, MorePlace):
        container = container.of
    return container.call if isinstance(container, ScopePlace) and container.scope == NAMES else None


def child_place(session: Session, number: int, name: str) -> ContentPlace | None:
    """The place of the child `name` of the container with a number; None if it is not a value."""
    container = session.handles.place(number)
    while isinstance(container, (MorePlace, DeferredPlace, HoverPlace)):
        container = container.of
    if isinstance(container, ScopePlace) and container.scope == NAMES:
        source = session.program.source
        frames = source.frames() if source is not None else ()
        value = frames[container.call].names.get(name) if container.call < len(frames) else None
        return None if value is None else ContentPlace(container.frame, spelled(value), kind="expression")
    item = integer_of(name[1:-1])
    if isinstance(container, ContentPlace) and name[:1] == "[" and item is not None and item >= 0:
        sequence = container.sequence or isinstance(content_at(session, container), list)
        return replace(container, index=(*container.index, item), sequence=sequence)
    frame = frame_of(session, container.frame) if isinstance(container, ScopePlace) else None
    if frame is None:
        return None
    if name[:1] == "%" and name[1:] in frame.names:
        return ContentPlace(place_of(frame), name[1:])
    names = session.program.target.names(frame.number)
    full = next((each for each in frame.names if name in (spelled(each), names.spelled(each))), None)
    return ContentPlace(place_of(frame), full) if full is not None else None


def values_from(session: Session, frame_number: int | None) -> Scope:
    """Names and values as seen from a frame, by default the innermost.

    Raises UsageError if the frame is gone.
    """
    frame = numbered_frame(session, frame_number)
    return session.program.target.scope(frame.number, session.queue.check_cancelled)


_REGION = 40
"""Bits of an offset within the region of a value."""


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """The value `name` as seen from the frame with the number `frame`."""

    frame: int
    name: str


def memory_reference(session: Session, frame: int, name: str, content: Any) -> str | None:
    """The address of a value; None for a value without bytes (strings, sequences, absent optionals)."""
    if not is_tensor(content) or is_text(content):
        return None
    return address_of(session, MemoryPlace(frame, name), 0)


def address_of(session: Session, place: MemoryPlace, offset: int) -> str:
    """The address of a byte of a value, in hex."""
    return hex((session.handles.number(place) << _REGION) + offset)


def number_in(reference: str) -> int:
    """The number of a value's place, from the address of its first byte."""
    return int(reference, 16) >> _REGION


def resolved(session: Session, reference: str, offset: int | None) -> tuple[MemoryPlace, int]:
    """(value, offset into it) of an address plus an offset.  Raises UsageError for an invalid address."""
    try:
        address = int(reference, 0)
    except ValueError:
        raise UsageError(
            f"{reference!r} is not a memory reference", hint="use the `memoryReference` of a variable"
        ) from None
    # The upper half of a region belongs to the next value: addresses shortly before it hold nothing.
    number = (address + (1 << (_REGION - 1))) >> _REGION
    place = session.handles.place(number)
    if not isinstance(place, MemoryPlace):
        raise UsageError(
            f"unknown or expired memory reference {reference}", hint="request the variables again"
        )
    return place, address - (number << _REGION) + (offset or 0)
