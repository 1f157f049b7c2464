"""The ranks of a distributed training, as torchrun starts them: they share one terminal and one disk."""

from __future__ import annotations

import os
import re

from nncdbg.errors import UsageError
from nncdbg.text.lexemes import integer_of

_RANK = re.compile(r"-rank[0-9]+$")

CHOSEN = "NNCDBG_RANK"
"""The environment variable with the rank that stops; `nncdbg debug --rank` sets it for its script."""


def choose_rank(rank: int | None = None) -> bool:
    """Return whether this process stops: of those that torchrun starts, only the one with `rank` does.

    Without `rank`, that of ``NNCDBG_RANK`` or else rank 0 stops.  The choice is that of later calls as well.

    Raises UsageError if there is no such rank.
    """
    words = os.environ.get(CHOSEN, "0") if rank is None else str(rank)
    ranks = os.environ.get("WORLD_SIZE", "")
    chosen = integer_of(words)
    if chosen is None or chosen < 0:
        raise UsageError(f"{words!r} is not a rank", hint="a rank is a whole number from 0")
    if ranks.isdecimal() and chosen >= int(ranks):
        raise UsageError(
            f"there is no rank {chosen} of {ranks}", hint=f"use a rank from 0 to {int(ranks) - 1}"
        )
    if rank is not None:
        os.environ[CHOSEN] = words
    return os.environ.get("RANK", words) == words


def rank_in_environment() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks that torchrun has set; (0, 1) without."""
    ranks, rank = os.environ.get("WORLD_SIZE", ""), os.environ.get("RANK", "")
    if ranks.isdecimal() and rank.isdecimal() and int(ranks) > 1:
        return int(rank), int(ranks)
    return 0, 1


def folder_of_rank(folder: str) -> str:
    """Return the folder that this process writes: ``step7-rank1`` for ``step7`` on rank 1 of several."""
    rank, ranks = rank_in_environment()
    return f"{folder.rstrip(os.sep)}-rank{rank}" if ranks > 1 else folder


def journal_of_rank(path: str, rank: int) -> str:
    """Return the journal of a rank: ``run.db`` of rank 0, ``run.db-rank1`` of rank 1.

    `path` may also be the journal of another rank.
    """
    first = journal_of_first_rank(path)
    return f"{first}-rank{rank}" if rank else first


def journal_of_first_rank(path: str) -> str:
    """Return the journal of rank 0, given that of any rank: ``run.db`` for ``run.db-rank1``."""
    return _RANK.sub("", path)
