"""Loading the program at an address in a journal, for the functions of Python that take a program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nncdbg import journal as journals
from nncdbg.engine.errors import UsageError
from nncdbg.engine.frontends import load
from nncdbg.ir.records import Program
from nncdbg.opening.journal.recorded_steps import recorded_step
from nncdbg.opening.journal.reopening import check_graph_run
from nncdbg.opening.journal_address import Address, read_address


def journal_frontend(path: Path) -> Callable[..., Program] | None:
    """Return the front-end of an address, such as ``run.db@nan``; None for another path.

    Raises UsageError for an address that is malformed, LoadError for a file that is not a journal.
    """
    address = read_address(os.fspath(path))
    if address is None:
        return None

    def loaded(_: Path, **options: Any) -> Program:
        return _load(address)

    return loaded


def _load(address: Address) -> Program:
    """Return the program of the recorded step at an address.

    Raises UsageError for a step that was not recorded, and for a run of a program in graph text.
    """
    if not address.at_step:
        raise UsageError(f"{address} is a journal: name a step", hint=f"for example {address}@0")
    folder = recorded_step(address, Path())
    if folder is not None:
        return load(folder)
    with journals.open(address.file) as journal:
        check_graph_run(journal.run(address.run), address)
    raise UsageError(
        f"{address} cannot be loaded as a program: it is a step of a run, whose states are in the journal",
        hint=f"nncdbg.run({str(address)!r}) repeats the run from there; `nncdbg {address}` stops there",
    )
