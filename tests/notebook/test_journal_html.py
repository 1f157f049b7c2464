"""The HTML of journals and runs in a notebook."""

from __future__ import annotations

from pathlib import Path

from nncdbg import journal
from nncdbg.journal import NewRun
from tests.notebook.test_rendering import HOSTILE, read_html

CONFIGURATION = {"lr": 0.1}


def test_a_journal_is_the_list_of_its_runs(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as written:
        for name in ("train_mlp", HOSTILE):
            with written.start(NewRun(kind="graph", name=name, configuration=CONFIGURATION)) as run:
                run.value("loss", 3, 0.5)
                run.step(3)
        with written.fork(1, 2, NewRun(kind="graph", name="train_mlp")) as run:
            run.value("loss", 2, 0.25)
    with journal.open(tmp_path / "run.db") as opened:
        html = read_html(opened)
        facts = [read_html(run).text for run in opened.runs()]
    assert html.text.startswith("run.db: 3 runs, ")
    assert "└─ 3 @2" in html.text
    assert "loss 0.5" in html.text
    assert "run 1: train_mlp" in facts[0]
    assert '{"lr": 0.1}' in facts[0]
    assert "fork of" not in facts[0]
    assert "run 1 at step 2" in facts[2]
    assert "alert(1)" in facts[1]
