"""`python -m tests.bugs [second]`: the figures over a corpus, and what is missed."""

from __future__ import annotations

import sys

from tests.bugs.judging import complaints, figures
from tests.bugs.labels import ROOT, SECOND, corpus

if __name__ == "__main__":
    programs = corpus(SECOND if sys.argv[1:] == ["second"] else ROOT)
    for bug in programs:
        for aspect, words in complaints(bug).items():
            print(f"{bug}: {aspect}: {words}")
    print(figures(programs))
