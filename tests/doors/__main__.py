"""`python -m tests.doors [PART]`: print the disagreements of the user interfaces, and the figures."""

from __future__ import annotations

import sys
import time

from tests.doors.answers import disagreements
from tests.doors.cases import cases

if __name__ == "__main__":
    part = sys.argv[1] if sys.argv[1:] else ""
    asked, disagreeing, started = 0, 0, time.perf_counter()
    for case in cases():
        found = disagreements(case) if part in case.name else None
        if found is None:
            continue
        asked, disagreeing = asked + 1, disagreeing + bool(found)
        for door, text in found.items():
            print(f"{case} | {door} | {text}", flush=True)
    agreeing = asked - disagreeing
    share = agreeing / max(1, asked)
    print(f"{asked} faults: all user interfaces agree on {agreeing} ({share:.1%})")
    print(f"{time.perf_counter() - started:.0f} s")
