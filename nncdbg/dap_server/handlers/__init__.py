"""The handlers by theme; importing this enters them all into the table."""

from nncdbg.dap_server.handlers import lifecycle, moving, stack

__all__ = ["lifecycle", "moving", "stack"]
