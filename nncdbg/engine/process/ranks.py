"""The ranks of a distributed training, as torchrun starts them: they share one terminal and one disk."""

from __future__ import annotations

import os

from nncdbg.engine.errors import UsageError

CHOSEN = "NNCDBG_RANK"
"""The environment variable with the rank that stops; `nncdbg debug --rank` sets it for its script."""


def choose_rank(rank: int | None = None) -> bool:
    """Return whether this process stops: of those that torchrun starts, only the one with `rank` does.

    Without `rank`, that of ``NNCDBG_RANK`` or else rank 0 stops.  The choice is that of later calls as well.

    Raises UsageError if there is no such rank.
    """
    words = os.environ.get(CHOSEN, "0") if rank is None else str(rank)
    ranks = os.environ.get("WORLD_SIZE", "")
    if not words.isdecimal():
        raise UsageError(f"{words!r} is not a rank", hint="a rank is a whole number from 0")
    chosen = int(words)
    if ranks.isdecimal() and chosen >= int(ranks):
        raise UsageError(
            f"there is no rank {chosen} of {ranks}", hint=f"use a rank from 0 to {int(ranks) - 1}"
        )
    if rank is not None:
        os.environ[CHOSEN] = words
    return os.environ.get("RANK", words) == words


def folder_of_rank(folder: str) -> str:
    """Return the folder that this process writes: ``step7-rank1`` for ``step7`` on rank 1 of several."""
    ranks, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    several = ranks.isdecimal() and int(ranks) > 1 and rank.isdecimal()
    return f"{folder.rstrip(os.sep)}-rank{rank}" if several else folder
