"""The handlers by topic; importing this package registers them all."""

from nncdbg.dap_server import black_box, terminal_window  # noqa: F401
from nncdbg.dap_server.handlers import (  # noqa: F401
    breakpoints,
    counterparts,
    data_breakpoints,
    disassembly,
    editing,
    evaluating,
    exceptions,
    explaining,
    graph,
    lifecycle,
    lines,
    map,
    memory,
    moving,
    sources,
    stack,
    statistics,
    streams,
    targets,
    tensors,
    timeline,
    variables,
)
