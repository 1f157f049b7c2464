"""All commands of the prompt, by topic; importing this package fills the table."""

from __future__ import annotations

from nncdbg.commands import (  # noqa: F401
    at_stops,
    changing,
    checking,
    comparing,
    dumping,
    listing,
    looking,
    model,
    moving,
    python,
    session_files,
    stack,
    states,
    stopping,
    value_table,
)
from nncdbg.commands.table import GROUPS, TABLE, Command, find, resolve

__all__ = ["GROUPS", "TABLE", "Command", "find", "resolve"]
