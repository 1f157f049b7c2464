"""JSON documents in the rows of a journal, which may have been written by other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from nncdbg.engine.errors import UsageError
from nncdbg.journal.checksums import damaged

DEEPEST = 100
"""Most objects and arrays inside each other: far below Python's limit of nested calls."""

LONGEST = 64 << 20
"""Most characters of a document, which takes about 20 times as many bytes of memory as an object."""


def read_json(path: Path, what: str, text: str | bytes, kind: Any = dict[str, Any]) -> Any:
    """Return a document as an object of a type.  Raises LoadError if it is not one."""
    try:
        if len(text) > LONGEST:
            raise ValueError("too long")
        document = json.loads(text)
        if _is_deep(document):
            raise ValueError("too deep")
        return msgspec.convert(document, kind)
    except (ValueError, RecursionError):
        raise damaged(path, f"the {what} is not as nncdbg writes it") from None


def write_json(value: Any, what: str) -> str:
    """Return the document of an object.  Raises UsageError for one that `read_json` does not accept."""
    why = "it has too many levels, or is too long"
    try:
        text = json.dumps(value)
        if len(text) <= LONGEST and not _is_deep(json.loads(text)):
            return text
    except RecursionError:
        pass
    except (TypeError, ValueError) as error:
        why = str(error)
    raise UsageError(
        f"the {what} cannot be stored as JSON: {why}", hint="put arrays into `tensors` of the checkpoint"
    )


def _is_deep(document: Any) -> bool:
    """Return whether a document has more than `DEEPEST` levels."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        if not level:
            return False
    return True
