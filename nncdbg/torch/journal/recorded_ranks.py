"""The ranks of a data-parallel training, each with a flight recorder, and their one report."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import Any

import torch

import nncdbg.journal
from nncdbg.engine.ops.aten.internals import default_store
from nncdbg.errors import NncdbgError, UsageError
from nncdbg.opening.journal.ranks import RankMembership, RankStatus, rank_status, read_rank
from nncdbg.presentation.journal.rank_table import rank_lines
from nncdbg.presentation.screen import Screen
from nncdbg.torch.ranks import rank_of_process

PATIENCE = 10.0
"""Seconds for which a report waits for ranks that end."""

PATIENCE_AFTER_ERROR = 2.0
"""Seconds for which the report of a rank with an error waits for ranks that do not end.

Others may wait for this rank in a collective operation, until its process ends.
"""

EXCHANGE = 60.0
"""Seconds for which a rank waits for what all others publish."""

_INTERVAL = 0.05

_GOOD = ("ended", "running")
"""The states of runs that alone are no reason for a report."""

_UNFINISHED = ("running", "unknown")
"""The states of runs that may change."""

_meetings: defaultdict[str, Iterator[int]] = defaultdict(count)
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
        group = store.compare_set(f"nncdbg/{purpose}/{next(_meetings[purpose])}", "", uuid.uuid4().hex)
        joined = cls(RankMembership(group.decode(), rank, ranks), store)
        store.set(joined._key(rank, "joined"), "1")
        return joined

    def begin_end(self) -> None:
        """Let other ranks see that this one ends, which may take a while."""
        with suppress(RuntimeError):
            self._store.set(self._key(self.member.rank, "ends"), "1")

    def end(self, path: str, run: int, terminated: Callable[[], bool]) -> None:
        """Publish how the run of this rank has ended; one rank prints the report.

        It is rank 0.  If rank 0 is gone, or does not end while others fail, it is the first other rank.
        The waiting ends if `terminated`: torchrun sends SIGTERM to all ranks when one has failed.
        """
        try:
            with nncdbg.journal.open(path) as journal:
                own = rank_status(journal, journal.run(run), self.member.rank)
            with suppress(torch.distributed.DistNetworkError):
                self.publish(asdict(own))
            self._report(path, own, terminated)
        except (NncdbgError, RuntimeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            Screen().note(f"rank {self.member.rank} cannot report on all ranks: {first}")

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

    def _key(self, rank: int, what: str = "content") -> str:
        return f"nncdbg/{self.member.group}/{what}/{rank}"

    def _has(self, rank: int, what: str) -> bool:
        """Return whether a rank has set a key; True if the process with the store has ended."""
        try:
            return bool(self._store.check([self._key(rank, what)]))
        except torch.distributed.DistNetworkError:
            return True

    def _status(self, path: str, rank: int) -> RankStatus:
        """Return what a rank has published, otherwise what its journal has."""
        with suppress(torch.distributed.DistNetworkError):
            if self._store.check([self._key(rank)]):
                return RankStatus(**json.loads(self._store.get(self._key(rank))))
        return read_rank(path, rank, self.member.group)

    # -- the report --------------------------------------------------------------------------

    def _report(self, path: str, own: RankStatus, terminated: Callable[[], bool]) -> None:
        """Print the report on all ranks, unless another rank does or all ranks have ended well."""
        began, rank = time.monotonic(), self.member.rank
        before = self._await(path, range(rank), own, terminated, began)
        states = {each.status for each in before if self._has(each.rank, "joined")}
        if not states <= {*_UNFINISHED, "lost"} or (own.status in _GOOD and not states <= {"lost"}):
            return
        if not self._claims_report():
            return
        found = self._await(path, range(self.member.ranks), own, terminated, began)
        if any(each.kind or each.status not in _GOOD for each in found):
            screen = Screen()
            for line in rank_lines(found):
                screen.note(line.plain)

    def _await(
        self, path: str, ranks: range, own: RankStatus, terminated: Callable[[], bool], began: float
    ) -> Sequence[RankStatus]:
        """Return the states of ranks, as soon as no recorded one runs, or at the end of the patience."""

        def is_awaited(rank: int) -> bool:
            patient = own.status in _GOOD or self._has(rank, "ends")
            return time.monotonic() - began < (PATIENCE if patient else PATIENCE_AFTER_ERROR)

        while True:
            found = [self._status(path, rank) for rank in ranks]
            running = [each.rank for each in found if each.status in _UNFINISHED]
            awaited = any(self._has(rank, "joined") and is_awaited(rank) for rank in running)
            if not awaited or terminated():
                return found
            time.sleep(_INTERVAL)

    def _claims_report(self) -> bool:
        """Return whether no other rank has claimed the report."""
        name = f"{self.member.rank}"
        try:
            found = self._store.compare_set(f"nncdbg/{self.member.group}/report", "", name)
        except torch.distributed.DistNetworkError:
            return True
        return bool(found == name.encode())
