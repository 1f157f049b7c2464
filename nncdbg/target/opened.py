"""The targets that prompts open: the program of a run configuration, and side A of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from nncdbg.target.program import ProgramTarget

if TYPE_CHECKING:
    from nncdbg.opening.diff import ProgramDiff
    from nncdbg.opening.journal.recording import StepRecorder
    from nncdbg.opening.programs import OpenedProgram


class OpenedTarget(ProgramTarget):
    """An opened program at its entry, at the finding of a bundle, or at a step of a journal.

    Raises the errors of `OpenedProgram.debugger`.
    """

    def __init__(self, opened: OpenedProgram) -> None:
        super().__init__(opened.debugger())
        self._opened = opened
        if opened.folder is not None and opened.folder.at_finding:
            self._debugger.go_to(opened.folder.statements)

    def journaled(self) -> AbstractContextManager[StepRecorder | None]:
        """Write the run to the journal of its configuration, if it has one; raises as `journaled` does."""
        from nncdbg.opening.journal.recording import journaled

        return journaled(self._opened, self._debugger)


class SideA(ProgramTarget):
    """Side A of a comparison, at its entry."""

    side_b: Callable[[str], tuple[str, Any]]
    """Returns (name, content) on side B of a name of side A in the selected frame."""

    def __init__(self, diff: ProgramDiff) -> None:
        debugger, self.side_b = diff.side_a()
        super().__init__(debugger)
