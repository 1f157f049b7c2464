"""The ranks of a data-parallel training, each with a flight recorder, and their one report."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

import torch

import nncdbg.journal
from nncdbg.engine.errors import NncdbgError, UsageError
from nncdbg.engine.ops.aten.internals import default_store
from nncdbg.opening.journal.ranks import RankMembership, RankStatus, rank_status, read_rank
from nncdbg.presentation.journal.rank_table import rank_lines
from nncdbg.presentation.screen import Screen
from nncdbg.torch.ranks import rank_of_process

PATIENCE = 10.0
"""Seconds for which a report waits for ranks that still run."""

EXCHANGE = 60.0
"""Seconds for which a rank waits for what all others publish."""

_INTERVAL = 0.05

_GOOD = ("ended", "running")
"""The states of runs that alone are no reason for a report."""

_joined: defaultdict[str, Iterator[int]] = defaultdict(count)
"""By purpose, how often this process has joined the ranks: each rank does the same, in the same order."""


class RecordedRanks:
    """The flight recorders of one training, seen from one rank.

    They meet in the store of the process group, which needs no collective operation: so a rank that hangs
    or ends does not block the others.
    """

    def __init__(self, member: RankMembership, store: Any) -> None:
        self.member = member
        self._store = store

    @classmethod
    def join(cls, purpose: str = "record") -> RecordedRanks | None:
        """Return the ranks with which this process trains; None without a process group of several.

        Ranks that join for the same purpose, equally often, meet.
        """
        rank, ranks = rank_of_process()
        if ranks == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return None
        store = default_store()
        # The first rank that comes names the group.
        group = store.compare_set(f"nncdbg/{purpose}/{next(_joined[purpose])}", "", uuid.uuid4().hex)
        return cls(RankMembership(group.decode(), rank, ranks), store)

    def end(self, path: str, run: int) -> None:
        """Publish how the run of this rank has ended; one rank prints the report.

        It is rank 0, or the first rank that is left if rank 0 is gone.
        """
        try:
            with nncdbg.journal.open(path) as journal:
                own = rank_status(journal, journal.run(run), self.member.rank)
            self.publish(asdict(own))
            if not self._reports(path):
                return
            statuses = self._await(path)
        except (NncdbgError, RuntimeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            Screen().note(f"rank {self.member.rank} cannot report on all ranks: {first}")
            return
        if any(each.kind or each.status not in _GOOD for each in statuses):
            _print(statuses)

    def publish(self, content: dict[str, Any]) -> None:
        """Let other ranks see what is known of this one."""
        self._store.set(self._key(self.member.rank), json.dumps(content))

    def exchange(self, content: dict[str, Any]) -> list[dict[str, Any]]:
        """Publish the content of this rank, and return that of all ranks.

        Raises UsageError if a rank has published nothing after `EXCHANGE` seconds.
        """
        self.publish(content)
        keys = [self._key(rank) for rank in range(self.member.ranks)]
        ending = time.monotonic() + EXCHANGE
        while not self._store.check(keys):
            if time.monotonic() > ending:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise UsageError(
                    f"rank {missing[0]} has not resumed after {EXCHANGE:g} seconds",
                    hint="call nncdbg.torch.resume on all ranks",
                )
            time.sleep(_INTERVAL)
        return [json.loads(self._store.get(key)) for key in keys]

    def _key(self, rank: int) -> str:
        return f"nncdbg/{self.member.group}/{rank}"

    def _status(self, path: str, rank: int) -> RankStatus:
        """Return what a rank has published, otherwise what its journal has."""
        if self._store.check([self._key(rank)]):
            return RankStatus(**json.loads(self._store.get(self._key(rank))))
        return read_rank(path, rank, self.member.group)

    def _reports(self, path: str) -> bool:
        """Return whether this rank prints the report: all ranks before it are gone."""
        return all(self._gone(path, rank) for rank in range(self.member.rank))

    def _gone(self, path: str, rank: int) -> bool:
        """Return whether the process of a rank has ended without a report.

        A process that was killed may end a moment after its connections.
        """
        ending = time.monotonic() + 20 * _INTERVAL
        while not self._store.check([self._key(rank)]):
            if read_rank(path, rank, self.member.group).status == "lost":
                return True
            if time.monotonic() > ending:
                break
            time.sleep(_INTERVAL)
        return False

    def _await(self, path: str) -> Sequence[RankStatus]:
        """Return the states of all ranks, as soon as no rank runs, or after `PATIENCE`."""
        ending = time.monotonic() + PATIENCE
        while True:
            found = [self._status(path, rank) for rank in range(self.member.ranks)]
            if all(each.status not in ("running", "unknown") for each in found):
                return found
            if time.monotonic() > ending:
                return found
            time.sleep(_INTERVAL)


def _print(statuses: Sequence[RankStatus]) -> None:
    screen = Screen()
    for line in rank_lines(statuses):
        screen.note(line.plain)
