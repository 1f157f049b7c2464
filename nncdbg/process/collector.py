"""Pause Python's garbage collector while many long-lived records are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused(*, freeze: bool = False) -> Iterator[None]:
    """Pause collection in the body, where it would scan all records repeatedly and free none.

    `freeze` excludes all records from later collections too, until the body is next entered: a collection
    that scans the modules and a program takes 25 ms, in which a running program cannot be paused.
    """
    if freeze and gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if enabled:
            gc.enable()
