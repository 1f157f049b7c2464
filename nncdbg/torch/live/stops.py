"""The breakpoints and catches of a running script, for commands."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nncdbg.errors import UsageError
from nncdbg.target.breakpoint_syntax import is_computed, parse_place, plain_name
from nncdbg.target.stops import (
    Catch,
    StopPoint,
    Stops,
    catches_of,
    no_assertion,
    no_stop_at,
    no_watched_expression,
    setup_commands,
    unknown_number,
)
from nncdbg.torch.live.breakpoints import (
    LiveBreakpoint,
    live_breakpoint,
    parse_breakpoint,
    parse_condition,
)
from nncdbg.torch.live.mode import stop_words
from nncdbg.torch.live.training import LiveTraining

if TYPE_CHECKING:
    from nncdbg.torch.live.debugger import LiveDebugger


class ScriptStops(Stops):
    """The breakpoints and catches of the script of `training`."""

    def __init__(self, training: LiveTraining, live: LiveDebugger | None = None) -> None:
        self.training, self._live = training, live

    def numbers(self) -> set[int]:
        return {each.number for each in self.training.mode.breakpoints}

    def points(self) -> Sequence[StopPoint]:
        return [_stop_point(each) for each in self.training.mode.breakpoints]

    def here(self) -> str:
        stop = self.training.stop
        if stop is None or not stop.operator.lines:
            raise UsageError("there is no current line", hint="break train.py:27")
        return "{}:{}".format(*stop.operator.lines[0])

    def stop_at(self, numbers: Container[int]) -> bool:
        live = self._live
        if live is None or not live.at_present:
            return False
        due = self.training.mode.due_at(numbers, live.live.operator)
        if due:
            words, reached = stop_words(due)
            live.stop = replace(live.stop, reason="breakpoint", detail=words, breakpoints=reached)
        return bool(due)

    def add(self, text: str, *, temporary: bool = False, log: str | None = None) -> StopPoint:
        return self._add(parse_breakpoint(self._next, text, temporary=temporary, log=log))

    def watch(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        name = plain_name(expression)
        if name is None or is_computed(expression):
            raise no_watched_expression()
        return self._add(live_breakpoint(self._next, "value", name, when, hits, None))

    def check(self, expression: str, when: str | None, hits: str | None) -> StopPoint:
        raise no_assertion()

    def at(self, place: str) -> Sequence[StopPoint]:
        wanted = live_breakpoint(0, *parse_place(place), None, None, None)
        there = [
            _stop_point(each)
            for each in self.training.mode.breakpoints
            if (each.kind, each.target) == (wanted.kind, wanted.target)
        ]
        if not there:
            raise no_stop_at(place)
        return there

    def delete(self, number: int) -> None:
        gone, training = self._find(number), self.training
        training.set_breakpoints([each for each in training.mode.breakpoints if each is not gone])

    def enable(self, number: int, enabled: bool) -> None:
        self._find(number).enabled = enabled
        self.training.mode.changed()

    def set_condition(self, number: int, when: str | None) -> StopPoint:
        changed = self._find(number)
        changed.condition = parse_condition(when) if when is not None else None
        return _stop_point(changed)

    def ignore(self, number: int, count: int) -> StopPoint:
        changed = self._find(number)
        changed.skipped = changed.count + max(0, count)
        return _stop_point(changed)

    def catches(self) -> Sequence[Catch]:
        return catches_of(self.training.mode.catches)

    def catch(self, kinds: Sequence[str], when: str | None) -> None:
        condition = parse_condition(when) if when is not None else None
        self.training.catch(dict.fromkeys(kinds, condition))

    def uncatch(self, kinds: Sequence[str]) -> None:
        mode = self.training.mode
        mode.catches = {kind: when for kind, when in mode.catches.items() if kinds and kind not in kinds}
        mode.changed()

    @property
    def _next(self) -> int:
        """The number of the next breakpoint."""
        return self.training.last_number + 1

    def _add(self, added: LiveBreakpoint) -> StopPoint:
        self.training.add(added)
        return _stop_point(added)

    def _find(self, number: int) -> LiveBreakpoint:
        for each in self.training.mode.breakpoints:
            if each.number == number:
                return each
        raise unknown_number(number)


def _stop_point(breakpoint: LiveBreakpoint) -> StopPoint:
    ignored = max(0, breakpoint.skipped - breakpoint.count)
    return StopPoint(
        number=breakpoint.number,
        text=str(breakpoint),
        kind=breakpoint.kind,
        place=breakpoint.place,
        commands=setup_commands(*breakpoint.commands, enabled=breakpoint.enabled, ignored=ignored),
        when=breakpoint.condition.text if breakpoint.condition is not None else None,
        hits=breakpoint.hits,
        enabled=breakpoint.enabled,
        temporary=breakpoint.temporary,
        log=breakpoint.log,
        count=breakpoint.count,
        ignored=ignored,
    )
