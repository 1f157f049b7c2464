"""Recorded sessions as tests: a header with the command line, then the output."""

from __future__ import annotations

import contextlib
import io
import math
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

from nncdbg.commands.session import CONTINUATION, PROMPT
from nncdbg.terminal.main import main

HEADER = "$ nncdbg "
PYTHON = ">>> "


def commands(transcript: str) -> list[str]:
    """Return the typed lines."""
    return [line for line in map(typed_in, transcript.splitlines()) if line is not None]


def typed_in(line: str) -> str | None:
    """Return the line typed at the prompt; None for a line of output."""
    for prompt in (PROMPT, CONTINUATION, PYTHON):
        if line.startswith(prompt):
            return line.removeprefix(prompt)
    return None


def play(transcript: str, folder: Path) -> str:
    """Play the header and commands of a transcript in this process, and return the new transcript.

    Without commands, the header is a shell command, such as `nncdbg diff A B`.
    The commands are piped, as `nncdbg MODEL < FILE`.  The last line is the exit code, if it is not 0.
    """
    header = transcript.splitlines()[0]
    assert header.startswith(HEADER), "a transcript begins with `$ nncdbg MODEL ...`"
    arguments = shlex.split(header.removeprefix(HEADER))
    typed = io.StringIO("".join(f"{line}\n" for line in commands(transcript)))
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with (
        patch.object(sys, "stdin", typed),
        contextlib.redirect_stdout(screen),
        contextlib.redirect_stderr(screen),
    ):
        code = main(arguments)
    screen.seek(0)
    shown = screen.read().replace(str(folder), "FOLDER")
    seen = "".join(f"{line.rstrip()}\n" for line in shown.splitlines())
    return f"{header}\n{seen}" + (f"exit code {code}\n" if code else "")


_SECONDS = re.compile(r"\b\d+(?:\.\d+)? m?s\b")
_FRACTION = re.compile(r"-?\d+(?:\.\d*(?:e[+-]?\d+)?|e[+-]?\d+)")


def same_output(seen: str, expected: str) -> bool:
    """Return whether two transcripts agree, except for times and the last digits of fractions."""
    seen, expected = (_SECONDS.sub("0 s", text) for text in (seen, expected))
    if _without_numbers(seen) != _without_numbers(expected):
        return False
    pairs = zip(_FRACTION.findall(seen), _FRACTION.findall(expected), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-6) for a, b in pairs)


def _without_numbers(transcript: str) -> list[list[str]]:
    return [_FRACTION.sub("0.0", line).split() for line in transcript.splitlines()]
