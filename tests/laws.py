"""The number of examples of hypothesis: all in a run of all nightly tests, a quarter of them in others."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

EXAMPLES = 100
"""The examples of a law that states no other number."""


def examples(number: int, **options: Any) -> settings:
    """Return settings with `number` examples, of which only a run of all nightly tests has all."""
    if os.environ.get("NNCDBG_QUARTER") != "all":
        number = max(2, number // 4)
    return settings(max_examples=number, **options)


def load_profile() -> None:
    """Set what all laws share.  A limit of the time of an example would fail on a busy machine."""
    shared = examples(EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    settings.register_profile("laws", shared)
    settings.load_profile("laws")
