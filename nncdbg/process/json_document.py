"""JSON documents with a version that users write: schedules, memory plans, kernels of statements."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from nncdbg.errors import UsageError
from nncdbg.process.files import read_regular

D = TypeVar("D", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DocumentKind(Generic[D]):
    """A kind of document: `record` is its content, in which `key` is the version.

    `hint` tells users how to write one.
    """

    name: str
    record: type[D]
    key: str
    hint: str
    version: int = 1

    def read(self, file: str | os.PathLike[str]) -> D:
        """Return the document in a file.  Raises UsageError as `parse` does, and for an unreadable file."""
        name = os.fspath(file)
        try:
            content = read_regular(name)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot read the {self.name} {name}: {reason}", hint=self.hint) from None
        return self.parse(content, name)

    def parse(self, content: bytes | str, source: str) -> D:
        """Return the document in a text.

        Raises UsageError for a text that is no document of this kind, or has another version.
        """
        try:
            document = msgspec.json.decode(content, type=self.record)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{source} is not a {self.name}: {error}", hint=self.hint) from None
        version = getattr(document, self.key)
        if version != self.version:
            raise UsageError(
                f"{source} has unsupported {self.name} version {version}", hint=f"use version {self.version}"
            )
        return document
