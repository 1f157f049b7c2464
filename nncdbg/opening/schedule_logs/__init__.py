"""Schedules read from logs: which kernels a program launched on which streams, and what ordered them.

`reading` has a reader for each format, which turns a file into records; `programs` makes a program of them.
"""

from __future__ import annotations

import os

SUFFIXES = (".json", ".jsonl", ".json.gz", ".dot")


def is_log_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be a schedule log by its name."""
    return os.fspath(path).lower().endswith(SUFFIXES)
