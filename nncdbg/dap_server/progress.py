"""Progress of long work: begun after half a second, then updated at a steady pace, and always ended.

Work is declared once (`under_way`); a thread polls how far it has come.  While nothing is reported, because
all work is quick or the client does not support progress, that thread sleeps.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nncdbg.dap_server import protocol
from nncdbg.dap_server.client import Client
from nncdbg.process.threads import BackgroundThread

if TYPE_CHECKING:
    from nncdbg.target.target import Target

PATIENCE = 0.5
"""Seconds before work is reported."""

PACE = 0.25
"""Seconds between two polls, and so the least time between two updates."""

Poll: TypeAlias = "Callable[[], tuple[str | None, float | None]]"
"""``poll() -> (message, percentage)``, called by the reporting thread; None where unknown."""


@dataclass(eq=False, slots=True)
class Work:
    """Work that may take long.  `number` is None until the client is notified of it."""

    title: str
    poll: Poll
    cancel: Callable[[], None] | None
    request: int | None
    began: float
    number: str | None = None
    reported: tuple[str | None, float | None] = (None, None)


def _nothing_known() -> tuple[str | None, float | None]:
    return None, None


class Progress:
    """Reports work in progress to one client, if the client supports progress."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        """Guards the fields below, and keeps the events of one work in order."""
        self._works: list[Work] = []
        self._numbers = itertools.count(1)
        self._thread: threading.Thread | None = None
        self._awake = threading.Event()
        self._resting = False
        self._over = threading.Event()

    @contextmanager
    def under_way(
        self,
        title: str,
        *,
        poll: Poll = _nothing_known,
        cancel: Callable[[], None] | None = None,
        request: int | None = None,
    ) -> Iterator[None]:
        """Context of some work.  `cancel` requests its end, from any thread; without it, no cancellation.

        `request` is the number of the request that is answered only when the work is done.
        """
        if not self._client.arguments.supports_progress_reporting:
            yield
            return
        work = Work(title, poll, cancel, request, time.monotonic())
        self._add(work)
        try:
            yield
        finally:
            with self._lock:
                if work in self._works:
                    self._works.remove(work)
                    self._end(work)

    def cancel(self, progress_id: str) -> bool:
        """Cancel the work with this id; return False if there is none that can be cancelled."""
        with self._lock:
            found = next((work for work in self._works if work.number == progress_id), None)
        if found is None or found.cancel is None:
            return False
        found.cancel()
        return True

    def end_all(self) -> None:
        """End all reports of current work."""
        with self._lock:
            for work in self._works:
                self._end(work)
            self._works.clear()

    def close(self) -> None:
        """Stop at the end of the session."""
        self._over.set()
        self._awake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- reporting ---------------------------------------------------------------------------

    def _add(self, work: Work) -> None:
        with self._lock:
            self._works.append(work)
            if self._thread is None and not self._over.is_set():
                self._thread = BackgroundThread(target=self._report_all, name="nncdbg-dap-progress")
                self._thread.start()
            resting = self._resting
        if resting:
            self._awake.set()

    def _report_all(self) -> None:
        while not self._over.wait(PACE):
            with self._lock:
                for work in self._works:
                    self._report(work)
                # Steps in quick succession find it awake, and so cost nothing here.
                self._resting = not self._works
                self._awake.clear()
                resting = self._resting
            if resting and not self._over.is_set():
                self._awake.wait()
                self._resting = False

    def _report(self, work: Work) -> None:
        if work.number is None:
            if time.monotonic() - work.began < PATIENCE:
                return
            work.number = f"progress-{next(self._numbers)}"
            work.reported = message, percentage = work.poll()
            start = protocol.ProgressStartEventBody(
                progress_id=work.number,
                title=work.title,
                request_id=work.request,
                cancellable=work.cancel is not None,
                message=message,
                percentage=percentage,
            )
            self._client.send_event("progressStart", start)
            return
        current = message, percentage = work.poll()
        if current != work.reported:
            work.reported = current
            update = protocol.ProgressUpdateEventBody(
                progress_id=work.number, message=message, percentage=percentage
            )
            self._client.send_event("progressUpdate", update)

    def _end(self, work: Work) -> None:
        if work.number is not None:
            self._client.send_event("progressEnd", protocol.ProgressEndEventBody(progress_id=work.number))


_FEWEST = 20
"""Statements of the entry graph below which a percentage is meaningless."""


def how_far(target: Target) -> Poll:
    """Return a poll of a moving program: statements executed, and the fraction of the entry graph done.

    The fraction is available in forward execution only.
    """
    start = target.now.tick

    def poll() -> tuple[str | None, float | None]:
        # The machine counts at the end of a block; this makes it leave the current one, so that the next
        # poll finds the exact count.
        target.between_statements(_do_nothing)
        now = target.now
        done, count = now.done
        percentage = None if now.tick < start or count < _FEWEST else round(100 * done / count, 1)
        return f"statement {now.tick}", percentage

    return poll


def _do_nothing() -> None:
    """Do nothing, as an action between two statements."""
