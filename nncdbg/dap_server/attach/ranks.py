"""A rank of a distributed job under the live debugger: it listens for clients, and notes what it does."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nncdbg.dap_server.attach.calls import attachment, listen, wait_for_client
from nncdbg.dap_server.attach.live import AttachedTraining
from nncdbg.dap_server.registry import State
from nncdbg.dap_server.transport.access import token_file
from nncdbg.process.rank_notes import (
    RankActivity,
    RankNotes,
    RankProcess,
    folder_of_job,
    remove_ended_jobs,
)
from nncdbg.process.threads import BackgroundThread
from nncdbg.torch.live.training import LiveTraining
from nncdbg.torch.ranks import CollectiveNotes, RankDigests
from nncdbg.torch.source_lines import place_of, user_lines

_PACE = 0.25
"""Seconds between two notes of the status."""


@contextmanager
def debugged_rank(script: str, *, history: bool, wait: bool) -> Iterator[None]:
    """Run a rank under the live debugger, which stops it at what the attached client sets.

    With `wait`, the rank waits until a client is attached.  Raises UsageError outside of torchrun.
    """
    folder = folder_of_job()
    address = listen(("127.0.0.1", 0))
    clients = attachment()
    assert clients is not None
    training = AttachedTraining(clients, history=history, on_demand=True).training
    rank, ranks = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    token = token_file(*address)
    remove_ended_jobs(folder)
    process = RankProcess(
        rank=rank,
        ranks=ranks,
        pid=os.getpid(),
        agent=os.getppid(),
        script=script,
        port=address[1],
        token=str(token) if token.exists() else "",
    )
    notes = RankNotes(folder, process, "waiting" if wait else "running")
    collectives = CollectiveNotes(notes, rank)
    digests = RankDigests(folder, rank, lambda: training.mode.names, lambda: training.mode.step)
    watcher = _Watcher(notes, training)
    watcher.waiting = wait
    try:
        if wait:
            if rank == 0:
                print(
                    f"nncdbg: {script} waits for `nncdbg attach --ranks {folder.name}`",
                    file=sys.stderr,
                    flush=True,
                )
            wait_for_client()
            watcher.waiting = False
        with training:
            yield
    finally:
        collectives.end()
        digests.end()
        watcher.end()


class _Watcher:
    """Notes where the main thread is, on a thread of its own."""

    def __init__(self, notes: RankNotes, training: LiveTraining) -> None:
        self._notes = notes
        self._training = training
        self.waiting = False
        """Whether the script waits for a client."""
        self._main = threading.get_ident()
        self._ending = threading.Event()
        self._thread = BackgroundThread(target=self._run, name="nncdbg-rank-notes")
        self._thread.start()

    def end(self) -> None:
        """Note that the script has ended."""
        self._ending.set()
        self._thread.join()
        self._note("ended")

    def _run(self) -> None:
        while not self._ending.wait(_PACE):
            clients = attachment()
            session = clients.session if clients is not None else None
            stopped = session is not None and session.state is State.STOPPED
            self._note("waiting" if self.waiting else "stopped" if stopped else "running")

    def _note(self, state: str) -> None:
        lines = user_lines(sys._current_frames().get(self._main), most=1)
        place, step = place_of(lines), self._training.mode.step
        self._notes.note_status(RankActivity(seen=time.time(), state=state, place=place, step=step))
