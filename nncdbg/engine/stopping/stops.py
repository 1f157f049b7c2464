"""Records of a stop: its reason and place, the breakpoints that hold, the messages of logpoints."""

from __future__ import annotations

from dataclasses import dataclass

from nncdbg.engine.execution.findings import Finding
from nncdbg.engine.execution.frame import Frame
from nncdbg.engine.stopping.breakpoints import Breakpoint
from nncdbg.ir.records import Node
from nncdbg.representation import RichOutput


@dataclass(frozen=True, slots=True)
class Stop(RichOutput):
    """The reason and place of a stop.

    `reason` is entry, breakpoint, step, data, exception, goto, pause or end.  `node` and `line`
    are the statement concerned: the next one, or for `data` and `exception` the one just run.
    A statement that failed has an `error`, and a `finding` if one about its operands is caught.
    """

    reason: str
    frame: Frame | None
    node: Node | None
    line: int | None
    detail: str = ""
    breakpoints: tuple[int, ...] = ()
    finding: Finding | None = None
    error: BaseException | None = None
    shows_values: bool = False
    """Whether `node` has run, and the stop shows its operands and results."""

    @property
    def op(self) -> str | None:
        """The op of the statement concerned; None at the end of a graph."""
        return self.node.op if self.node is not None else None

    @property
    def finding_text(self) -> str:
        """The text about the finding: `detail`, unless this is about the error."""
        return self.detail if self.finding is None or self.error is None else self.finding.detail

    def __repr__(self) -> str:
        detail = f", detail={self.detail!r}" if self.detail else ""
        return f"Stop({self.reason!r}, line={self.line}, op={self.op!r}{detail})"

    def statement_in(self, frame: Frame) -> tuple[int, bool]:
        """Return (pc, whether it has run) of the current statement of a frame on the stack.

        This is the next statement, or in the frame of the stop, the executed statement that caused it.
        """
        nodes = frame.code.nodes
        ran = self.frame is frame and self.node is not None and 0 < frame.pc <= len(nodes)
        if ran and nodes[frame.pc - 1] is self.node:
            return frame.pc - 1, True
        return frame.pc, False


@dataclass(frozen=True, slots=True)
class Judged:
    """A breakpoint that holds at the current place of the machine."""

    breakpoint: Breakpoint
    after: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """The message of a logpoint, with its frame and its line in the listing."""

    text: str
    frame: Frame
    line: int | None
