"""Reports written to files: whole or not at all, and a folder that cannot be written stops nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from nncdbg.engine.errors import NncdbgError
from nncdbg.nan_watch.records import Report
from nncdbg.nan_watch.reports import github, json, junit, markdown, sarif, text
from nncdbg.nan_watch.watched import Watched

Form: TypeAlias = Callable[[Report, Watched], str]

FORMS: Mapping[str, Form] = {
    "json": json.render,
    "junit": junit.render,
    "sarif": sarif.render,
    "github": github.render,
    "markdown": markdown.render,
    "text": text.render,
}
"""Name of a form to what renders it."""


class NotWritten(NncdbgError):
    """A file that a watch should have written could not be."""

    exit_code = 3


def write(
    report: Report,
    forms: Mapping[str, str | os.PathLike[str]],
    watched: Watched = Watched(),  # noqa: B008  frozen
) -> list[NncdbgError]:
    """Write the report in each of `forms` (name to file); what could not be written, in order.

    A file appears whole or not at all, its folder is made.  What is no file (`/dev/stdout`, a pipe) and
    $GITHUB_STEP_SUMMARY, which several commands share, are written to the end of.
    """
    problems: list[NncdbgError] = []
    for form, file in forms.items():
        try:
            write_file(Path(file), FORMS[form](report, watched))
        except OSError as error:
            problems.append(not_written(f"the {form} report", Path(file), error))
    return problems


def not_written(what: str, file: Path, error: OSError) -> NotWritten:
    """The error for `what` that could not be written."""
    return NotWritten(
        f"{what} could not be written to {file}: {error.strerror or error}",
        hint="free up disk space, or use another folder; the findings are on standard output",
    )


def write_file(file: Path, content: str) -> None:
    """Write a file whole or not at all.  Raises OSError."""
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
            # A disk that is full may say so only now.
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_shared(file: Path) -> bool:
    """Whether others write to it too: a device, a pipe, the summary of a step on GitHub."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and file.resolve() == Path(summary).resolve():
        return True
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
