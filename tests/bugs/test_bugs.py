"""The watch reports place and cause of the bugs of the corpus, and no false alarms on the controls."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from nncdbg.engine.ops.causes import NAMES
from tests.bugs.judging import ASPECTS, complaints, figures, known
from tests.bugs.labels import Bug, corpus, label_of

CORPUS = corpus()
KNOWN = known()


@pytest.mark.parametrize("bug", CORPUS, ids=str)
def test_the_report_agrees_with_the_label(bug: Bug) -> None:
    found, excused = dict(complaints(bug)), KNOWN.get(bug.name, {})
    assert {aspect: message for aspect, message in found.items() if aspect not in excused} == {}
    assert [aspect for aspect in excused if aspect not in found] == [], (
        "known.txt lists an aspect that is right now"
    )


def test_the_figures_meet_the_bars() -> None:
    total = figures(CORPUS)
    print(total)
    assert total.origin >= 0.95, total
    assert total.cause >= 0.90, total
    assert total.alarms == 0, total


def test_the_corpus_covers_every_cause() -> None:
    assert sum(not bug.label.innocent for bug in CORPUS) >= 70
    assert sum(bug.label.innocent for bug in CORPUS) >= 30
    causes = Counter(bug.label.cause for bug in CORPUS)
    assert [name for name in NAMES if causes[name] < 3] == []


def test_known_misses_are_of_programs_that_exist() -> None:
    assert KNOWN.keys() <= {bug.name for bug in CORPUS}
    assert {aspect for excused in KNOWN.values() for aspect in excused} <= {*ASPECTS}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("## expects: nan\n", "a label has no 'expects'"),
        ("## expect: nan\n## cause: log of nothing\n  %y = Log(%x) # origin\n", "there is no cause"),
        ("## expect: nan\n## cause: log of zero\n  %y = Log(%x) # here\n", "there is no mark 'here'"),
        ("## expect: nan\n## cause: log of zero\n  %y = Log(%x)\n", "0 origins"),
        ("## expect: nan\n## expect: inf\n", "expect is given twice"),
        ("## expect: nothing\n## because: so\n", "only controls, are in innocent/"),
    ],
)
def test_an_invalid_label_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "program.nnc"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        label_of(file)
