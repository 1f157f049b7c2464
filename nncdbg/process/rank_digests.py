"""Digests of the gradients and parameters of each rank, and the first step at which a rank differs.

A rank appends a line of JSON to its file for each step that it digests.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

FIRST, EVERY = 10, 10
"""The steps that are digested: the first ones, then each one that is a multiple of `EVERY`."""


SHARD = "[shard "
"""In the name of a part of a tensor, such as ``fc.weight[shard 1]``: other ranks have other parts."""


class StepDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a rank after the backward pass of a step, and after its update."""

    step: int
    tensors: dict[str, tuple[int, float | None]]
    """Maps a name, such as ``fc.weight.grad``, to the digest of its bytes and its Euclidean norm.

    The norm is None if it is NaN or Inf.
    """


@dataclass(frozen=True, slots=True)
class Divergence:
    """A tensor that differs between ranks."""

    step: int
    name: str
    norms: Mapping[int, float | None]
    """By rank."""
    different: tuple[int, ...]
    """The ranks that differ from most others."""
    others: tuple[int, ...]


class DigestFile:
    """The file to which this rank appends."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._descriptor = os.open(
            path_of_digests(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )

    def append(self, found: StepDigests) -> None:
        """Append a step."""
        os.write(self._descriptor, msgspec.json.encode(found) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def path_of_digests(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank{rank}.digests"


def is_digested(step: int) -> bool:
    """Return whether the tensors of a step are digested."""
    return step <= FIRST or step % EVERY == 0


def read_digests(folder: Path, ranks: Sequence[int]) -> dict[int, list[StepDigests]]:
    """Return the digests of each rank; a line that is being written is left out."""
    found: dict[int, list[StepDigests]] = {}
    for rank in ranks:
        try:
            content = path_of_digests(folder, rank).read_bytes()
        except OSError:
            content = b""
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        found[rank] = [msgspec.json.decode(line, type=StepDigests) for line in lines]
    return found


def digested_steps(found: Mapping[int, Sequence[StepDigests]]) -> list[int]:
    """Return the steps that all ranks have digested."""
    steps = [{each.step for each in digests} for digests in found.values()]
    return sorted(set.intersection(*steps)) if steps else []


def find_divergences(found: Mapping[int, Sequence[StepDigests]]) -> list[Divergence]:
    """Return the tensors that differ at the first step at which one does, gradients first."""
    for step in digested_steps(found):
        at = {rank: each.tensors for rank, digests in found.items() for each in digests if each.step == step}
        different = [*_different(step, at)]
        if different:
            return different
    return []


def _different(step: int, at: Mapping[int, Mapping[str, tuple[int, float | None]]]) -> Iterator[Divergence]:
    names = dict.fromkeys(name for tensors in at.values() for name in tensors)
    for name in sorted(names, key=lambda name: not name.endswith(".grad")):
        ranks_by_digest: dict[int | None, list[int]] = defaultdict(list)
        ranks = [rank for rank, tensors in at.items() if name in tensors or SHARD not in name]
        for rank in ranks:
            tensors = at[rank]
            ranks_by_digest[tensors[name][0] if name in tensors else None].append(rank)
        if len(ranks_by_digest) > 1:
            most = max(ranks_by_digest.values(), key=len)
            yield Divergence(
                step,
                name,
                {rank: tensors[name][1] for rank, tensors in at.items() if name in tensors},
                tuple(rank for rank in sorted(ranks) if rank not in most),
                tuple(sorted(most)),
            )
