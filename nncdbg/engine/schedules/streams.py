"""The memory of values by the stream of the statement that computes them."""

from __future__ import annotations

from collections.abc import Iterable

from nncdbg.engine.execution.frame import Frame
from nncdbg.ir.streams import stream_of


def results_by_stream(frames: Iterable[Frame]) -> dict[int, int]:
    """Return the bytes of the results in frames, by the stream of the statement that returns them.

    A value in several frames counts once, in the outermost one.  Constants and inputs do not count.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    for frame in frames:
        for slot, pc in enumerate(frame.code.definition):
            content = frame.slots[slot]
            size = getattr(content, "nbytes", None)
            if pc < 0:
                seen.add(id(content))
            elif size is not None and id(content) not in seen:
                seen.add(id(content))
                stream = stream_of(frame.code.graph, pc)
                found[stream] = found.get(stream, 0) + int(size)
    return dict(sorted(found.items()))
