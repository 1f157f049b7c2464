"""Lines and columns as a client counts them, and as everything here does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nncdbg.dap_server.session import Session


MAX_NUMBER = 2**53 - 1
"""The largest number that the protocol can say."""


def line_of_client(session: Session, line: int) -> int:
    """A client's line, counted from 1."""
    return line + _first_line(session)


def line_for_client(session: Session, line: int) -> int:
    """A line counted from 1 as the client counts it."""
    return line - _first_line(session)


def column_for_client(session: Session, column: int) -> int:
    """A column counted from 1 as the client counts it."""
    client = session.client
    return column - 1 if client is not None and client.columns_start_at1 is False else column


def _first_line(session: Session) -> int:
    client = session.client
    return 1 if client is not None and client.lines_start_at1 is False else 0
