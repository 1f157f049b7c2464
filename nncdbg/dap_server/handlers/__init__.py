"""The handlers by topic; importing this package registers them all."""

from nncdbg.dap_server import black_box, terminal_window  # noqa: F401
from nncdbg.dap_server.handlers import (  # noqa: F401
    breakpoints,
    evaluating,
    explaining,
    graph,
    lifecycle,
    memory,
    moving,
    sources,
    stack,
    tensors,
    timeline,
    variables,
)
