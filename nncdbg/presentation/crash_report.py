"""Report of an internal error: one line, and a file with the traceback."""

from __future__ import annotations

import os
import tempfile
import traceback


def report_crash(error: BaseException) -> str:
    """Save the traceback and return the line that reports it."""
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    try:
        handle, path = tempfile.mkstemp(prefix="nncdbg-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError as failure:
        return f"internal error: {summary}, please report it (the traceback could not be saved: {failure})"
    return f"internal error: {summary}, please report it with {path}"
