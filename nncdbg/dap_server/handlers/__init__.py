"""The handlers by theme; importing this enters them all into the table."""

from nncdbg.dap_server import black_box, terminal_window
from nncdbg.dap_server.handlers import (
    breakpoints,
    data_breakpoints,
    disassembly,
    editing,
    evaluating,
    exceptions,
    lifecycle,
    lines,
    memory,
    moving,
    sources,
    stack,
    targets,
    tensors,
    variables,
)

__all__ = [
    "black_box",
    "breakpoints",
    "data_breakpoints",
    "disassembly",
    "editing",
    "evaluating",
    "exceptions",
    "lifecycle",
    "lines",
    "memory",
    "moving",
    "sources",
    "stack",
    "targets",
    "tensors",
    "terminal_window",
    "variables",
]
