"""`nncdbg dap`: the server over stdio, a Unix socket or TCP."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from nncdbg.errors import UsageError
from nncdbg.opening.command_line import ArgumentParser, one_shot, option
from nncdbg.process.address_space import check_address_space

TOKEN = "NNCDBG_DAP_TOKEN"
"""Environment variable with the token; unlike the command line, other users cannot read it."""

SWITCH = 0.0005
"""Thread switch interval in seconds: the running program yields to the client's thread after it."""


def _add_address(parser: ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--listen", metavar="HOST:PORT", help="serve TCP clients, one at a time")
    where.add_argument("--socket", metavar="PATH", help="serve clients on a Unix socket, one at a time")


@one_shot(
    "nncdbg dap",
    "Serve the Debug Adapter Protocol, over stdio by default.",
    _add_address,
    option(
        "--token", help=f"token that clients must send as `connect.token` (default: the variable {TOKEN})"
    ),
)
def main(options: Namespace) -> int:
    """Serve clients; return the exit code."""
    check_address_space()
    sys.setswitchinterval(SWITCH)
    if options.token == "":
        raise UsageError("--token is empty", hint="set a token, or omit --token")
    if options.listen is None and options.socket is None:
        return _serve_stdio(options.token)
    from nncdbg.dap_server.transport.addresses import parse_address
    from nncdbg.dap_server.transport.process import serve_clients

    address = options.socket if options.listen is None else parse_address(options.listen)
    return serve_clients(address, options.token or os.environ.get(TOKEN) or None)


def _serve_stdio(token: str | None) -> int:
    if token is not None:
        raise UsageError(
            "--token requires --listen or --socket", hint="omit --token: stdio has only one client"
        )
    from nncdbg.dap_server.transport.process import serve_stdio

    return serve_stdio()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
