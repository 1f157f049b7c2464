"""Every command of the prompt, by theme; importing this package fills the table."""

from __future__ import annotations

from nncdbg.terminal.commands import changing, comparing, looking, moving, session_files, states, stopping  # noqa: F401
from nncdbg.terminal.commands.table import GROUPS, TABLE, Command, find

__all__ = ["GROUPS", "TABLE", "Command", "find"]
