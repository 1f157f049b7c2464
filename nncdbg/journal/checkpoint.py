"""A checkpoint that was read: its position, and its tensors, read on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nncdbg.ir.records import Array


class StoredTensors(Mapping[str, Array]):
    """The tensors of a checkpoint by name, read-only arrays in native byte order.

    Each access reads the tensor from the file and verifies its content hash.  Raises KeyError for an unknown
    name, LoadError for a damaged tensor.
    """

    def __init__(self, hashes: Mapping[str, bytes], read: Callable[[str, bytes], Array]) -> None:
        self.hashes = dict(hashes)
        """The content hash of each tensor: equal tensors have the same hash."""
        self._read = read

    def __getitem__(self, name: str) -> Array:
        return self._read(name, self.hashes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.hashes)

    def __len__(self) -> int:
        return len(self.hashes)

    def __contains__(self, name: object) -> bool:
        return name in self.hashes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before `step` ran: the position as a JSON object, and the tensors by name."""

    step: int
    epoch: int | None
    position: dict[str, Any]
    tensors: StoredTensors
