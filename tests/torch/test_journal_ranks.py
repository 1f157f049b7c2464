"""The flight recorder on two ranks of a data-parallel training, which torchrun starts."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

import nncdbg.journal  # noqa: E402
from nncdbg.errors import LoadError, UsageError  # noqa: E402
from nncdbg.opening.journal.ranks import RankMembership  # noqa: E402
from nncdbg.process.ranks import journal_of_rank  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch.journal.recreation import recreation_of  # noqa: E402
from tests.torch import ranks_training  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_processes")

ORIGIN = "the NaN or Inf originates on rank 1, at step 5"


def train(folder, *arguments, under=()):
    """Run the training on two ranks in a folder, `under` another module, and return its output."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, *under, ranks_training.__file__, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.stdout + done.stderr


def members(path):
    """Return the membership of the last run in the journal of each rank."""
    found = []
    for file in (path, f"{path}-rank1"):
        with nncdbg.journal.open(file) as journal:
            found.append(RankMembership.of(journal.run().configuration))
    return found


def printed(capsys, *arguments):
    """Return exit code and standard output of a command."""
    capsys.readouterr()
    code = main([*map(str, arguments)])
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """Return the journal and the output of a training with NaN in the batch of step 5 of rank 1."""
    folder = tmp_path_factory.mktemp("poisoned")
    return folder / "run.db", train(folder, "run.db", "--fault", "nan", "--ranks", "1")


def test_one_report_names_the_rank_and_step_where_the_nan_originates(poisoned):
    path, output = poisoned
    assert output.count(ORIGIN) == output.count("2 ranks") == 1
    [row] = [line for line in output.splitlines() if "run.db#1" in line]
    assert "step 5: 0.weight.grad has 12 NaN of 12, as 3 more have NaN or Inf" in row
    assert row.endswith("received from another rank")
    for folder in ("run.db.steps", "run.db-rank1.steps"):
        assert f"nncdbg {folder}/run1-step5" in output
        assert (path.parent / folder / "run1-step5").is_dir()


def test_runs_of_the_ranks_belong_together(poisoned):
    first, second = members(poisoned[0])
    assert first.group == second.group
    assert [(each.rank, each.ranks) for each in (first, second)] == [(0, 2), (1, 2)]


def test_record_at_re_creates_the_step_of_each_rank(tmp_path):
    """Each rank continues at a checkpoint of its own journal, and has the losses of its own run."""
    train(tmp_path, "run.db")
    output = train(tmp_path, "run.db", under=["-m", "nncdbg", "record", "--at", "run.db@3"])
    for file in ("run.db", "run.db-rank1"):
        assert f"the losses of the steps 2 to 3 are those of run 1 of {file}, bit for bit" in output
        assert f"step 3 of run 1 in {file}, re-created by ranks_training.py" in output
        assert (tmp_path / f"{file}.steps" / "run1-step3").is_dir()


def test_record_at_refuses_another_number_of_ranks_and_missing_journals(poisoned, tmp_path, monkeypatch):
    path = poisoned[0]
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(LoadError, match="run.db-rank2: rank 2 has no journal") as missing:
        recreation_of(f"{path}@4")
    assert missing.value.hint == "use as many ranks as the run had"
    for rank in range(3):
        shutil.copy(f"{path}-rank1" if rank else path, journal_of_rank(str(tmp_path / "run.db"), rank))
    with pytest.raises(UsageError, match="the run has 2 ranks, and this job 3") as other:
        recreation_of(f"{tmp_path / 'run.db'}@4")
    assert "torchrun" in str(other.value.hint)


@pytest.mark.parametrize("file", ["run.db", "run.db-rank1"])
def test_log_of_each_rank_has_all_ranks(poisoned, file, capsys):
    path = poisoned[0].parent / file
    code, text = printed(capsys, "log", path)
    assert code == 0
    for words in ("2 ranks", ORIGIN, "run.db-rank1#1"):
        assert words in text
    _, text = printed(capsys, "log", path, "--json")
    first, second = json.loads(text)["ranks"]
    assert {key: first[key] for key in ("rank", "run", "status", "steps", "kind", "step", "origin")} == {
        "rank": 0,
        "run": 1,
        "status": "ended",
        "steps": 8,
        "kind": "received",
        "step": 5,
        "origin": False,
    }
    assert (second["kind"], second["origin"]) == ("nan", True)
    assert Path(second["folder"]) == Path(f"{poisoned[0]}-rank1.steps/run1-step5")


def test_nan_of_the_run_opens_the_step_of_the_rank_where_it_originates(poisoned, capsys):
    _, text = printed(capsys, "watch", f"{poisoned[0]}@nan")
    # The fault assigns a number, which is an input until torch 2.14, and an argument of an operator since.
    assert "cause: bad " in text
    assert "ranks_training.py:21" in text
    assert "found on rank 1 of 2" in text


def test_diff_of_ranks_compares_parameters_and_moments(poisoned, capsys):
    path = poisoned[0]
    code, text = printed(capsys, "diff", path, f"{path}-rank1")
    assert "the states of the ranks 0 and 1 are equal, bit for bit" in text
    assert "tracks differ by the batches of the ranks" in text
    assert code == 0


def test_ranks_that_were_killed_continue_with_the_same_bits(tmp_path):
    train(tmp_path, "whole.db")
    train(tmp_path, "run.db", "--fault", "kill", "--ranks", "0", "1")
    output = train(tmp_path, "run.db", "--resume", "run.db")
    for file in ("run.db", "run.db-rank1"):
        assert f"run 2 is recorded in {file}" in output
        with nncdbg.journal.open(tmp_path / file) as journal:
            assert [each.status for each in journal.runs()] == ["lost", "ended"]
            assert journal.run().parent == 1
            (steps, losses) = journal.values(journal.run(), "loss")
        with nncdbg.journal.open(tmp_path / file.replace("run", "whole")) as journal:
            kept = dict(zip(*map(list, journal.values(journal.run(), "loss")), strict=True))
        assert len(steps)
        assert all(kept[step] == loss for step, loss in zip(steps, losses, strict=True))
    for rank in range(2):
        whole, continued = (torch.load(tmp_path / f"{name}.db.parameters{rank}") for name in ("whole", "run"))
        assert all(map(torch.equal, whole, continued))
    assert members(tmp_path / "run.db")[0].group == members(tmp_path / "run.db")[1].group


@pytest.mark.parametrize(
    ("fault", "rank", "status"),
    [("kill", 1, "lost"), ("kill", 0, "lost"), ("hang", 1, "running")],
)
def test_report_does_not_wait_for_a_rank_that_is_gone(fault, rank, status, tmp_path):
    began = time.monotonic()
    output = train(tmp_path, "run.db", "--fault", fault, "--ranks", f"{rank}", "--timeout", "3")
    assert output.count("note: 2 ranks") == 1
    name = "run.db-rank1" if rank else "run.db"
    [row] = [line for line in output.splitlines() if f"{name}#1 " in line]
    assert status in row
    assert time.monotonic() - began < 60


def test_rank_whose_gradients_alone_are_nan_is_the_origin(tmp_path):
    output = train(tmp_path, "run.db", "--fault", "gradient", "--ranks", "1")
    assert ORIGIN in output
    with nncdbg.journal.open(tmp_path / "run.db-rank1") as journal:
        event = journal.events(journal.run())[0]
    assert (event.kind, event.step) == ("nan", 5)
    assert event.message.startswith("0.weight.grad has")


def test_training_does_not_wait_for_a_rank_that_is_not_recorded(tmp_path):
    output = train(tmp_path, "run.db", "--fault", "nan", "--ranks", "1", "--only-rank-0")
    assert "the NaN or Inf originates on rank 1, whose journal is missing" in output
    assert not (tmp_path / "run.db-rank1").exists()
