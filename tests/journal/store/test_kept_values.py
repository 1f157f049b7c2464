"""N14: values that are kept for history, by codecs with measured errors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nncdbg import journal
from nncdbg.errors import LoadError, NncdbgError, UsageError
from nncdbg.journal import Journal, NewRun
from nncdbg.journal.codecs import EXACT, block_count, decode, encode
from tests.laws import examples

GRAPH = NewRun(kind="graph", name="train.nnc")
X = np.random.default_rng(0).normal(size=(10, 30)).astype(np.float32)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("codec", ["exact", "f16", "blocks"])
def test_a_value_is_read_as_its_codec_has_encoded_it(codec: str, compression: str, tmp_path: Path) -> None:
    """N14: a quarter of f16 per tensor with the codec blocks, and the error with each value."""
    with journal.open(tmp_path / "run.db", write=True, compression=compression) as file:
        with file.start(GRAPH) as run:
            run.keep_values(3, {"%x": X, "@f.%y": X.T}, codec=codec)
        encoded = encode(X, codec)
        found, error = file.value_of(None, "%x", 3)
        assert found.tobytes() == decode(encoded).tobytes()
        assert (found.dtype, found.shape) == (X.dtype, X.shape)
        assert not found.flags.writeable
        assert error == encoded.error
        distance = np.abs(found.astype(np.float64) - X)
        assert error.absolute == distance.max()
        assert error.rms == pytest.approx(np.sqrt((distance**2).mean()))
        (record, other) = file.kept_values()
        assert (record.name, other.name, record.run, record.step) == ("%x", "@f.%y", 1, 3)
        assert (record.codec, record.dtype, record.shape, other.shape) == (codec, "f32", (10, 30), (30, 10))
        size = {"exact": 4 * X.size, "f16": 2 * X.size, "blocks": 8 * block_count(X.shape)}[codec]
        assert record.bytes == size


def test_what_a_codec_cannot_store_is_exact_and_says_so(tmp_path: Path) -> None:
    values = {"i": np.arange(5), "b": np.array(True), "large": np.array([1e6, 0.1]), "x": X[0]}
    with journal.open(tmp_path / "run.db", write=True) as file:
        with file.start(GRAPH) as run:
            run.keep_values(0, values, codec="f16")
        assert {each.name: each.codec for each in file.kept_values()} == {
            "i": "exact",
            "b": "exact",
            "large": "exact",
            "x": "f16",
        }
        for name in ("i", "b", "large"):
            found, error = file.value_of(1, name, 0)
            assert found.tobytes() == values[name].tobytes()
            assert error == EXACT


def test_a_fork_has_the_values_of_its_parent_before_its_first_step(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        with file.start(GRAPH) as run:
            for step in range(6):
                run.step(step)
                run.keep_values(step, {"x": np.array(float(step))})
        with file.fork(1, 3, GRAPH) as fork:
            fork.keep_values(3, {"x": np.array(30.0), "y": np.array(1.0)})
        assert [(each.run, each.step) for each in file.kept_values(2, "x")] == [
            (1, 0),
            (1, 1),
            (1, 2),
            (2, 3),
        ]
        assert file.value_of(2, "x", 2)[0] == 2
        assert file.value_of(2, "x", 3)[0] == 30
        assert file.value_of(1, "x", 3)[0] == 3


def test_a_second_call_for_a_step_replaces_its_values(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file:
        with file.start(GRAPH) as run:
            run.keep_values(0, {"x": X, "y": X})
            run.flush()
            run.keep_values(0, {"x": X + 1}, codec="f16")
        assert [(each.name, each.codec) for each in file.kept_values()] == [("x", "f16")]
        assert file.sql("SELECT count(*) FROM blobs")[1] == [(1,)]


BAD = {
    'run 1 keeps no value of "x" at step 2': ("x", 2, "the steps 0, 5"),
    'run 1 keeps no value of "z" at step 0': ("z", 0, "it keeps x, y"),
}


@pytest.mark.parametrize("message", BAD)
def test_an_absent_value_is_an_error_with_what_is_kept(message: str, tmp_path: Path) -> None:
    name, step, hint = BAD[message]
    with journal.open(tmp_path / "run.db", write=True) as file:
        with file.start(GRAPH) as run:
            for each in (0, 5):
                run.keep_values(each, {"x": X, "y": X})
        with pytest.raises(UsageError) as raised:
            file.value_of(1, name, step)
        assert raised.value.message == message
        assert hint in str(raised.value.hint)


def test_wrong_calls_are_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        for values, codec, words in (
            ({"x": X}, "zip", "there is no codec 'zip'"),
            ({"x": np.array(["text"])}, "exact", 'cannot store "x" in a journal'),
        ):
            with pytest.raises(UsageError, match=words):
                run.keep_values(0, values, codec=codec)
        run.keep_values(0, {"x": X})


def _dropped(dropped: int, step: int, size: int) -> list[int]:
    return [dropped]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["keep", "checkpoint", "drop", "remove", "flush"]), st.integers(0, 3)),
    max_size=14,
)


@examples(40)
@given(ACTIONS)
def test_tensors_that_checkpoints_and_kept_values_share_stay_until_neither_has_them(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """A tensor of a step is one blob, whether a checkpoint has it, a kept value, or both."""
    path = tmp_path_factory.mktemp("shared") / "run.db"
    kept: set[int] = set()
    checkpoints: list[int] = []
    with journal.open(path, write=True) as file, file.start(GRAPH) as run:
        for number, (action, step) in enumerate(actions):
            tensors = {"w": np.full((3, 3), step, np.float32)}
            if action == "keep":
                run.keep_values(step, tensors)
                kept.add(step)
            elif action == "checkpoint":
                run.checkpoint(step, position={}, tensors=tensors)
                checkpoints.append(step)
            elif action == "drop":
                marker = 100 + number
                run.keep_values(marker, {}, drop=partial(_dropped, step))
                kept.discard(step)
            elif action == "remove":
                run.remove_checkpoint(step)
                checkpoints = [each for each in checkpoints if each != step]
            else:
                run.flush()
        run.flush()
        assert {each.step for each in file.kept_values()} == kept
        for step in kept:
            assert file.value_of(1, "w", step)[0].tolist() == [[step] * 3] * 3
        assert sorted(each.step for each in file.checkpoints()) == sorted(checkpoints)
        for record in file.checkpoints():
            assert file.read(record).tensors["w"].tolist() == [[record.step] * 3] * 3
        assert file.sql("SELECT count(*) FROM blobs")[1] == [(len(kept | {*checkpoints}),)]
        assert file.sql("SELECT count(*) FROM chunks")[1] == [(len(kept | {*checkpoints}),)]


def _read(file: Journal) -> object:
    return [file.value_of(1, each.name, each.step)[0].tolist() for each in file.kept_values(1)]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE kept_values SET absolute = 0",
        "UPDATE kept_values SET codec = 'f16'",
        "UPDATE kept_values SET shape = '[30, 10]'",
        "UPDATE kept_values SET step = 1",
        "DELETE FROM kept_values WHERE name = 'x'",
        "UPDATE kept_values SET hash = (SELECT hash FROM blobs WHERE hash != kept_values.hash)",
        "UPDATE chunks SET data = zeroblob(length(data)) WHERE blob = 2",
        "DELETE FROM blobs WHERE blob = 1",
    ],
)
def test_a_changed_row_is_an_error(change: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with journal.open(path, write=True) as file, file.start(GRAPH) as run:
        run.keep_values(0, {"x": X, "y": X + 1}, codec="blocks")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    with journal.open(path) as file, pytest.raises(LoadError):
        _read(file)


def test_values_of_a_run_that_is_being_written_are_read(tmp_path: Path) -> None:
    with journal.open(tmp_path / "run.db", write=True) as file, file.start(GRAPH) as run:
        run.keep_values(0, {"x": X})
        run.flush()
        with journal.open(tmp_path / "run.db") as reader:
            assert reader.value_of(None, "x", 0)[0].tolist() == X.tolist()
            run.keep_values(1, {"x": X + 1})
            run.flush()
            assert [each.step for each in reader.kept_values()] == [0, 1]


def test_an_error_of_the_file_is_raised_by_a_later_call(tmp_path: Path) -> None:
    file = journal.open(tmp_path / "run.db", write=True)
    run = file.start(GRAPH)

    def failing(step: int, size: int) -> list[int]:
        raise ValueError("broken")

    run.keep_values(0, {"x": X}, drop=failing)
    with pytest.raises(NncdbgError, match="broken"):
        run.flush()
    with pytest.raises(NncdbgError):
        file.close()
