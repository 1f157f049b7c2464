"""The exit code of a command, and its last line: the error in the common format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from nncdbg.errors import NncdbgError, RunError
from nncdbg.escaping import printable

INTERRUPTED = 130
CRASHED = 70


def exit_code_of(command: Callable[[], int]) -> int:
    """Call a command, print its error on standard error, and return its exit code.

    0 success, 1 a gate tripped, 2 wrong usage, 3 the model cannot be read, 4 the graph failed while
    running, 130 interrupted, 70 a bug in nncdbg.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except NncdbgError as error:
        return _complain(f"error: {error}", error.exit_code)
    except MemoryError:
        return _complain("error: out of memory", RunError.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe. Redirect stdout, or Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:  # argparse, after --help and --version
        return leaving.code if isinstance(leaving.code, int) else 0
    except Exception as error:  # noqa: BLE001  the last resort: a bug of ours
        from nncdbg.presentation.crash_report import report_crash

        return _complain(report_crash(error), CRASHED)


def _complain(words: str, code: int) -> int:
    print(printable(words), file=sys.stderr, flush=True)
    return code
