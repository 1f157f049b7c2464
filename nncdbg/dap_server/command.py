"""`nncdbg dap`: the server over stdio, a Unix socket or TCP."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from nncdbg.terminal.options import Parser


def main(arguments: Sequence[str]) -> int:
    """Serve clients; the exit code."""
    parser = Parser("nncdbg dap", "Serve the Debug Adapter Protocol, over stdio if no place is given.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="HOST:PORT", help="serve TCP clients, one after the other")
    where.add_argument("--socket", metavar="PATH", help="serve clients of a Unix socket, one after the other")
    parser.parse_args(arguments)
    from nncdbg.dap_server.stdio import serve_stdio

    serve_stdio()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
