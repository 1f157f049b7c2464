"""Origin of a finding or failure: the bounded backward slice with statistics, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nncdbg.dap_server.variables.value_text import Glance, is_tensor
from nncdbg.engine.expression import spelled
from nncdbg.engine.values.slicing import Slicing
from nncdbg.presentation.short_statements import without_location
from nncdbg.presentation.slices import Births, followed, slice_lines, statement_line

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session
    from nncdbg.engine.compilation.code import Code
    from nncdbg.engine.stopping.stops import Stop
    from nncdbg.stats import Summary

_LINES = 20
"""Most lines."""

_DEPTH = 20
"""Most statements to follow back."""


def origin_lines(session: Session, stop: Stop, output: int | None) -> list[str]:
    """The statement of a stop, then the values it was computed from, nearest first, with statistics.

    `output` is the index of the affected result; None if the statement failed and has none.  The causes of
    a finding are part of its description, and are not repeated.
    """
    lines = list(islice(_slice(session, stop, output), _LINES + 1))
    if len(lines) > _LINES:
        lines[_LINES - 1 :] = ["..."]
    return lines


class Glancing:
    """Formats the values of a slice: with the statistics that one answer may compute."""

    def __init__(self, session: Session) -> None:
        self.debugger = session.program.debugger
        self.glance = Glance(session.program.shown, hex=False, between=session.queue.check_cancelled)

    def statement(self, code: Code, line: int, head: str) -> str:
        # The lines of the user's model are frames of the stack.
        return head + without_location(self.debugger.loaded.listing_of(code).lines[line - 1].strip())

    def line(self, name: str, content: Any, code: Code, slot: int) -> Text:
        return Text(f"{spelled(name)} {self.glance.text(content)}")

    def summary(self, content: Any, code: Code, slot: int) -> Summary | None:
        return self.glance.summary(content) if is_tensor(content) else None


def _slice(session: Session, stop: Stop, output: int | None) -> Iterator[str]:
    debugger = session.program.debugger
    assert stop.frame is not None
    frame, slicing = stop.frame, Slicing(debugger.timeline)
    code, visit = frame.code, slicing.visit_of_frame(frame)
    showing = Glancing(session)
    pc = next((pc for pc, node in enumerate(code.nodes) if node is stop.node), len(code.nodes))
    if output is not None and pc < len(code.nodes):
        slots = [code.result_slots(pc)[output]]
    else:
        yield statement_line(debugger, visit, pc, showing).plain
        slots = list(dict.fromkeys(code.operands[pc]))
    births = Births(debugger, showing, visit, slots, session.queue.check_cancelled)
    for line in slice_lines(births, followed(births, visit, slots, _DEPTH), causes=stop.finding is None):
        yield line.plain
