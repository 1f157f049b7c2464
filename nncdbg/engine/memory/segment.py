"""Pages that buffers are placed in."""

from __future__ import annotations

from typing import Any

import numpy as np


class Segment(np.ndarray[Any, Any]):
    """Pages that buffers are placed in, as a type that stays the base of views of buffers.

    `file` is the descriptor of the memory file behind it, None for ordinary memory. For a private copy
    of such a file, `source` is the segment that keeps it open, and `changed` lists the byte ranges that
    differ from it.
    """

    file: int | None = None
    source: Segment | None = None
    changed: list[tuple[int, int]]

    def __array_finalize__(self, of: Any) -> None:
        self.file, self.source, self.changed = None, None, []
