"""Journals and runs that a command line names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.opening.journal_address import Address, read_address

if TYPE_CHECKING:
    from nncdbg.journal import Journal, Run


def journal_file(text: str) -> Address:
    """Return the address of a journal.  Raises UsageError if the address has a run or a step."""
    address = run_address(text)
    if address.run is not None:
        raise UsageError(f"{text}: the command reads the whole journal", hint=f"use {address.file}")
    return address


def is_run(text: str) -> bool:
    """Return whether a text is the address of a journal or of a run, also a wrong one, and not of a step."""
    try:
        address = read_address(text)
    except NncdbgError:
        return True
    return address is not None and not address.at_step


def run_address(text: str) -> Address:
    """Return the address of a run.  Raises LoadError for a missing file, UsageError for a step."""
    address = read_address(text) or Address(text)
    if not os.path.lexists(address.file):
        folder = os.path.dirname(os.path.abspath(address.file))
        raise LoadError(f"there is no file {address.file}", hint=f"searched {folder}")
    if address.at_step:
        run = "" if address.run is None else f"#{address.run}"
        raise UsageError(
            f"{text}: the command reads a whole run, not a step", hint=f"use {address.file}{run}"
        )
    return address


def open_journal(address: Address) -> Journal:
    """Open a journal for reading.  Raises LoadError."""
    from nncdbg import journal

    return journal.open(address.file)


def chosen_run(journal: Journal, address: Address) -> Run:
    """Return the run of an address, by default the last one.  Raises UsageError."""
    if not journal.runs():
        raise UsageError(
            f"{address.file} has no runs yet", hint="`nncdbg run MODEL --journal FILE` writes one"
        )
    return journal.run(address.run)
