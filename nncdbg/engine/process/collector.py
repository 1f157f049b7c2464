"""Pause Python's garbage collector while many long-lived records are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, freeze: bool = False) -> Iterator[None]:
    """Pause collection in the body, where it would scan all records repeatedly and free none.

    `freeze` excludes all records from later collections too, for records that live as long as the process.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if enabled:
            gc.enable()
