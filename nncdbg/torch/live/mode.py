"""The dispatch mode of a running script: runs each operator, and stops at the places that are set.

An operator without a breakpoint costs one lookup.  With `catch`, its results are read once more.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import torch

from nncdbg.engine.ops.aten.internals import DispatchMode, is_higher_order, is_traced, without_dispatch
from nncdbg.engine.ops.aten.operators import FLOATS, takes_memory, torch_operator
from nncdbg.engine.ops.aten.signatures import DTYPES, Signature, flat_results, signature_of, written_tensors
from nncdbg.errors import NncdbgError
from nncdbg.expression import Expression, condition
from nncdbg.text.torch_names import OF_TORCH
from nncdbg.torch.finiteness import is_finite
from nncdbg.torch.live.breakpoints import LiveBreakpoint, holds, message_of
from nncdbg.torch.live.lines import LiveLines
from nncdbg.torch.live.operators import Operator, OperatorScope
from nncdbg.torch.recording import UNSEEN, Recorder
from nncdbg.torch.sharded_tensors import PLAIN, wrapping

Goal = Callable[[Operator], bool]
"""Whether a step ends at an operator."""

LineReached = Callable[[], int | None]
"""At which line of the stack a move ends at the latest operator; None if it does not."""

Due: TypeAlias = "tuple[LiveBreakpoint, str]"
"""A breakpoint that stops the script, and what to add to its description."""


@dataclass(slots=True)
class LiveStop:
    """Why the script stops at an operator."""

    operator: Operator
    reason: str
    """breakpoint, exception, step or pause."""
    detail: str = ""
    breakpoints: tuple[int, ...] = ()
    """The numbers of the breakpoints that stop it."""
    depth: int | None = None
    """The place in the stack of lines, from the outermost, of the line at whose beginning it stops; None if
    it stops at the operator."""


@dataclass(slots=True)
class _Plan:
    """What an overload can stop at."""

    signature: Signature
    breakpoints: tuple[LiveBreakpoint, ...]
    checked: bool
    """Whether its results are searched for NaN and Inf."""
    harmless: Callable[[float], bool] | None
    """Whether a number as second argument makes no NaN and no Inf."""


class LiveMode(DispatchMode):
    """Runs the operators of a script; `stopped` is called at each stop, on the thread that runs them.

    `named` returns parameters and gradients by name, and `names` maps the identities of modules, parameters
    and buffers to names.
    """

    stops_compiler = False

    def __init__(
        self,
        stopped: Callable[[LiveStop], None],
        said: Callable[[str], None],
        named: Callable[[], Mapping[str, Any]],
    ) -> None:
        super().__init__()
        self.breakpoints: list[LiveBreakpoint] = []
        self.catches: dict[str, Expression | None] = {}
        self.names: Mapping[int, str] = {}
        self.calls: Counter[int] = Counter()
        """The number of calls of each module, by identity, once a breakpoint needs it."""
        self.goal: Goal | None = None
        """Where the step that the user requested ends."""
        self.line_goal: LineReached | None = None
        """Where the move by lines that the user requested ends."""
        self.lines: LiveLines | None = None
        """The lines of the user, if breakpoints or a move need them."""
        self.pausing = ""
        """Why the next operator stops the script; empty if it does not."""
        self.recorder: Recorder | None = None
        """Records each operator as well."""
        self.step = 1
        """The number of the training step that runs now."""
        self.optimizing = 0
        self.asleep = False
        """Whether operators run without stops."""
        self.suspended = False
        """Whether operators only run: they are those of nncdbg."""
        self._stopped = stopped
        self._said = said
        self._named = named
        self._plans: dict[Any, _Plan | None] = {}
        """None for an overload that only runs."""
        self._entered: set[Any] = set()
        """The operators whose implementations run other ones, which may stop the script."""
        self._explained = False
        """Whether an operator made a NaN or Inf that is caught, or that the user gave as a number."""
        self._everywhere: tuple[LiveBreakpoint, ...] = ()
        self._seen_bad = False
        """Whether a result had NaN or Inf: until then, what an operator writes to has none before it."""

    @property
    def idle(self) -> bool:
        """Whether no operator can stop the script, and none is recorded."""
        return not (self.catches or self._needs_all)

    @property
    def only_catches(self) -> bool:
        """Whether NaN and Inf alone can stop the script, and no operator is recorded."""
        return bool(self.catches) and not self._needs_all

    @property
    def _needs_all(self) -> bool:
        """Whether operators are recorded, or may stop the script although they make no NaN and no Inf."""
        stops = any(each.enabled for each in self.breakpoints) or self._moves or self.pausing
        return bool(stops) or self.recorder is not None

    @property
    def _moves(self) -> bool:
        """Whether the script runs to the end of a step or a move by lines."""
        return self.goal is not None or self.line_goal is not None

    def changed(self) -> None:
        """Use breakpoints and catches that were changed."""
        self._plans.clear()
        active = [each for each in self.breakpoints if each.enabled]
        self._everywhere = tuple(each for each in active if each.kind != "op")
        at_lines = [each for each in active if each.kind == "source"]
        if at_lines:
            self.follow_lines().look_for(lambda file, line: any(each.is_at(file, line) for each in at_lines))
        elif self.line_goal is None:
            self.leave_lines(None)

    def follow_lines(self) -> LiveLines:
        """Follow the lines of the user from now on."""
        if self.lines is None:
            self.lines = LiveLines(lambda: self.recorder, self._named)
        return self.lines

    def leave_lines(self, frame: FrameType | None) -> None:
        """Follow the lines of the user no more; `frame` is the innermost frame."""
        if self.lines is not None:
            self.lines.close(frame)
            self.lines = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.suspended:
            return func(*args, **(kwargs or {}))
        if types and wrapping(types) and not is_traced(types):
            # The tensors run operators on those of which they consist, at which the script may stop.
            if self.recorder is None:
                return NotImplemented
            return self.recorder.__torch_dispatch__(func, types, args, kwargs)
        try:
            plan = self._plans[func]
        except KeyError:
            plan = self._plan(func)
        if (
            plan is None and self.goal is None and self.line_goal is None and not self.pausing
        ) or self.asleep:
            if self.recorder is not None or func in self._entered:
                return self._run(func, types, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._watched(plan, func, types, args, kwargs or {})

    def _watched(
        self, plan: _Plan | None, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an operator that may stop the script."""
        if is_higher_order(func):
            return self._run(func, types, args, kwargs)
        checked = plan is not None and plan.checked
        if checked and plan is not None and plan.harmless is not None:
            checked = not is_harmless(plan.harmless, args, kwargs)
        spoiled = False
        if self._seen_bad and checked and plan is not None and plan.signature.written:
            spoiled = not _all_finite(written_tensors(plan.signature, args, kwargs))
        self._explained = False
        events = self.recorder.events if self.recorder is not None else ()
        count = len(events)
        result = self._run(func, types, args, kwargs)
        if self._explained:  # by an operator inside
            checked = False
        points = plan.breakpoints if plan is not None else ()
        suspected = checked and plan is not None and not spoiled and self._is_bad(plan, args, kwargs, result)
        self._seen_bad |= suspected
        if points or suspected or self._moves or self.pausing:
            operator = Operator(
                plan.signature if plan is not None else signature_of(func),
                args,
                kwargs,
                result,
                sys._getframe(2),
                self.step,
                self.optimizing > 0,
            )
            with without_dispatch():
                lines = self.lines
                if func.namespace in UNSEEN or (events and len(events) == count):
                    lines = None  # It is no statement of the step.
                if lines is not None:
                    if self.line_goal is not None or lines.at_breakpoint(operator.frame):
                        lines.at(operator)
                    else:
                        lines.pass_over()
                self._judge(operator, points, suspected, lines)
        return result

    def _run(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.recorder is not None:
            return self.recorder.__torch_dispatch__(func, types, args, kwargs)
        return self.run_inside(func, args, kwargs) if func in self._entered else func(*args, **kwargs)

    def _plan(self, func: Any) -> _Plan | None:
        plan = None
        if func.namespace not in OF_TORCH or is_higher_order(func):
            self._entered.add(func)
        if func.namespace not in UNSEEN and not is_higher_order(func):
            own = tuple(
                each for each in self.breakpoints if each.enabled and each.kind == "op" and each.matches(func)
            )
            signature = signature_of(func)
            operator = torch_operator(signature.name)
            # One that allocates, copies or makes a view computes no numbers.
            moves = operator.keeps_finite or signature.views or takes_memory(signature.name)
            checked = bool(self.catches) and not moves
            if own or self._everywhere or checked:
                plan = _Plan(signature, (*own, *self._everywhere), checked, operator.harmless_number)
        self._plans[func] = plan
        return plan

    @staticmethod
    def _is_bad(plan: _Plan, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
        """Return whether a result, or what the operator wrote, has NaN or Inf."""
        if result.__class__ is torch.Tensor:
            return not is_finite(result)
        results = (
            flat_results(result) if plan.signature.results else written_tensors(plan.signature, args, kwargs)
        )
        return not _all_finite(results)

    # -- stops -----------------------------------------------------------------------------

    def _judge(
        self,
        operator: Operator,
        points: Sequence[LiveBreakpoint],
        suspected: bool,
        lines: LiveLines | None,
    ) -> None:
        """Stop if a breakpoint, a catch, a step or a pause is due."""
        due = [
            (each, why)
            for each in points
            if each.kind != "source"
            and each.reached(operator, self.names, self.calls)
            and (why := self._due(each, operator)) is not None
        ]
        depth, at_line = self._due_at_lines(points, operator, lines)
        due += at_line
        caught = self._caught(operator) if suspected else ""
        stop = None
        if caught:
            stop = LiveStop(operator, "exception", caught)
        elif due:
            stop = LiveStop(operator, "breakpoint", *stop_words(due), depth=depth)
        elif self.pausing:
            stop = LiveStop(operator, "pause", self.pausing)
        elif self.goal is not None and self.goal(operator):
            stop = LiveStop(operator, "step")
        elif lines is not None and self.line_goal is not None and (end := self.line_goal()) is not None:
            stop = LiveStop(operator, "step", depth=end if end < len(lines.stack) else None)
        if stop is None:
            return
        self._remove_temporary(due)
        self.goal, self.line_goal, self.pausing = None, None, ""
        self._stopped(stop)

    def _due_at_lines(
        self, points: Sequence[LiveBreakpoint], operator: Operator, lines: LiveLines | None
    ) -> tuple[int | None, list[Due]]:
        """Return the outermost line that begins at an operator with breakpoints that are due, and these.

        The line is given by its place in the stack.  Those of lines inside of it are counted later.
        """
        at_lines = [each for each in points if each.kind == "source"]
        stack, begun = (lines.stack, lines.begun) if lines is not None and at_lines else ((), 0)
        for depth in range(begun, len(stack)):
            line = stack[depth]
            there = [each for each in at_lines if not line.derives and each.is_at(line.file, line.line)]
            due = [(each, why) for each in there if (why := self._due(each, operator)) is not None]
            if due:
                return depth, due
        return None, []

    def due_at(self, numbers: Container[int], operator: Operator) -> list[Due]:
        """Count breakpoints of a line that begins at an operator, and return those that stop there."""
        there = [each for each in self.breakpoints if each.number in numbers and each.enabled]
        due = [(each, why) for each in there if (why := self._due(each, operator)) is not None]
        self._remove_temporary(due)
        return due

    def _remove_temporary(self, due: Sequence[Due]) -> None:
        gone = {each.number for each, _ in due if each.temporary}
        if gone:
            self.breakpoints = [each for each in self.breakpoints if each.number not in gone]
            self.changed()

    def _due(self, found: LiveBreakpoint, operator: Operator) -> str | None:
        """Return None if a breakpoint that is reached does not stop, otherwise what its description lacks."""
        true, failure = holds(found, operator, self._named())
        if not true:
            return None
        found.count += 1
        if not failure and not found.due():
            return None
        if found.log is not None and not failure:
            self._said(message_of(found, operator, self._named()))
            return None
        return f"; {failure}" if failure else ""

    def _caught(self, operator: Operator) -> str:
        """Return what is caught at an operator: a NaN or Inf that no operand has; empty if nothing is."""
        tests: dict[str, Callable[[Any], Any]] = {"nan": torch.isnan, "inf": torch.isinf}
        for kind, when in self.catches.items():
            test = tests[kind]
            # The operands that the operator writes to were checked before it ran.
            written = {id(each) for each in operator.written}
            read = (each for each in operator.operands if id(each) not in written)
            if not _some(operator.results, test) or _some(read, test):
                continue
            self._explained = True
            numbers = [*operator.args, *operator.kwargs.values()]
            if any(isinstance(each, (float, complex)) and not math.isfinite(abs(each)) for each in numbers):
                continue  # The user gave it, as in a mask.
            detail = ""
            if when is not None:
                try:
                    if not condition(when, OperatorScope(operator, self._named())):
                        continue
                except NncdbgError as error:
                    detail = f"; its condition failed: {error.message}"
            name = {"nan": "NaN", "inf": "Inf"}[kind]
            words = f"{operator.signature.name} produced {name} from operands without {name}"
            return f"catch {kind}: {words}{detail}"
        return ""


def stop_words(due: Sequence[Due]) -> tuple[str, tuple[int, ...]]:
    """Return the description of a stop at breakpoints, and their numbers."""
    words = "; ".join(f"breakpoint {each.number}, {each}{why}" for each, why in due)
    return words, tuple(each.number for each, _ in due)


_FLOATS = frozenset(dtype for dtype, name in DTYPES.items() if name in FLOATS)


def is_harmless(rule: Callable[[float], bool], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a result can have a NaN or Inf only where the first argument has the same value."""
    if kwargs or len(args) != 2 or args[1].__class__ not in (float, int) or not rule(args[1]):
        return False
    tensors = args[0] if isinstance(args[0], (list, tuple)) else args[:1]
    return all(isinstance(each, torch.Tensor) and each.dtype in _FLOATS for each in tensors)


def _all_finite(tensors: Iterable[Any]) -> bool:
    # A compiler traces with tensors of other classes.
    return all(each.__class__ not in PLAIN or is_finite(each) for each in tensors)


def _some(tensors: Iterable[Any], test: Callable[[Any], Any]) -> bool:
    return any(bool(test(each.detach()).any()) for each in tensors if isinstance(each, torch.Tensor))
