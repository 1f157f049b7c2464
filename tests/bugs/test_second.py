"""The second corpus: an experiment confirms each label, and the watch reports it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bugs.judging import ASPECTS, complaints, figures, known
from tests.bugs.labels import NOTHING, SECOND, Bug, corpus
from tests.bugs.second.experiment import outputs_differ

CORPUS = corpus(SECOND)
BUGS = [bug for bug in CORPUS if not bug.label.innocent]
KNOWN = known(SECOND)


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_an_experiment_confirms_the_effect_of_the_label(bug: Bug) -> None:
    assert outputs_differ(bug) == (bug.label.reaches != NOTHING)


@pytest.mark.parametrize("bug", CORPUS, ids=str)
def test_the_report_agrees_with_the_label(bug: Bug) -> None:
    found, excused = dict(complaints(bug)), KNOWN.get(bug.name, {})
    assert {aspect: reason for aspect, reason in found.items() if aspect not in excused} == {}
    assert [aspect for aspect in excused if aspect not in found] == [], (
        "known.txt lists an aspect that is right now"
    )


@pytest.mark.parametrize("bug", [bug for bug in CORPUS if not bug.label.libraries], ids=str)
def test_poisoning_freed_memory_changes_no_report(bug: Bug) -> None:
    assert complaints(bug, "poison").keys() == complaints(bug).keys()


def test_the_figures_meet_the_bars() -> None:
    total = figures(CORPUS)
    print(total)
    assert total.origin >= 0.97, total
    assert total.cause >= 0.95, total
    assert total.alarms == 0, total


def test_known_misses_are_of_programs_that_exist() -> None:
    assert KNOWN.keys() <= {bug.name for bug in CORPUS}
    assert {aspect for excused in KNOWN.values() for aspect in excused} <= {*ASPECTS}


def test_the_corpus_is_large() -> None:
    families = Counter(bug.path.parent.name for bug in CORPUS)
    assert len(BUGS) >= 100
    assert families["innocent"] >= 60
    assert min(families.values()) >= 7
