"""`nncdbg.breakpoint()`: stop in the editor that is attached, else open the prompt."""

from __future__ import annotations

import os
import sys

from nncdbg.dap_server.attach import calls


def breakpoint() -> None:  # noqa: A001  as debugpy has it
    """Stop before the next statement of a graph that this thread runs.

    Without `listen`, the prompt opens there, as pdb's does; `continue` returns to the script.  After
    `listen`, the editor stops there; without an attached editor nothing happens.  In a kernel, the next
    statement is the one after the kernel's own.  ``PYTHONBREAKPOINT=nncdbg.breakpoint`` makes Python's
    own `breakpoint()` call this function.

    Raises UsageError if the prompt cannot read standard input.
    """
    if calls.stop_here():
        return
    from nncdbg.terminal.script_prompt import break_here

    caller = sys._getframe(1)
    break_here(f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}")
