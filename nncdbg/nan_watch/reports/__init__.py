"""Report formats, each with `render(report, watched) -> str`; reports are written to files atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from nncdbg.errors import NncdbgError
from nncdbg.nan_watch.measuring.gates import ReportContext
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports import github, json, junit, markdown, sarif, text

Form: TypeAlias = Callable[[Report, ReportContext], str]

FORMS: Mapping[str, Form] = {
    "json": json.render,
    "junit": junit.render,
    "sarif": sarif.render,
    "github": github.render,
    "markdown": markdown.render,
    "text": text.render,
}
"""Format name to its render function."""

FILES = tuple(name for name in FORMS if name not in ("json", "github", "text"))
"""Reports that are written to a file, each with an option of its name; the others are printed."""


class NotWritten(NncdbgError):
    """A file that a watch could not write."""

    exit_code = 3


def write(
    report: Report,
    forms: Mapping[str, str | os.PathLike[str]],
    watched: ReportContext = ReportContext(),  # noqa: B008  frozen
) -> list[NncdbgError]:
    """Write the report in each of `forms` (name to file); return the errors of failed writes, in order.

    Files are written atomically, and their folders are created.  Output is appended to special files
    (`/dev/stdout`, a pipe) and to $GITHUB_STEP_SUMMARY, which several commands share.
    """
    problems: list[NncdbgError] = []
    for form, file in forms.items():
        try:
            write_file(Path(file), FORMS[form](report, watched))
        except OSError as error:
            problems.append(not_written(f"the {form} report", Path(file), error))
    return problems


def not_written(what: str, file: Path, error: OSError) -> NotWritten:
    """Return the error for `what` that could not be written."""
    return NotWritten(
        f"{what} could not be written to {file}: {error.strerror or error}",
        hint="free up disk space, or use another folder; the findings are on standard output",
    )


def write_file(file: Path, content: str) -> None:
    """Write a file atomically.  Raises OSError."""
    data = content.encode("utf-8", "backslashreplace")
    if _is_shared(file):
        with file.open("ab") as stream:
            stream.write(data)
        return
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name[:40]}-{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(data)
            stream.flush()
            # A full disk may be reported only here.
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_shared(file: Path) -> bool:
    """Return whether others write to the file too: a device, a pipe, GitHub's step summary."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and file.resolve() == Path(summary).resolve():
        return True
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
