"""N14: values of a training that are kept in its journal, by patterns, at a distance, within a budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nncdbg
import nncdbg.journal
from nncdbg.engine.debugger import Debugger
from nncdbg.errors import UsageError
from nncdbg.journal.codecs import EXACT, decode, encode
from nncdbg.opening.journal.recording import journaled
from nncdbg.opening.journal.reproduction import reproducing
from nncdbg.opening.journal.value_recorder import matches, names_of_values
from tests.opening.journal.trainings import TRAININGS, bits, opened_at, run_journaled, written

NAMES = [*TRAININGS]
DROPOUT, EVALUATE, SEVERAL, ACCUMULATE = NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("codec", ["exact", "f16", "blocks"])
def test_a_kept_state_is_that_of_the_next_checkpoint(name: str, codec: str, tmp_path: Path) -> None:
    """N14: the value of each step, with the measured error; the run and its checkpoints are exact."""
    training, path = TRAININGS[name], tmp_path / "run.db"
    plain = run_journaled(training, tmp_path / "plain.db", checkpoint_every="1")
    whole = run_journaled(
        training, path, checkpoint_every="1", journal_values=["w", "@loss.*"], journal_codec=codec
    )
    assert plain.outputs is not None
    assert whole.outputs is not None
    assert bits(whole.outputs) == bits(plain.outputs)
    with nncdbg.journal.open(path) as journal, nncdbg.journal.open(tmp_path / "plain.db") as other:
        for record, exact in zip(journal.checkpoints(), other.checkpoints(), strict=True):
            assert journal.read(record).tensors.hashes == other.read(exact).tensors.hashes
        for record in journal.checkpoints()[1:]:
            state = journal.read(record).tensors["state/w"]
            found, error = journal.value_of(None, "%w", record.step - 1)
            encoded = encode(state, codec)
            assert found.tobytes() == decode(encoded).tobytes()
            assert error == encoded.error
            assert (error == EXACT) == (codec == "exact")
        kept = {each.name for each in journal.kept_values()}
        assert kept > {"%w", "@loss.%l"}
        assert all(each == "%w" or each.startswith("@loss.") for each in kept)


def test_checkpoints_are_exact_whatever_the_codec(tmp_path: Path) -> None:
    """N14: a run whose states are kept by a lossy codec restarts with the same bits."""
    path = tmp_path / "run.db"
    whole = run_journaled(
        TRAININGS[EVALUATE], path, checkpoint_every="4", journal_values=["*"], journal_codec="blocks"
    )
    assert whole.outputs is not None
    for step in (0, 4, 10, 20):
        opened = opened_at(f"{path}@{step}")
        debugger = opened.debugger(statistics=False)
        with reproducing(opened, debugger) as reproduction:
            debugger.run()
        assert reproduction is not None
        assert not reproduction.difference
        assert debugger.outputs is not None
        assert bits(debugger.outputs) == bits(whole.outputs)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (None, [*range(20)]),
        ("1", [*range(20)]),
        ("6", [0, 6, 12, 18]),
        ("2epochs", [0, 10]),
        ("1000s", [0]),
    ],
)
def test_the_distance_of_kept_values(every: str | None, expected: list[int], tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[DROPOUT], path, journal_values=["@network.%h"], journal_values_every=every)
    with nncdbg.journal.open(path) as journal:
        assert [each.step for each in journal.kept_values()] == expected


def test_older_values_are_thinned_out_within_the_budget(tmp_path: Path) -> None:
    path, size = tmp_path / "run.db", 8 * 2 * 4
    run_journaled(TRAININGS[DROPOUT], path, journal_values=["@network.%h"], checkpoint_budget=f"{6 * size}")
    with nncdbg.journal.open(path) as journal:
        steps = [each.step for each in journal.kept_values()]
        assert sum(each.bytes for each in journal.kept_values()) <= 6 * size
    assert (steps[0], steps[-1]) == (0, 19)
    assert 4 <= len(steps) <= 6
    gaps = np.diff(steps)
    assert gaps[0] >= gaps[-1] == 1


def test_the_budget_counts_the_encoded_size(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    fields = {"journal_values": ["@network.%h"], "journal_codec": "blocks", "checkpoint_budget": "160"}
    run_journaled(TRAININGS[DROPOUT], path, **fields)
    with nncdbg.journal.open(path) as journal:
        assert len(journal.kept_values()) == 20, "8 bytes each, of 64"


@pytest.mark.parametrize("name", NAMES)
def test_names_of_values_are_those_of_their_statistics(name: str, tmp_path: Path) -> None:
    """A pattern matches the names that `--journal-statistics` writes."""
    path = tmp_path / "run.db"
    debugger = run_journaled(TRAININGS[name], path, journal_statistics=True, journal_values=["*"])
    with nncdbg.journal.open(path) as journal:
        measured = {*journal.measured()}
        assert {each.name for each in journal.kept_values()} == measured
        assert measured <= {*names_of_values(debugger.loaded.program)}


MATCHES = """
%w           | w            | yes
%w           | %w           | yes
%w           | %            | no
%w.1         | w            | no
%w.1         | w*           | yes
@loss.%z     | @loss.%z     | yes
@loss.%z     | @loss.*      | yes
@loss.%z     | *            | yes
@loss.%z     | z            | no
@loss.%z     | *.%z         | yes
@loss.%z1    | @loss.%z?    | yes
@loss.%z1    | @loss.%z[12] | yes
%a[0]        | %a[0]        | yes
%A           | a            | no
"""


@pytest.mark.parametrize("line", MATCHES.strip().splitlines())
def test_patterns(line: str) -> None:
    name, pattern, expected = map(str.strip, line.split("|"))
    assert matches(name, pattern) is (expected == "yes")


BAD = {
    "--journal-values zz: the program has no such value": {"journal_values": ["w", "zz"]},
    "there is no codec 'zip'": {"journal_values": ["w"], "journal_codec": "zip"},
    "--journal-values-every 0: not a distance": {"journal_values": ["w"], "journal_values_every": "0"},
    "--journal-codec is for values that are kept": {"journal_codec": "f16"},
    "--journal-values-every is for values that are kept": {"journal_values_every": "5"},
    "--journal-values needs the values of a whole step": {"journal_values": ["w"], "allocator": "arena"},
}


@pytest.mark.parametrize("message", BAD)
def test_wrong_settings_are_errors_before_the_journal_is_written(message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with pytest.raises(UsageError) as raised:
        run_journaled(TRAININGS[DROPOUT], path, **BAD[message])  # type: ignore[arg-type]
    assert raised.value.message.startswith(message)
    assert not path.exists()


def test_a_pattern_without_a_match_suggests_a_similar_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        run_journaled(TRAININGS[DROPOUT], tmp_path / "run.db", journal_values=["@network.%zz"])
    assert raised.value.hint == "did you mean @network.%z?"


def test_a_repeated_run_keeps_no_values(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    run_journaled(TRAININGS[DROPOUT], path)
    opened = opened_at(f"{path}@3", journal_values=["w"])
    with pytest.raises(UsageError) as raised, journaled(opened, opened.debugger()):
        pass
    assert "start a fork of the run with --fork" in str(raised.value)


def test_an_edit_and_a_fork_continue_the_values_of_their_parent(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    opened = written(TRAININGS[DROPOUT], path, journal_values=["w"], journal_values_every="2")
    debugger: Debugger = opened.debugger(statistics=False)
    with journaled(opened, debugger):
        debugger.break_at(graph="train", when="$step == 9")
        debugger.run()
        debugger.set_value("w", np.ones((2, 3), np.float32))
        debugger.delete()
        debugger.run()
    with nncdbg.journal.open(path) as journal:
        assert [each.step for each in journal.kept_values(1)] == [0, 2, 4, 6, 8]
        assert [(each.run, each.step) for each in journal.kept_values(2)] == [
            *[(1, step) for step in (0, 2, 4, 6, 8)],
            *[(2, step) for step in (9, 11, 13, 15, 17, 19)],
        ]


def test_values_are_kept_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.nnc").write_text(TRAININGS[ACCUMULATE].text)
    nncdbg.run(
        "train.nnc",
        journal="run.db",
        journal_values=["@loss.%q"],
        journal_values_every="5",
        journal_codec="f16",
    )
    with nncdbg.journal.open("run.db") as journal:
        assert [(each.step, each.codec, each.bytes) for each in journal.kept_values()] == [
            (step, "f16", 10) for step in (0, 5, 10)
        ]
        value, error = journal.value_of(None, "@loss.%q", 5)
        assert value.shape == (5,)
        assert 0 < error.absolute < 1e-2
