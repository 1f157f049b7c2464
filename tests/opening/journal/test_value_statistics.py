"""The statistics of all values of each step, in the journal of a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg.journal
from nncdbg.errors import UsageError
from nncdbg.opening.configuration import RunConfiguration
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.programs import open_program
from nncdbg.stats import summarize
from tests.opening.journal.trainings import TRAININGS, bits, opened_at, run_journaled

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", [*TRAININGS])
def test_statistics_are_those_of_the_values_of_each_step(name: str, tmp_path: Path) -> None:
    """N4: all statistics by (value, step), queryable by name; the run has the same bits."""
    training, path = TRAININGS[name], tmp_path / "run.db"
    plain = run_journaled(training, tmp_path / "plain.db", checkpoint_every="1")
    whole = run_journaled(training, path, checkpoint_every="1", journal_statistics=True)
    assert plain.outputs is not None
    assert whole.outputs is not None
    assert bits(whole.outputs) == bits(plain.outputs)
    with nncdbg.journal.open(path) as journal:
        names = journal.measured(1)
        for record in journal.checkpoints(1)[1:]:
            tensors = journal.read(record).tensors
            for key, content in tensors.items():
                kind, _, state = key.partition("/")
                if kind not in ("state", "moment") or f"%{state}" not in names or not content.size:
                    continue
                (row,) = journal.statistics(1, f"%{state}", first=record.step - 1, last=record.step - 1)
                summary = summarize(np.asarray(content))
                assert row["count"] == content.size
                assert row["mean"] == pytest.approx(summary.mean, rel=1e-6, abs=1e-30)
                assert (row["min"], row["max"]) == (summary.min, summary.max)


def test_history_of_fifty_steps_of_a_hundred_values_is_read_by_name(tmp_path: Path) -> None:
    """N4: 50 iterations of many tensors, forward, backward and update."""
    configuration = RunConfiguration(
        program=str(ROOT / "examples" / "train_transformer.nnc"),
        journal=str(tmp_path / "run.db"),
        journal_statistics=True,
    )
    opened = open_program(configuration)
    debugger = opened.debugger()
    debugger.break_at(graph="train", when="$step == 50")
    with journaled(opened, debugger):
        debugger.run()
    with nncdbg.journal.open(tmp_path / "run.db") as journal:
        names = journal.measured(1)
        assert len(names) >= 100
        assert any(name.startswith("@") and ".backward." in name for name in names)
        for name in names:
            assert len(journal.statistics(1, name)) == 50


@pytest.mark.parametrize("fields", [{"allocator": "arena"}, {"in_place_states": True, "allocator": "poison"}])
def test_allocators_that_reuse_memory_are_refused(fields: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with pytest.raises(UsageError, match="--journal-statistics needs the values of a whole step"):
        run_journaled(TRAININGS[next(iter(TRAININGS))], path, journal_statistics=True, **fields)
    assert not path.exists()


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"checkpoint_every": "5"}, "--checkpoint-every"),
        ({"journal_statistics": True}, "--journal-statistics"),
        ({"journal_values": ["w1"]}, "--journal-values"),
        ({"journal_values_every": "5"}, "--journal-values-every"),
        ({"journal_codec": "f16"}, "--journal-codec"),
        ({"note": "hi"}, "--note"),
    ],
)
def test_settings_of_a_journal_need_one(fields: dict[str, object], flag: str) -> None:
    configuration = RunConfiguration(
        program=str(ROOT / "examples" / "train_mlp.nnc"),
        given=frozenset(fields),
        **fields,  # type: ignore[arg-type]
    )
    opened = open_program(configuration)
    with (
        pytest.raises(UsageError, match=f"{flag} is for a run that is written to a journal"),
        journaled(opened, opened.debugger()),
    ):
        pass


def test_statistics_of_a_fork_continue_those_of_its_parent(tmp_path: Path) -> None:
    name = next(iter(TRAININGS))
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[name], path, checkpoint_every="5", journal_statistics=True)
    opened = opened_at(f"{path}#1@7", fork=True, journal_statistics=True)
    debugger = opened.debugger()
    with journaled(opened, debugger):
        debugger.run()
    with nncdbg.journal.open(path) as journal:
        for value in journal.measured(1):
            assert journal.statistics(2, value).tolist() == journal.statistics(1, value).tolist()
