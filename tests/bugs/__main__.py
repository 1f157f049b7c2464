"""`python -m tests.bugs [second]`: print the missed aspects of a corpus and its figures."""

from __future__ import annotations

import sys

from tests.bugs.judging import complaints, figures
from tests.bugs.labels import ROOT, SECOND, corpus

if __name__ == "__main__":
    programs = corpus(SECOND if sys.argv[1:] == ["second"] else ROOT)
    for bug in programs:
        for aspect, text in complaints(bug).items():
            print(f"{bug}: {aspect}: {text}")
    print(figures(programs))
