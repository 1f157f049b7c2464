"""The gate `state-reset`: an update that sets a moment or step counter of an optimizer back to 0.

The watch catches these findings as `catch state-reset` does, and continues after each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nncdbg.engine.compilation.code import Code, Statement
from nncdbg.engine.debugger import Debugger
from nncdbg.engine.execution.findings import STATE_RESET
from nncdbg.nan_watch.measuring.steps import step_of
from nncdbg.nan_watch.records import WatchFinding
from nncdbg.nan_watch.sites import calls_of, site_of

if TYPE_CHECKING:
    from nncdbg.engine.stopping.stops import Stop

_HINT = (
    "keep the state of the optimizer when the model or batch changes; if the reset is intended, as in a warm "
    "restart, leave out the gate"
)


class ResetGate:
    """Collects the resets in the run of a debugger; `findings` has one for each state and statement.

    Raises UsageError for an allocator that does not keep the old states.
    """

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._found: dict[tuple[Code, int, str], WatchFinding] = {}
        debugger.catch(STATE_RESET)

    @property
    def findings(self) -> list[WatchFinding]:
        return [*self._found.values()]

    def run(self, move: Callable[[], Stop]) -> Stop:
        """Run the program until something other than a reset stops it."""
        stop = move()
        while stop.finding is not None and stop.finding.kind == STATE_RESET:
            self._note(stop)
            stop = move()
        return stop

    def _note(self, stop: Stop) -> None:
        finding = stop.finding
        assert finding is not None
        at = finding.binding
        state = at.code.nodes[at.pc].outputs[finding.output or 0].name
        key = at.code, at.pc, state
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, count=known.count + 1)
            return
        stack = self._debugger.control.stack
        loops = [frame for frame in stack if frame.is_loop]
        runs = [frame for frame in loops if frame.code.epoch is not None]
        calls = [Statement(frame.code, frame.pc) for frame in stack[:-1]]
        self._found[key] = WatchFinding(
            STATE_RESET,
            "birth",
            site_of(at.code, at.pc, state, self._debugger),
            iteration=tuple(frame.iteration for frame in loops),
            at_step=step_of(runs[0].code, runs[0].iteration) if runs else None,
            calls=calls_of(calls[1:], self._debugger),
            evidence=finding.detail,
            hint=_HINT,
            trips=True,
        )
