"""Titles of stack frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nncdbg.text.lexemes import name_text

if TYPE_CHECKING:
    from nncdbg.engine.execution.frame import Frame


def frame_title(frames: Sequence[Frame], selected: int) -> str:
    """Return `@layer1`, `@refine #3`, `@run step 3 of 300, epoch 1 of 5`, `the then branch`, or the like.

    `frames` are the frames of the stack, innermost first.  Steps and epochs count from 0, as `$step` does.
    """
    frame = frames[selected]
    code, name = frame.code, name_text(frame.code.graph.name)
    if code.epoch is not None:
        return f"@{name} {frame.progress}"
    if frame.is_loop:
        return f"{'@' + name if name else 'loop'} #{frame.iteration}"
    if code.formula is not None and len(code.path) == 1:
        outer = frames[selected + 1]
        return f"the micro program of {outer.code.nodes[outer.pc].op}"
    if len(code.path) > 1 and not name:
        return "the then branch" if code.path[-1] == 0 else "the else branch"
    return f"@{name}"
