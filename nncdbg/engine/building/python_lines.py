"""The user's Python line that builds a statement, for locations and errors."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from pathlib import Path
from types import FrameType

from nncdbg.errors import Excerpt, NncdbgError
from nncdbg.ir.records import Location

_OWN_FILES = (str(Path(__file__).parents[2]) + os.sep, contextlib.__file__)
"""Files of nncdbg itself, excluded from the user's source positions."""


def user_frame(frame: FrameType | None = None) -> FrameType:
    """Return the innermost frame outside of nncdbg, from `frame` (default: the caller) outwards."""
    frame = frame or sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame = frame.f_back
    return frame


def python_line() -> Location:
    """Return the innermost Python line outside of nncdbg."""
    frame = user_frame()
    return Location(frame.f_code.co_filename, frame.f_lineno)


def locate(error: NncdbgError, line: Location) -> None:
    """Add a line of the user's model to an error: the line underlined, or its place if it cannot be read."""
    text = linecache.getline(line.file or "", line.line or 0).rstrip()
    if not text:
        error.source = error.source or str(line)
        return
    width = len(text.lstrip())
    error.excerpt = Excerpt(text, line.line or 0, len(text) - width + 1, width, line.file)
