"""`nncdbg lsp`: the language server over stdio."""

from __future__ import annotations

import logging
import os
from argparse import Namespace

from nncdbg.opening.command_line import one_shot, option


@one_shot(
    "nncdbg lsp",
    "Serve the Language Server Protocol for graph text (.nnc), over stdio.",
    option(
        "--stdio", action="store_true", help="serve over stdio (the default); some editors pass this option"
    ),
)
def main(options: Namespace) -> int:
    """Serve one client; return the exit code."""
    # pygls logs failures of handlers with their tracebacks; the response already contains them.
    logging.getLogger("pygls").setLevel(logging.CRITICAL)
    from nncdbg.textual_repr.language_server.server import NncServer

    # Reserve the streams for the client: accidental prints go to stderr.
    with os.fdopen(os.dup(0), "rb") as incoming, os.fdopen(os.dup(1), "wb") as outgoing:
        os.dup2(2, 1)
        NncServer().start_io(incoming, outgoing)
    return 0
