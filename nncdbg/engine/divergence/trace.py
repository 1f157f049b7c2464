"""A recorded run: every statement that wrote a value, with its data flow and its values.

Values beyond a memory budget are kept in one temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from nncdbg.engine.divergence.side import Side
from nncdbg.engine.divergence.written import Fixed, Given, Key, Place, Source, Written, WrittenResult


@dataclass(frozen=True, slots=True)
class _Spilled:
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class TracedValues:
    """Contents of slots, up to `budget` bytes in memory and the rest in a file.  A context manager."""

    def __init__(self, budget: int) -> None:
        self.spilled = 0
        """Number of tensors written to the file."""
        self._left = budget
        self._file: IO[bytes] | None = None

    def __enter__(self) -> TracedValues:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, content: Any) -> Any:
        """Store a content, and return the handle for `get`."""
        if not isinstance(content, np.ndarray) or content.dtype.hasobject:
            return content
        if content.nbytes <= self._left:
            self._left -= content.nbytes
            return content
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="nncdbg-diff-")  # noqa: SIM115 - closed by __exit__
        self.spilled += 1
        offset = self._file.seek(0, 2)
        self._file.write(np.ascontiguousarray(content).tobytes())
        return _Spilled(offset, content.dtype, content.shape)

    def get(self, held: Any) -> Any:
        if not isinstance(held, _Spilled):
            return held
        assert self._file is not None
        self._file.seek(held.offset)
        size = held.dtype.itemsize * int(np.prod(held.shape, dtype=np.int64))
        return np.frombuffer(self._file.read(size), held.dtype).reshape(held.shape)


class RunTrace:
    """The statements of a finished run by key, in order of execution."""

    def __init__(self, side: Side, values: TracedValues) -> None:
        self.side = side
        self._values = values
        self._written: dict[Key, Written] = {}
        self.outputs: tuple[Source, ...] = ()
        """The origins of the program's outputs."""
        self.first: dict[Place, Written] = {}
        """The first visit of each statement."""

    def record(self) -> RunTrace:
        """Run the side to its end.  Raises the side's error, and KeyboardInterrupt after a pause."""
        for written in self.side.all():
            held = replace(
                written,
                contents=tuple(map(self._values.put, written.contents)),
                operands=None if written.operands is None else (),
            )
            self._written[written.key] = held
            self.first.setdefault(written.key[0], held)
        self.outputs = self.side.output_sources()
        return self

    def __contains__(self, key: Key) -> bool:
        return key in self._written

    @property
    def keys(self) -> Sequence[Key]:
        """Return the keys in order of execution."""
        return list(self._written)

    def has(self, result: WrittenResult) -> bool:
        """Return whether the statement was executed and has a result of this index."""
        held = self._written.get(result.key)
        return held is not None and result.index < len(held.contents)

    def at(self, key: Key) -> Written:
        """Return the statement with its contents loaded into memory."""
        held = self._written[key]
        return replace(held, contents=tuple(map(self._values.get, held.contents)))

    def content(self, key: Key, index: int) -> Any:
        return self._values.get(self._written[key].contents[index])

    def operands(self, written: Written) -> list[Any]:
        """Return the operands of a statement of this run on the host; None for an omitted one."""
        return [self.value(source) for source in written.sources]

    def value(self, source: Source) -> Any:
        """Return the content of an operand, on the host."""
        match source:
            case WrittenResult(key, index):
                return self.content(key, index)
            case Given(name):
                return self.side.debugger.inputs[name]
            case Fixed(content):
                return self.side.debugger.backend.to_host(content)
        return None
