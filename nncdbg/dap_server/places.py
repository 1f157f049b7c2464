"""What the numbers of `Handles` stand for, and how each is found again at a later stop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.values import Values
    from nncdbg.textual_repr.listing import Path


@dataclass(frozen=True, slots=True)
class FramePlace:
    """The frame at `depth` (0: the entry graph), as long as it is one of the block at `path`.

    `formula` is the op whose micro program the block belongs to, None for a block of the program.
    """

    depth: int
    path: Path
    formula: str | None


def frame_place(session: Session, depth: int) -> FramePlace:
    """The place of the frame at a depth of the stack as it is now."""
    code = session.program.debugger.machine.frames[depth].code
    formula = None if code.formula is None else str(code.graph.name)
    return FramePlace(depth, code.path, formula)


def frame_depth(session: Session, number: int) -> int | None:
    """The depth of the frame with a number; None if it is gone."""
    place = session.handles.place(number)
    if not isinstance(place, FramePlace):
        return None
    frames = session.program.debugger.machine.frames
    if place.depth >= len(frames) or frame_place(session, place.depth) != place:
        return None
    return place.depth


def values_from(session: Session, frame_number: int | None) -> Values:
    """Names and values as seen from a frame, the innermost if none is given.

    Raises UsageError if the frame is gone.
    """
    values = session.program.debugger.values
    if frame_number is None:
        return replace(values, depth=-1)
    depth = frame_depth(session, frame_number)
    if depth is None:
        raise UsageError("this frame is gone", hint="ask for the stack again")
    return replace(values, depth=depth)
