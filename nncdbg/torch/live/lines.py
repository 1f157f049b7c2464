"""The lines of the user's source that a running script executes, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any

from nncdbg.engine.ops.aten.internals import current_backward
from nncdbg.ir.search import same_file
from nncdbg.target.source import LineGoal
from nncdbg.torch.live.operators import Operator
from nncdbg.torch.recording import BACKWARD, FORWARD, OPTIMIZER, Recorder
from nncdbg.torch.source_frames import SourceFrames, Visit
from nncdbg.torch.source_lines import call_again, is_user_code


@dataclass(frozen=True, eq=False, slots=True)
class LiveLine:
    """One execution of a line; `call` is equal for the lines of one call.

    `derives`: it is a line of a backward pass, or the update of a parameter, as in a `SourceTrace`.
    """

    call: object
    file: str
    line: int
    of: Visit | str | None = None
    """What it is about: a visit of the user, the visit that it derives, or the name of a parameter."""
    derives: bool = False


class LiveLines:
    """The stack of lines at the latest operator, outermost first, as the trace of a recorded step has it.

    `recorder` returns the recording of the present step, without which a backward pass has no lines of the
    forward pass.  `named` returns parameters, gradients and moments by name.
    """

    def __init__(
        self, recorder: Callable[[], Recorder | None], named: Callable[[], Mapping[str, Any]]
    ) -> None:
        self.stack: Sequence[LiveLine] = ()
        self.begun = 0
        """The place in the stack of the first line that has begun with the latest operator."""
        self._frames = SourceFrames(None)
        self._recorder, self._named = recorder, named
        self._recorded: Recorder | None = None
        """The recording that `_forward` is about."""
        self._counted = 0
        """The number of its events in `_forward`."""
        self._forward: dict[int, Visit | None] = {}
        """The visits of the forward pass by the number of their autograd node."""
        self._pass: Visit | None = None
        """The line that runs the present backward pass."""
        self._parameters: dict[int, str] = {}
        """Parameters by the identities of the tensors that an update of them uses."""
        self._phase = ""
        self._is_at: Callable[[str, int], bool] = lambda file, line: True
        self._wanted: dict[int, frozenset[int]] = {}
        """The lines with breakpoints of codes, by the identity of the code."""

    def look_for(self, is_at: Callable[[str, int], bool]) -> None:
        """Set which lines of which files have breakpoints."""
        self._is_at = is_at
        self._wanted.clear()

    def at_breakpoint(self, frame: FrameType | None) -> bool:
        """Return whether a line that a frame, or one around it, executes now has a breakpoint."""
        wanted = self._wanted
        while frame is not None:
            code = frame.f_code
            lines = wanted.get(id(code))
            if lines is None:
                if code is call_again.__code__:
                    return True
                lines = wanted[id(code)] = self._lines_with_breakpoints(code)
            if lines and frame.f_lineno in lines:
                return True
            frame = frame.f_back
        return False

    def _lines_with_breakpoints(self, code: CodeType) -> frozenset[int]:
        """Return the lines of code with breakpoints.  The code is kept."""
        if not is_user_code(code):
            return frozenset()
        lines = {line for _, _, line in code.co_lines() if line is not None}
        return frozenset(line for line in lines if self._is_at(code.co_filename, line))

    def pass_over(self) -> None:
        """Enter an operator at none of whose lines is a breakpoint: a later one begins a line with one."""
        self.stack, self.begun, self._phase = (), 0, ""

    def at(self, operator: Operator) -> None:
        """Enter an operator that has just run."""
        assert operator.frame is not None
        visit = self._frames.at(operator.frame, 0, current_backward())
        stack = self._lines_of(_around(visit))
        if operator.phase == BACKWARD:
            stack += self._derived(stack, operator)
        elif operator.phase == OPTIMIZER and stack:
            stack += self._updated(stack, operator)
        self._phase = operator.phase
        self.begun = _shared(self.stack, stack)
        self.stack = stack

    def close(self, frame: FrameType | None) -> None:
        """Leave the frames of the user."""
        if frame is not None:
            self._frames.close(frame)

    def _lines_of(self, visits: Sequence[Visit]) -> list[LiveLine]:
        """Return the lines of visits: the same as at the last operator, if they are the same executions."""
        pairs = zip(self.stack, visits, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0].of is pair[1] and not pair[0].derives, pairs))
        new = [LiveLine(each.call, each.call.file, each.line, each) for each in visits[same:]]
        return [*self.stack[:same], *new]

    def _derived(self, stack: Sequence[LiveLine], operator: Operator) -> Iterator[LiveLine]:
        """Yield the lines of the forward pass that an operator of a backward pass derives."""
        recorder = self._recorder()
        if recorder is None or not recorder.events:
            return
        event = recorder.events[-1]
        if self._phase != BACKWARD:
            self._pass = event.visit
        if event.visit is None or event.visit is not self._pass:
            return  # A hook of the user.
        before = self.stack[len(stack) :] if self.stack[: len(stack)] == stack else ()
        forward = self._visits(recorder).get(event.sequence)
        if forward is None:
            yield from before
            return
        mirrored, calls = _around(forward), {each.call for each in _around(event.visit)}
        while len(mirrored) > 1 and mirrored[1].call in calls:
            del mirrored[0]
        pairs = zip(mirrored, before, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1].of, pairs))
        yield from before[:same]
        last = before[same] if same < len(before) else None
        for each in mirrored[same:]:
            # Another line of the same call.
            again = last is not None and isinstance(last.of, Visit) and last.of.call is each.call
            call = last.call if again and last is not None else object()
            last = None
            yield LiveLine(call, each.call.file, each.line, each, derives=True)

    def _visits(self, recorder: Recorder) -> Mapping[int, Visit | None]:
        if recorder is not self._recorded:
            self._recorded, self._counted, self._forward = recorder, 0, {}
        for event in recorder.events[self._counted :]:
            if event.phase == FORWARD:
                self._forward.setdefault(event.sequence, event.visit)
        self._counted = len(recorder.events)
        return self._forward

    def _updated(self, stack: Sequence[LiveLine], operator: Operator) -> Iterator[LiveLine]:
        """Yield the update of the parameter that an operator of an optimizer is about."""
        if self._phase != OPTIMIZER:
            named = self._named()
            self._parameters = {
                id(tensor): name if (owner := name.rpartition(".")[0]) not in named else owner
                for name, tensor in named.items()
            }
        operands = (self._parameters.get(id(each)) for each in operator.operands if each is not None)
        parameter = next(filter(None, operands), None)
        same = self.stack[: len(stack)] == stack
        before = self.stack[len(stack)] if same and len(self.stack) > len(stack) else None
        if before is not None and parameter in (None, before.of):
            yield before
        elif parameter is not None:
            call = before.call if before is not None else object()
            here = stack[-1]
            yield LiveLine(call, here.file, here.line, parameter, derives=True)


def _around(visit: Visit | None) -> list[Visit]:
    """Return a visit and those that called it, outermost first."""
    found = []
    while visit is not None:
        found.append(visit)
        visit = visit.call.caller
    return found[::-1]


def _shared(before: Sequence[LiveLine], now: Sequence[LiveLine]) -> int:
    """Return how many lines two stacks share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(before, now, strict=False)))


def reaches(goal: LineGoal, lines: LiveLines) -> Callable[[], int | None]:
    """Return a function that says at which place of the stack a move ends at an operator; None for none.

    The move begins at the present stack.
    """
    start = lines.stack[: goal.depth + 1]
    own, around = start[-1] if start else None, {each.call for each in start}

    def wanted(each: LiveLine) -> bool:
        if goal.kind == "until":
            return each.line == goal.line and not each.derives and same_file(each.file, goal.file)
        if goal.kind == "later" and own is not None and each.call is own.call:
            return each.line > own.line
        return goal.kind == "step" or each.call in around

    def reached() -> int | None:
        stack, begun = lines.stack, lines.begun
        if goal.kind == "statement" or not stack:
            return None if goal.kind == "until" else len(stack)
        if goal.kind == "finish":
            left = own is None or all(each.call is not own.call for each in stack)
            return min(begun, len(stack) - 1) if left else None
        return next((depth for depth in range(begun, len(stack)) if wanted(stack[depth])), None)

    return reached
