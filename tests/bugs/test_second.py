"""The second corpus: its truth is confirmed by experiment, and the watch finds it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bugs.labels import NOTHING, SECOND, Bug, corpus
from tests.bugs.second.experiment import outputs_differ

CORPUS = corpus(SECOND)
BUGS = [bug for bug in CORPUS if not bug.label.innocent]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_label_claims_the_effect_that_an_experiment_shows(bug: Bug) -> None:
    assert outputs_differ(bug) == (bug.label.reaches != NOTHING)


def test_corpus_is_wide() -> None:
    families = Counter(bug.path.parent.name for bug in CORPUS)
    assert len(BUGS) >= 100
    assert families["innocent"] >= 60
    assert min(families.values()) >= 7
