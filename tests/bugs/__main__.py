"""`python -m tests.bugs`: the figures over the corpus, and what is missed."""

from __future__ import annotations

from tests.bugs.judging import complaints, figures
from tests.bugs.labels import corpus

if __name__ == "__main__":
    programs = corpus()
    for bug in programs:
        for aspect, words in complaints(bug).items():
            print(f"{bug}: {aspect}: {words}")
    print(figures(programs))
