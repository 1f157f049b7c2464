"""`python -m tests.doors [PART]`: print the disagreements of the user interfaces, and the figures."""

from __future__ import annotations

import sys
import time

from tests.doors.answers import disagreements
from tests.doors.cases import cases

if __name__ == "__main__":
    part = sys.argv[1] if sys.argv[1:] else ""
    chosen = [case for case in cases() if part in case.name]
    disagreeing, started = 0, time.perf_counter()
    for case in chosen:
        found = disagreements(case)
        disagreeing += bool(found)
        for door, text in found.items():
            print(f"{case} | {door} | {text}", flush=True)
    agreeing = len(chosen) - disagreeing
    share = agreeing / max(1, len(chosen))
    print(f"{len(chosen)} faults: all user interfaces agree on {agreeing} ({share:.1%})")
    print(f"{time.perf_counter() - started:.0f} s")
