"""Commands that watch, reduce and bisect a model, or check its schedule: what their declarations share."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nncdbg.ir.records import Program


def terminable() -> AbstractContextManager[None]:
    """Treat SIGTERM as an interruption, like Ctrl-C, so that the progress is kept."""
    from nncdbg.presentation.run_progress import hearing

    def interrupt() -> None:
        raise KeyboardInterrupt

    return hearing(signal.SIGTERM, interrupt)


def write_program(program: Program, file: str) -> None:
    """Write the text of a program.  Raises UsageError if the file cannot be written."""
    from nncdbg.opening.program_text import stores_from, write_text

    path = Path(file)
    write_text(path, stores_from(program, path.absolute().parent).text())
