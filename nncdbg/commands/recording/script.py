"""The script at whose prompts a session was recorded: what runs it again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

PROMPT_OF_DEBUG, PROMPT_OF_SCRIPT, EDITOR = "nncdbg debug", "script", "editor"
"""What has opened the prompt: `nncdbg debug`, the script itself, or an editor that was attached."""


class RecordedScript(msgspec.Struct, frozen=True):
    """A script: its file relative to the folder of the session, or the name of a `module`.

    `opened_by` is what has opened the prompt.  `options` are those of `nncdbg debug`.
    """

    file: str
    module: bool
    arguments: list[str]
    opened_by: str
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        """Return the words of the command line after `python`."""
        return " ".join([*(["-m"] if self.module else []), self.file, *self.arguments])

    def files(self) -> Iterator[str]:
        """Yield the files that the session depends on: the script, and its files of commands."""
        if not self.module:
            yield self.file
        for is_file, text in self.options.get("source", ()):
            if is_file:
                yield text


def script_of_process(opened_by: str) -> RecordedScript | None:
    """Return the script that this process runs; None in a notebook, or for `python -c`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None and spec.name != "__main__":
        return RecordedScript(spec.name.removesuffix(".__main__"), True, sys.argv[1:], opened_by)
    if file is None:
        return None
    path = Path(file).absolute()
    name = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    return RecordedScript(name, False, sys.argv[1:], opened_by)
