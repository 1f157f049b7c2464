"""Ranks of a training without processes of their own: which one reports, what `log` and `diff` print."""

import json
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

from torch import nn  # noqa: E402

import nncdbg.journal  # noqa: E402
from nncdbg.errors import LoadError  # noqa: E402
from nncdbg.journal import NewRun  # noqa: E402
from nncdbg.opening.journal.ranks import RankMembership, origin_among, ranks_of  # noqa: E402
from nncdbg.presentation.journal.rank_table import rank_lines  # noqa: E402
from nncdbg.process.ranks import journal_of_rank  # noqa: E402
from nncdbg.terminal.main import main  # noqa: E402
from nncdbg.torch import flight_recorder  # noqa: E402
from nncdbg.torch.journal import recorded_ranks, resuming  # noqa: E402
from nncdbg.torch.journal.recorded_ranks import RecordedRanks  # noqa: E402

RANKS = 3


def write_rank(path, rank, status, kind="", *, ranks=RANKS, step=2):
    """Write the run of a rank, with an event of a kind; return what ends it."""
    stack = ExitStack()
    journal = stack.enter_context(nncdbg.journal.open(journal_of_rank(str(path), rank), write=True))
    configuration = RankMembership("group", rank, ranks).as_configuration()
    writer = journal.start(NewRun(kind="torch", name="t", configuration=configuration))
    for number in range(3):
        writer.step(number, epoch=None, seconds=0.1)
    if kind:
        writer.event(kind, step, "loss has 1 NaN of 1")
    if status != "running":
        writer.end(status)
    else:
        writer.flush()
    return stack


@pytest.fixture
def patience(monkeypatch):
    """Let ranks wait for a moment only."""
    monkeypatch.setattr(recorded_ranks, "PATIENCE", 0.3)
    monkeypatch.setattr(recorded_ranks, "PATIENCE_AFTER_ERROR", 0.1)


REPORTS = {
    # States of the ranks 0, 1, 2 in the order in which they end: the ranks that report.
    ("ended", "ended", "ended"): [],
    ("failed", "ended", "ended"): [0],
    ("running", "failed", "ended"): [1],
    ("running", "failed", "failed"): [1],
    ("running", "running", "failed"): [2],
    ("running", "ended", "ended"): [],
    ("ended", "ended", "failed"): [0],
    ("ended", "running", "ended"): [],
}


@pytest.mark.parametrize(("states", "reporting"), REPORTS.items())
@pytest.mark.usefixtures("patience")
def test_one_rank_reports(states, reporting, tmp_path, capsys):
    path, store, found = tmp_path / "run.db", torch.distributed.HashStore(), []
    with ExitStack() as stack:
        for rank, status in enumerate(states):
            stack.enter_context(write_rank(path, rank, status))
        ranks = [
            RecordedRanks(RankMembership("group", rank, RANKS), store) for rank, status in enumerate(states)
        ]
        for rank in range(RANKS):
            store.set(f"nncdbg/group/joined/{rank}", "1")
        for rank, status in enumerate(states):
            if status != "running":
                ranks[rank].end(journal_of_rank(str(path), rank), 1, lambda: False)
                if "3 ranks" in capsys.readouterr().err:
                    found.append(rank)
    assert found == reporting


ORIGINS = {
    # Kinds of the first findings and their steps: what the table says.
    (("received", 2), ("nan", 2), ("", 0)): "the NaN or Inf originates on rank 1, at step 2",
    (("nan", 3), ("nan", 2), ("nan", 4)): "the NaN or Inf originates on rank 1, at step 2",
    (("nan", 2), ("nan", 2), ("received", 2)): "the first NaN or Inf is on the ranks 0, 1, at step 2",
    (("received", 2), ("received", 2), ("received", 2)): (
        "the NaN or Inf originates on no rank that was recorded"
    ),
    (("received", 2), None, ("received", 2)): (
        "the NaN or Inf originates on rank 1, whose journal is missing"
    ),
    (("spike", 2), ("", 0), ("exception", 2)): "",
}


@pytest.mark.parametrize(("findings", "words"), ORIGINS.items())
def test_table_of_ranks_names_the_origin(findings, words, tmp_path):
    path = tmp_path / "run.db"
    for rank, finding in enumerate(findings):
        if finding is not None:
            with write_rank(path, rank, "ended", finding[0], step=finding[1]):
                pass
    with nncdbg.journal.open(path) as journal:
        ranks = ranks_of(journal, journal.run())
    lines = [line.plain for line in rank_lines(ranks)]
    assert (words in lines) if words else not any("NaN or Inf" in line for line in lines)
    assert [each.rank for each in ranks] == [*range(RANKS)]
    assert ranks[1].status == ("ended" if findings[1] is not None else "unknown")


def test_runs_of_another_training_are_no_ranks(tmp_path):
    path = tmp_path / "run.db"
    with write_rank(path, 0, "ended", ranks=2), nncdbg.journal.open(f"{path}-rank1", write=True) as other:
        configuration = RankMembership("another", 1, 2).as_configuration()
        other.start(NewRun(kind="torch", name="t", configuration=configuration)).end("ended")
    with nncdbg.journal.open(path) as journal:
        ranks = ranks_of(journal, journal.run())
    assert [(each.run, each.status) for each in ranks] == [(1, "ended"), (0, "unknown")]
    assert origin_among(ranks) is None


def test_diff_names_the_first_states_in_which_ranks_differ(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        member = RankMembership("group", rank, 2).as_configuration()
        with flight_recorder(
            model, optimizer, journal_of_rank("run.db", rank), checkpoint_every=1, configuration=member
        ):
            for step in range(5):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                if step == 2 and rank == 1:
                    model.bias.grad += 1
                optimizer.step()
    capsys.readouterr()
    assert main(["diff", "run.db", "run.db-rank1"]) == 1
    text = capsys.readouterr().out
    words = (
        "the states of the ranks 0 and 1 differ at the start of step 3; data-parallel ranks have equal states"
    )
    assert words in text
    assert "bias" in text
    main(["diff", "run.db", "run.db-rank1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["ranks"], found["status"], found["states"]["step"]) == ([0, 1], "diverged", 3)


ADDRESSES = {
    "run.db": "run.db-rank1",
    "run.db@38": "run.db-rank1@38",
    "run.db#2@epoch:3": "run.db-rank1#2@epoch:3",
    "run.db-rank1#2": "run.db-rank1#2",
}


@pytest.fixture
def rank_1(tmp_path, monkeypatch):
    """Let this process be rank 1 of 2, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize(("address", "own"), ADDRESSES.items())
@pytest.mark.usefixtures("rank_1")
def test_each_rank_resumes_from_its_own_journal(address, own, tmp_path):
    (tmp_path / "run.db-rank1").touch()
    assert resuming.address_of_rank(address) == own


@pytest.mark.usefixtures("rank_1")
def test_rank_without_a_journal_cannot_resume():
    with pytest.raises(LoadError, match="there is no file run.db-rank1: rank 1 has no journal"):
        resuming.address_of_rank("run.db@3")
