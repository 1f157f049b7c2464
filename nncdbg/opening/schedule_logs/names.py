"""File names of schedule logs."""

from __future__ import annotations

import os

SUFFIXES = (".json", ".jsonl", ".json.gz", ".dot")


def is_log_name(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be a schedule log by its name."""
    return os.fspath(path).lower().endswith(SUFFIXES)
