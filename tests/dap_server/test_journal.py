"""A journal in the debug adapter: a run is written, and opened at a step."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import nncdbg.journal
from nncdbg.textual_repr.language_server.document import Document
from tests.dap_server.client import Client
from tests.dap_server.conftest import EXAMPLES
from tests.opening.journal.trainings import TRAININGS, Training, run_journaled

pytestmark = pytest.mark.usefixtures("forked_processes")

ACCUMULATE = TRAININGS["accumulate"]


def written(folder: Path) -> Path:
    file = folder / "train.nnc"
    file.write_text(ACCUMULATE.text)
    return file


def ended(path: Path) -> None:
    """Wait until the server has written the end of the last run."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with nncdbg.journal.open(path) as journal:
            if journal.run().status != "running":
                return
        time.sleep(0.02)


def frames(client: Client) -> list[str]:
    return [frame["name"] for frame in client.request("stackTrace", {"threadId": 1})["stackFrames"]]


def test_a_run_is_written_until_the_session_ends(client: Client, tmp_path: Path) -> None:
    file, path = written(tmp_path), tmp_path / "run.db"
    client.start(file, journal="run.db", checkpointEvery="4", note="from the editor", cwd=str(tmp_path))
    line = next(n for n, text in enumerate(ACCUMULATE.text.split("\n"), 1) if "RandomNormal(shape" in text)
    client.request(
        "setBreakpoints",
        {"source": {"path": str(file)}, "breakpoints": [{"line": line, "condition": "$step == 6"}]},
    )
    client.move("continue", "breakpoint")
    client.request("disconnect")
    client.expect_end()
    ended(path)
    with nncdbg.journal.open(path) as journal:
        run = journal.run()
        assert (run.status, run.steps) == ("interrupted", 6)
        assert [note.text for note in journal.notes()] == ["from the editor"]
        assert [record.step for record in journal.checkpoints()] == [0, 4, 6]


@pytest.mark.parametrize("place", ["@6", "#1@6"])
def test_a_run_is_opened_at_a_step(place: str, client: Client, tmp_path: Path) -> None:
    run_journaled(ACCUMULATE, tmp_path / "run.db", checkpoint_every="4")
    client.start(f"run.db{place}", cwd=str(tmp_path))
    assert frames(client) == ["@run step 6 of 15", "@program"]
    source = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["source"]
    assert source["path"] == str(tmp_path / "run.nnc")
    client.move("stepBack")
    assert frames(client) == ["@run step 5 of 15", "@program"]
    client.move("next")
    assert frames(client) == ["@run step 6 of 15", "@program"]


def test_the_listing_of_a_step_has_no_problems_and_lacks_the_made_graphs(
    client: Client, tmp_path: Path
) -> None:
    """The made graphs are a text of the session: in the file they would be second definitions."""
    training = Training((EXAMPLES / "train_mlp.nnc").read_text().replace("steps 300", "steps 5"), 5)
    run_journaled(training, tmp_path / "run.db", checkpoint_every="4")
    (tmp_path / "run.nnc").unlink()
    client.start("run.db@2", cwd=str(tmp_path))
    file = Path(client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["source"]["path"])
    text = file.read_text()
    assert "\nbackward @loss.backward of @loss" in text
    assert Document(file.as_uri(), text).analysis.problems == []
    assert "graph @loss.backward" not in text
    command = [sys.executable, "-m", "nncdbg.terminal.main", "listing", "run.db@2"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        == f"{file}\n"
    )


def test_each_run_and_step_has_a_listing_of_its_own(client: Client, tmp_path: Path) -> None:
    """Breakpoints in the listing of one step do not land in the program of another one."""
    run_journaled(ACCUMULATE, tmp_path / "run.db", checkpoint_every="4")
    run_journaled(ACCUMULATE, tmp_path / "gone.db", checkpoint_every="4")
    for name in ("run.nnc", "gone.nnc"):
        (tmp_path / name).unlink()
    folder = tmp_path / ".nncdbg"
    command = [sys.executable, "-m", "nncdbg.terminal.main", "listing"]

    def listed(address: str) -> str:
        shown = subprocess.run(
            [*command, address], capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout
        return Path(shown.strip()).relative_to(folder).as_posix()

    assert [listed(each) for each in ("run.db@6", "run.db#1@2", "gone.db@3")] == [
        "run-1@6.nnc",
        "run-1@2.nnc",
        "gone-1@3.nnc",
    ]
    assert (folder / "run-1@6.nnc").read_text().endswith("\n## the listing of run.db#1@6\n")
    (folder / "run.nnc").write_text("#nncdbg 1\n## the listing of run.db@6\n")  # Of an earlier version.
    (folder / "mine.nnc").write_text("#nncdbg 1\n")
    (tmp_path / "gone.db").unlink()
    client.start("run.db@5", cwd=str(tmp_path))
    source = client.request("stackTrace", {"threadId": 1})["stackFrames"][0]["source"]
    assert source["path"] == str(folder / "run-1@5.nnc")
    names = sorted(each.name for each in folder.glob("*.nnc"))
    assert names == ["mine.nnc", "run-1@2.nnc", "run-1@5.nnc", "run-1@6.nnc"]


def test_two_journals_of_one_name_have_listings_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nncdbg.terminal.main", "listing"]
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        run_journaled(ACCUMULATE, folder / "run.db", checkpoint_every="4")
        (folder / "run.nnc").unlink()
    found = [
        subprocess.run([*command, each], capture_output=True, text=True, check=True, cwd=tmp_path)
        for each in ("run.db@6", "other/run.db@6")
    ]
    assert found[0].stdout != found[1].stdout
    assert "shows run.db#1@6; the listing of other/run.db#1@6 is in" in found[1].stderr


def test_a_fork_is_a_new_run(client: Client, tmp_path: Path) -> None:
    run_journaled(ACCUMULATE, tmp_path / "run.db", checkpoint_every="4")
    client.start("run.db@6", cwd=str(tmp_path), fork=True, set={"lr": 0.5})
    client.send("continue", {"threadId": 1})
    client.expect_event("terminated")
    client.request("disconnect")
    client.expect_end()
    ended(tmp_path / "run.db")
    with nncdbg.journal.open(tmp_path / "run.db") as journal:
        run = journal.run()
        assert (run.number, run.parent, run.parent_step, run.status) == (2, 1, 6, "ended")
        assert "lr=0.5" in (journal.program() or "")
