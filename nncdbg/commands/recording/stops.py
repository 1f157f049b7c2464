"""A stop as recorded: its reason and place, and the values there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from nncdbg.errors import NncdbgError, NotComputed
from nncdbg.presentation.stops import concerned_values
from nncdbg.presentation.tensor_text import described
from nncdbg.stats.digests import digest
from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.target.records import Stop
    from nncdbg.target.target import Target

USER_PAUSE = "pause"
"""The reason of a stop that has no detail if the user paused the program."""

INTERRUPT = "Ctrl-C"
"""The detail of a stop of a running script that the user interrupted."""


class RecordedValue(msgspec.Struct, frozen=True):
    """A value: the digest of its type, shape and bytes, and its line with statistics."""

    digest: str
    text: str


class RecordedStop(msgspec.Struct, frozen=True, tag_field="entry", tag="stop", kw_only=True):
    """A stop.

    `line` is that of the statement concerned.  `frames` are the frames with their lines, innermost first.
    `statements` is the number of executed statements on `branch`.  `values` are the operands and results of
    a statement that caused the stop, the latest results otherwise, and the outputs at the end.
    """

    reason: str
    detail: str
    line: int | None
    frames: list[str]
    statements: int
    branch: int
    breakpoints: list[int]
    error: str | None
    values: dict[str, RecordedValue]

    @property
    def is_pause(self) -> bool:
        """Return True if the user paused the program."""
        return self.reason == USER_PAUSE and not self.detail

    @property
    def is_interrupt(self) -> bool:
        """Return True if the user interrupted a running script."""
        return self.reason == USER_PAUSE and self.detail == INTERRUPT

    def __str__(self) -> str:
        """Return `breakpoint 1 at line 14 in @sharpen #2, after 23 statements`."""
        numbers = "".join(f" {number}" for number in self.breakpoints)
        branch = f" of branch {self.branch}" if self.branch else ""
        place = ", called from ".join(self.frames)
        words = f"{self.reason}{numbers} at {place}, after {self.statements} statements{branch}"
        more = self.error or self.detail
        return f"{words}: {more}" if more else words


def recorded_stop(target: Target, stop: Stop, *, values: bool = True) -> RecordedStop:
    """Return a stop of a target as recorded; without `values`, only its place."""
    error, now = stop.error, target.now
    return RecordedStop(
        reason=stop.reason,
        detail=stop.detail,
        line=stop.line,
        frames=list(_frames(target)),
        statements=now.tick,
        branch=now.branch,
        breakpoints=list(stop.breakpoints),
        error=error.message if isinstance(error, NncdbgError) else None if error is None else str(error),
        values=dict(_values(target, stop)) if values else {},
    )


def _frames(target: Target) -> Iterator[str]:
    for frame in target.frames():
        yield f"line {frame.line} in {frame.title}"


def _values(target: Target, stop: Stop) -> Iterator[tuple[str, RecordedValue]]:
    if stop.reason == "end":
        found = dict(target.outputs or {})
    else:
        found = {}
        for name in concerned_values(target, stop, written=True):
            try:
                found[name] = target.value(name)
            except NotComputed:
                continue
    for name, content in found.items():
        yield name, RecordedValue(digest(content), described(name, content).plain)


def differences(
    recorded: RecordedStop, replayed: RecordedStop, *, only_place: bool = False
) -> list[tuple[str, str]]:
    """Return (recorded, replayed) for each difference of two stops; an empty list if they are the same.

    With `only_place`, the reason may differ.  So may that of a pause by the user: a replay goes there in
    another way.
    """
    only = only_place or recorded.is_pause
    if _place(recorded, only) != _place(replayed, only):
        return [(str(recorded), str(replayed))]
    found = []
    names = recorded.values if recorded.is_pause else {**recorded.values, **replayed.values}
    for name in names:
        before, now = recorded.values.get(name), replayed.values.get(name)
        if before != now and (before is None or now is None or before.digest != now.digest):
            found.append((_text(name, before), _text(name, now)))
    return found


def _place(stop: RecordedStop, only: bool) -> tuple[Any, ...]:
    """Return what two stops have in common; `only` the place of a pause, without its reason."""
    common = stop.line, stop.frames, stop.statements, stop.branch, stop.error
    # The words for a breakpoint depend on how it was set.
    detail = "" if stop.reason == "breakpoint" else stop.detail
    return common if only else (*common, stop.reason, detail, stop.breakpoints)


def _text(name: str, value: RecordedValue | None) -> str:
    if value is None:
        return f"no value %{name_text(name)}"
    return f"{value.text} (digest {value.digest[:8]})"
