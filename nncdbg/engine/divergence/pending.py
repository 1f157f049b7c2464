"""Values of one side that wait for their counterparts: in memory up to a budget, beyond it in files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nncdbg.engine.divergence.written import Key, Written


@dataclass(frozen=True, slots=True)
class _Spilled:
    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self) -> Any:
        array = np.fromfile(self.path, self.dtype).reshape(self.shape)
        self.path.unlink()
        return array


class Pending:
    """Written values not yet compared, by key.  A context manager: its exit removes the files."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.held = 0
        self.spilled = 0
        """Number of tensors written to files so far."""
        self._waiting: dict[Key, Written] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Pending:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __len__(self) -> int:
        return len(self._waiting)

    def rest(self) -> Iterator[Written]:
        """Yield all waiting statements, without their contents."""
        for each in self._waiting.values():
            yield replace(each, contents=())

    def put(self, written: Written) -> None:
        contents = tuple(map(self._kept, written.contents))
        # Operands can be large, and are needed only while both sides are at the statement.
        self._waiting[written.key] = replace(written, contents=contents, operands=None)

    def _kept(self, content: Any) -> Any:
        if not isinstance(content, np.ndarray) or content.dtype.hasobject:
            return content
        if self.held + content.nbytes <= self.budget:
            self.held += content.nbytes
            return content
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="nncdbg-diff-")
        self.spilled += 1
        path = Path(self._folder.name) / str(self.spilled)
        np.ascontiguousarray(content).tofile(path)
        return _Spilled(path, content.dtype, content.shape)

    def take(self, key: Key) -> Written | None:
        """Remove and return the statement that waits under a key; None if there is none."""
        found = self._waiting.pop(key, None)
        if found is None:
            return None
        contents = []
        for content in found.contents:
            if isinstance(content, _Spilled):
                contents.append(content.read())
            else:
                if isinstance(content, np.ndarray) and not content.dtype.hasobject:
                    self.held -= content.nbytes
                contents.append(content)
        return replace(found, contents=tuple(contents))
