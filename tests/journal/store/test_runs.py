"""Runs, steps, tracked values, checkpoints and remarks: what is written is read back."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import journal
from nncdbg.dtypes import NUMPY
from nncdbg.errors import LoadError, UsageError
from nncdbg.journal import NewRun
from tests.laws import examples

GRAPH = NewRun(kind="graph", name="train.nnc")


def test_values_of_a_step_are_committed_with_it(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        run.step(0, values=[("l", 0.5, "train"), ("l", 0.75, "test"), ("g", math.nan, "train")])
        run.flush()
        with journal.open(tmp_path / "run.db") as other:
            assert other.values(1, "l")[1].tolist() == [0.5]
            assert other.values(1, "l", "test")[1].tolist() == [0.75]
            assert np.isnan(other.values(1, "g")[1]).tolist() == [True]


def test_a_run_is_read_back_with_all_its_fields(tmp_path: Path) -> None:
    new = NewRun(
        kind="torch",
        name="train.py",
        program="graph @main() {}",
        configuration={"lr": 0.1, "betas": [0.9, 0.999]},
        versions={"torch": "2.13"},
        seed=7,
        command=["python", "train.py"],
    )
    with journal.open(tmp_path / "run.db", write=True) as file:
        with file.start(new) as run:
            run.step(0, epoch=0, seconds=0.5)
            run.step(1, epoch=1)
        found = file.run()
        assert (found.number, found.kind, found.name, found.status) == (1, "torch", "train.py", "ended")
        assert (found.steps, found.epochs, found.seed) == (2, 2, 7)
        assert found.configuration == new.configuration
        assert found.versions == new.versions
        assert found.command == new.command
        assert found.ended is not None
        assert found.ended >= found.started
        assert file.program(1) == new.program
        steps = file.steps(1)
        assert steps["step"].tolist() == [0, 1]
        assert steps["epoch"].tolist() == [0, 1]
        assert steps["seconds"][0] == 0.5
        assert math.isnan(steps["seconds"][1])


def test_another_connection_reads_what_was_flushed(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        run.value("loss", 0, 1.5)
        run.flush()
        with journal.open(tmp_path / "run.db") as reader:
            assert reader.run().status == "running"
            assert reader.values(1, "loss")[1].tolist() == [1.5]
            run.value("loss", 1, 2.5)
            run.end()
            assert reader.values(1, "loss")[1].tolist() == [1.5, 2.5]
            assert reader.run().status == "ended"
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53)


@examples(25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["loss", "acc"]), st.sampled_from(["train", "test"]), st.integers(0, 9), NUMBERS
        )
    )
)
def test_values_equal_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, str, int, float]]
) -> None:
    """The last value of a step counts; train and test are apart; NaN, Inf and each bit are kept."""
    expected: dict[tuple[str, str], dict[int, float]] = {}
    with journal.open(tmp_path_factory.mktemp("values") / "run.db", write=True) as file:
        run = file.start(GRAPH)
        for n, (name, part, step, number) in enumerate(records):
            run.value(name, step, number, part)
            expected.setdefault((name, part), {})[step] = float(number)
            if n % 3 == 2:
                run.flush()
        run.end()
        assert sorted(file.tracks(1)) == sorted(expected)
        for (name, part), values in expected.items():
            steps, numbers = file.values(1, name, part)
            assert steps.tolist() == sorted(values)
            np.testing.assert_array_equal(numbers, [values[step] for step in sorted(values)])


@pytest.mark.parametrize("dtype", [name for name in NUMPY if name != "str"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_of_all_types_are_read_back_bit_for_bit(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(NUMPY[dtype])
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        run.checkpoint(3, position={"index": 2}, tensors={"state/w": array})
        run.end()
        checkpoint = file.read(file.checkpoints(1)[0])
        found = checkpoint.tensors["state/w"]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, shape, array.tobytes())
        assert checkpoint.position == {"index": 2}
        assert not found.flags.writeable


def test_a_view_and_a_big_endian_array_are_stored_by_value(tmp_path: Path) -> None:
    base = np.arange(12.0).reshape(3, 4)
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        run.checkpoint(0, position={}, tensors={"t": base.T, "big": base.astype(">f4"), "half": base[:, ::2]})
        run.end()
        tensors = file.read(file.checkpoints(1)[0]).tensors
        np.testing.assert_array_equal(tensors["t"], base.T)
        np.testing.assert_array_equal(tensors["big"], base.astype("f4"))
        np.testing.assert_array_equal(tensors["half"], base[:, ::2])


def test_unchanged_tensors_are_stored_once(tmp_path: Path) -> None:
    large = np.random.default_rng(0).random(1 << 17)
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        for step in range(20):
            run.checkpoint(step, position={}, tensors={"state/w": large.copy(), "state/step": np.int64(step)})
        run.end()
        assert sum(record.bytes for record in file.checkpoints(1)) == 20 * (large.nbytes + 8)
        np.testing.assert_array_equal(file.read(file.checkpoints(1)[7]).tensors["state/w"], large)
    assert (tmp_path / "run.db").stat().st_size < 2 * large.nbytes


def test_a_blob_is_a_safetensors_file(tmp_path: Path) -> None:
    from safetensors.numpy import load

    array = np.arange(1_500_000, dtype=np.float32).reshape(3, -1)
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        run.checkpoint(0, position={}, tensors={"state/w": array})
    connection = sqlite3.connect(tmp_path / "run.db")
    (head,) = connection.execute("SELECT head FROM blobs").fetchone()
    chunks = connection.execute("SELECT data FROM chunks ORDER BY part").fetchall()
    connection.close()
    assert len(chunks) == 2
    np.testing.assert_array_equal(load(head + b"".join(chunk for (chunk,) in chunks))["tensor"], array)


def test_a_removed_checkpoint_gives_its_space_back(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        shared = np.ones(10)
        for step in range(30):
            run.checkpoint(step, position={}, tensors={"w": np.full(1 << 17, step), "shared": shared})
            if step:
                run.remove_checkpoint(step - 1)
        run.flush()
        (record,) = file.checkpoints(1)
        assert record.step == 29
        np.testing.assert_array_equal(file.read(record).tensors["shared"], shared)
        run.remove_checkpoint(29)
        run.end()
        assert file.checkpoints(1) == []
        with pytest.raises(UsageError, match="step 29 was removed"):
            file.read(record)
    assert (tmp_path / "run.db").stat().st_size < 8 << 20


def test_a_fork_has_the_steps_of_its_parents_before_it(tmp_path: Path) -> None:
    """Run 2 forks run 1 at step 4, and run 3 forks run 2 at step 6."""
    with journal.open(tmp_path / "run.db", write=True) as file:
        first = file.start(GRAPH)
        for step in range(10):
            first.step(step)
            first.value("loss", step, 100 + step)
            first.checkpoint(step, position={"run": 1}, tensors={})
        first.end()
        second = file.fork(1, 4, GRAPH)
        for step in range(4, 10):
            second.step(step)
            second.value("loss", step, 200 + step)
        second.checkpoint(5, position={"run": 2}, tensors={})
        second.end()
        third = file.fork(2, 6, GRAPH)
        third.value("loss", 6, 306)
        third.value("acc", 6, 1)
        third.end()
        assert file.values(1, "loss")[1].tolist() == [100 + step for step in range(10)]
        assert file.values(3, "loss")[1].tolist() == [100, 101, 102, 103, 204, 205, 306]
        assert file.steps(3)["step"].tolist() == [0, 1, 2, 3, 4, 5]
        assert file.tracks(3) == [("loss", "train"), ("acc", "train")]
        assert [(c.run, c.step) for c in file.checkpoints(3)] == [(1, n) for n in range(5)] + [(2, 5)]
        assert file.nearest(3, 4) == file.checkpoints(1)[4]
        assert file.nearest(3, 100) == file.checkpoints(2)[-1]
        assert (file.run(3).parent, file.run(3).parent_step, file.run(3).steps) == (2, 6, 6)


def test_remarks_are_kept_in_order(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        run = file.start(GRAPH)
        run.note("too high?", 3)
        run.note("whole run")
        run.command("set lr 1e-4", 4)
        run.edit("lr", 4, "1e-4")
        run.event("nan", 5, "%loss has 1 NaN")
        run.end()
        assert [(note.step, note.text) for note in file.notes(1)] == [(3, "too high?"), (None, "whole run")]
        assert [(c.step, c.text) for c in file.commands(1)] == [(4, "set lr 1e-4")]
        assert [(e.step, e.name, e.text) for e in file.edits(1)] == [(4, "lr", "1e-4")]
        assert [(e.kind, e.step, e.message) for e in file.events(1)] == [("nan", 5, "%loss has 1 NaN")]


@pytest.mark.parametrize(
    ("raised", "status"), [(None, "ended"), (ValueError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_a_block_ends_its_run(tmp_path: Path, raised: type[BaseException] | None, status: str) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        with contextlib.suppress(ValueError, KeyboardInterrupt), file.start(GRAPH) as run:
            run.step(0)
            if raised is not None:
                raise raised
        assert file.run(1).status == status
        with pytest.raises(UsageError, match="run 1 has ended"):
            run.step(1)


def test_wrong_calls_are_usage_errors(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        with pytest.raises(UsageError, match="has no runs"):
            file.run()
        run = file.start(GRAPH)
        cases: dict[str, Callable[[], object]] = {
            "there is no run 7 to fork": lambda: file.start(replace(GRAPH, parent=7, parent_step=0)),
            "has no run 7": lambda: file.fork(7, 0, GRAPH),
            "run 1 has no step 5 to fork at: it has 0 steps": lambda: file.fork(1, 5, GRAPH),
            'no tracked value "acc"': lambda: file.values(1, "acc"),
            "count from 0, not from -1": lambda: run.step(-1),
            "cannot be stored as JSON": lambda: run.checkpoint(0, position={"a": object()}, tensors={}),
            'cannot store "w" in a journal': lambda: run.checkpoint(
                0, position={}, tensors={"w": np.array(["text"])}
            ),
            'cannot end with the status "done"': lambda: run.end("done"),
        }
        for message, call in cases.items():
            with pytest.raises(UsageError, match=message):
                call()
        run.end()
    with journal.open(tmp_path / "run.db") as reader, pytest.raises(UsageError, match="open only to read"):
        reader.start(GRAPH)
    with pytest.raises(UsageError, match="is closed"):
        reader.runs()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        journal.open(tmp_path / "missing.db")
    with pytest.raises(UsageError, match="it is a folder"):
        journal.open(tmp_path)
    with pytest.raises(UsageError, match="the folder .* does not exist"):
        journal.open(tmp_path / "no" / "run.db", write=True)
    (tmp_path / "text.db").write_text("no database")
    (tmp_path / "empty.db").touch()
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.close()
    for name, why in {
        "text.db": "it is not an SQLite database",
        "empty.db": "it is empty",
        "other.db": "it is another SQLite database",
    }.items():
        with pytest.raises(LoadError, match=f"is not a journal: {why}"):
            journal.open(tmp_path / name)
    with pytest.raises(LoadError, match="it is another SQLite database"):
        journal.open(tmp_path / "other.db", write=True)
    with journal.open(tmp_path / "run.db", write=True) as file:
        file.start(GRAPH).end()
    newer = sqlite3.connect(tmp_path / "run.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(LoadError, match="schema version 99"):
        journal.open(tmp_path / "run.db")


def test_bfloat16_is_a_type_of_the_blob(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        run.checkpoint(0, position={}, tensors={"w": np.array([1.5, math.inf], ml_dtypes.bfloat16)})
        run.flush()
        assert file.read(file.checkpoints(1)[0]).tensors["w"].tolist() == [1.5, math.inf]
