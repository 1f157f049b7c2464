"""The texts of a program: its listing in a file, micro programs by reference.

Each text of a micro program has one number, for all statements from which it is entered.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from nncdbg.dap_server import protocol
from nncdbg.dap_server.sources.listing_file import write_listing
from nncdbg.errors import UsageError
from nncdbg.ir.search import origins
from nncdbg.presentation.source_files import is_source
from nncdbg.process.ranks import rank_in_environment

if TYPE_CHECKING:
    from nncdbg.target.records import Place
    from nncdbg.target.target import Target
    from nncdbg.text.listing import Listing

_RECORDED = 1 << 20
"""Numbers of texts from here on are recorded files."""

MIME_TYPE = "text/x-nnc"


@dataclass(eq=False)
class Sources:
    """The texts of one program.

    `file` is the program's text, None if none can be written: then it has a number too.  `folders` are
    searched for files of the user's model; with `uris` the client receives paths as ``file://`` addresses.
    `notes` are for the user.
    """

    target: Target
    file: Path | None
    name: str = "program.nnc"
    folders: tuple[Path, ...] = ()
    notes: list[str] = field(default_factory=list)
    uris: bool = False
    _texts: list[Listing] = field(default_factory=list)
    _numbers: dict[tuple[str, Sequence[str]], int] = field(default_factory=dict)
    _shown: dict[tuple[int, bool], tuple[Listing, protocol.Source]] = field(default_factory=dict)
    """By `_is_made` and the identity of a listing, which is referenced here, so that its id is not reused."""
    _recorded: list[str] = field(default_factory=list)
    """Files whose recorded text is shown."""
    _models: dict[str, protocol.Source] = field(default_factory=dict)

    # -- for the client -------------------------------------------------------------------------

    def of_place(self, place: Place) -> protocol.Source:
        """The text with a statement."""
        listing = place.listing
        key = id(listing), self._is_made(place)
        shown = self._shown.get(key)
        if shown is None:
            shown = self._shown[key] = (listing, self._source(place))
        return shown[1]

    def _is_made(self, place: Place) -> bool:
        """Return whether a graph was made for a ``backward`` line, so that the program's file lacks it."""
        if place.listing is not self.target.listing:
            return False
        return self._is_made_line(place.listing.header_line(place.path[:1]))

    def _is_made_line(self, line: int) -> bool:
        return line > len(self.target.program.as_listing().lines)

    def _source(self, place: Place) -> protocol.Source:
        if place.micro is not None:
            return self._numbered(f"{place.path[0]}.nnc", "micro program", place.listing)
        return self.of_line(place.listing.header_line(place.path[:1]))

    def of_line(self, line: int) -> protocol.Source:
        """The text with this line of the program."""
        listing = self.target.listing
        if self._is_made_line(line):
            return self._numbered(self.name, "with the graphs of `backward`", listing)
        if self.file is None:
            return self._numbered(self.name, "listing of the program", listing)
        return protocol.Source(name=self.file.name, path=self._path(self.file))

    def _numbered(self, name: str, origin: str, listing: Listing) -> protocol.Source:
        key = (name, listing.lines)
        if key not in self._numbers:
            self._texts.append(listing)
            self._numbers[key] = len(self._texts)
        return protocol.Source(name=name, source_reference=self._numbers[key], origin=origin)

    def has_line(self, source: protocol.Source, line: int) -> bool:
        """Return whether a text of the program contains this line; the file lacks the graphs made for it."""
        return bool(source.source_reference) or not self._is_made_line(line)

    @property
    def of_program(self) -> protocol.Source:
        """The text of the program."""
        return self.of_place(self.target.place((self.target.lowered.entry,), -1))

    def of_model(self, file: str) -> protocol.Source:
        """A file of the user's own model, as a statement's location names it."""
        if file not in self._models:
            self._models[file] = self._model(file)
        return self._models[file]

    def of_recorded(self, file: str) -> protocol.Source:
        """A file of a recorded step: itself if it has the recorded text, else that text, read-only."""
        source = self.of_model(file)
        if source.path is not None or not self._recorded_text(file):
            return source
        if file not in self._recorded:
            self._recorded.append(file)
        number = _RECORDED + self._recorded.index(file)
        return protocol.Source(name=source.name, source_reference=number, origin="as it was recorded")

    def _recorded_text(self, file: str) -> str:
        recorded = self.target.program.saved.sources.get(file)
        if recorded is None or not recorded.lines:
            return ""
        lines = {int(number): text for number, text in recorded.lines.items()}
        return "".join(f"{lines.get(number, '')}\n" for number in range(1, max(lines) + 1))

    def file_of(self, source: protocol.Source) -> str | None:
        """The recorded file that a client's source shows; None for other sources."""
        number = (source.source_reference or 0) - _RECORDED
        if 0 <= number < len(self._recorded):
            return self._recorded[number]
        path = None if source.path is None else os.path.realpath(path_in(source.path))
        for file in self.target.program.saved.sources if path is not None else ():
            shown = self.of_model(file).path
            if shown is not None and os.path.realpath(path_in(shown)) == path:
                return file
        return None

    def _model(self, file: str) -> protocol.Source:
        name = os.path.basename(file)
        for folder in self.folders:
            path = folder / file
            if is_source(self.target.program, file, path):
                return protocol.Source(
                    name=name, path=self._path(path), origin="source lines", presentation_hint="deemphasize"
                )
        recorded = file in self.target.program.saved.sources
        missing = f"{file} is not here" + (" as it was recorded" if recorded else "")
        return protocol.Source(name=name, origin=missing, presentation_hint="deemphasize")

    @cached_property
    def of_models(self) -> list[protocol.Source]:
        """The existing files of the user's own model, in the order of the program."""
        found = (self.of_model(file) for file in origins(self.target.program))
        return [source for source in found if source.path is not None]

    def micro_programs(self) -> list[protocol.Source]:
        """The micro programs shown so far."""
        found = {
            source.source_reference: source
            for listing, source in self._shown.values()
            if listing is not self.target.listing
        }
        return list(found.values())

    def _path(self, path: Path) -> str:
        path = path.resolve()
        return path.as_uri() if self.uris else str(path)

    # -- from the client --------------------------------------------------------------------------

    def listing(self, source: protocol.Source) -> Listing | None:
        """The text for a client's source; None if it is not one of these."""
        if source.source_reference:
            return self.numbered(source.source_reference)
        if source.path is None or self.file is None:
            return None
        same = os.path.realpath(path_in(source.path)) == os.path.realpath(self.file)
        return self.target.listing if same else None

    def numbered(self, number: int) -> Listing | None:
        """The text with this number; the program's text, with or without a file, is number 0."""
        if number == 0:
            return self.target.listing
        return self._texts[number - 1] if 1 <= number <= len(self._texts) else None

    def text(self, source: protocol.Source) -> str:
        """The content of a source.  Raises UsageError for a source that is not one of these."""
        file = self.file_of(source) if (source.source_reference or 0) >= _RECORDED else None
        if file is not None:
            return self._recorded_text(file)
        listing = self.listing(source)
        if listing is None:
            what = f"source {source.source_reference}" if source.source_reference else repr(source.path)
            raise UsageError(
                f"{what} is not part of this program", hint="request the sources with `loadedSources`"
            )
        text = "\n".join(listing.lines)
        return text if text.endswith("\n") else text + "\n"


def path_in(text: str) -> str:
    """The path in a client's path or ``file:`` address.  Raises UsageError for an invalid one."""
    try:
        path = unquote(urlsplit(text).path) if text.startswith("file:") else text
    except ValueError as error:  # such as file://[x
        raise UsageError(f"{text!r} is not a valid file URI: {error}") from None
    if "\0" in path:
        raise UsageError(f"{path!r} is not a path: it contains a NUL character")
    return path


def sources_of(target: Target, program: Path, workspace: Path, stem: str | None = None) -> Sources:
    """The texts of a program that was loaded from a file.

    A binary model or a step of a run gets a listing file below the workspace, without the graphs made for
    ``backward`` lines; its name is `stem`, or that of the program.  If that cannot be written, the text is
    shown without a file, with a note.
    """
    folders = (workspace, program.parent)
    if target.program.listing is not None and program.is_file():
        return Sources(target, program.resolve(), program.name, folders)
    name = f"{stem or program.stem}.nnc"
    try:
        file, note = write_listing(program, target.program.as_listing(), workspace, stem)
    except OSError as error:
        note = f"cannot write the listing to {workspace} ({error.strerror}); the listing has no file"
        return Sources(target, None, name, folders, [note])
    return Sources(target, file, file.name, folders, [note] if note is not None else [])


def sources_of_running(target: Target, workspace: Path) -> Sources:
    """The texts of a program built by the user's own code; without a file, it is named after its entry.

    Under torchrun, the name also has the rank: the ranks of a job have different programs.
    """
    rank, ranks = rank_in_environment()
    entry = f"{target.program.entry}-rank{rank}" if ranks > 1 else target.program.entry
    return sources_of(target, Path(target.program.source or entry), workspace)
