"""The texts in which a program is shown: its listing in a file, micro programs by reference."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nncdbg.dap_server.protocol.types import Source
from nncdbg.engine.errors import UsageError

if TYPE_CHECKING:
    from nncdbg.engine.machine import Frame
    from nncdbg.engine.session import Debugger
    from nncdbg.textual_repr.listing import Listing

FOLDER = ".nncdbg"
"""Where the listings of models that are no text are kept, below the workspace."""


@dataclass(eq=False)
class Sources:
    """`file` is the program's text; further listings (micro programs) are numbered as they are shown."""

    debugger: Debugger
    file: Path
    _numbered: list[tuple[str, Listing]] = field(default_factory=list)

    def of_frame(self, frame: Frame) -> Source:
        """The text that a frame's statements stand in."""
        listing = self.debugger.listing_of(frame)
        if listing is self.debugger.listing:
            return Source(name=self.file.name, path=str(self.file))
        name = f"{frame.code.graph.name}.nnc"
        for number, (_, known) in enumerate(self._numbered, 1):
            if known is listing:
                return Source(name=name, source_reference=number)
        self._numbered.append((name, listing))
        return Source(name=name, source_reference=len(self._numbered))

    def text(self, source_reference: int) -> str:
        """The text of a numbered listing.  Raises UsageError for a number that is not there."""
        if not 1 <= source_reference <= len(self._numbered):
            raise UsageError(f"there is no source {source_reference}", hint="ask for the stack again")
        return "\n".join(self._numbered[source_reference - 1][1].lines) + "\n"

    def is_program(self, path: str) -> bool:
        """Whether a client's path is that of the program's text."""
        return os.path.realpath(path) == os.path.realpath(self.file)


def listing_file(program: Path, listing: Listing, workspace: Path) -> Path:
    """The file with a program's text: itself if it is one, else one below `workspace`, which is written.

    Raises UsageError if it cannot be written.
    """
    if program.suffix == ".nnc":
        return program.resolve()
    file = workspace.resolve() / FOLDER / f"{program.stem}.nnc"
    text = "\n".join(listing.lines) + "\n"
    try:
        if not file.exists() or file.read_text(encoding="utf-8", errors="replace") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the listing cannot be written to {file}: {error.strerror}",
            hint="give a `cwd` in the configuration that can be written to",
        ) from None
    return file
